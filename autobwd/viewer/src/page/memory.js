// The memory plan: live bytes over instructions, with a cursor that is tied to the rows.

const plan = data.memory;
const timeline = { cursor: 0, live: [], peak: 0, top: 0, WIDTH: 1000, HEIGHT: 100 };
/** By operator: its first instruction. */
const instructionOf = new Map();

function instructionText(op) {
  if (!plan || op.block !== 0 || op.status === REMOVED) return "";
  const at = instructionOf.get(op.id);
  if (at === undefined) return "no instruction: not needed, or part of another";
  const others = plan.instructions[at].length - 1;
  return `instruction ${at}${others ? `, with ${others} more operators` : ""}`;
}

function drawTimeline() {
  const { live, top, WIDTH, HEIGHT } = timeline;
  const x = (at) => ((at / live.length) * WIDTH).toFixed(2);
  const y = (n) => (HEIGHT - (n / Math.max(1, top)) * HEIGHT).toFixed(2);
  const steps = live.map((n, at) => `L${x(at)} ${y(n)}L${x(at + 1)} ${y(n)}`).join("");
  const svg = s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" },
    s("path", { class: "area", d: `M0 ${HEIGHT}${steps}L${WIDTH} ${HEIGHT}Z` }),
    s("line", { class: "peak", x1: 0, x2: WIDTH, y1: y(live[timeline.peak]), y2: y(live[timeline.peak]) }),
    s("line", { class: "cursor", id: "cursor", y1: 0, y2: HEIGHT }));
  const flag = h("span", { class: "flag", "aria-hidden": "true" }, `peak ${bytes(live[timeline.peak])}`);
  byId("timeline").replaceChildren(svg, flag);
  const share = (timeline.peak + 0.5) / live.length;
  flag.style.left = `${share * 100}%`;
  flag.classList.toggle("late", share > 0.5);
}

/** Moves the cursor, and with it the marked rows. */
function setCursor(at) {
  const { live, WIDTH } = timeline;
  timeline.cursor = Math.max(0, Math.min(live.length - 1, at));
  const middle = ((timeline.cursor + 0.5) / live.length) * WIDTH;
  for (const end of ["x1", "x2"]) byId("cursor").setAttribute(end, middle);
  const run = plan.instructions[timeline.cursor] ?? [];
  focus.instruction = new Set(run.map((id) => ops[id]));
  const types = [...new Set(run.map((id) => ops[id].type))];
  const what = timeline.cursor < plan.instructions.length ? types.slice(0, 3).join(", ") + (types.length > 3 ? ", …" : "") : "end";
  const text = `instruction ${timeline.cursor} of ${plan.instructions.length}: ${what}, ${bytes(live[timeline.cursor])} live`;
  const slider = byId("timeline");
  slider.setAttribute("aria-valuenow", timeline.cursor);
  slider.setAttribute("aria-valuetext", text);
  byId("memory-text").textContent = `${text} · peak ${bytes(plan.peak)} at instruction ${timeline.peak} · arena ${bytes(plan.arena)}`
    + (plan.dynamic ? ` · then planned at run time: ${visible(plan.dynamic)}` : "");
  listLive();
}

const MOST_BUFFERS = 200;

function listLive() {
  const at = timeline.cursor;
  const live = plan.buffers.filter(([, , , first, last]) => first <= at && at <= last);
  live.sort((a, b) => b[1] - a[1]);
  const items = live.slice(0, MOST_BUFFERS).map(([texts, size]) => {
    const all = texts.map((text) => visible(data.texts[text]));
    return h("li", {}, h("span", { class: "size" }, bytes(size)), " ", all.join(", "));
  });
  if (live.length > MOST_BUFFERS) items.push(h("li", {}, `and ${live.length - MOST_BUFFERS} more`));
  byId("live").replaceChildren(h("ol", {}, items));
}

function showInstructionOf(op) {
  const at = plan ? instructionOf.get(op.id) : undefined;
  if (at !== undefined) setCursor(at);
}

/** Goes to the row of the instruction under the cursor. */
function followCursor() {
  const run = plan.instructions[timeline.cursor] ?? [];
  const op = run.map((id) => ops[id]).find((op) => op?.node);
  const at = timeline.cursor;
  if (op) goTo(op);
  if (timeline.cursor !== at) setCursor(at);
  mark();
}

function startMemory() {
  if (data.no_memory) {
    byId("memory").hidden = false;
    byId("memory-plan").hidden = true;
    byId("memory-text").textContent = `No plan: ${visible(data.no_memory)}`;
  }
  if (!plan) return;
  byId("memory").hidden = false;
  plan.instructions.forEach((run, at) => run.forEach((id) => instructionOf.has(id) || instructionOf.set(id, at)));
  const changes = new Array(plan.instructions.length + 2).fill(0);
  for (const [, size, , first, last] of plan.buffers) {
    changes[first] += size;
    changes[last + 1] -= size;
  }
  let sum = 0;
  timeline.live = changes.slice(0, -1).map((change) => (sum += change));
  timeline.top = timeline.live.reduce((a, b) => Math.max(a, b), 0);
  timeline.peak = timeline.live.indexOf(timeline.top);
  const slider = byId("timeline");
  slider.setAttribute("aria-valuemax", timeline.live.length - 1);
  drawTimeline();
  setCursor(timeline.peak);
  const at = (event) => {
    const box = slider.getBoundingClientRect();
    return Math.floor(((event.clientX - box.left) / box.width) * timeline.live.length);
  };
  slider.addEventListener("pointermove", (event) => {
    setCursor(at(event));
    mark();
  });
  slider.addEventListener("click", (event) => {
    setCursor(at(event));
    followCursor();
  });
  slider.addEventListener("keydown", (event) => {
    const far = Math.max(1, Math.floor(timeline.live.length / 10));
    const steps = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageUp: far, PageDown: -far, Home: -Infinity, End: Infinity };
    if (!(event.key in steps)) return;
    event.preventDefault();
    setCursor(timeline.cursor + steps[event.key]);
    followCursor();
  });
}
