// The grid of rows. Only lines in view are in the document.

const grid = byId("grid");
const rowWindow = byId("window");

let lines = [];
const shown = { first: 0, last: 0, all: false };
/** The item under the keyboard: a line, and an item in it. */
const active = { line: 0, item: 0 };

function layOut() {
  lines = [];
  const fold = (nodes, at) => {
    for (const node of nodes) {
      if (node.left) lineOf[node.left.id] = at;
      for (const op of node.right) lineOf[op.id] = at;
      fold(node.below, at);
    }
  };
  const visit = (nodes, depth) => {
    for (const node of nodes) {
      const at = lines.length;
      if (node.left) lineOf[node.left.id] = at;
      const count = Math.max(1, node.right.length);
      for (let i = 0; i < count; i++) {
        if (node.right[i]) lineOf[node.right[i].id] = at + i;
        lines.push({ node, depth, left: i === 0 ? node.left : undefined, right: node.right[i], first: i === 0 });
      }
      node.folded ? fold(node.below, at) : visit(node.below, depth + 1);
    }
  };
  visit(data.rows, 0);
  layLanes();
  grid.setAttribute("aria-rowcount", lines.length + 1);
  grid.style.setProperty("--lanes", `${lanes.width}px`);
  byId("space").style.height = `${lines.length * LINE}px`;
  active.line = Math.min(active.line, Math.max(0, lines.length - 1));
}

const MOST_ARGS = 5;
const LONGEST_NAME = 22;

/** A name whose middle is left out if it is long: names differ at the end. */
function shortName(name) {
  return name.length <= LONGEST_NAME ? name : `${name.slice(0, 7)}…${name.slice(8 - LONGEST_NAME)}`;
}

/** What an operator writes, the most important first: a parameter, then what most operators of the model read. */
function principal(op) {
  const weight = (value) => (value.flags & PARAMETER ? Infinity : value.readers.filter((op) => !op.right).length);
  return op.right ? op.writes : [...op.writes].sort((a, b) => (weight(a) === weight(b) ? 0 : weight(b) - weight(a)));
}

function tokens(list) {
  const items = list.slice(0, MOST_ARGS).map((value) =>
    h("span", { class: "item value", role: "gridcell", "data-value": value.id }, shortName(value.text)));
  const more = list.length > MOST_ARGS ? h("span", { class: "more" }, `+${list.length - MOST_ARGS}`) : "";
  return [...items, more];
}

function cell(op, side) {
  if (!op) return h("div", { class: side, role: "none" });
  const mark = data.compared ? h("span", { class: "mark", "aria-hidden": "true" }, MARKS[op.status]) : "";
  const type = h("span", { class: "item op", role: "gridcell", "data-op": op.id,
    "aria-label": `${op.status ? `${STATUS[op.status]}, ` : ""}operator ${op.index} ${op.type}` }, op.type);
  const written = principal(op);
  const from = op.reads.length ? h("span", { class: "from", "aria-hidden": "true" }, "←") : "";
  return h("div", { class: `${side} ${PARTS[op.part]} ${STATUS[op.status]}`, role: "none" },
    mark, h("span", { class: "index", "aria-hidden": "true" }, String(op.index)), type,
    h("span", { class: "args", role: "none" }, tokens(written), from, h("span", { class: "read", role: "none" }, tokens([...new Set(op.reads)]))),
    h("span", { class: "type", "aria-hidden": "true" }, (written[0]?.type ?? "").replace(/^float32 /, "")));
}

function folder(node) {
  if (!node.below.length) return "";
  return h("span", { class: "folder", "aria-hidden": "true" }, node.folded ? "▸" : "▾");
}

function rowElement(line, number) {
  const { node, depth } = line;
  const attributes = { class: "row", role: "row", "aria-rowindex": number + 2, "aria-level": depth + 1,
    "data-line": number, "aria-expanded": line.first && node.below.length ? String(!node.folded) : undefined };
  if (node.h !== undefined) {
    const text = h("span", { class: "item heading", role: "gridcell" }, node.h);
    const row = h("div", { ...attributes, class: "row head" }, h("div", { class: "left", role: "none" }, folder(node), text));
    row.style.setProperty("--depth", depth);
    return row;
  }
  const left = cell(line.left, "left");
  if (line.first) left.prepend(folder(node));
  const row = h("div", attributes, left, h("div", { class: "between", role: "none" }), cell(line.right, "right"));
  row.style.setProperty("--depth", depth);
  return row;
}

/** Draws the lines in view; with `anew` even if they are drawn already. */
function render(anew) {
  const CHUNK = 8;
  const top = Math.floor(grid.scrollTop / LINE / CHUNK) * CHUNK - CHUNK;
  const first = shown.all ? 0 : Math.max(0, top);
  const height = Math.ceil(grid.clientHeight / LINE / CHUNK + 3) * CHUNK;
  const last = shown.all ? lines.length : Math.min(lines.length, first + height);
  if (!anew && first === shown.first && last === shown.last) return;
  Object.assign(shown, { first, last });
  rowWindow.replaceChildren(...lines.slice(first, last).map((line, i) => rowElement(line, first + i)));
  rowWindow.style.top = `${first * LINE}px`;
  mark();
}

function itemsOf(line) {
  const row = rowWindow.querySelector(`[data-line="${line}"]`);
  return row ? [...row.querySelectorAll(".item")] : [];
}

/** What an item stands for. */
function targetOf(element) {
  const item = element?.closest?.(".item");
  if (!item) return null;
  if (item.dataset.op !== undefined) return { op: ops[item.dataset.op] };
  if (item.dataset.value !== undefined) return { value: values[item.dataset.value] };
  return null;
}

const focus = { hovered: null, selected: null, hits: new Set(), instruction: new Set() };

/** The values and operators that belong to a target: its own, and those of its gradient back to the loss. */
function pathOf(target) {
  const path = { values: new Set(), ops: new Set(), upstream: new Set() };
  if (!target) return path;
  const { op, value } = target;
  const own = value ? [value, ...(gradientsOf.get(value.name) ?? [])] : [...op.reads, ...op.writes];
  own.forEach((value) => path.values.add(value));
  if (op) [op, ...(gradientOps.get(op) ?? []), ...(op.forward ? [op.forward] : [])].forEach((op) => path.ops.add(op));
  if (!value) return path;
  for (const { writer, readers } of own) [writer, ...readers].forEach((op) => op && path.ops.add(op));
  const open = own.map(({ writer }) => writer).filter((writer) => writer?.right);
  while (open.length) {
    for (const { writer } of open.pop().reads) {
      if (!writer?.right || path.upstream.has(writer)) continue;
      path.upstream.add(writer);
      open.push(writer);
    }
  }
  return path;
}

/** Marks the items in view that belong to the target, the hits of a search, the current instruction; and the lanes. */
function mark() {
  const target = focus.hovered ?? focus.selected;
  const path = pathOf(target);
  for (const item of rowWindow.querySelectorAll(".item")) {
    const { op, value } = targetOf(item) ?? {};
    item.classList.toggle("hot", op ? path.ops.has(op) : path.values.has(value));
    item.classList.toggle("target", Boolean(target && ((op && target.op === op) || (value && target.value === value))));
    if (!op) continue;
    const place = item.parentElement.classList;
    place.toggle("upstream", path.upstream.has(op));
    place.toggle("hit", focus.hits.has(op));
    place.toggle("running", focus.instruction.has(op));
  }
  rowWindow.querySelectorAll(".active").forEach((item) => item.classList.remove("active"));
  const item = itemsOf(active.line)[active.item];
  if (item) {
    item.classList.add("active");
    item.id = "active-item";
    rowWindow.querySelectorAll("#active-item").forEach((other) => other !== item && other.removeAttribute("id"));
    grid.setAttribute("aria-activedescendant", "active-item");
  } else {
    grid.removeAttribute("aria-activedescendant");
  }
  drawLanes(path.values);
}

function drawLanes(hot) {
  const svg = byId("lanes");
  const { first, last } = shown;
  svg.setAttribute("width", lanes.width);
  svg.setAttribute("height", (last - first) * LINE);
  svg.style.top = `${first * LINE}px`;
  const paths = lanePaths(first, last, hot).sort((a, b) => a.hot - b.hot);
  svg.replaceChildren(...paths.map(({ path, role, hot }) => s("path", { d: path, class: hot ? `${role} hot` : role })));
  grid.classList.toggle("tracing", hot.size > 0);
}

function scrollToLine(line) {
  const head = LINE;
  const top = line * LINE;
  if (top < grid.scrollTop) grid.scrollTop = Math.max(0, top - LINE);
  else if (top + LINE + head > grid.scrollTop + grid.clientHeight) {
    grid.scrollTop = top + 2 * LINE + head - grid.clientHeight;
  }
}

/** Unfolds what hides an operator, and goes there. */
function goTo(op, { far = true } = {}) {
  if (!op.node) return;
  let hidden = false;
  for (let node = op.node.parent; node; node = node.parent) {
    hidden ||= node.folded;
    node.folded = false;
  }
  if (hidden) layOut();
  active.line = lineOf[op.id];
  const away = active.line * LINE < grid.scrollTop || (active.line + 3) * LINE > grid.scrollTop + grid.clientHeight;
  if (far && away) grid.scrollTop = Math.max(0, active.line * LINE - grid.clientHeight / 3);
  render(hidden);
  active.item = Math.max(0, itemsOf(active.line).findIndex((item) => item.dataset.op === String(op.id)));
  select({ op });
}

function setFolded(node, folded) {
  if (!node.below.length) return;
  node.folded = folded;
  layOut();
  render(true);
}

function foldAll(folded) {
  const visit = (nodes) => nodes.forEach((node) => {
    node.folded = folded && node.below.length > 0;
    visit(node.below);
  });
  visit(data.rows);
  layOut();
  render(true);
}
