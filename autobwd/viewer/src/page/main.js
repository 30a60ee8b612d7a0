// Search, keyboard, theme, printing and export.

const search = { box: byId("search"), hits: [], at: -1 };

function findHits() {
  const words = search.box.value.trim().toLowerCase();
  const has = (text) => text.toLowerCase().includes(words);
  const named = new Set(words ? values.filter((value) => has(value.text)) : []);
  const isHit = (op) => has(op.type) || has(op.site) || [...op.reads, ...op.writes].some((value) => named.has(value));
  search.hits = words ? ops.filter((op) => op.node && isHit(op)) : [];
  const line = (op) => order.get(op);
  search.hits.sort((a, b) => line(a) - line(b));
  search.at = -1;
  focus.hits = new Set(search.hits);
  tellHits();
  mark();
}

/** By operator: its position on the page with everything unfolded. */
const order = new Map();
function number(nodes) {
  for (const node of nodes) {
    [node.left, ...node.right].forEach((op) => op && order.set(op, order.size));
    number(node.below);
  }
}
number(data.rows);

function tellHits() {
  const { hits, at, box } = search;
  const text = hits.length ? `${at < 0 ? "" : `${at + 1} of `}${hits.length}` : "none";
  byId("hits").textContent = box.value.trim() ? text : "";
}

function step(by) {
  const { hits } = search;
  if (!hits.length) return;
  search.at = search.at < 0 && by < 0 ? hits.length - 1 : (search.at + by + hits.length) % hits.length;
  goTo(hits[search.at]);
  tellHits();
}

search.box.addEventListener("input", findHits);
search.box.addEventListener("keydown", (event) => {
  if (event.key === "Enter") step(event.shiftKey ? -1 : 1);
  if (event.key === "Escape") {
    search.box.value = "";
    findHits();
    grid.focus();
  }
  event.stopPropagation();
});

function move(lineBy, itemBy) {
  const line = Math.max(0, Math.min(lines.length - 1, active.line + lineBy));
  if (lineBy) {
    // The same column on the other line.
    const side = itemsOf(active.line)[active.item]?.closest(".right") ? ".right" : ".left";
    active.line = line;
    scrollToLine(line);
    render(false);
    const items = itemsOf(line);
    active.item = Math.max(0, items.findIndex((item) => item.closest(side)));
  }
  if (itemBy) active.item = Math.max(0, Math.min(itemsOf(active.line).length - 1, active.item + itemBy));
  select(targetOf(itemsOf(active.line)[active.item]));
}

grid.addEventListener("keydown", (event) => {
  const page = Math.max(1, Math.floor(grid.clientHeight / LINE) - 2);
  const moves = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1], PageDown: [page, 0],
    PageUp: [-page, 0], Home: [-Infinity, 0], End: [Infinity, 0] };
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (moves[event.key]) move(...moves[event.key]);
  else if (event.key === "Enter" || event.key === " ") {
    const node = lines[active.line]?.node;
    if (node) setFolded(node, !node.folded);
  } else return;
  event.preventDefault();
});

document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    search.box.focus();
    search.box.select();
  }
  if (event.key === "Escape") select(null);
});

rowWindow.addEventListener("click", (event) => {
  const row = event.target.closest(".row");
  if (!row) return;
  const line = Number(row.dataset.line);
  const { node } = lines[line];
  if (event.target.closest(".folder, .heading")) {
    active.line = line;
    active.item = 0;
    return setFolded(node, !node.folded);
  }
  const item = event.target.closest(".item");
  if (!item) return;
  active.line = line;
  active.item = itemsOf(line).indexOf(item);
  select(targetOf(item));
});

rowWindow.addEventListener("pointerover", (event) => {
  const target = targetOf(event.target);
  if (!target && !focus.hovered) return;
  focus.hovered = target;
  tell();
  mark();
});
rowWindow.addEventListener("pointerleave", () => {
  if (!focus.hovered) return;
  focus.hovered = null;
  tell();
  mark();
});
grid.addEventListener("focus", () => {
  if (!focus.selected && grid.matches(":focus-visible")) move(0, 0);
});
grid.addEventListener("scroll", () => render(false), { passive: true });
window.addEventListener("resize", () => render(true));

byId("fold").addEventListener("click", () => foldAll(true));
byId("unfold").addEventListener("click", () => foldAll(false));

startTheme();

// All lines are printed.
function showAll(all) {
  shown.all = all;
  render(true);
}
window.addEventListener("beforeprint", () => showAll(true));
window.addEventListener("afterprint", () => showAll(false));
window.matchMedia("print").addEventListener("change", (event) => showAll(event.matches));

/** The unfolded rows as a drawing of its own. */
function drawing() {
  const column = 520;
  const LETTER = 6.7;
  const colours = { forward: "#1f5fa8", backward: "#a04300", update: "#236b38", text: "#555e6a" };
  const solo = !ops.some((op) => op.right);
  const width = column * (solo ? 1 : 2) + lanes.width;
  const svg = s("svg", { xmlns: SVG, width, height: (lines.length + 2) * LINE, "font-family": "ui-monospace, monospace", "font-size": 11 },
    s("title", {}, data.title), s("rect", { width: "100%", height: "100%", fill: "#ffffff" }));
  const label = (op, x, y, end) => {
    const before = `${MARKS[op.status]}${op.index} `;
    const list = (all) => all.slice(0, MOST_ARGS).map((value) => shortName(value.text)).join(" ") + (all.length > MOST_ARGS ? " …" : "");
    const written = principal(op);
    const rest = ` ${list(written)} ← ${list(op.reads)}  ${written[0]?.type ?? ""}`;
    const room = Math.max(1, Math.floor((end - x) / LETTER) - before.length - op.type.length);
    const type = s("tspan", { fill: colours[PARTS[op.part]], "font-weight": "bold" }, op.type);
    const text = s("text", { x, y, fill: colours.text }, before);
    text.append(type, rest.length > room ? `${rest.slice(0, room - 1)}…` : rest);
    svg.append(text);
  };
  const paths = s("g", { transform: `translate(${column} ${LINE})`, fill: "none", "stroke-width": 1.2 });
  for (const { path, role } of lanePaths(0, lines.length, new Set())) paths.append(s("path", { d: path, stroke: colours[role] }));
  svg.append(paths);
  lines.forEach((line, i) => {
    const y = (i + 1) * LINE + LINE / 2 + 4;
    const x = 12 + line.depth * 14;
    if (line.node.h !== undefined) svg.append(s("text", { x, y, fill: "#20262d", "font-weight": "bold" }, line.node.h));
    if (line.left) label(line.left, x, y, column);
    if (line.right) label(line.right, column + lanes.width + 12, y, width);
  });
  return new XMLSerializer().serializeToString(svg);
}

byId("export").addEventListener("click", () => {
  const url = URL.createObjectURL(new Blob([drawing()], { type: "image/svg+xml" }));
  const link = h("a", { href: url, download: `${data.title.replace(/[^\p{L}\p{N}]+/gu, "-") || "program"}.svg` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
});

{
  const live = ops.filter((op) => op.status !== REMOVED);
  const count = (role) => live.filter((op) => op.part === role).length;
  const blocks = data.blocks.length > 1 ? ` in ${data.blocks.length} blocks` : "";
  const parts = PARTS.map((role, i) => [count(i), role]).filter(([n]) => n).map(([n, role]) => `${n} ${role}`);
  const changes = [ADDED, REMOVED, CHANGED, MOVED].map((status) => `${MARKS[status]} ${ops.filter((op) => op.status === status).length}`);
  byId("summary").textContent = `${live.length} operators${blocks}${parts.length ? `: ${parts.join(", ")}` : ""}`
    + (data.compared ? ` · differences: ${changes.join("  ")}` : "");
  const solo = !ops.some((op) => op.right);
  document.body.classList.toggle("solo", solo);
  if (solo) document.querySelector(".columns .left").textContent = "Operators ↓";
  startMemory();
  layOut();
  render(true);
  tell();
  document.documentElement.dataset.ready = "true";
}
