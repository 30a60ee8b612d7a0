// Records of runs: time lines of states, checkpoints and verified segments, and where two runs part.

const timeLines = [];

/** The most refused segments that are listed. */
const MOST_SENTENCES = 20;

/** The vertical places in a time line. */
const LINE = { bar: 8, barHeight: 14, states: 27, checkpoints: 42, bottom: 56, shortBottom: 28 };

const VERDICTS = { confirmed: "confirmed", refused: "refused", unverifiable: "unsure" };

/** The last step of all records, which share an axis. */
const lastStep = Math.max(1, ...data.records.map((record) => record.steps));

/** A drawing over the steps of runs: parts, and marks below them. */
class TimeLine {
  /** `parts` are spans of steps with a class. `choose` is called with the step under the pointer. */
  constructor({ parts, record, label, choose }) {
    Object.assign(this, { parts, record, label, chosen: null, bottom: record ? LINE.bottom : LINE.shortBottom });
    this.plot = h("div", { class: "plot" });
    this.plot.addEventListener("pointermove", (event) => {
      const box = this.plot.getBoundingClientRect();
      choose?.(((event.clientX - box.left - EDGE.left) / (box.width - EDGE.left - EDGE.right)) * lastStep);
    });
    timeLines.push(this);
  }

  draw() {
    const width = this.plot.clientWidth;
    if (!width) return;
    const inner = width - EDGE.left - EDGE.right - 6;
    this.x = (step) => EDGE.left + (step / lastStep) * inner;
    const svg = s("svg", { role: "img", "aria-label": this.label }, ...this.axis(inner), ...this.bar());
    if (this.record) svg.append(...this.marks());
    this.cursor = s("line", { class: "cursor", y1: LINE.bar - 4, y2: this.bottom, visibility: "hidden" });
    svg.append(this.cursor);
    this.plot.replaceChildren(svg);
    this.moveCursor(this.chosen);
  }

  axis(inner) {
    const { bottom } = this;
    const ticks = linearTicks(0, lastStep, Math.min(MOST_STEPS, Math.max(2, Math.floor(inner / 90)))).filter(Number.isInteger);
    return [
      s("line", { class: "base", x1: EDGE.left, x2: this.x(lastStep), y1: bottom, y2: bottom }),
      ...ticks.flatMap((step) => [
        s("line", { class: "base", x1: this.x(step), x2: this.x(step), y1: bottom, y2: bottom + 3 }),
        s("text", { class: "x", x: this.x(step), y: bottom + 15 }, grouped(step)),
      ]),
    ];
  }

  bar() {
    const [top, height] = [LINE.bar, LINE.barHeight];
    const middle = top + height / 2;
    const rectangle = (from, to) => `M${this.x(from).toFixed(1)} ${top}H${this.x(to).toFixed(1)}v${height}H${this.x(from).toFixed(1)}Z`;
    const elements = [s("path", { class: "track", d: rectangle(0, this.record?.steps ?? lastStep) })];
    for (const kind of new Set(this.parts.map((part) => part.kind))) {
      const parts = this.parts.filter((part) => part.kind === kind);
      elements.push(s("path", { class: kind, d: parts.map(({ from, to }) => rectangle(from, to)).join("") }));
      const cross = ({ from, to }) => `M${this.x((from + to) / 2).toFixed(1)} ${middle}m-3.5 -3.5l7 7m0 -7l-7 7`;
      if (kind === "refused") elements.push(s("path", { class: "cross", d: parts.map(cross).join("") }));
    }
    const bounds = this.parts.map(({ to }) => `M${this.x(to).toFixed(1)} ${top}v${height}`).join("");
    return [...elements, s("path", { class: "bound", d: bounds })];
  }

  marks() {
    const { states, checkpoints, steps, is_finished: isFinished } = this.record;
    const at = ([step]) => this.x(step).toFixed(1);
    const diamond = (mark) => `M${at(mark)} ${LINE.checkpoints - 5}l5 5l-5 5l-5 -5Z`;
    const ofKind = (isPresent) => checkpoints.filter(([, present]) => present === isPresent).map(diamond).join("");
    const end = isFinished ? s("path", { class: "end", d: `M${at([steps])} ${LINE.bar - 4}V${this.bottom}` })
      : s("path", { class: "killed", d: `M${at([steps])} ${LINE.bar - 5}l4 4l-8 5l8 5l-8 5l4 4` });
    const label = (y, text) => s("text", { class: "label", x: EDGE.left - 10, y }, text);
    return [
      label(LINE.states + 4, "states"),
      s("path", { class: "tick", d: states.map((state) => `M${at(state)} ${LINE.states}v8`).join("") }),
      s("path", { class: "present", d: ofKind(true) }),
      s("path", { class: "missing", d: ofKind(false) }),
      end,
    ];
  }

  moveCursor(step) {
    this.chosen = step;
    if (!this.cursor || step === null) return;
    this.cursor.setAttribute("visibility", "visible");
    for (const end of ["x1", "x2"]) this.cursor.setAttribute(end, this.x(step));
  }
}

/** A key of a time line: a small drawing and its meaning. */
function keyItem(text, ...drawing) {
  return h("li", {}, s("svg", { "aria-hidden": "true", viewBox: "0 0 16 12" }, ...drawing), text);
}

function recordKey(record) {
  const block = (kind) => s("rect", { class: kind, x: 1, y: 2, width: 14, height: 8 });
  const diamond = (kind) => s("path", { class: kind, d: "M8 1l5 5l-5 5l-5 -5Z" });
  const has = (verdict) => record.segments.some((segment) => segment.verdict === verdict);
  return h("ul", { class: "key" },
    keyItem("hash of the state", s("path", { class: "tick", d: "M8 2v8" })),
    record.checkpoints.some(([, present]) => present) ? keyItem("checkpoint", diamond("present")) : "",
    record.checkpoints.some(([, present]) => !present) ? keyItem("missing checkpoint", diamond("missing")) : "",
    has("confirmed") ? keyItem("confirmed", block("confirmed")) : "",
    has("refused") ? keyItem("refused", block("refused"), s("path", { class: "cross", d: "M8 6m-2.5 -2.5l5 5m0 -5l-5 5" })) : "",
    has("unverifiable") ? keyItem("not verified", block("unsure")) : "",
    keyItem("not replayed", block("track")),
    record.is_finished ? keyItem("end of the run", s("path", { class: "end", d: "M8 0v12" })) : keyItem("the record has no end", s("path", { class: "killed", d: "M8 0l3 3l-6 3l6 3l-3 3" })));
}

/** The sentences of a list, of bounded length. */
function sentences(items) {
  const more = items.length - MOST_SENTENCES;
  const shown = items.slice(0, MOST_SENTENCES).map(([kind, text]) => h("li", { class: kind }, visible(text)));
  return items.length ? h("ul", { class: "sentences" }, shown, more > 0 ? h("li", {}, `${grouped(more)} more`) : "") : "";
}

/** The control that chooses a state, with its hash. */
function stateChooser(record, line) {
  const { states } = record;
  const checkpoints = new Map(record.checkpoints);
  const slider = h("input", { type: "range", min: 0, max: Math.max(0, states.length - 1), value: states.length - 1 });
  const output = h("output", {});
  const show = () => {
    const [step, hash] = states[Number(slider.value)];
    const checkpoint = checkpoints.has(step) ? `, ${checkpoints.get(step) ? "" : "missing "}checkpoint` : "";
    output.textContent = `after step ${grouped(step)}${checkpoint}: ${visible(hash)}`;
    slider.setAttribute("aria-valuetext", output.textContent);
    line.moveCursor(step);
  };
  slider.addEventListener("input", show);
  const choose = (step) => {
    let best = 0;
    states.forEach(([at], i) => (best = Math.abs(at - step) < Math.abs(states[best][0] - step) ? i : best));
    slider.value = best;
    show();
  };
  return { element: h("div", { class: "state" }, h("label", {}, "State", slider), output), show, choose };
}

function recordVerdict({ steps, is_finished: isFinished, segments, damages }) {
  const of = (verdict) => segments.filter((segment) => segment.verdict === verdict).length;
  const damaged = damages.length ? "damaged, " : "";
  const run = `${damaged}${isFinished ? "finished" : "no end"}, ${grouped(steps)} steps`;
  if (!segments.length) return [damaged ? "refused" : "", run];
  const counts = Object.keys(VERDICTS).filter(of).map((verdict) => `${grouped(of(verdict))} ${verdict === "unverifiable" ? "not verified" : verdict}`);
  const kind = damaged || of("refused") ? "refused" : of("unverifiable") ? "unsure" : "confirmed";
  return [kind, `${run}; segments: ${counts.join(", ")}`];
}

function recordCard(record) {
  const parts = record.segments.map(({ after, last, verdict }) => ({ from: after, to: last, kind: VERDICTS[verdict] }));
  const name = visible(record.name);
  const [kind, verdict] = recordVerdict(record);
  let chooser = null;
  const line = new TimeLine({ parts, record, label: `${name}: ${verdict}`, choose: (step) => chooser?.choose(step) });
  if (record.states.length) chooser = stateChooser(record, line);
  const facts = record.facts.map(([name, text]) => h("div", {}, h("dt", {}, visible(name)), h("dd", {}, visible(text))));
  const refused = record.segments.filter(({ verdict }) => verdict !== "confirmed").map(({ verdict, text }) => [VERDICTS[verdict], text]);
  const thinned = record.states.length < record.all_states ? [["", `${grouped(record.states.length)} of ${grouped(record.all_states)} states are shown`]] : [];
  const card = h("figure", { class: "card main record" }, h("figcaption", {}, h("h3", { title: name }, name), h("span", { class: `verdict ${kind}` }, verdict)),
    h("dl", { class: "facts" }, facts), line.plot, chooser?.element, recordKey(record), sentences(refused), 
    sentences(record.damages.map((text) => ["refused", text])), sentences([...record.warnings.map((text) => ["unsure", text]), ...thinned]));
  chooser?.show();
  return card;
}

function differenceVerdict({ compared_states: states, last_equal_state: equal, first_different_state: different, step }) {
  if (!states) return ["unsure", "the runs have no values in common"];
  if (different === null) return ["confirmed", `equal in all ${grouped(states)} states that both have`];
  const at = different - equal <= 1 ? different : step;
  return ["refused", `they part ${at === null ? `in steps ${grouped(equal + 1)} to ${grouped(different)}` : `at step ${grouped(at)}`}`];
}

function differenceCard(difference) {
  const { records, last_equal_state: equal, first_different_state: different, compared_states: states } = difference;
  const [kind, verdict] = differenceVerdict(difference);
  const title = records.map(visible).join(" and ");
  const end = Math.min(...data.records.filter(({ name }) => records.includes(name)).map(({ steps }) => steps));
  const parts = !states ? [] : different === null ? [{ from: 0, to: equal, kind: "confirmed" }] : [
    { from: 0, to: equal, kind: "confirmed" },
    { from: equal, to: different, kind: "unsure" },
    { from: different, to: end, kind: "refused" },
  ].filter(({ from, to }) => from < to);
  const line = new TimeLine({ parts, label: `${title}: ${verdict}` });
  const details = difference.bisection ? h("details", { open: "" }, h("summary", {}, "Bisection"), h("pre", {}, difference.bisection.split("\n").map(visible).join("\n"))) : "";
  return h("figure", { class: "card main record difference" }, h("figcaption", {}, h("h3", { title }, title), h("span", { class: `verdict ${kind}` }, verdict)),
    line.plot, sentences(difference.sentences.map((text) => ["", text])), details);
}

function makeRecords() {
  const add = (section, cards) => {
    byId(section).querySelector(".cards").append(...cards);
    byId(section).hidden = !cards.length;
  };
  add("differences", data.differences.map(differenceCard));
  add("records", data.records.map(recordCard));
}
