// Values as vertical lanes between the columns. Forward values have the lanes on the left, gradients those on the right.

/** The most lanes of a side; the values that live longest have none then, and show when they are pointed at. */
const LANES = 12;
const LANE = 7;
const LINE = 24;

/**
 * Lanes for intervals of lines, none of which overlap on a lane: the left-edge algorithm (Hashimoto and Stevens, 1971).
 * Where too many intervals overlap, the one that ends last is left out, which keeps as many as possible.
 */
function assignLanes(intervals) {
  intervals.sort((a, b) => a.from - b.from || a.to - b.to);
  let active = [];
  for (const interval of intervals) {
    active = active.filter((other) => other.to > interval.from);
    active.push(interval);
    if (active.length > LANES) {
      const longest = active.reduce((a, b) => (b.to > a.to ? b : a));
      longest.lane = null;
      active.splice(active.indexOf(longest), 1);
    }
  }
  const ends = [];
  for (const interval of intervals.filter((interval) => interval.lane !== null)) {
    const free = ends.findIndex((end) => end <= interval.from);
    interval.lane = free < 0 ? ends.length : free;
    ends[interval.lane] = interval.to;
  }
  return ends.length;
}

const lanes = { intervals: [], counts: [0, 0], width: 0 };

/** The line of an operator, or of the row that it is folded into. */
const lineOf = new Int32Array(ops.length);

function intervalOf(value) {
  const users = (value.writer ? [value.writer] : []).concat(value.readers).filter((op) => op.node);
  let [from, to] = [Infinity, -1];
  for (const op of users) [from, to] = [Math.min(from, lineOf[op.id]), Math.max(to, lineOf[op.id])];
  return { value, users, from, to, lane: undefined };
}

function layLanes() {
  const made = values.filter((value) => value.writer?.node && value.readers.length && value.writer.status !== REMOVED);
  const all = made.map(intervalOf).filter((interval) => interval.from < interval.to);
  const sides = [false, true].map((right) => all.filter(({ value }) => value.writer.right === right));
  lanes.counts = sides.map(assignLanes);
  lanes.intervals = all.filter((interval) => interval.lane !== null);
  lanes.width = (lanes.counts[0] + lanes.counts[1] + 3) * LANE;
}

function laneX(interval) {
  if (interval.lane === null || interval.lane === undefined) return (lanes.counts[0] + 1.5) * LANE;
  return interval.value.writer.right ? lanes.width - (interval.lane + 1) * LANE : (interval.lane + 1) * LANE;
}

/** The path of a lane, for lines from `first` on: a vertical line, and a tick to each operator. */
function lanePath(interval, first) {
  const x = laneX(interval);
  const y = (line) => (line - first) * LINE + LINE / 2 + (line === interval.from ? 4 : line === interval.to ? -4 : 0);
  const ticks = interval.users.map((op) => `M${op.right ? lanes.width : 0} ${y(lineOf[op.id])}H${x}`);
  return `M${x} ${y(interval.from)}V${y(interval.to)}${[...new Set(ticks)].join("")}`;
}

/** The lanes to draw between two lines; `hot` values always have one. */
function lanePaths(first, last, hot) {
  const near = ({ from, to }) => from < last && to >= first;
  const found = lanes.intervals.filter(near);
  const drawn = new Set(found.map(({ value }) => value));
  for (const value of hot) {
    if (drawn.has(value)) continue;
    const interval = intervalOf(value);
    if (interval.from < interval.to && near(interval)) found.push(interval);
  }
  return found.map((interval) => ({
    path: lanePath(interval, first),
    role: interval.value.writer?.right ? "backward" : PARTS[interval.value.writer?.part ?? 0],
    hot: hot.has(interval.value),
  }));
}
