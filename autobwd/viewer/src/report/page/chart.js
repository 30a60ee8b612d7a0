// A chart: the curves of all runs for one quantity, with axes, a cursor, and a line of values at the cursor.

const EDGE = { left: 62, right: 10, top: 8, bottom: 20 };
const MOST_STEPS = 9;
/** Half of the width of a letter. */
const LETTER = 3.3;

/** Round numbers between two ends. */
function linearTicks(low, high, count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
  const first = Math.ceil(low / step);
  const ticks = [];
  for (let i = first; i * step <= high + step * 1e-9 && ticks.length <= count + 2; i++) ticks.push(i * step);
  return ticks.map((x) => Number(x.toPrecision(12)));
}

/** Powers of ten between two ends, with 2 and 5 between them where there is room; or round numbers if there are too few. */
function logTicks(low, high, count) {
  const powers = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) powers.push(power);
  const within = (digits, every) => powers.filter((power) => power % every === 0)
    .flatMap((power) => digits.map((digit) => Number(`${digit}e${power}`))).filter((x) => x >= low && x <= high);
  const choices = [[[1, 2, 5], 1], [[1, 3], 1], ...[1, 2, 3, 5, 10, 20, 50, 100, 200].map((every) => [[1], every])];
  const ticks = choices.map(([digits, every]) => within(digits, every)).find((ticks) => ticks.length <= count + 1);
  return ticks?.length > 1 ? ticks : linearTicks(low, high, count).filter((x) => x > 0);
}

class Chart {
  /** `quantity` and `name` choose the curves; `text` writes their numbers; `group` has the charts of one vertical scale. */
  constructor({ quantity, name, title, text = numberText, main = false, log = null, group = null, fromZero = false }) {
    Object.assign(this, { quantity, name, text, group, fromZero, isLog: log ?? false });
    group?.push(this);
    this.readout = h("div", { class: "readout" });
    this.plot = h("div", { class: "plot" });
    this.note = h("p", { class: "note" });
    const caption = h("figcaption", {}, h("h3", { title }, title));
    if (log !== null && !group) {
      const box = h("input", { type: "checkbox" });
      box.addEventListener("change", () => {
        this.isLog = box.checked;
        this.forgetExtent();
        this.draw();
      });
      caption.append(h("label", {}, box, "Logarithmic"));
    }
    this.title = title;
    this.card = h("figure", { class: `card${main ? " main" : ""}` }, caption, this.readout, this.plot, this.note);
    this.plot.addEventListener("pointermove", (event) => {
      const box = this.plot.getBoundingClientRect();
      setCursor((event.clientX - box.left - EDGE.left) / (box.width - EDGE.left - EDGE.right));
    });
  }

  /** The curves of the runs that are shown. */
  curves() {
    const found = shownRuns().map((run) => ({ run, curve: curveOf(run, this.quantity, this.name) }));
    return found.filter(({ curve }) => curve);
  }

  /** The ends of the values that can be drawn; `undefined` if there are none. They are kept until `forgetExtent`. */
  extent() {
    if (!this.hasExtent) [this.kept, this.hasExtent] = [this.findExtent(), true];
    return this.kept;
  }

  forgetExtent() {
    this.hasExtent = false;
  }

  findExtent() {
    let [low, high] = [Infinity, -Infinity];
    for (const { curve } of this.curves()) {
      for (const values of [curve.low ?? curve.mean, curve.high ?? curve.mean, curve.mean]) {
        for (const x of values) {
          if (x === null || (this.isLog && x <= 0)) continue;
          low = Math.min(low, x);
          high = Math.max(high, x);
        }
      }
    }
    return low <= high ? [low, high] : undefined;
  }

  /** The ends of the vertical axis. */
  range() {
    const extents = (this.group ?? [this]).map((chart) => chart.extent()).filter(Boolean);
    if (!this.extent()) return undefined;
    let [low, high] = [Math.min(...extents.map(([low]) => low)), Math.max(...extents.map(([, high]) => high))];
    if (this.isLog) return low < high ? [low / 1.1, high * 1.1] : [low / 2, high * 2];
    if (this.fromZero) low = Math.min(0, low);
    const room = (high - low) * 0.05 || Math.abs(high) * 0.1 || 1;
    return [this.fromZero && low === 0 ? 0 : low - room, high + room];
  }

  draw() {
    const [width, height] = [this.plot.clientWidth, this.plot.clientHeight];
    if (!width) return;
    const range = this.range();
    this.tellFaults();
    if (!range) {
      this.place = null;
      this.plot.replaceChildren(h("p", { class: "empty" }, this.curves().length ? "No finite values" : "No values"));
      return this.moveCursor();
    }
    const ends = domain();
    const inner = { width: width - EDGE.left - EDGE.right, height: height - EDGE.top - EDGE.bottom };
    const scale = this.isLog ? Math.log10 : (x) => x;
    const [low, high] = range.map(scale);
    this.place = {
      x: (x) => EDGE.left + ((x - ends[0]) / (ends[1] - ends[0])) * inner.width,
      y: (y) => EDGE.top + (1 - (scale(y) - low) / (high - low)) * inner.height,
      ends,
      bottom: EDGE.top + inner.height,
    };
    const svg = s("svg", { role: "img", "aria-label": this.description() });
    svg.append(...this.axes(range, ends, width, inner));
    for (const { run, curve } of this.curves()) svg.append(...this.drawn(run, curve));
    this.line = s("line", { class: "cursor", y1: EDGE.top, y2: this.place.bottom });
    this.dots = s("g", {});
    svg.append(this.line, this.dots);
    this.plot.replaceChildren(svg);
    this.moveCursor();
  }

  axes(range, ends, width, inner) {
    const { x, y, bottom } = this.place;
    const rows = (this.isLog ? logTicks : linearTicks)(...range, Math.max(2, Math.floor(inner.height / 30)));
    const columns = linearTicks(...ends, Math.min(MOST_STEPS, Math.max(2, Math.floor(inner.width / 90))));
    const right = EDGE.left + inner.width;
    const label = (at) => {
      const text = view.axis === "time" ? secondsText(at) : grouped(at);
      // A label at the end would leave the drawing.
      return s("text", { class: "x", x: Math.min(x(at), width - text.length * LETTER), y: bottom + 15 }, text);
    };
    return [
      ...rows.flatMap((at) => [
        s("line", { class: "grid", x1: EDGE.left, x2: right, y1: y(at), y2: y(at) }),
        s("text", { class: "y", x: EDGE.left - 6, y: y(at) }, this.text(at)),
      ]),
      s("line", { class: "base", x1: EDGE.left, x2: right, y1: bottom, y2: bottom }),
      ...columns.filter((at) => view.axis === "time" || Number.isInteger(at)).flatMap((at) => [
        s("line", { class: "base", x1: x(at), x2: x(at), y1: bottom, y2: bottom + 3 }),
        label(at),
      ]),
    ];
  }

  /** The elements of one curve: the band, the values themselves, their average, and marks. */
  drawn(run, curve) {
    const { x, y, bottom } = this.place;
    const canDraw = (v) => v !== null && (!this.isLog || v > 0);
    const spans = spansOf(run, this.quantity);
    const at = (i, v) => `${x(xOf(spans[i])).toFixed(1)} ${y(v).toFixed(1)}`;
    /** A path that has gaps where there is nothing to draw; a lone point is a dot. */
    const path = (values) => {
      let text = "";
      values.forEach((v, i) => {
        if (!canDraw(v)) return;
        const joins = i > 0 && canDraw(values[i - 1]);
        const isAlone = !joins && (i + 1 >= values.length || !canDraw(values[i + 1]));
        text += `${joins ? "L" : "M"}${at(i, v)}${isAlone ? "h0" : ""}`;
      });
      return text;
    };
    const elements = [];
    if (curve.low) elements.push(s("path", { class: `band ${run.style.replace(" dashed", "")}`, d: this.band(curve, at, canDraw) }));
    if (view.smoothing) elements.push(s("path", { class: `curve raw ${run.style}`, d: path(curve.mean) }));
    elements.push(s("path", { class: `curve ${run.style}`, d: path(smoothed(curve.mean)) }));
    const marks = [...curve.marks].map((i) => `M${x(xOf(spans[i])).toFixed(1)} ${bottom - 9}m-3 -3l6 6m0 -6l-6 6`);
    if (marks.length) elements.push(s("path", { class: `bad ${run.style.replace(" dashed", "")}`, d: marks.join("") }));
    return elements;
  }

  band({ low, high }, at, canDraw) {
    let [text, start] = ["", -1];
    for (let i = 0; i <= low.length; i++) {
      const isIn = i < low.length && canDraw(low[i]);
      if (isIn && start < 0) start = i;
      if (isIn || start < 0) continue;
      const places = Array.from({ length: i - start }, (_, k) => start + k);
      text += `M${places.map((k) => at(k, high[k])).join("L")}L${places.reverse().map((k) => at(k, low[k])).join("L")}Z`;
      start = -1;
    }
    return text;
  }

  /** The line, the dots and the values at the cursor. */
  moveCursor() {
    const x = cursorAt();
    const items = this.curves().map(({ run, curve }) => {
      const spans = spansOf(run, this.quantity);
      const i = this.place ? nearest(spans, x) : -1;
      const value = curve.mean[i] ?? null;
      const isRange = !this.group && curve.low?.[i] != null && curve.low[i] < curve.high[i];
      const range = isRange ? ` (${this.text(curve.low[i])} to ${this.text(curve.high[i])})` : "";
      const fault = curve.marks.has(i) ? " NaN or infinite" : "";
      return { run, span: spans[i], value, text: (value === null && fault ? "" : this.text(value)) + range + fault };
    });
    this.readout.replaceChildren(...items.map(({ run, text }) => h("span", { class: `run ${run.style}` },
      h("span", { class: "swatch", "aria-hidden": "true" }), runs.length > 1 ? h("span", { class: "name" }, run.text) : "", h("span", {}, text.trim()))));
    if (!this.place) return;
    for (const end of ["x1", "x2"]) this.line.setAttribute(end, this.place.x(x));
    const dots = items.filter(({ value }) => value !== null && (!this.isLog || value > 0));
    this.dots.replaceChildren(...dots.map(({ run, span, value }) =>
      s("circle", { class: `dot ${run.style.replace(" dashed", "")}`, r: 3.5, cx: this.place.x(xOf(span)), cy: this.place.y(value) })));
  }

  /** Says what cannot be drawn. */
  tellFaults() {
    const texts = [];
    for (const { run, curve } of this.curves()) {
      const of = runs.length > 1 ? `${run.text}: ` : "";
      const [count, first] = curve.not_finite;
      if (count) texts.push(`${of}NaN or infinite at ${grouped(count)} step${count > 1 ? "s" : ""}, first at step ${grouped(first)}`);
      const below = this.isLog ? curve.mean.filter((x) => x !== null && x <= 0).length : 0;
      if (below) texts.push(`${of}${below} value${below > 1 ? "s" : ""} not above 0, not drawn on a logarithmic scale`);
    }
    this.note.textContent = texts.join(" · ");
  }

  description() {
    const ends = this.curves().map(({ run, curve }) => {
      const values = curve.mean.filter((x) => x !== null);
      return `${run.text} from ${this.text(values[0])} to ${this.text(values.at(-1))}`;
    });
    return `${this.title} by ${view.axis}: ${ends.join("; ")}`;
  }
}
