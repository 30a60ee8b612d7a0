// Checks pages of `autobwd-viewer` in a browser:
//
//   CHROMIUM=/usr/bin/chromium node tests/viewer/check.mjs FOLDER [SCREENSHOTS]
//
// FOLDER has `node_modules` with playwright-core and axe-core, and in `pages` what the example `pages` writes. With
// SCREENSHOTS, pictures of some pages go into that folder. Prints one line a check, and the times as one JSON line.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import path from "node:path";
import { pathToFileURL } from "node:url";

import { checkReports } from "./report.mjs";

const [folder, screenshots] = process.argv.slice(2).map((name) => path.resolve(name));
const require = createRequire(path.join(folder, "node_modules", "/"));
const { chromium } = require("playwright-core");
const axe = await readFile(require.resolve("axe-core/axe.min.js"), "utf8");
const expected = JSON.parse(await readFile(path.join(folder, "pages", "expected.json"), "utf8"));

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ["--no-sandbox"] });
const SIZE = { width: 1400, height: 860 };
const urlOf = (name) => pathToFileURL(path.join(folder, "pages", `${name}.html`)).href;

/** Opens a page; `close` fails if it reported an error, or asked for anything but itself. */
async function open(name, options = {}) {
  const context = await browser.newContext({ viewport: SIZE, colorScheme: "light", ...options });
  const page = await context.newPage();
  const faults = [];
  page.on("console", (message) => ["error", "warning"].includes(message.type()) && faults.push(message.text()));
  page.on("pageerror", (error) => faults.push(error.stack));
  page.on("dialog", (dialog) => faults.push(`dialog: ${dialog.message()}`) && dialog.dismiss());
  page.on("request", (request) => {
    const own = request.url() === urlOf(name) || request.url().startsWith("blob:");
    own || faults.push(`request: ${request.url()}`);
  });
  await page.goto(urlOf(name));
  await page.waitForSelector("html[data-ready]");
  const close = async () => {
    await context.close();
    assert.deepEqual(faults, [], `${name}: errors or requests`);
  };
  return { page, close };
}

async function check(what, run) {
  await run();
  console.log(`ok: ${what}`);
}

const names = Object.keys(expected);
const removed = (page) => page.evaluate(() => ops.filter((op) => op.status === REMOVED).length);
const itemText = (page) => page.locator("#story").innerText();

for (const name of names) {
  const { operators, stories } = expected[name];

  await check(`${name}: one element for each of ${operators} operators`, async () => {
    const { page, close } = await open(name);
    assert.ok((await page.locator("#window .row").count()) < 150, "lines out of view are not drawn");
    await page.getByRole("button", { name: "Unfold", exact: true }).click();
    // All lines are printed.
    await page.emulateMedia({ media: "print" });
    await page.waitForFunction(() => document.querySelectorAll("#window .row").length === lines.length);
    const drawn = await page.locator("#window .op").evaluateAll((items) => items.map((item) => item.dataset.op));
    assert.equal(new Set(drawn).size, drawn.length, "an operator is drawn twice");
    assert.equal(drawn.length, operators + (await removed(page)));
    await close();
  });

  await check(`${name}: what pointing at gradients tells`, async () => {
    const { page, close } = await open(name);
    let pointed = 0;
    for (const [gradient, story] of Object.entries(stories).slice(0, 25)) {
      const id = await page.evaluate((gradient) => {
        const value = values.find((value) => data.names[value.name] === gradient && value.writer?.right);
        goTo(value.writer);
        select(null);
        return stories.has(value.name) ? value.id : null;
      }, gradient);
      if (id === null) {
        assert.ok(operators > 2000, `${gradient} has no story`);
        continue;
      }
      const token = page.locator(`#window .value[data-value="${id}"]`).first();
      if ((await token.count()) === 0) continue;
      const box = await token.boundingBox();
      const at = [box.x + 3, box.y + box.height / 2];
      // A token may lie behind the end of its cell.
      const isSeen = ([at, id]) => document.elementFromPoint(...at)?.dataset.value === String(id);
      if (!(await page.evaluate(isSeen, [at, id]))) continue;
      await page.mouse.move(...at);
      assert.equal(await page.locator("#story .explain").first().textContent(), story);
      pointed++;
    }
    assert.ok(pointed >= Math.min(5, Object.keys(stories).length), `only ${pointed} gradients were pointed at`);
    await close();
  });

  for (const colorScheme of ["light", "dark"]) {
    await check(`${name}: axe-core finds nothing, ${colorScheme}`, async () => {
      const { page, close } = await open(name, { colorScheme });
      await page.evaluate(axe);
      for (const state of ["at first", "with a selection"]) {
        const { violations } = await page.evaluate(() => globalThis.axe.run());
        const text = violations.map(({ id, help, nodes }) => `${id}: ${help}\n  ${nodes.slice(0, 3).map((n) => n.html + "\n  " + n.failureSummary).join("\n  ")}`);
        assert.deepEqual(text, [], state);
        await page.evaluate(() => ops.length && goTo(ops.at(-1)));
      }
      await close();
    });
  }
}

await check("folding by mouse and keyboard", async () => {
  const { page, close } = await open("gpt");
  const count = () => page.evaluate(() => lines.length);
  const before = await count();
  const heading = page.locator(".heading", { hasText: "operators, from layer_norm" });
  assert.match(await heading.textContent(), /^4 × 22 operators/);
  await heading.click();
  assert.ok((await count()) < before);
  assert.equal(await page.locator(".row.head").first().getAttribute("aria-expanded"), "false");
  await page.locator("#grid").focus();
  await page.keyboard.press("Enter");
  assert.equal(await count(), before);
  await page.getByRole("button", { name: "Fold", exact: true }).click();
  assert.ok((await count()) < before / 3);
  await close();

  const lstm = await open("lstm");
  const step = lstm.page.locator("#window .row", { has: lstm.page.getByText("recurrent", { exact: true }) });
  assert.equal(await step.getAttribute("aria-expanded"), "true");
  const all = await lstm.page.evaluate(() => lines.length);
  await step.locator(".folder").click();
  assert.ok((await lstm.page.evaluate(() => lines.length)) <= all - 13);
  await lstm.close();
});

await check("search", async () => {
  const { page, close } = await open("gpt");
  await page.getByRole("button", { name: "Fold", exact: true }).click();
  await page.keyboard.press("/");
  await page.keyboard.type("gelu_grad");
  assert.equal(await page.locator("#hits").textContent(), "4");
  await page.keyboard.press("Enter");
  assert.equal(await page.locator("#hits").textContent(), "1 of 4");
  assert.match(await itemText(page), /^gelu_grad/);
  assert.equal(await page.locator("#window .hit .op", { hasText: "gelu_grad" }).count() > 0, true);
  await page.keyboard.press("Shift+Enter");
  assert.equal(await page.locator("#hits").textContent(), "4 of 4");
  await page.locator("#search").fill("models.rs:");
  const found = Number(await page.locator("#hits").textContent());
  assert.ok(found >= 100, `source lines are searched: ${found} hits`);
  await page.locator("#search").fill("no such thing");
  assert.equal(await page.locator("#hits").textContent(), "none");
  await page.keyboard.press("Escape");
  assert.equal(await page.locator("#search").inputValue(), "");
  await close();
});

await check("keyboard", async () => {
  const { page, close } = await open("digits");
  await page.locator("#grid").focus();
  await page.keyboard.press("ArrowDown");
  assert.match(await itemText(page), /^elementwise_add/);
  await page.keyboard.press("ArrowRight");
  assert.match(await itemText(page), /^elementwise_add_0/);
  const id = await page.locator("#grid").getAttribute("aria-activedescendant");
  assert.ok(await page.locator(`#${id}`).isVisible());
  await page.keyboard.press("End");
  assert.match(await itemText(page), /^adam/);
  await page.keyboard.press("Escape");
  assert.match(await itemText(page), /^Details/);
  const reached = new Set();
  await page.locator("#search").focus();
  for (let i = 0; i < 12; i++) {
    await page.keyboard.press("Tab");
    reached.add(await page.evaluate(() => document.activeElement.id));
  }
  for (const id of ["theme", "grid", "timeline", "live", "story"]) assert.ok(reached.has(id), `Tab does not reach ${id}`);
  await close();
});

await check("memory plan", async () => {
  const { page, close } = await open("gpt");
  const timeline = page.locator("#timeline");
  const text = () => timeline.getAttribute("aria-valuetext");
  assert.match(await text(), /^instruction \d+ of \d+: .* live$/);
  const sizes = await page.evaluate(() => [timeline.top, plan.peak]);
  assert.equal(sizes[0], sizes[1], "the peak of the picture is that of the plan");
  await timeline.focus();
  await page.keyboard.press("Home");
  assert.match(await text(), /^instruction 0 of/);
  await page.keyboard.press("ArrowRight");
  assert.match(await text(), /^instruction 1 of/);
  assert.ok((await page.locator("#window .running").count()) > 0, "the row of the instruction is marked");
  await page.evaluate(() => goTo(ops.findLast((op) => op.right && instructionOf.has(op.id))));
  assert.match(await text(), /^instruction (?!1 )\d+ of/);
  assert.ok((await page.locator("#live li").count()) > 0);
  await close();
});

await check("differences", async () => {
  const { page, close } = await open("unlike");
  const signs = new Set(await page.locator("#window .mark").allTextContents());
  for (const sign of ["+", "−", "~"]) assert.ok(signs.has(sign), `no row has ${sign}`);
  await close();
  const same = await open("differences");
  const changed = expected.differences.changes.split("\n").filter((line) => line.startsWith("  ~ operator")).length;
  const shown = await same.page.evaluate(() => ops.filter((op) => op.status === CHANGED).length);
  assert.ok(shown >= changed, `${shown} changed operators, diff names ${changed}`);
  await same.page.evaluate(() => goTo(ops.find((op) => op.status === CHANGED)));
  assert.match(await itemText(same.page), /~ changed[^]*was/);
  await same.close();
});

await check("dark mode", async () => {
  const { page, close } = await open("digits", { colorScheme: "dark" });
  const paper = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const dark = await paper();
  await page.getByRole("button", { name: "Dark" }).click();
  assert.notEqual(await paper(), dark);
  assert.equal(await page.getByRole("button", { name: "Dark" }).getAttribute("aria-pressed"), "false");
  await close();
});

await check("SVG export", async () => {
  const { page, close } = await open("gpt");
  const [download] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Save SVG" }).click()]);
  const svg = await readFile(await download.path(), "utf8");
  assert.equal(download.suggestedFilename(), "gpt.svg");
  assert.match(svg, /^<svg /);
  const shown = await page.evaluate(() => lines.flatMap((line) => [line.left, line.right]).filter(Boolean).length);
  assert.equal(svg.match(/<tspan /g).length, shown);
  await close();
});

await check("no other script runs", async () => {
  const context = await browser.newContext();
  const page = await context.newPage();
  await page.goto(urlOf("hostile"));
  const ran = await page.evaluate(() => {
    const script = document.createElement("script");
    script.textContent = "window.ran = true";
    document.body.append(script);
    return window.ran;
  });
  assert.equal(ran, undefined);
  assert.equal(await page.title(), "</title><script>alert(1)</script>");
  await context.close();
});

await checkReports({ open, check, axe, folder, screenshots });

/** Milliseconds from the request of a page to the frame that shows its rows: the least of several loads. */
async function timeToRows(name) {
  const times = [];
  for (let i = 0; i < 5; i++) {
    const context = await browser.newContext({ viewport: SIZE });
    const page = await context.newPage();
    await page.addInitScript(() => {
      const painted = () => requestAnimationFrame(() => setTimeout(() => (globalThis.painted = performance.now())));
      const ready = () => document.documentElement?.dataset.ready && (observer.disconnect(), painted());
      const observer = new MutationObserver(ready);
      observer.observe(document, { subtree: true, attributes: true, childList: true });
    });
    await page.goto(urlOf(name));
    await page.waitForFunction(() => globalThis.painted);
    times.push(await page.evaluate(() => globalThis.painted));
    await context.close();
  }
  return Math.round(Math.min(...times));
}

const rows = [];
for (const name of names) {
  const { operators, bytes } = expected[name];
  rows.push([name, { operators, bytes, rows_painted_ms: await timeToRows(name) }]);
}

const POINTED_AT = { digits: "relu_0@GRAD", gpt: "gelu_1@GRAD", lstm: "wh@GRAD", differences: "linear_1.w@GRAD" };
for (const [name, gradient] of screenshots ? Object.entries(POINTED_AT) : []) {
  for (const colorScheme of ["light", "dark"]) {
    const { page, close } = await open(name, { colorScheme, viewport: { width: 1240, height: 700 } });
    await page.evaluate((gradient) => {
      const value = values.find((value) => data.names[value.name] === gradient && value.writer?.block === 0);
      goTo(value.writer);
      select({ value });
    }, gradient);
    await page.screenshot({ path: path.join(screenshots, `${name}-${colorScheme}.png`) });
    await close();
  }
}
await browser.close();
console.log(JSON.stringify(Object.fromEntries(rows)));
