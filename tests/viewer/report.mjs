// Checks of the reports of runs: see `check.mjs`.

import assert from "node:assert/strict";
import { stat } from "node:fs/promises";
import path from "node:path";

const NAMES = ["one", "several", "long", "hostile", "nothing", "records", "hostile-records"];

/** Checks the reports with the functions of `check.mjs`. */
export async function checkReports({ open, check, axe, folder, screenshots }) {
  const openReport = (name, options) => open(`report-${name}`, options);
  const card = (page, title) => page.locator(".card", { has: page.getByRole("heading", { name: title, exact: true }) });
  const paths = (of) => of.locator("path.curve");

  for (const name of NAMES) {
    for (const colorScheme of ["light", "dark"]) {
      await check(`report ${name}: axe-core finds nothing, ${colorScheme}`, async () => {
        const { page, close } = await openReport(name, { colorScheme });
        await page.evaluate(axe);
        for (const details of await page.locator("summary").all()) await details.click();
        const { violations } = await page.evaluate(() => globalThis.axe.run());
        assert.deepEqual(violations.map(({ id, help, nodes }) => `${id}: ${help}\n  ${nodes[0].html}\n  ${nodes[0].failureSummary}`), []);
        await close();
      });
    }
  }

  await check("report: a curve for each run and quantity", async () => {
    const { page, close } = await openReport("several");
    assert.equal(await page.locator("#summary").textContent(), "4 runs, 139 steps recorded");
    const notes = await page.locator("#notes li").allTextContents();
    assert.deepEqual(notes, ["empty has no steps.", "cut: line 41, the last, is not whole and left out. The run was killed, or is running."]);
    assert.equal(await paths(card(page, "loss")).count(), 4);
    assert.equal(await paths(card(page, "linear_2.w")).count(), 1);
    const loss = await card(page, "loss").locator("path.curve").evaluateAll((all) => all.map((path) => path.getAttribute("d")));
    assert.equal(loss[0].match(/M/g).length, 1);
    assert.equal(loss[1].match(/M/g).length, 2, "NaN makes a gap");
    assert.equal(loss[2], "");
    assert.match(await card(page, "loss").locator(".note").textContent(), /^b: NaN or infinite at 3 steps, first at step 10$/);
    assert.equal((await card(page, "loss").locator("path.bad").getAttribute("d")).match(/M/g).length, 3);
    const rows = await page.locator("#tables table").first().locator("tbody tr").allTextContents();
    assert.ok(rows.some((row) => /^loss.*-Infinity/.test(row)), rows.join("\n"));
    await close();
  });

  await check("report: cursor by pointer and keyboard", async () => {
    const { page, close } = await openReport("one");
    const plot = await card(page, "loss").locator("svg").boundingBox();
    await page.mouse.move(plot.x + plot.width / 2, plot.y + 60);
    assert.match(await page.locator("#cursor-text").textContent(), /^step (19|20|21)$/);
    const at = await page.evaluate(() => Number(runs[0].curves[0].mean[nearest(runs[0].spans, cursorAt())].toPrecision(5)));
    assert.equal(await card(page, "loss").locator(".readout").textContent(), String(at));
    await page.locator("#cursor").focus();
    await page.keyboard.press("Home");
    assert.equal(await page.locator("#cursor-text").textContent(), "step 1");
    assert.match(await page.locator("#cursor").getAttribute("aria-valuetext"), /^step 1, loss, 3\.\d+$/);
    await close();
  });

  await check("report: axis, smoothing, scale, runs", async () => {
    const { page, close } = await openReport("several");
    const drawn = () => paths(card(page, "loss")).first().getAttribute("d");
    const before = await drawn();
    await page.getByLabel("Time", { exact: true }).check();
    assert.match(await page.locator("#cursor-text").textContent(), /^600 ms$/);
    await page.getByLabel("Step", { exact: true }).check();
    assert.equal(await drawn(), before);
    await card(page, "loss").getByLabel("Logarithmic").check();
    assert.notEqual(await drawn(), before);
    await card(page, "loss").getByLabel("Logarithmic").uncheck();
    await page.getByLabel("Smoothing").fill("0.9");
    assert.equal(await card(page, "loss").locator("path.raw").count(), 4);
    assert.equal(await drawn(), before, "the values stay, behind their average");
    await page.getByLabel("Smoothing").fill("0");
    await page.locator("#runs").getByLabel("b", { exact: true }).uncheck();
    assert.equal(await paths(card(page, "loss")).count(), 3);
    await close();
  });

  await check("report: parameters", async () => {
    const { page, close } = await openReport("long");
    const shown = () => page.locator("#gradients .card:visible").count();
    assert.equal(await shown(), 25);
    await page.getByRole("button", { name: "Show all" }).click();
    assert.equal(await shown(), 61);
    await page.getByLabel("Filter parameters").fill("linear_5");
    assert.equal(await shown(), 12);
    const scale = () => card(page, "all parameters").locator("text.y").allTextContents();
    const before = await scale();
    await page.locator("#gradients-log").uncheck();
    assert.notDeepEqual(await scale(), before);
    await close();
  });

  await check("report: long runs are small and drawn soon", async () => {
    const { size } = await stat(path.join(folder, "pages", "report-long.html"));
    assert.ok(size < 2e6, `${size} bytes`);
    const { page, close } = await openReport("long");
    assert.ok((await card(page, "loss").locator("path.band").count()) === 2);
    const ms = await page.evaluate(() => {
      const start = performance.now();
      drawAll();
      return performance.now() - start;
    });
    assert.ok(ms < 1000, `${ms} ms`);
    await close();
  });

  await check("report: names stay names", async () => {
    const { page, close } = await openReport("hostile");
    const names = await page.locator("#runs .name").allTextContents();
    assert.deepEqual(names, ["</script><script>alert(1)</script>\\u{202e}\\u{7f}", "\"'`&<b>"]);
    assert.equal(await page.locator("h3", { hasText: "<!--<b>{{script}}" }).count(), 1);
    await close();
    const records = await openReport("hostile-records");
    assert.deepEqual(await records.page.locator("#records h3").allTextContents(), names);
    await records.close();
  });

  await check("report: records with their segments, and where they part", async () => {
    const { page, close } = await openReport("records");
    assert.equal(await page.locator("#summary").textContent(), "1 run, 40 steps recorded, 2 records");
    const verdicts = await page.locator("#records .verdict").allTextContents();
    assert.deepEqual(verdicts, ["finished, 600 steps; segments: 6 confirmed", "no end, 450 steps; segments: 3 confirmed, 1 refused, 1 not verified"]);
    const changed = card(page, "changed");
    const count = async (kind) => (await changed.locator(`.plot path.${kind}`).getAttribute("d")).match(/M/g).length;
    for (const [kind, expected] of [["confirmed", 3], ["refused", 1], ["unsure", 1], ["tick", 46], ["present", 4], ["missing", 1]]) {
      assert.equal(await count(kind), expected, kind);
    }
    assert.deepEqual(await changed.locator(".sentences li.refused").allTextContents(), ["steps 201 to 300: refused: `linear_0.w` and 3 other values differ"]);
    const slider = changed.getByLabel("State");
    await slider.focus();
    await page.keyboard.press("Home");
    assert.match(await changed.locator("output").textContent(), /^after step 0, checkpoint: [0-9a-f]{64}$/);
    const plot = await changed.locator(".plot").boundingBox();
    await page.mouse.move(plot.x + plot.width / 2, plot.y + 20);
    assert.match(await changed.locator("output").textContent(), /^after step (290|300, missing checkpoint|310): /);
    assert.equal(await page.locator("#differences .verdict").textContent(), "they part in steps 201 to 210");
    assert.match(await page.locator("#differences pre").textContent(), /^the runs start to differ at step 205\n  reads X/);
    await close();
  });

  for (const colorScheme of screenshots ? ["light", "dark"] : []) {
    const { page, close } = await openReport("several", { colorScheme, viewport: { width: 1240, height: 900 } });
    await page.screenshot({ path: path.join(screenshots, `report-${colorScheme}.png`) });
    await close();
    const records = await openReport("records", { colorScheme, viewport: { width: 1240, height: 780 } });
    await records.page.locator("#differences").evaluate((section) => section.scrollIntoView());
    await records.page.screenshot({ path: path.join(screenshots, `records-${colorScheme}.png`) });
    await records.close();
  }
}
