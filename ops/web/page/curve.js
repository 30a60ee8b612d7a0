// The curve: the loss of every step, and its mean in every epoch, on a logarithmic scale.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 500, HEIGHT = 190;
const EDGE = { left: 42, right: 6, top: 8, bottom: 22 };
/** The ends of the scale. Smaller losses are drawn at its lower end. */
const LOW = 1e-4, HIGH = 4;

function element(tag, attributes, text = "") {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(text);
  return made;
}

const height = (loss) => {
  const share = Math.log(Math.min(HIGH, Math.max(LOW, loss)) / LOW) / Math.log(HIGH / LOW);
  return HEIGHT - EDGE.bottom - share * (HEIGHT - EDGE.top - EDGE.bottom);
};

export class Curve {
  /** `steps` is the number of steps of the run, and `epochs` of its epochs. */
  constructor(svg, steps, epochs) {
    this.steps = steps;
    this.losses = [];
    this.means = [];
    svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    svg.replaceChildren();
    for (const loss of [0.0001, 0.001, 0.01, 0.1, 1]) {
      const y = height(loss);
      svg.append(element("line", { class: "rule", x1: EDGE.left, x2: WIDTH - EDGE.right, y1: y, y2: y }));
      svg.append(element("text", { x: EDGE.left - 6, y: y + 4, "text-anchor": "end" }, loss));
    }
    for (let epoch = 0; epoch <= epochs; epoch += 10) {
      const at = { x: this.across((epoch / epochs) * steps), y: HEIGHT - 5, "text-anchor": epoch < epochs ? "middle" : "end" };
      svg.append(element("text", at, epoch || "epoch 0"));
    }
    svg.append(element("text", { class: "steps-name", x: WIDTH - 100, y: 18, "text-anchor": "end" }, "each step"));
    svg.append(element("text", { class: "epochs-name", x: WIDTH - EDGE.right, y: 18, "text-anchor": "end" }, "mean of epoch"));
    this.ofSteps = svg.appendChild(element("polyline", { class: "steps" }));
    this.ofEpochs = svg.appendChild(element("polyline", { class: "epochs" }));
  }

  across(step) {
    return EDGE.left + (step / this.steps) * (WIDTH - EDGE.left - EDGE.right);
  }

  /** Draws what was added. */
  draw() {
    const point = (step, loss) => `${this.across(step).toFixed(1)},${height(loss).toFixed(1)}`;
    this.ofSteps.setAttribute("points", this.losses.map((loss, i) => point(i + 1, loss)).join(" "));
    this.ofEpochs.setAttribute("points", this.means.map(({ step, loss }) => point(step, loss)).join(" "));
  }
}
