// Keeps an open page up to date: fetches it again every few seconds, while somebody sees it, and puts its
// `data-live` parts in place. A part that somebody is using (focus, an open menu) waits. Without this script a
// reload does the same. No library is needed to put whole parts in place.
"use strict";

const tick = document.getElementById("tick");
const hold = document.getElementById("hold");
const at = document.getElementById("at");
const away = document.getElementById("away");
const hasParts = document.querySelector("[data-live]") !== null;
const isTrouble = document.querySelector("[data-trouble]") !== null; // this page says why there is none as yet
const EVERY_MS = 1000 * Number(tick.dataset.every);
let held = false;
let lastGood = new Date();
let timer = 0;
let asking = new AbortController();

function later() {
  window.clearTimeout(timer);
  timer = window.setTimeout(look, EVERY_MS);
}

function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function inUse(part) {
  const active = document.activeElement;
  return active !== null && active !== document.body && part.contains(active) && active.tagName !== "A";
}

function update(part, fresh) {
  const open = [...part.querySelectorAll("details")].map((one) => one.open);
  fresh.querySelectorAll("details").forEach((one, place) => { one.open = open[place] === true; });
  if (part.innerHTML !== fresh.innerHTML) replace(part, fresh.childNodes);
}

function replace(part, nodes) {
  const links = [...part.querySelectorAll("a")];
  const focused = part.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  const place = links.filter((one) => one.getAttribute("href") === focused).indexOf(document.activeElement);
  part.replaceChildren(...nodes);
  if (focused !== null) {
    const same = [...part.querySelectorAll("a")].filter((one) => one.getAttribute("href") === focused);
    (same[place] || same[0])?.focus({ preventScroll: true });
  }
}

function show(page) {
  for (const fresh of page.querySelectorAll("[data-live]")) {
    const part = document.getElementById(fresh.id);
    if (part !== null && !inUse(part)) update(part, fresh);
  }
  lastGood = new Date();
  away.hidden = true;
  say(at, `Last look at ${lastGood.toLocaleTimeString()}`);
}

async function look() {
  window.clearTimeout(timer);
  asking.abort(); // a late answer would put older figures in place
  if (held || document.hidden) return;
  const mine = asking = new AbortController();
  let isLate = false;
  let isOver = false;
  const limit = window.setTimeout(() => { isLate = true; mine.abort(); }, 10000);
  try {
    const answer = await fetch(location.href, { redirect: "error", signal: mine.signal });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (isTrouble && (answer.ok || [400, 401, 403, 404].includes(answer.status))) {
      location.reload(); // it can be shown, is not there, or wants a name: that page asks no more
      return;
    }
    isOver = answer.status === 401;
    if (isOver) throw new Error("You are signed out: reload the page to sign in.");
    if (!answer.ok) throw new Error(page.querySelector("main [role=alert]")?.textContent || `It answers ${answer.status}.`);
    show(page);
  } catch (error) {
    if (mine.signal.aborted && !isLate) return;
    const why = isLate || error instanceof TypeError ? "The dashboard does not answer." : error.message;
    say(away, `Not up to date: what is shown was read at ${lastGood.toLocaleTimeString()}. ${why}`);
    away.hidden = isTrouble;
  } finally {
    window.clearTimeout(limit);
  }
  if (!isOver) later();
}

// What was done just now is neither said for ever, as somebody else may undo it, nor again by a reload. The box
// keeps its place, so that no button moves away from under a click.
const told = document.getElementById("told");
if (told !== null) {
  const address = new URL(location.href);
  address.searchParams.delete("told");
  history.replaceState(null, "", address);
  window.setTimeout(() => told.classList.add("over"), 3 * EVERY_MS);
}

if (hasParts) {
  tick.hidden = false;
  say(at, isTrouble ? "Tries again every few seconds" : `Last look at ${new Date().toLocaleTimeString()}`);
  later();
  document.addEventListener("visibilitychange", look);
  hold.addEventListener("click", () => {
    held = !held;
    hold.setAttribute("aria-pressed", String(held));
    say(hold, held ? "Go on with updates" : "Pause updates");
    look();
  });
}

document.addEventListener("change", (event) => {
  const box = event.target;
  if (!(box instanceof HTMLInputElement) || !("all" in box.dataset)) return;
  for (const one of box.form.querySelectorAll("input[name=id]:not(:disabled)")) one.checked = box.checked;
});
