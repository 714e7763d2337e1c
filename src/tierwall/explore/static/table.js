// Tables that sort and filter. Without this file they are tables all the same.
export function prepare(root) {
  for (const table of root.querySelectorAll("table[data-sortable]")) {
    if (table.dataset.ready) continue;
    table.dataset.ready = "yes";
    table.querySelectorAll("thead th").forEach((head, column) => sortable(table, head, column));
    if (table.dataset.filter && table.tBodies[0].rows.length > 3) filterable(table);
  }
}

function sortable(table, head, column) {
  const button = document.createElement("button");
  button.type = "button";
  button.append(...head.childNodes);
  head.append(button);
  button.addEventListener("click", () => {
    const up = head.getAttribute("aria-sort") !== "ascending";
    for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const order = new Intl.Collator("en", { numeric: true }).compare;
    const rows = [...table.tBodies[0].rows].map((row) => [row.cells[column]?.textContent ?? "", row]);
    rows.sort(([left], [right]) => (up ? order(left, right) : order(right, left)));
    table.tBodies[0].append(...rows.map(([, row]) => row));
  });
}

function filterable(table) {
  const box = document.createElement("label");
  box.className = "rows-filter";
  const field = document.createElement("input");
  field.type = "search";
  const told = document.createElement("span");
  told.setAttribute("role", "status");
  box.append(table.dataset.filter, field, told);
  table.parentElement.before(box);
  const rows = [...table.tBodies[0].rows].map((row) => [row.textContent.toLowerCase(), row]);
  let waiting;
  field.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const [text, row] of rows) {
        row.hidden = !words.every((word) => text.includes(word));
        if (!row.hidden) shown += 1;
      }
      told.textContent = words.length ? `${shown} of ${rows.length} rows` : "";
    }, 80);
  });
}
