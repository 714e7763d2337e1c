// A page in one file: the table has everything, and choosing a namespace shows only its rows.
document.documentElement.classList.add("scripted");
table.prepare(document);
drawing.prepare(document);
const folded = document.querySelector("#picture"), rows = [...document.querySelectorAll("tr[data-units]")];
const units = document.querySelector("#units"), names = units ? [...units.options].map((option) => option.value) : [];
const masks = rows.map((row) => BigInt(`0x${row.dataset.units}`)), whole = folded?.innerHTML, told = document.querySelector("#told");
function chosen() {
  // What is no address shows everything, as an unknown name does.
  try { return decodeURIComponent(location.hash.replace(/^#focus=/, "")); } catch { return ""; }
}
function show() {
  const name = chosen(), number = names.indexOf(name) - 1;
  let shown = 0;
  rows.forEach((row, at) => {
    const isMeant = number < 0 || (masks[at] >> BigInt(number)) & 1n;
    row.classList.toggle("elsewhere", !isMeant);
    if (isMeant) shown += 1;
  });
  if (units) units.value = number < 0 ? "" : name;
  const opened = number < 0 ? null : document.getElementById(`focus-${number}`);
  if (folded) {
    if (opened) folded.replaceChildren(opened.content.cloneNode(true));
    else folded.innerHTML = whole;
    for (const canvas of folded.querySelectorAll("[data-ready]")) delete canvas.dataset.ready;
    drawing.prepare(document);
  }
  if (told) told.textContent = number < 0 ? `${rows.length.toLocaleString("en")} groups of connections` : `${shown.toLocaleString("en")} groups of connections from or to ${name}`;
}
units?.addEventListener("change", () => { location.hash = units.value ? `focus=${encodeURIComponent(units.value)}` : ""; });
addEventListener("hashchange", show);
if (rows.length) show();
