// The drawing pad: strokes of a pen, and the image that the network gets of them.
//
// The data set was made from bitmaps of 32 × 32 dots, in which a digit fills the height: a pixel counts the dots in 4 × 4
// of them. Strokes become such a bitmap, whatever their size and place on the pad.

const DOTS = 32;
/** Width of the pen, in dots of the bitmap and as a part of the pad. */
const PEN_DOTS = 4, PEN = 0.07;
/** The smallest height that is stretched to the height of the bitmap, as a part of the pad. */
const SMALLEST = 0.25;
/** How far an arrow key moves the pen, as a part of the pad. */
const MOVE = 1 / 20;
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

/** Draws strokes with a round pen of that width, each point moved by `place`. */
function draw(context, strokes, width, place) {
  Object.assign(context, { lineWidth: width, lineCap: "round", lineJoin: "round" });
  for (const stroke of strokes) {
    context.beginPath();
    context.moveTo(...place(stroke[0]));
    // A point alone is a line, too, which is drawn as a dot.
    for (const point of stroke) context.lineTo(...place(point));
    context.stroke();
  }
}

export class Pad {
  /** `changed` is called with the pixels after each change, with `null` if the pad is empty. */
  constructor(canvas, changed) {
    this.canvas = canvas;
    this.changed = changed;
    this.bitmap = new OffscreenCanvas(DOTS, DOTS).getContext("2d", { willReadFrequently: true });
    this.strokes = [];
    this.pen = [0.5, 0.3];
    this.isDown = false;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      canvas.setPointerCapture(event.pointerId);
      this.lower(this.pointOf(event));
    });
    canvas.addEventListener("pointermove", (event) => {
      if (canvas.hasPointerCapture(event.pointerId)) this.move(this.pointOf(event));
    });
    canvas.addEventListener("lostpointercapture", () => this.lift());
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("focus", () => this.show());
    canvas.addEventListener("blur", () => this.lift());
    this.show();
  }

  pointOf(event) {
    const box = this.canvas.getBoundingClientRect();
    return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
  }

  key(event) {
    const arrow = ARROWS[event.key];
    if (arrow) this.move(this.pen.map((x, axis) => Math.min(1, Math.max(0, x + arrow[axis] * MOVE))));
    else if (event.key === " ") this.isDown ? this.lift() : this.lower(this.pen);
    else if (event.key === "Delete" || event.key === "Backspace") this.clear();
    else return;
    event.preventDefault();
  }

  lower(point) {
    this.isDown = true;
    this.pen = point;
    this.strokes.push([point]);
    this.update();
  }

  move(point) {
    this.pen = point;
    if (this.isDown) {
      this.strokes.at(-1).push(point);
      this.update();
    } else this.show();
  }

  lift() {
    this.isDown = false;
    this.show();
  }

  clear() {
    this.strokes = [];
    this.isDown = false;
    this.update();
  }

  update() {
    this.show();
    this.changed(this.strokes.length ? this.pixels() : null);
  }

  show() {
    const { width, height } = this.canvas;
    const [context, style] = [this.canvas.getContext("2d"), getComputedStyle(this.canvas)];
    context.clearRect(0, 0, width, height);
    context.strokeStyle = style.getPropertyValue("--ink");
    draw(context, this.strokes, PEN * width, ([x, y]) => [x * width, y * height]);
    if (document.activeElement === this.canvas) {
      context.strokeStyle = style.getPropertyValue(this.isDown ? "--removed" : "--focus");
      context.lineWidth = 2;
      context.beginPath();
      context.arc(this.pen[0] * width, this.pen[1] * height, PEN * width * 0.6, 0, 2 * Math.PI);
      context.stroke();
    }
  }

  pixels() {
    const points = this.strokes.flat();
    const [left, top] = [0, 1].map((axis) => Math.min(...points.map((point) => point[axis])));
    const [right, bottom] = [0, 1].map((axis) => Math.max(...points.map((point) => point[axis])));
    const scale = (DOTS - PEN_DOTS) / Math.max(right - left, bottom - top, SMALLEST);
    const place = ([x, y]) =>
      [DOTS / 2 + (x - (left + right) / 2) * scale, DOTS / 2 + (y - (top + bottom) / 2) * scale];
    this.bitmap.clearRect(0, 0, DOTS, DOTS);
    draw(this.bitmap, this.strokes, PEN_DOTS, place);
    const { data } = this.bitmap.getImageData(0, 0, DOTS, DOTS);
    const pixels = new Uint8Array(64);
    for (let dot = 0; dot < DOTS * DOTS; dot++) {
      const [row, column] = [Math.floor(dot / DOTS / 4), Math.floor((dot % DOTS) / 4)];
      if (data[4 * dot + 3] >= 128) pixels[8 * row + column]++;
    }
    return pixels;
  }
}
