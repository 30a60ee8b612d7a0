// The panel that tells about an operator or a value.

const panel = byId("story");

const TELLS = {
  [SEED]: "starts the backward pass",
  [ACCUMULATE]: "sums the contributions to a gradient",
  [ZERO_FILL]: "zeros, for a value on which no target depends",
  [KEPT]: "keeps a value before it is overwritten",
  [ALL_REDUCE]: "sums gradients over all ranks",
};

function originText(op) {
  const of = op.forward ? `operator ${op.forward.index} ${op.forward.type}` : `operator ${op.of}`;
  if (op.kind === GRADIENT) return `gradient of ${of}`;
  if (op.kind === RECOMPUTE) return `computes again ${of}`;
  return TELLS[op.kind] ?? "";
}

function opLink(op) {
  const where = op.block === 0 ? "" : `block ${op.block}, `;
  const button = h("button", { type: "button", class: `link ${PARTS[op.part]}` }, `${where}${op.index} ${op.type}`);
  button.addEventListener("click", () => goTo(op));
  return button;
}

function valueLink(value) {
  const button = h("button", { type: "button", class: "link" }, value.text);
  button.addEventListener("click", () => select({ value }));
  return button;
}

function facts(rows) {
  const filled = rows.filter(([, content]) => content && (!Array.isArray(content) || content.length));
  return h("dl", {}, filled.flatMap(([name, content]) => [h("dt", {}, name), h("dd", {}, content)]));
}

const MOST_LINKS = 40;

function list(items, link) {
  const links = items.slice(0, MOST_LINKS).map((item) => h("li", {}, link(item)));
  const more = items.length > MOST_LINKS ? [h("li", {}, `and ${items.length - MOST_LINKS} more`)] : [];
  return items.length ? h("ul", {}, [...links, ...more]) : "";
}

function slotList(slots) {
  const of = ({ slot, values }) => values.filter(Boolean).slice(0, MOST_LINKS).map((value) =>
    h("li", {}, h("span", { class: "slot" }, slot), " ", valueLink(value), " ", h("span", { class: "type" }, value.type)));
  const items = slots.flatMap(of);
  return items.length ? h("ul", {}, items) : "";
}

function storyBlock(name, title) {
  const text = storyOf(name);
  return text === undefined ? "" : h("div", {}, h("h3", {}, title), h("pre", { class: "explain" }, text));
}

/** For a gradient whose story the page of a large program leaves out. */
function storyLeftOut(value) {
  const has = stories.has(value.name) || value.of < 0 || !value.writer?.right;
  return has ? "" : h("p", { class: "sub" }, `The page of so large a program leaves the story out: explain(&program, "${value.text}") tells it.`);
}

function valueKind(value) {
  const kinds = [];
  if (value.of >= 0) kinds.push(`gradient of ${names[value.of]}`);
  if (value.flags & PARAMETER) kinds.push("parameter");
  else if (value.flags & PERSISTABLE) kinds.push("persistable");
  else if (!value.writer) kinds.push("fed");
  if (value.flags & STOP_GRADIENT) kinds.push("stop_gradient");
  return kinds.join(" · ");
}

function tellValue(value) {
  const all = valuesOf.get(value.name) ?? [];
  const gradients = [...new Map((gradientsOf.get(value.name) ?? []).map((value) => [value.name, value])).values()];
  const whole = gradients.find((gradient) => gradient.text === `${value.text}@GRAD`);
  const others = all.filter((other) => other !== value && other.writer).map((other) => other.writer);
  const role = value.writer ? PARTS[value.writer.part] : "";
  return [
    h("h2", { class: role }, value.text),
    h("p", { class: "sub" }, [value.type, valueKind(value)].filter(Boolean).join(" · ")),
    facts([
      ["made by", value.writer ? opLink(value.writer) : ""],
      ["read by", list(value.readers, opLink)],
      ["written by", list(others, opLink)],
      ["gradient", list(gradients, valueLink)],
      ["of", value.of >= 0 && lastOf.get(value.of) ? valueLink((valuesOf.get(value.of) ?? [])[0]) : ""],
      ["source", value.writer ? visible(value.writer.site) : ""],
    ]),
    storyBlock(value.name, value.of >= 0 ? "How it is computed" : "Its gradient"),
    whole && !stories.has(value.name) ? storyBlock(whole.name, `How ${whole.text} is computed`) : "",
    storyLeftOut(value),
  ];
}

function tellOp(op) {
  const written = op.right ? op.writes.find((value) => stories.has(value.name)) : undefined;
  const inner = op.blocks.map((block) => `block ${block}: ${opsOf[block]?.length ?? 0} operators`).join(", ");
  return [
    h("h2", { class: PARTS[op.part] }, op.type),
    h("p", { class: "sub" }, `operator ${op.index} of block ${op.block} · ${PARTS[op.part]}`,
      op.status ? ` · ${MARKS[op.status]} ${STATUS[op.status]}` : ""),
    facts([
      ["origin", originText(op)],
      ["was", visible(op.was)],
      ["inputs", slotList(op.inputs)],
      ["outputs", slotList(op.outputs)],
      ["attributes", list(op.attrs, ([name, value]) => `${name} = ${visible(value)}`)],
      ["runs", inner],
      ["forward", op.forward ? opLink(op.forward) : ""],
      ["backward", list(gradientOps.get(op) ?? [], opLink)],
      ["memory", instructionText(op)],
      ["source", visible(op.site)],
    ]),
    written ? storyBlock(written.name, `How ${written.text} is computed`) : "",
  ];
}

function tellNothing() {
  const key = (keys, text) => [h("dt", {}, h("kbd", {}, keys)), h("dd", {}, text)];
  return [
    h("h2", {}, "Details"),
    h("p", { class: "sub" }, "Point at an operator or a value, or move to it with the arrow keys."),
    h("dl", { class: "keys" }, key("↑ ↓", "lines"), key("← →", "operators and values of a line"), key("Enter", "fold, unfold"),
      key("/", "search; Enter and Shift+Enter step through hits"), key("Esc", "close")),
    h("ul", { class: "legend" },
      h("li", { class: "forward" }, "forward"), h("li", { class: "backward" }, "backward"), h("li", { class: "update" }, "updates"),
      data.compared ? STATUS.slice(1).map((status, i) => h("li", { class: status }, `${MARKS[i + 1]} ${status}`)) : []),
  ];
}

let told;

/** Shows what is pointed at, else what is selected. */
function tell() {
  const target = focus.hovered ?? focus.selected;
  if (target && told && target.op === told.op && target.value === told.value) return;
  told = target;
  const content = !target ? tellNothing() : target.op ? tellOp(target.op) : tellValue(target.value);
  panel.replaceChildren(...content.filter((part) => part !== ""));
  panel.scrollTop = 0;
}

function select(target) {
  focus.hovered = null;
  focus.selected = target;
  if (target?.op) showInstructionOf(target.op);
  tell();
  mark();
}
