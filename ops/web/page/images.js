// Images of 8 × 8 pixels, 0 to 16: one of them on a canvas, and the list of test images.

export const PIXELS = 64;
const INK = 16;
/** Test images that the page shows. */
const SHOWN = 36;

/** Draws an image in the colours of the page. */
export function paint(canvas, pixels) {
  const context = canvas.getContext("2d");
  const style = getComputedStyle(canvas);
  context.clearRect(0, 0, 8, 8);
  context.fillStyle = style.getPropertyValue("--ink");
  pixels.forEach((pixel, i) => {
    context.globalAlpha = pixel / INK;
    context.fillRect(i % 8, Math.floor(i / 8), 1, 1);
  });
  context.globalAlpha = 1;
}

/** The first test images, as buttons; `choose` gets the pixels of the image that is pressed. */
export class TestImages {
  constructor(list, trainer, choose) {
    this.labels = [...trainer.test_labels().subarray(0, SHOWN)];
    this.pixels = trainer.test_pixels().slice(0, SHOWN * PIXELS);
    this.buttons = this.labels.map((_, i) => {
      const canvas = Object.assign(document.createElement("canvas"), { width: 8, height: 8, ariaHidden: "true" });
      const button = document.createElement("button");
      button.type = "button";
      button.append(canvas, document.createElement("span"));
      button.addEventListener("click", () => {
        choose(this.image(i));
        this.press(button);
      });
      return button;
    });
    list.replaceChildren(...this.buttons);
    this.press(null);
  }

  image(i) {
    return this.pixels.subarray(i * PIXELS, (i + 1) * PIXELS);
  }

  /** Marks one button as pressed. */
  press(pressed) {
    for (const button of this.buttons) button.ariaPressed = String(button === pressed);
  }

  paint() {
    this.buttons.forEach((button, i) => paint(button.firstChild, this.image(i)));
  }

  /** Shows what the network reads now. */
  read(trainer) {
    trainer.answers(this.pixels).forEach((answer, i) => {
      const [button, label] = [this.buttons[i], this.labels[i]];
      button.lastChild.textContent = answer;
      button.lastChild.className = answer === label ? "" : "wrong";
      button.ariaLabel = `Test image ${i + 1}, a ${label}, read as ${answer}`;
    });
  }
}
