// The editor of changes: compares as one types, undoes, and carries the change in the part of the address after `#`.
import { copy, prepare, say, unanswered } from "./explorer.js";

const form = document.getElementById("change-form"), field = document.getElementById("manifests"), result = document.getElementById("result");
for (const button of form.querySelectorAll("[data-action]")) button.hidden = false;
const history = [field.value];
let at = 0, waiting, running = null, isStale = false;

// One comparison at a time: whoever types on needs the one that is under way no more.
async function compare() {
  clearTimeout(waiting);
  // One step of undo is what was typed without a pause.
  if (field.value !== history[at]) { history.length = at + 1; history.push(field.value); at += 1; }
  isStale = running !== null;
  if (isStale) return running.abort();
  running = new AbortController();
  result.setAttribute("aria-busy", "true");
  const asked = { method: "POST", headers: { "Content-Type": "application/yaml" }, body: field.value, signal: running.signal };
  const answer = await fetch("/change?format=html", asked).catch(() => null);
  const html = await answer?.text().catch(() => null);
  running = null;
  if (isStale) return compare();
  result.setAttribute("aria-busy", "false");
  const page = html == null ? null : new DOMParser().parseFromString(html, "text/html").getElementById("result");
  if (!page) return fail(answer?.status === 413 ? "The change is too large: 4 MB are the most." : `This was not compared. ${unanswered(html == null ? null : answer)}`);
  result.replaceChildren(...page.childNodes);
  prepare(result);
  say(result.querySelector("h2")?.textContent ?? "", true);
  keep();
}
// The words stay in the place of the result, which is none of this change.
function fail(words) {
  result.replaceChildren(Object.assign(document.createElement("p"), { className: "problems", textContent: words }));
  say(words, true);
}
function soon() { clearTimeout(waiting); waiting = setTimeout(compare, 100); }
field.addEventListener("input", soon);
form.addEventListener("submit", (event) => { event.preventDefault(); compare(); });
document.addEventListener("tierwall-world", (event) => { event.preventDefault(); compare(); });

function go(step) {
  if (history[at + step] === undefined) return say(step < 0 ? "There is nothing to undo." : "There is nothing to redo.");
  at += step;
  field.value = history[at];
  compare();
}
function replace(text) { field.value = text; compare(); }

// The change in the address: deflated, in the alphabet of addresses. Browsers do not send this part.
async function packed(text) {
  const stream = new Blob([text]).stream().pipeThrough(new CompressionStream("deflate-raw"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  let binary = "";
  for (const byte of bytes) binary += String.fromCharCode(byte);
  return btoa(binary).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}
const LIMIT = 4 << 20;
async function unpacked(text) {
  const binary = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
  const bytes = Uint8Array.from(binary, (letter) => letter.charCodeAt(0));
  const reader = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw")).getReader();
  const parts = [];
  for (let size = 0; ;) {
    const { done, value } = await reader.read();
    if (done) return new Blob(parts).text();
    size += value.length;
    if (size > LIMIT) throw new Error("too large");
    parts.push(value);
  }
}
async function keep() {
  const text = field.value;
  window.history.replaceState(null, "", text ? `/change#${await packed(text)}` : "/change");
}
async function restore() {
  if (location.hash.length < 2) return;
  try { replace(await unpacked(location.hash.slice(1))); } catch { fail("The change in this address cannot be read: a part of the address may be missing. Ask for it again."); }
}
addEventListener("hashchange", restore);
restore();

const actions = {
  undo: () => go(-1),
  redo: () => go(1),
  download: () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([field.value], { type: "application/yaml" }));
    link.download = "change.yaml";
    link.click();
    URL.revokeObjectURL(link.href);
    say("The patch is in change.yaml.");
  },
  kubectl: (button) => copy(button.dataset.command, "The command is copied. Download the patch first."),
  link: async () => { await keep(); copy(location.href, "The link is copied; it carries the change."); },
};
form.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-action]");
  actions[button?.dataset.action]?.(button);
});
form.querySelector("select").addEventListener("change", async (event) => {
  const name = event.target.value;
  if (!name) return replace("");
  const answer = await fetch(`/change?object=${encodeURIComponent(name)}`).catch(() => null);
  if (!answer?.ok) return say(unanswered(answer));
  const page = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("manifests");
  if (page) replace(page.value);
});
