// Checks the page in a browser:
//
//   CHROMIUM=/usr/bin/chromium node ops/web/check.mjs MODULES PAGE NATIVE [SCREENSHOTS]
//
// MODULES has `node_modules` with playwright-core and axe-core, PAGE is what `ops/web/build` makes, and NATIVE what the
// example `native` prints. With SCREENSHOTS, pictures of the page go into that folder. Prints one line a check.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import path from "node:path";

const [modules, folder, native, screenshots] = process.argv.slice(2).map((name) => path.resolve(name));
const require = createRequire(path.join(modules, "node_modules", "/"));
const { chromium } = require("playwright-core");
const axe = await readFile(require.resolve("axe-core/axe.min.js"), "utf8");
const expected = JSON.parse(await readFile(native, "utf8"));

const TYPES = { ".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".wasm": "application/wasm" };
const server = createServer(async (request, response) => {
  const name = path.basename(request.url === "/" ? "index.html" : request.url);
  try {
    const content = await readFile(path.join(folder, name));
    response.writeHead(200, { "content-type": TYPES[path.extname(name)] }).end(content);
  } catch {
    response.writeHead(404).end();
  }
});
await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
const origin = `http://127.0.0.1:${server.address().port}`;
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ["--no-sandbox"] });

/** Opens the page; `close` fails if it reported an error, or asked for anything from elsewhere. */
async function open(options = {}) {
  const context = await browser.newContext({ viewport: { width: 1500, height: 940 }, ...options });
  const page = await context.newPage();
  const faults = [];
  page.on("console", (message) => ["error", "warning"].includes(message.type()) && faults.push(message.text()));
  page.on("pageerror", (error) => faults.push(error.stack));
  page.on("requestfailed", (request) => faults.push(`failed: ${request.url()}`));
  page.on("request", (request) => {
    const own = request.url().startsWith(`${origin}/`) || /^(data|about|blob):/.test(request.url());
    own || faults.push(`request: ${request.url()}`);
  });
  await page.goto(`${origin}/`);
  await page.waitForSelector("html[data-ready]");
  const close = async () => {
    await context.close();
    assert.deepEqual(faults, [], "errors or requests");
  };
  return { page, close };
}

async function check(what, run) {
  const note = await run();
  console.log(`ok: ${what}${note ? `: ${note}` : ""}`);
}

const button = (page, name) => page.getByRole("button", { name, exact: true });
const progress = (page) => page.locator("#progress").innerText();

/** Draws a zero with its middle there on the pad; all lengths are parts of the pad. */
async function drawZero(page, x, y, size) {
  const box = await page.locator("#pad").boundingBox();
  for (let i = 0; i <= 24; i++) {
    const angle = (i / 24) * 2 * Math.PI;
    const [across, down] = [x + 0.63 * size * Math.sin(angle), y - size * Math.cos(angle)];
    await page.mouse.move(box.x + across * box.width, box.y + down * box.height, { steps: 4 });
    if (i === 0) await page.mouse.down();
  }
  await page.mouse.up();
}

await check("the loss of each step and the weights have the bits of a native run", async () => {
  const { page, close } = await open();
  const found = await page.evaluate(async () => {
    const { Trainer } = await import("./autobwd_web.js");
    const [trainer, losses, start] = [new Trainer(0), [], performance.now()];
    while (trainer.epoch < trainer.epochs) {
      const loss = trainer.step();
      if (loss !== undefined) losses.push(loss);
    }
    const seconds = (performance.now() - start) / 1000;
    return { losses, accuracy: trainer.accuracy(), hash: trainer.hash(), seconds };
  });
  const different = expected.losses.findIndex((loss, step) => loss !== found.losses[step]);
  assert.equal(different, -1, `step ${different}: ${found.losses[different]}, natively ${expected.losses[different]}`);
  assert.equal(found.losses.length, expected.losses.length);
  assert.equal(found.hash, expected.hash);
  assert.equal(found.accuracy, expected.accuracy);
  await close();
  return `${found.losses.length} steps in ${found.seconds.toFixed(1)} s, hash ${found.hash}`;
});

await check("training, pausing, one step, starting again", async () => {
  const { page, close } = await open();
  assert.equal(await progress(page), "epoch 0 of 40, step 0");
  await button(page, "One step").click();
  assert.equal(await progress(page), `epoch 0 of 40, step 1, loss ${expected.losses[0].toFixed(4)}`);
  await button(page, "Train").click();
  await page.waitForFunction(() => document.getElementById("progress").innerText.startsWith("epoch 2 "));
  assert.match(await page.locator("#announcement").innerText(), /^epoch \d+ of 40, test accuracy 9\d\.\d %$/);
  await button(page, "Pause").click();
  const paused = await progress(page);
  const [, step, loss] = /step (\d+), loss ([\d.]+)/.exec(paused);
  assert.equal(loss, expected.losses[step - 1].toFixed(4));
  await page.waitForTimeout(200);
  assert.equal(await progress(page), paused);
  await button(page, "Start again").click();
  assert.equal(await progress(page), "epoch 0 of 40, step 0");
  await close();
});

await check("drawing by pointer and by keyboard", async () => {
  const { page, close } = await open();
  await button(page, "Train").click();
  await page.waitForFunction(() => document.getElementById("progress").innerText.startsWith("epoch 8 "));
  await button(page, "Pause").click();
  // In the middle, and small in a corner: size and place do not matter.
  for (const [x, y, size] of [[0.5, 0.5, 0.35], [0.2, 0.25, 0.18]]) {
    await drawZero(page, x, y, size);
    assert.match(await page.locator("#answer").innerText(), /^read as 0, /);
    await button(page, "Clear").click();
    assert.equal(await page.locator("#answer").innerText(), "");
  }

  await page.locator("#pad").focus();
  await page.keyboard.press("Delete");
  await page.keyboard.press("Space");
  for (let i = 0; i < 10; i++) await page.keyboard.press("ArrowDown");
  await page.keyboard.press("Space");
  await page.keyboard.press("ArrowLeft");
  assert.match(await page.locator("#answer").innerText(), /^read as 1, /);
  assert.match(await page.locator("#announcement").innerText(), /^read as 1, /);

  const image = page.locator("#images button").first();
  await image.click();
  assert.equal(await image.getAttribute("aria-pressed"), "true");
  const [, label, answer] = /a (\d), read as (\d)/.exec(await image.getAttribute("aria-label"));
  assert.equal(answer, label);
  assert.match(await page.locator("#answer").innerText(), new RegExp(`^read as ${answer}, `));
  await close();
});

await check("the program of a step is shown", async () => {
  const { page, close } = await open();
  const program = page.frameLocator("#program");
  await program.getByRole("heading", { name: "A training step of digits" }).waitFor();
  assert.ok((await program.locator("#window .row").count()) > 10);
  await close();
});

for (const colorScheme of ["light", "dark"]) {
  for (const [name, viewport] of [["wide", { width: 1500, height: 940 }], ["narrow", { width: 420, height: 900 }]]) {
    await check(`axe-core finds nothing, ${colorScheme}, ${name}`, async () => {
      const { page, close } = await open({ colorScheme, viewport });
      await button(page, "Train").click();
      await page.waitForFunction(() => document.getElementById("progress").innerText.startsWith("epoch 8 "));
      await button(page, "Pause").click();
      await drawZero(page, 0.5, 0.5, 0.35);
      // The page of the program has checks of its own, in `tests/viewer`.
      await page.evaluate(axe);
      const { violations } = await page.evaluate(() => globalThis.axe.run({ exclude: ["#program"] }));
      const faults = violations.map(({ id, nodes }) => `${id}: ${nodes.map((node) => node.failureSummary).join("\n")}`);
      assert.deepEqual(faults, []);
      const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      assert.ok(overflow <= 0, `the page is ${overflow} pixels too wide`);
      if (screenshots) await page.screenshot({ path: path.join(screenshots, `${colorScheme}-${name}.png`) });
      await close();
    });
  }
}

await browser.close();
server.close();
