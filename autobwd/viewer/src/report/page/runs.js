// The runs: their curves by quantity and name, and the texts of numbers.

const runs = data.runs.map((run, id) => ({
  ...run,
  id,
  text: visible(run.name),
  style: `r${id % 8}${id >= 8 ? " dashed" : ""}`,
  shown: true,
  coarseSpans: merged(run.spans, run.coarse),
  curves: run.curves.map((curve) => ({ ...curve, marks: new Set(curve.marks) })),
}));

/** What the charts show of all runs. */
const view = { axis: "step", smoothing: 0, cursor: 1 };

const shownRuns = () => runs.filter((run) => run.shown);
const curveOf = (run, quantity, name) => run.curves.find((curve) => curve.quantity === quantity && curve.name === name);

/** The names of a quantity's curves, in the order of the first run that has each. */
function namesOf(...quantities) {
  const all = runs.flatMap((run) => run.curves).filter((curve) => quantities.includes(curve.quantity));
  return [...new Set(all.map((curve) => curve.name))];
}

/** The place of a point on the horizontal axis: the middle of its steps, or the time at its end. */
function xOf([first, last, time]) {
  return view.axis === "time" ? time : (first + last) / 2;
}

/** The ends of the horizontal axis, which all charts share. */
function domain() {
  const spans = shownRuns().filter((run) => run.spans.length).flatMap((run) => [run.spans[0], run.spans.at(-1)]);
  if (!spans.length) return [0, 1];
  const ends = view.axis === "time" ? spans.map((span) => span[2]) : spans.flatMap(([first, last]) => [first, last]);
  const [low, high] = [Math.min(...ends), Math.max(...ends)];
  return low < high ? [low, high] : [low - 0.5, high + 0.5];
}

/** Steps and time of the points of a curve: those of parameters have fewer points. */
function spansOf(run, quantity) {
  return quantity === "parameter_gradient_norm" ? run.coarseSpans : run.spans;
}

function merged(spans, count) {
  const starts = spans.map((_, i) => i).filter((i) => i % count === 0);
  return starts.map((i) => {
    const [, last, time] = spans[Math.min(i + count, spans.length) - 1];
    return [spans[i][0], last, time];
  });
}

/** The point that is nearest to a place; -1 if there are none. */
function nearest(spans, x) {
  let [low, high] = [0, spans.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (xOf(spans[middle]) < x) low = middle + 1;
    else high = middle;
  }
  if (low > 0 && x - xOf(spans[low - 1]) < xOf(spans[low]) - x) low--;
  return spans.length ? low : -1;
}

/** The exponential moving average of a curve, without bias towards its start. */
function smoothed(values) {
  const weight = view.smoothing;
  if (!weight) return values;
  let [sum, weights] = [0, 0];
  return values.map((x) => {
    if (x === null) return null;
    sum = weight * sum + (1 - weight) * x;
    weights = weight * weights + (1 - weight);
    return sum / weights;
  });
}

const grouped = (n) => n.toLocaleString("en");

function numberText(x) {
  if (x === null || x === undefined) return "–";
  if (typeof x === "string") return { inf: "Infinity", "-inf": "-Infinity" }[x] ?? x;
  const size = Math.abs(x);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return x.toExponential(3).replace(/\.?0+e/, "e").replace("e+", "e");
  return String(Number(x.toPrecision(5)));
}

function secondsText(x) {
  if (typeof x !== "number") return numberText(x);
  const [unit, size] = [["s", 1], ["ms", 1e-3], ["µs", 1e-6], ["ns", 1e-9]].find(([, size]) => Math.abs(x) >= size) ?? ["s", 1];
  return `${Number((x / size).toPrecision(4))} ${unit}`;
}

const bytesText = (x) => (typeof x === "number" ? bytes(Math.round(x)) : numberText(x));

function xText(x) {
  return view.axis === "time" ? secondsText(x) : `step ${grouped(Math.round(x))}`;
}
