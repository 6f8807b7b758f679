// Keeps an open page up to date: fetches the same page again and puts its `data-live` parts in place.
// A part that somebody is using (focus, an open menu) is left alone. Without this script a reload does the same.
"use strict";

const tick = document.getElementById("tick");
const hold = document.getElementById("hold");
const at = document.getElementById("at");
const away = document.getElementById("away");
const hasParts = document.querySelector("[data-live]") !== null;
let held = false;
let lastGood = Date.now();
let timer = 0;

function later() {
  window.clearTimeout(timer);
  timer = window.setTimeout(look, 1000 * Number(tick.dataset.every));
}

function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function inUse(part) {
  const active = document.activeElement;
  return active !== null && active !== document.body && part.contains(active) && active.tagName !== "A";
}

function replace(part, fresh) {
  if (inUse(part) || part.innerHTML === fresh.innerHTML) return;
  const open = new Set([...part.querySelectorAll("details")].map((one, place) => (one.open ? place : -1)));
  const links = [...part.querySelectorAll("a")];
  const focused = part.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  const place = links.filter((one) => one.getAttribute("href") === focused).indexOf(document.activeElement);
  part.innerHTML = fresh.innerHTML;
  part.querySelectorAll("details").forEach((one, index) => { one.open = open.has(index); });
  if (focused !== null) {
    const same = [...part.querySelectorAll("a")].filter((one) => one.getAttribute("href") === focused);
    (same[place] || same[0])?.focus({ preventScroll: true });
  }
}

async function look() {
  window.clearTimeout(timer);
  if (held || document.hidden) return;
  try {
    const answer = await fetch(location.href, { redirect: "error", signal: AbortSignal.timeout(10000) });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (!answer.ok) throw new Error(page.querySelector("main .box")?.textContent || `It answers ${answer.status}.`);
    for (const part of document.querySelectorAll("[data-live]")) {
      const fresh = page.getElementById(part.id);
      if (fresh !== null) replace(part, fresh);
    }
    lastGood = Date.now();
    away.hidden = true;
    say(at, `Up to date at ${new Date(lastGood).toLocaleTimeString()}`);
  } catch (error) {
    const age = Math.round((Date.now() - lastGood) / 1000);
    const why = error instanceof TypeError || error.name === "TimeoutError" ? "The dashboard does not answer." : error.message;
    say(away, `Not up to date: what is shown was read ${age} s ago. ${why}`);
    away.hidden = false;
  }
  later();
}

if (hasParts) {
  tick.hidden = false;
  say(at, `Up to date at ${new Date().toLocaleTimeString()}`);
  later();
  document.addEventListener("visibilitychange", () => { if (!document.hidden && !held) look(); });
  hold.addEventListener("click", () => {
    held = !held;
    hold.setAttribute("aria-pressed", String(held));
    say(hold, held ? "Go on with updates" : "Pause updates");
    if (!held) look();
  });
}

document.addEventListener("change", (event) => {
  const box = event.target;
  if (!(box instanceof HTMLInputElement) || !("all" in box.dataset)) return;
  for (const one of box.form.querySelectorAll("input[name=id]:not(:disabled)")) one.checked = box.checked;
});
