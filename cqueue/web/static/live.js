// Keeps an open page up to date: a stream sends its `data-live` parts whenever they have changed. The page is
// fetched again every few seconds where no stream comes through, and before each. A part that somebody is using
// (focus, an open menu) waits. Without this script a reload does the same. No library is needed to put whole
// parts in place.
"use strict";

const tick = document.getElementById("tick");
const hold = document.getElementById("hold");
const at = document.getElementById("at");
const away = document.getElementById("away");
const hasParts = document.querySelector("[data-live]") !== null;
const isTrouble = document.querySelector("[data-trouble]") !== null; // this page says why there is none as yet
const FIRST_MS = 5000; // a stream begins with all parts; one that a proxy holds back brings nothing
const SILENT_MS = 25000; // a stream says something every 15 s
const NO_STREAM_MS = 60000; // until a stream is tried again after one that did not open
const waiting = new Map(); // newest contents by id, of parts that are in use
let held = false;
let lastGood = Date.now();
let timer = 0;
let stream = null;
let noStreamUntil = 0;

function later(step, ms) {
  window.clearTimeout(timer);
  timer = window.setTimeout(step, ms);
}

function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function inUse(part) {
  const active = document.activeElement;
  return active !== null && active !== document.body && part.contains(active) && active.tagName !== "A";
}

// Compares what both are as elements: the server writes `selected` and `&#39;`, the browser others for them.
function update(part, html) {
  const fresh = document.createElement("template");
  fresh.innerHTML = html;
  const open = [...part.querySelectorAll("details")].map((one) => one.open);
  fresh.content.querySelectorAll("details").forEach((one, place) => { one.open = open[place] === true; });
  if (part.innerHTML !== fresh.innerHTML) replace(part, fresh.content);
}

function replace(part, content) {
  const links = [...part.querySelectorAll("a")];
  const focused = part.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  const place = links.filter((one) => one.getAttribute("href") === focused).indexOf(document.activeElement);
  part.replaceChildren(content);
  if (focused !== null) {
    const same = [...part.querySelectorAll("a")].filter((one) => one.getAttribute("href") === focused);
    (same[place] || same[0])?.focus({ preventScroll: true });
  }
}

function show() {
  for (const [id, html] of waiting) {
    const part = document.getElementById(id);
    if (part !== null && inUse(part)) continue;
    waiting.delete(id);
    if (part !== null) update(part, html);
  }
  lastGood = Date.now();
  away.hidden = true;
  say(at, `Last look at ${new Date(lastGood).toLocaleTimeString()}`);
}

function stop() {
  window.clearTimeout(timer);
  stream?.close();
  stream = null;
}

function listen() {
  stop();
  let hasSpoken = false;
  const ended = () => {
    stop();
    if (!hasSpoken) noStreamUntil = Date.now() + NO_STREAM_MS;
    look();
  };
  stream = new EventSource(`${at.dataset.stream}?of=${encodeURIComponent(location.pathname + location.search)}`);
  stream.addEventListener("error", ended);
  stream.addEventListener("message", (event) => {
    hasSpoken = true;
    for (const [id, html] of Object.entries(JSON.parse(event.data))) waiting.set(id, html);
    show();
    later(ended, SILENT_MS);
  });
  later(ended, FIRST_MS);
}

async function look() {
  stop();
  if (held || document.hidden) return;
  try {
    const answer = await fetch(location.href, { redirect: "error", signal: AbortSignal.timeout(10000) });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (isTrouble && [400, 401, 403, 404].includes(answer.status) && !held && !document.hidden) {
      location.reload(); // it is not there, or wants a name: that page asks no more
      return;
    }
    if (!answer.ok) throw new Error(page.querySelector("main .box")?.textContent || `It answers ${answer.status}.`);
    if (held || document.hidden) return;
    if (isTrouble) {
      location.reload();
      return;
    }
    for (const part of page.querySelectorAll("[data-live]")) waiting.set(part.id, part.innerHTML);
    show();
    if (Date.now() >= noStreamUntil) {
      listen();
      return;
    }
  } catch (error) {
    const age = Math.round((Date.now() - lastGood) / 1000);
    const why = error instanceof TypeError || error.name === "TimeoutError" ? "The dashboard does not answer." : error.message;
    say(away, `Not up to date: what is shown was read ${age} s ago. ${why}`);
    away.hidden = isTrouble;
  }
  later(look, 1000 * Number(tick.dataset.every));
}

// What was done just now is neither said for ever, as somebody else may undo it, nor again by a reload. The box
// keeps its place, so that no button moves away from under a click.
const told = document.getElementById("told");
if (told !== null) {
  const address = new URL(location.href);
  address.searchParams.delete("told");
  history.replaceState(null, "", address);
  window.setTimeout(() => told.classList.add("over"), 3000 * Number(tick.dataset.every));
}

if (hasParts) {
  tick.hidden = false;
  say(at, isTrouble ? "Tries again every few seconds" : `Last look at ${new Date().toLocaleTimeString()}`);
  later(look, 1000 * Number(tick.dataset.every));
  // A browser has six connections to a dashboard: pages that nobody sees leave them to others.
  document.addEventListener("visibilitychange", () => { if (document.hidden) stop(); else look(); });
  window.addEventListener("pagehide", stop);
  hold.addEventListener("click", () => {
    held = !held;
    hold.setAttribute("aria-pressed", String(held));
    say(hold, held ? "Go on with updates" : "Pause updates");
    if (held) stop(); else look();
  });
}

document.addEventListener("change", (event) => {
  const box = event.target;
  if (!(box instanceof HTMLInputElement) || !("all" in box.dataset)) return;
  for (const one of box.form.querySelectorAll("input[name=id]:not(:disabled)")) one.checked = box.checked;
});
