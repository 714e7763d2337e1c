// Tables that sort and filter, and lists that filter. Without this file they are tables and lists all the same.
export function prepare(root) {
  for (const table of root.querySelectorAll("table[data-sortable]")) {
    if (table.dataset.ready) continue;
    table.dataset.ready = "yes";
    table.querySelectorAll("thead th").forEach((head, column) => sortable(table, head, column));
    filterable(table, table.tBodies[0].rows, "rows", table.parentElement);
  }
  for (const list of root.querySelectorAll("ul[data-filter]")) {
    if (list.dataset.ready) continue;
    list.dataset.ready = "yes";
    filterable(list, list.children, "changes", list);
  }
}

function sortable(table, head, column) {
  const button = document.createElement("button");
  button.type = "button";
  button.append(...head.childNodes);
  head.append(button);
  button.addEventListener("click", () => sort(table, [column, head.getAttribute("aria-sort") !== "ascending"]));
}

// The column by which a table is sorted, and whether upwards; nothing if it is in the order of the server.
export function order(table) {
  const column = [...(table.tHead?.rows[0].cells ?? [])].findIndex((head) => head.hasAttribute("aria-sort"));
  return column < 0 ? null : [column, table.tHead.rows[0].cells[column].getAttribute("aria-sort") === "ascending"];
}

export function sort(table, by) {
  const head = by && table.tHead?.rows[0].cells[by[0]];
  if (!head) return;
  for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", by[1] ? "ascending" : "descending");
  const compare = new Intl.Collator("en", { numeric: true }).compare;
  const rows = [...table.tBodies[0].rows].map((row) => [row.cells[by[0]]?.textContent ?? "", row]);
  rows.sort(([left], [right]) => (by[1] ? compare(left, right) : compare(right, left)));
  table.tBodies[0].append(...rows.map(([, row]) => row));
}

// Puts a field before a place, which hides the items that lack a word.
function filterable(holder, items, noun, before) {
  if (!holder.dataset.filter || items.length <= 3) return;
  const box = document.createElement("label");
  box.className = "rows-filter";
  const field = document.createElement("input");
  field.type = "search";
  const told = document.createElement("span");
  told.setAttribute("role", "status");
  box.append(holder.dataset.filter, field, told);
  before.before(box);
  const rows = [...items].map((item) => [item.textContent.toLowerCase(), item]);
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
      told.textContent = words.length ? `${shown.toLocaleString("en")} of ${rows.length.toLocaleString("en")} ${noun}` : "";
    }, 80);
  });
}
