"""What is wrong with a page as it is drawn: text that is hard to read or cut off, controls without names."""

CONTRAST = 4.5
"""Least contrast of text with what is behind it (WCAG 2.1, level AA)."""
LARGE = 3.0
"""The same of text of 24 pixels, or of 18.66 pixels and bold."""
CONTROLS = ("button", "link", "checkbox", "radio", "searchbox", "textbox", "combobox", "image")

LOOK = """((small, large) => {
  const context = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    context.clearRect(0, 0, 1, 1);
    context.fillStyle = colour;
    context.fillRect(0, 0, 1, 1);
    const [red, green, blue, alpha] = context.getImageData(0, 0, 1, 1).data;
    return [red, green, blue, alpha / 255];
  };
  const over = (above, below) => [0, 1, 2].map((i) => above[i] * above[3] + below[i] * (1 - above[3]));
  const behind = (element) => {
    if (element === null) return [255, 255, 255];
    const own = rgba(getComputedStyle(element).backgroundColor);
    return own[3] === 1 ? own.slice(0, 3) : over(own, behind(element.parentElement));
  };
  const light = (colour) => colour.map((part) => part / 255)
    .map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
    .reduce((sum, part, i) => sum + part * [0.2126, 0.7152, 0.0722][i], 0);
  const contrast = (one, other) => {
    const [dark, bright] = [light(one), light(other)].sort((a, b) => a - b);
    return (bright + 0.05) / (dark + 0.05);
  };
  const scrolls = (element) => element !== null &&
    (["auto", "scroll"].includes(getComputedStyle(element).overflowX) || scrolls(element.parentElement));
  const found = [];
  if (document.documentElement.scrollWidth > innerWidth)
    found.push(`the page is ${document.documentElement.scrollWidth} pixels wide, on ${innerWidth}`);
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let text = texts.nextNode(); text !== null; text = texts.nextNode()) {
    const element = text.parentElement, says = text.data.trim().slice(0, 40), range = document.createRange();
    range.selectNodeContents(text);
    const boxes = [...range.getClientRects()];
    if (says === "" || boxes.length === 0 || !element.checkVisibility({ visibilityProperty: true })) continue;
    const style = getComputedStyle(element), size = parseFloat(style.fontSize);
    const least = size >= 24 || (size >= 18.66 && style.fontWeight >= 600) ? large : small;
    const back = behind(element), seen = contrast(over(rgba(style.color), back), back);
    if (seen < least) found.push(`"${says}" has a contrast of ${seen.toFixed(2)}`);
    const hidden = element.closest(".hidden, .skip") !== null || scrolls(element);
    if (!hidden && boxes.some((box) => box.left < 0 || box.right > innerWidth + 1))
      found.push(`"${says}" stands outside the window`);
    if (boxes.length > 3 && text.data.trim().length < 4 * boxes.length)
      found.push(`"${says}" is broken into ${boxes.length} lines`);
  }
  for (const field of document.querySelectorAll("input[placeholder]")) {
    context.font = getComputedStyle(field).font;
    const { paddingLeft, paddingRight } = getComputedStyle(field);
    const room = field.clientWidth - parseFloat(paddingLeft) - parseFloat(paddingRight);
    if (context.measureText(field.placeholder).width > room) found.push(`"${field.placeholder}" is cut off`);
  }
  return found;
})(%s, %s)"""


def flaws(page):
    """What is wrong with a page, one sentence each."""
    nameless = [f"a {role} has no name" for role in CONTROLS if "" in page.names(role)]
    return page.js(LOOK % (CONTRAST, LARGE)) + nameless
