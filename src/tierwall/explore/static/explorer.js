// What every page does beyond being a page: keys, completion, copying, tables, drawings, and following the world.
import * as drawing from "./drawing.js";
import * as table from "./table.js";

document.documentElement.classList.add("scripted");
const main = document.getElementById("main"), field = document.getElementById("ask"), told = document.getElementById("told");

// Says something in a corner of the window for a while; `heard` is only read aloud, because the page shows it already.
const SAID_MS = 6000;
let saying;
export function say(words, heard = false) {
  clearTimeout(saying);
  told.textContent = "";
  told.classList.toggle("heard", heard);
  requestAnimationFrame(() => { told.textContent = words; });
  saying = setTimeout(() => { told.textContent = ""; }, SAID_MS);
}
export function prepare(root) { table.prepare(root); drawing.prepare(root); }
prepare(document);

export async function copy(text, words) {
  try { await navigator.clipboard.writeText(text); say(words); } catch { say("The browser does not allow copying. Select the text instead."); }
}
document.addEventListener("click", (event) => {
  const source = event.target.closest("[data-copy]");
  if (source) copy(document.getElementById(source.dataset.copy).textContent, "The command is copied.");
  if (event.target.closest("[data-keys]")) keys.showModal();
});

// Keys. In fields they are letters.
const keys = document.getElementById("keys"), on = document.getElementById("keys-on");
on.checked = localStorage.getItem("tierwall-keys") !== "off";
on.addEventListener("change", () => localStorage.setItem("tierwall-keys", on.checked ? "on" : "off"));
const rooms = { n: "network", t: "tools", s: "settings", p: "permissions", f: "findings", c: "change" };
let going = false;
document.addEventListener("keydown", (event) => {
  const isField = event.target.matches("input, textarea, select, [contenteditable]");
  // The browser must not act on this Escape as well: it could close a dialog that the next key opens.
  if (event.key === "Escape" && isField && !keys.open) { event.preventDefault(); event.target.blur(); }
  if (isField || keys.open || event.ctrlKey || event.metaKey || event.altKey || !on.checked) return;
  if (event.key === "/") { event.preventDefault(); field.focus(); field.select(); }
  else if (event.key === "?") keys.showModal();
  else if (going && rooms[event.key]) location.assign(`/${rooms[event.key]}`);
  else if ("+-".includes(event.key)) {
    for (const figure of document.querySelectorAll(".drawing"))
      figure.dispatchEvent(new CustomEvent("tierwall-zoom", { detail: event.key === "+" ? "in" : "out" }));
  }
  going = event.key === "g";
});

// Completion, from what is there.
const list = document.getElementById("completions");
let waiting, asked = 0;
field.addEventListener("input", () => {
  clearTimeout(waiting);
  waiting = setTimeout(async () => {
    const number = ++asked, text = field.value;
    if (text.trim().length < 2) return list.replaceChildren();
    const answer = await fetch(`/ask.json?complete=${encodeURIComponent(text)}`).catch(() => null);
    if (!answer?.ok || number !== asked) return;
    const { completions } = await answer.json();
    list.replaceChildren(...completions.map((word) => Object.assign(document.createElement("option"), { value: word })));
  }, 60);
});

// Why the explorer gives no answer: its token is new after a restart, or nobody listens.
export function unanswered(answer) {
  if (answer?.status === 403) return "The explorer was started again. Open the address that it printed then: this one is no longer valid.";
  return answer ? "The explorer cannot answer this now." : "The explorer does not answer. If it has ended, start it again and open the address that it prints.";
}

// Following: only the tab that is seen holds the stream open. The place on the page stays.
const badge = document.getElementById("badge"), again = badge.querySelector("[data-retry]");
// Tries to follow again before it is left to a person; the pauses double, the first lasts a second.
const TRIES = 5;
let stream = null, version = Number(document.documentElement.dataset.version), tries = 0, pause;
function problem(words, isFinal = false) {
  const text = badge.querySelector("span");
  if (text.textContent !== words) {
    text.textContent = words;
    // What was hidden until now is not read aloud by itself.
    if (words) say(words, true);
  }
  again.hidden = !isFinal;
  badge.hidden = !words;
}
function follow() {
  clearTimeout(pause);
  if (document.hidden || stream) return;
  stream = new EventSource("/follow");
  stream.addEventListener("world", (event) => {
    const now = JSON.parse(event.data);
    tries = 0;
    problem(now.problem);
    if (now.version !== version) refresh(now.version);
  });
  stream.addEventListener("error", lost);
}
async function lost() {
  rest();
  // The stream does not say why it ended; a small file does.
  const answer = await fetch("/static/icon.svg", { cache: "no-store" }).catch(() => null);
  if (document.hidden || stream) return;
  tries += 1;
  const isFinal = answer?.status === 403 || tries > TRIES;
  if (!answer?.ok || isFinal) problem(`What you see may be old. ${unanswered(answer)}`, isFinal);
  if (!isFinal) pause = setTimeout(follow, 500 * 2 ** tries);
}
function rest() { clearTimeout(pause); stream?.close(); stream = null; }
function start() { tries = 0; rest(); follow(); }
again.addEventListener("click", start);
document.addEventListener("visibilitychange", () => (document.hidden ? rest() : start()));
addEventListener("pagehide", rest);
addEventListener("pageshow", (event) => { if (event.persisted) start(); });
follow();

// What a person did to a page: typed, sorted, scrolled, zoomed, and where the focus is. Elements are told by their order.
const FIELDS = "input, select, textarea", STOPS = `a[href], button, ${FIELDS}`;
function place() {
  const boxes = [...main.querySelectorAll(".scroll, .manifest")].map((box) => [box.scrollTop, box.scrollLeft]);
  const fields = [...main.querySelectorAll(FIELDS)].map((field) => [field.name, field.value]);
  const sorted = [...main.querySelectorAll("table")].map((sheet) => table.order(sheet));
  const views = [...main.querySelectorAll(".canvas svg")].map((svg) => svg.getAttribute("viewBox"));
  const active = main.contains(document.activeElement) ? document.activeElement : null;
  const href = active?.getAttribute("href"), stop = active ? [...main.querySelectorAll(STOPS)].indexOf(active) : -1;
  return () => {
    main.querySelectorAll("table").forEach((sheet, number) => table.sort(sheet, sorted[number]));
    main.querySelectorAll(FIELDS).forEach((field, number) => {
      const [name, value] = fields[number] ?? [];
      if (name !== field.name || value === field.value) return;
      field.value = value;
      if (field.closest(".rows-filter")) field.dispatchEvent(new Event("input"));
    });
    main.querySelectorAll(".canvas").forEach((canvas, number) => canvas.dispatchEvent(new CustomEvent("tierwall-view", { detail: views[number] })));
    main.querySelectorAll(".scroll, .manifest").forEach((box, number) => { if (boxes[number]) [box.scrollTop, box.scrollLeft] = boxes[number]; });
    const same = href ? [...main.querySelectorAll("a[href]")].find((link) => link.getAttribute("href") === href) : main.querySelectorAll(STOPS)[stop];
    same?.focus({ preventScroll: true });
  };
}

async function refresh(now) {
  if (document.dispatchEvent(new CustomEvent("tierwall-world", { cancelable: true })) === false) { version = now; return; }
  const answer = await fetch(location.href).catch(() => null);
  const html = await answer?.text().catch(() => null);
  const page = html == null ? null : new DOMParser().parseFromString(html, "text/html"), fresh = page?.getElementById("main");
  if (!fresh) return problem(`What you see is old. ${unanswered(answer)}`);
  version = now;
  const restore = place(), top = scrollY;
  main.replaceChildren(...fresh.childNodes);
  document.title = page.title;
  prepare(main);
  restore();
  scrollTo(scrollX, top);
  say("The objects changed; this page is up to date.");
}
