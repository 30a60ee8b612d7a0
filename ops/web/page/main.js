// The page: trains step by step, and shows after each slice of time what the network has learnt.

import init, { Trainer } from "./autobwd_web.js";
import { Curve } from "./curve.js";
import { PIXELS, TestImages, paint } from "./images.js";
import { Pad } from "./pad.js";

const SEED = 0;
/** Milliseconds of training between two looks at events. */
const SLICE = 40;
const byId = (id) => document.getElementById(id);
const percent = (share) => `${(100 * share).toFixed(1)} %`;

await init();
let trainer = new Trainer(SEED);
let curve;
/** The losses of the epoch so far. */
let epoch;
/** The accuracy after the last epoch, as text. */
let accuracy;
/** The training loop that runs, if one does. */
let running = null;
/** The image whose scores are shown. */
let shown = new Uint8Array(PIXELS);

/** Follows the theme of the system. What canvases show has its colours from the theme, and is drawn again. */
function followTheme() {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const show = () => {
    document.documentElement.dataset.theme = dark.matches ? "dark" : "light";
    images.paint();
    pad.show();
    paint(byId("seen"), shown);
  };
  dark.addEventListener("change", show);
  show();
}

/** Says a text to users of screen readers. */
function announce(text) {
  byId("announcement").textContent = text;
}

/** Rows of the table of scores. */
const rows = Array.from({ length: 10 }, (_, digit) => {
  const row = byId("scores").tBodies[0].insertRow();
  row.innerHTML = `<th scope="row">${digit}</th><td><span class="bar"></span><span class="share"></span></td>`;
  return row;
});

/** Shows the probabilities of the digits in the image: the softmax of its scores. */
function showScores() {
  paint(byId("seen"), shown);
  const isEmpty = shown.every((pixel) => pixel === 0);
  const scores = trainer.scores(shown);
  const highest = Math.max(...scores);
  const powers = [...scores].map((score) => Math.exp(score - highest));
  const sum = powers.reduce((a, b) => a + b);
  rows.forEach((row, digit) => {
    const share = isEmpty ? 0 : powers[digit] / sum;
    row.classList.toggle("best", !isEmpty && scores[digit] === highest);
    row.querySelector(".bar").style.width = `${100 * share}%`;
    row.querySelector(".share").textContent = isEmpty ? "" : percent(share);
  });
  const best = scores.indexOf(highest);
  byId("answer").textContent = isEmpty ? "" : `read as ${best}, ${percent(powers[best] / sum)}`;
}

/** Shows another image, which the user has drawn or chosen. */
function showImage(pixels) {
  shown = pixels;
  showScores();
  announce(byId("answer").textContent);
}

function showProgress() {
  const step = curve.losses.length;
  const loss = step ? `, loss ${curve.losses[step - 1].toFixed(4)}` : "";
  byId("progress").textContent = `epoch ${trainer.epoch} of ${trainer.epochs}, step ${step}${loss}${accuracy}`;
  curve.draw();
  images.read(trainer);
  showScores();
}

/** Trains on one batch; at the end of an epoch, tests the network. */
function advance() {
  let loss = trainer.step();
  if (loss === undefined) {
    curve.means.push({ step: curve.losses.length, loss: epoch.reduce((a, b) => a + b, 0) / epoch.length });
    epoch = [];
    accuracy = `, test accuracy ${percent(trainer.accuracy())}`;
    announce(`epoch ${trainer.epoch} of ${trainer.epochs}${accuracy}`);
    if (trainer.epoch >= trainer.epochs) return;
    loss = trainer.step();
  }
  epoch.push(loss);
  curve.losses.push(loss);
}

const hasEnded = () => trainer.epoch >= trainer.epochs;

function showButtons() {
  byId("train").textContent = running ? "Pause" : "Train";
  byId("train").disabled = hasEnded();
  byId("step").disabled = running || hasEnded();
  byId("restart").disabled = false;
}

/** Trains to the end, or until another loop or none is to run. */
async function train() {
  const own = {};
  running = own;
  while (running === own && !hasEnded()) {
    showButtons();
    const end = performance.now() + SLICE;
    while (performance.now() < end && !hasEnded()) advance();
    showProgress();
    await new Promise((resume) => setTimeout(resume));
  }
  if (running === own) running = null;
  showButtons();
}

function pause() {
  running = null;
  showButtons();
}

/** Shows a network that was not trained. */
function begin() {
  [running, epoch, accuracy] = [null, [], ""];
  curve = new Curve(byId("curve"), trainer.epochs * trainer.steps, trainer.epochs);
  showButtons();
  showProgress();
}

const images = new TestImages(byId("images"), trainer, (pixels) => {
  pad.clear();
  showImage(pixels);
});
const pad = new Pad(byId("pad"), (pixels) => {
  images.press(null);
  showImage(pixels ?? new Uint8Array(PIXELS));
});
begin();
followTheme();
byId("program").srcdoc = trainer.page();
byId("train").addEventListener("click", () => (running ? pause() : train()));
byId("step").addEventListener("click", () => {
  advance();
  showProgress();
  showButtons();
});
byId("restart").addEventListener("click", () => {
  trainer.free();
  trainer = new Trainer(SEED);
  begin();
});
byId("clear").addEventListener("click", () => pad.clear());
byId("summary").textContent =
  "autobwd in WebAssembly, on one thread: the weights have the same bits as natively. The program of a step stands next to it.";
document.documentElement.dataset.ready = "";
