// Zoom and move a drawing: by buttons, keys, wheel and pointer. The view box is all that changes.
export function prepare(root) {
  for (const figure of root.querySelectorAll(".drawing")) {
    const canvas = figure.querySelector(".canvas"), svg = canvas.querySelector("svg");
    if (!svg || canvas.dataset.ready) continue;
    canvas.dataset.ready = "yes";
    canvas.classList.add("live");
    let whole, box, room = 0, frame = 0;
    const show = () => {
      cancelAnimationFrame(frame);
      frame = requestAnimationFrame(() => {
        svg.setAttribute("viewBox", `${box.x} ${box.y} ${box.width} ${box.height}`);
        // The names of a matrix stay at its edges.
        const right = Math.max(box.x, 0), down = Math.max(box.y, 0);
        for (const axis of svg.querySelectorAll("[data-axis]"))
          axis.setAttribute("transform", `translate(${axis.dataset.axis === "above" ? 0 : right} ${axis.dataset.axis === "beside" ? 0 : down})`);
      });
    };
    const zoom = (factor, x = 0.5, y = 0.5) => {
      const width = Math.min(Math.max(box.width * factor, 80), whole.width * 2), scale = width / box.width;
      box = { x: box.x + box.width * x * (1 - scale), y: box.y + box.height * y * (1 - scale), width, height: box.height * scale };
      show();
    };
    const begin = () => {
      const width = Number(svg.dataset.width), height = Number(svg.dataset.height);
      room = canvas.clientWidth || width;
      // A small drawing is not blown up: it keeps its size, in the middle.
      whole = { x: Math.min(0, (width - room) / 2), y: 0, width: Math.max(width, room), height };
      box = { ...whole };
      // As high as it is drawn, unless it has to shrink.
      svg.classList.toggle("natural", width <= room && !figure.classList.contains("large"));
      // Letters that can be read and hit come first, in a large matrix and on a narrow screen: the rest is a move away.
      if (figure.classList.contains("large") && width > room) box = { x: 0, y: 0, width: room, height: canvas.clientHeight || room };
      else if (room < 640 && width > room) zoom(room / width, 0, 0.5);
      show();
    };
    begin();
    new ResizeObserver(() => { if (canvas.clientWidth && canvas.clientWidth !== room) begin(); }).observe(canvas);
    const move = (x, y) => { box.x += x * box.width; box.y += y * box.height; show(); };
    const actions = {
      in: () => zoom(0.75), out: () => zoom(1 / 0.75), fit: () => { box = { ...whole }; show(); },
      left: () => move(-0.15, 0), right: () => move(0.15, 0), up: () => move(0, -0.15), down: () => move(0, 0.15),
    };
    figure.addEventListener("click", (event) => actions[event.target.closest("[data-zoom]")?.dataset.zoom]?.());
    // The part that was seen, after the page came anew.
    canvas.addEventListener("tierwall-view", (event) => {
      const [x, y, width, height] = (event.detail ?? "").split(" ").map(Number);
      if (height > 0) { box = { x, y, width, height }; show(); }
    });
    figure.addEventListener("tierwall-zoom", (event) => actions[event.detail]?.());
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      const place = canvas.getBoundingClientRect();
      zoom(event.deltaY > 0 ? 1.15 : 1 / 1.15, (event.clientX - place.left) / place.width, (event.clientY - place.top) / place.height);
    }, { passive: false });
    let from = null, moved = false;
    canvas.addEventListener("pointerdown", (event) => { from = [event.clientX, event.clientY]; moved = false; });
    canvas.addEventListener("pointermove", (event) => {
      if (!from || !event.buttons) return;
      const place = canvas.getBoundingClientRect();
      const x = (event.clientX - from[0]) / place.width, y = (event.clientY - from[1]) / place.height;
      if (!moved && Math.abs(x) + Math.abs(y) < 0.008) return;
      moved = true;
      from = [event.clientX, event.clientY];
      move(-x, -y);
    });
    canvas.addEventListener("pointerup", () => { from = null; });
    // A click at the end of a move is no click.
    canvas.addEventListener("click", (event) => { if (moved) event.preventDefault(); moved = false; }, true);
    canvas.addEventListener("dragstart", (event) => event.preventDefault());
  }
}
