// The program: operators and values, from the tables of the page.

const PARTS = ["forward", "backward", "update"];
const STATUS = ["", "added", "removed", "changed", "moved"];
const MARKS = ["", "+", "−", "~", ">"];
const [SEED, GRADIENT, ACCUMULATE, ZERO_FILL, KEPT, RECOMPUTE, ALL_REDUCE] = [1, 2, 3, 4, 5, 6, 7];
const [ADDED, REMOVED, CHANGED, MOVED] = [1, 2, 3, 4];
const [PARAMETER, PERSISTABLE, STOP_GRADIENT] = [1, 2, 4];

const names = data.names.map(visible);

const ops = data.ops.map((op, id) => ({
  id,
  type: visible(data.texts[op.t]),
  block: op.p[0],
  index: op.p[1],
  inputs: op.i,
  outputs: op.o,
  attrs: (op.a ?? []).map(([name, value]) => [data.texts[name], data.texts[value]]),
  blocks: op.b ?? [],
  site: op.s < 0 ? "" : data.texts[op.s],
  kind: op.g ? op.g[0] : 0,
  of: op.g ? op.g[1] : -1,
  part: op.r ?? 0,
  status: op.d ?? 0,
  was: op.w === undefined ? "" : data.texts[op.w],
  right: false,
  node: null,
}));

const opsOf = data.blocks.map(() => []);
for (const op of ops) if (op.status !== REMOVED) opsOf[op.block].push(op);

const declarations = data.blocks.map((block) => new Map(block.vars.map(([name, type, flags, of]) =>
  [name, { type: data.texts[type], flags, of }])));

/** The declaration of a variable as seen from a block. */
function declaration(block, name) {
  for (let at = block, steps = 0; at >= 0 && steps <= data.blocks.length; at = data.blocks[at].parent, steps++) {
    const { forward } = data.blocks[at];
    const found = declarations[at].get(name) ?? (forward < 0 ? undefined : declarations[forward].get(name));
    if (found) return found;
  }
  return { type: "", flags: 0, of: -1 };
}

// Every write of a variable makes a value.
const values = [];
const lastOf = new Map();

function addValue(name, block, writer) {
  const declared = declaration(block, name);
  const value = { id: values.length, name, text: names[name], block, writer, readers: [], ...declared };
  values.push(value);
  lastOf.set(name, value);
  return value;
}

function slotValues(slots, valueOf) {
  return slots.map(([slot, args]) => ({
    slot: data.texts[slot],
    values: args.map((name) => (name < 0 ? null : valueOf(name))),
  }));
}

function readsAndWrites(op, read, write) {
  op.inputs = slotValues(op.inputs, read);
  op.reads = op.inputs.flatMap((slot) => slot.values).filter(Boolean);
  if (op.status !== REMOVED) for (const value of new Set(op.reads)) value.readers.push(op);
  op.blocks.forEach(write.before ?? (() => {}));
  op.outputs = slotValues(op.outputs, write.value);
  op.writes = op.outputs.flatMap((slot) => slot.values).filter(Boolean);
}

function runBlock(block, current, seen) {
  if (seen.has(block)) return;
  seen.add(block);
  const own = block === 0 ? [] : [...declarations[block].keys()];
  const outer = own.map((name) => [name, current.get(name)]);
  own.forEach((name) => current.delete(name));
  const read = (name) => {
    // A gradient block reads the values of its forward block.
    const value = current.get(name) ?? lastOf.get(name) ?? addValue(name, block, null);
    current.set(name, value);
    return value;
  };
  for (const op of opsOf[block]) {
    readsAndWrites(op, read, {
      before: (inner) => runBlock(inner, current, seen),
      value: (name) => {
        const value = addValue(name, block, op);
        current.set(name, value);
        return value;
      },
    });
  }
  for (const [name, value] of outer) value ? current.set(name, value) : current.delete(name);
}

{
  const seen = new Set();
  data.blocks.forEach((_, block) => runBlock(block, new Map(), seen));
  for (const op of ops.filter((op) => op.status === REMOVED)) {
    const read = (name) => lastOf.get(name) ?? addValue(name, op.block, null);
    readsAndWrites(op, read, { value: (name) => addValue(name, op.block, op) });
  }
}

/** By variable: the values that are its gradient, or contributions to it. */
const gradientsOf = new Map();
/** By variable: its values in order. */
const valuesOf = new Map();
for (const value of values) {
  const add = (map, key) => (map.has(key) ? map.get(key).push(value) : map.set(key, [value]));
  add(valuesOf, value.name);
  if (value.of >= 0) add(gradientsOf, value.of);
}

/** By variable: what `explain` says. */
const stories = new Map(data.stories.map(([name, lines]) => [name, lines]));

function storyOf(name) {
  const lines = stories.get(name);
  return lines && lines.map((line) => data.texts[line]).join("\n");
}

/** By block: the gradient operators of an operator. */
const gradientOps = new Map();
for (const op of ops) {
  const forward = data.blocks[op.block].forward < 0 ? op.block : data.blocks[op.block].forward;
  op.forward = op.of < 0 || op.status === REMOVED ? undefined : opsOf[forward][op.of];
  if (op.forward) gradientOps.set(op.forward, [...(gradientOps.get(op.forward) ?? []), op]);
}

/** The tree of rows: parents, and the row of every operator. */
function adopt(nodes, parent) {
  for (const node of nodes) {
    node.parent = parent;
    node.folded = node.f ?? false;
    node.left = node.o === undefined ? undefined : ops[node.o];
    node.right = (node.r ?? []).map((id) => ops[id]);
    node.below = node.c ?? [];
    if (node.left) node.left.node = node;
    for (const op of node.right) Object.assign(op, { node, right: true });
    adopt(node.below, node);
  }
}
adopt(data.rows, null);
