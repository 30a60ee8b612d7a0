// The page: charts, controls, notes, records, and the tables of final values.

/** Parameters whose charts are shown at first. */
const MOST_PARAMETERS = 24;

const charts = [];

function addChart(section, options) {
  const chart = new Chart(options);
  charts.push(chart);
  byId(section).querySelector(".cards").append(chart.card);
  return chart;
}

/** The place of the cursor on the horizontal axis. */
function cursorAt() {
  const [low, high] = domain();
  return low + view.cursor * (high - low);
}

/** Moves the cursor to a fraction of the horizontal axis. */
function setCursor(fraction) {
  view.cursor = Math.max(0, Math.min(1, fraction));
  byId("cursor").value = Math.round(view.cursor * 1000);
  const text = xText(cursorAt());
  byId("cursor-text").textContent = text;
  for (const chart of charts) if (!chart.card.hidden) chart.moveCursor();
  const first = charts.find((chart) => chart.curves().length);
  const values = first ? [...first.readout.children].map((item) => [...item.children].map((part) => part.textContent).join(" ").trim()) : [];
  byId("cursor").setAttribute("aria-valuetext", [text, ...(first ? [first.title] : []), ...values].join(", "));
}

function drawAll() {
  for (const chart of charts) chart.forgetExtent();
  for (const chart of charts) if (!chart.card.hidden) chart.draw();
  for (const line of timeLines) line.draw();
  setCursor(view.cursor);
}

function makeCharts() {
  namesOf("value").forEach((name, i) => addChart("values", { quantity: "value", name, title: visible(name), main: i === 0, log: false }));
  for (const name of namesOf("learning_rate")) addChart("values", { quantity: "learning_rate", name, title: visible(name), log: false });
  if (namesOf("gradient_norm").length) {
    const total = addChart("gradients", { quantity: "gradient_norm", name: "", title: "all parameters", main: true, log: true, group: [] });
    const group = [];
    for (const name of namesOf("parameter_gradient_norm")) {
      addChart("gradients", { quantity: "parameter_gradient_norm", name, title: visible(name), log: true, group });
    }
    byId("gradients-log").addEventListener("change", (event) => {
      for (const chart of [total, ...group]) chart.isLog = event.target.checked;
      drawAll();
    });
    const choose = (all) => {
      const words = byId("filter").value.trim().toLowerCase();
      const found = group.filter((chart) => chart.title.toLowerCase().includes(words));
      const most = all ? Infinity : MOST_PARAMETERS;
      for (const chart of group) chart.card.hidden = true;
      for (const chart of found.slice(0, most)) chart.card.hidden = false;
      byId("shown").textContent = `${Math.min(most, found.length)} of ${group.length} parameters`;
      byId("all").hidden = found.length <= most;
    };
    const chooseAndDraw = (all) => {
      choose(all);
      drawAll();
    };
    byId("filter").addEventListener("input", () => chooseAndDraw(false));
    byId("all").addEventListener("click", () => chooseAndDraw(true));
    choose(false);
  }
  const costs = { fromZero: true };
  if (namesOf("seconds_per_step").length) addChart("costs", { quantity: "seconds_per_step", name: "", title: "time a step", text: secondsText, log: false, ...costs });
  if (namesOf("peak_bytes").length) addChart("costs", { quantity: "peak_bytes", name: "", title: "peak memory of a step", text: bytesText, ...costs });
  for (const section of ["values", "gradients", "costs"]) byId(section).hidden = !byId(section).querySelector(".card");
}

function makeControls() {
  for (const run of runs) {
    const box = h("input", { type: "checkbox", checked: "" });
    box.addEventListener("change", () => {
      run.shown = box.checked;
      drawAll();
    });
    byId("runs").append(h("label", { class: `run ${run.style}`, title: run.text }, box,
      h("span", { class: "swatch", "aria-hidden": "true" }), h("span", { class: "name" }, run.text)));
  }
  byId("controls").addEventListener("submit", (event) => event.preventDefault());
  for (const choice of document.querySelectorAll("[name=axis]")) {
    choice.addEventListener("change", () => {
      view.axis = choice.value;
      drawAll();
    });
  }
  byId("smoothing").addEventListener("input", (event) => {
    view.smoothing = Number(event.target.value);
    byId("smoothing-text").textContent = event.target.value;
    drawAll();
  });
  byId("cursor").addEventListener("input", (event) => setCursor(Number(event.target.value) / 1000));
}

function makeNotes() {
  const notes = runs.flatMap((run) => [
    run.records ? "" : `${run.text} has no steps.`,
    run.cut_line ? `${run.text}: line ${grouped(run.cut_line)}, the last, is not whole and left out. The run was killed, or is running.` : "",
  ]).filter(Boolean);
  const long = runs.filter((run) => run.coarse > 1 || run.curves.some((curve) => curve.low));
  if (long.length) notes.push(`Several steps are drawn as their mean, in a band from minimum to maximum: ${long.map((run) => run.text).join(", ")}.`);
  if (!runs.length && !data.records.length) notes.push("No runs.");
  byId("notes").hidden = !notes.length;
  byId("notes").append(...notes.map((note) => h("li", {}, note)));
}

/** A table of runs as columns; a row is a title and a cell for each run. */
function table(caption, rows) {
  const head = h("tr", {}, h("td", {}), runs.map((run) => h("th", { scope: "col" }, h("span", { class: `run ${run.style}` },
    h("span", { class: "swatch", "aria-hidden": "true" }), h("span", { class: "name" }, run.text)))));
  const body = rows.map(([title, cells]) => h("tr", {}, h("th", { scope: "row" }, title), cells.map((cell) => h("td", {}, cell))));
  const scroll = h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption });
  scroll.append(h("table", {}, h("caption", {}, caption), h("thead", {}, head), h("tbody", {}, body)));
  return scroll;
}

/** The last value of a curve, and its extremes with their steps. */
function finalCells(quantity, name, text, withExtremes) {
  return runs.map((run) => {
    const curve = curveOf(run, quantity, name);
    if (!curve || curve.last === null) return "–";
    const at = (what, [step, x]) => `${what} ${text(x)} at step ${grouped(step)}`;
    const { least, most } = curve;
    return [text(curve.last), withExtremes && least ? h("span", { class: "note" }, `${at("least", least)}, ${at("most", most)}`) : ""];
  });
}

function makeTables() {
  const end = (run, of) => (run.ends ? of(...run.ends) : "–");
  const rows = [
    ["steps recorded", runs.map((run) => grouped(run.records))],
    ["last step", runs.map((run) => end(run, (_, [step]) => grouped(step)))],
    ["time", runs.map((run) => end(run, (_, [, time]) => secondsText(time)))],
    ["mean time a step", runs.map((run) => end(run, ([first, start], [last, time]) => (last > first ? secondsText((time - start) / (last - first)) : "–")))],
    ...namesOf("value").map((name) => [visible(name), finalCells("value", name, numberText, true)]),
    ...namesOf("learning_rate").map((name) => [visible(name), finalCells("learning_rate", name, numberText, false)]),
    ...namesOf("gradient_norm").map((name) => ["gradient norm", finalCells("gradient_norm", name, numberText, false)]),
    ...namesOf("peak_bytes").map((name) => ["peak memory of a step", finalCells("peak_bytes", name, bytesText, false)]),
  ];
  const without = runs.map((run) => run.without_gradient.map(visible).join(", ") || "–");
  if (runs.some((run) => run.without_gradient.length)) rows.push(["without gradient", without]);
  byId("tables").append(table("Runs", rows));
  const parameters = namesOf("parameter_gradient_norm").map((name) => [visible(name), finalCells("parameter_gradient_norm", name, numberText, false)]);
  if (parameters.length) byId("tables").append(h("details", {}, h("summary", {}, "Gradient norms of parameters"), table("Gradient norms of parameters, last step", parameters)));
}

{
  const steps = runs.reduce((sum, run) => sum + run.records, 0);
  const count = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;
  const records = data.records.length ? [count(data.records.length, "record")] : [];
  const logs = runs.length || !records.length ? [`${count(runs.length, "run")}, ${grouped(steps)} steps recorded`] : [];
  byId("summary").textContent = [...logs, ...records].join(", ");
  for (const id of ["controls", "finals"]) byId(id).hidden = !runs.length && records.length > 0;
  startTheme();
  makeNotes();
  makeControls();
  makeTables();
  makeCharts();
  makeRecords();
  drawAll();
  window.addEventListener("resize", drawAll);
  document.documentElement.dataset.ready = "true";
}
