// The measured options of one segment: the controls choose, the chart and the table follow.
"use strict";
(async () => {
  const form = document.getElementById("options-form");
  if (form === null) return;
  const [kindBox, blockBox, strategyBox, stateBox, keepBox, measureBox] =
    ["kind", "block", "strategy", "state", "keep", "measure"].map((name) => document.getElementById(`options-${name}`));
  const body = document.querySelector("#options-table tbody");
  const status = document.getElementById("options-count");
  const units = [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]];

  const fill = (box, names) =>
    box.replaceChildren(...names.map(([value, text]) => new Option(text, value)));
  const bytes = (count) => {
    const [unit, size] = units.find(([, least]) => count >= least) ?? ["B", 1];
    return `${(count / size).toFixed(size === 1 ? 0 : 1)} ${unit}`;
  };
  const ms = (value) => (value === null ? "not measured" : value.toPrecision(4));

  const chosenKind = () => reportData.kinds[Number(kindBox.value)];

  function fillBlocks() {
    const kind = chosenKind();
    fill(blockBox, kind.blocks.map((block, i) => [i, block.name]));
    for (const [box, aspect] of [[stateBox, "state"], [keepBox, "keep"]]) {
      const words = [...new Set(kind.options.map((one) => one[aspect]))];
      fill(box, [["", "any"], ...words.map((word) => [word, word])]);
    }
    fillStrategies();
  }

  function fillStrategies() {
    const block = chosenKind().blocks[Number(blockBox.value)];
    fill(strategyBox, [["", "any"], ...block.strategies.map((name, i) => [i, name])]);
  }

  // the chosen option, and the best of each strategy of the block that is looked at
  function marks(kind) {
    const found = new Map();
    const place = Number(blockBox.value);
    for (const one of [...kind.options].sort((a, b) => a.time - b.time)) {
      const strategy = kind.blocks[place].strategies[one.combo[place]];
      if (![...found.values()].includes(`best: ${strategy}`)) found.set(one, `best: ${strategy}`);
    }
    for (const one of kind.options) {
      if (kind.chosen.includes(one.splits)) found.set(one, found.has(one) ? `chosen, ${found.get(one)}` : "chosen");
    }
    return found;
  }

  function points(options, labels, measure, size) {
    const told = options.filter((one) => one[measure] !== null);
    return {
      memory: told.map((one) => one.memory / size),
      time: told.map((one) => one[measure]),
      share: told.map((one) => (one.communicate === null || one.time === 0 ? NaN : one.communicate / one.time)),
      splits: told.map((one) => one.splits),
      said: told.map((one) => `${ms(one.time)} ms (${ms(one.compute)} computing, ${ms(one.communicate)} communicating), ${bytes(one.memory)}${labels.has(one) ? `; ${labels.get(one)}` : ""}`),
      size: told.map((one) => (labels.get(one)?.startsWith("chosen") ? 20 : 14)),
      label: told.map((one) => (labels.get(one) ?? "").replace(/, best: .*/, "").replace("best: ", "")),
    };
  }

  function row(one, label) {
    const made = document.createElement("tr");
    const cells = [
      [`${one.splits}${one.rough ? " (given up early)" : ""}`], [ms(one.time), one.time], [ms(one.spread), one.spread],
      [ms(one.compute), one.compute ?? ""], [ms(one.communicate), one.communicate ?? ""], [bytes(one.memory), one.memory], [label],
    ];
    cells.forEach(([text, value], column) => {
      const cell = document.createElement("td");
      cell.textContent = text;
      if (value !== undefined) cell.dataset.value = value;
      if (column > 0 && column < 6) cell.className = "n";
      made.append(cell);
    });
    if (label.startsWith("chosen")) made.className = "chosen";
    return made;
  }

  function draw() {
    const kind = chosenKind();
    const labels = marks(kind);
    const place = Number(blockBox.value);
    const shown = kind.options.filter((one) =>
      (strategyBox.value === "" || one.combo[place] === Number(strategyBox.value)) &&
      (stateBox.value === "" || one.state === stateBox.value) &&
      (keepBox.value === "" || one.keep === keepBox.value));
    body.replaceChildren(...shown.map((one) => row(one, labels.get(one) ?? "")));
    window.labelCells(document.getElementById("options-table"));
    const rest = kind.left_out ? `, ${kind.left_out} slower ones are not listed` : "";
    status.textContent = `${shown.length} of ${kind.options.length} measured options${rest}; ${kind.ways} of ${kind.space} ways to split it were tried.`;
    for (const made of window.Bokeh?.documents ?? []) {
      const chart = made.get_model_by_name("options");
      if (chart === null) continue;
      const marked = shown.filter((one) => labels.has(one));
      const [unit, size] = Math.max(...kind.options.map((one) => one.memory)) >= 4 * 2 ** 30 ? units[0] : units[1];
      made.get_model_by_name("points").data = points(shown, labels, measureBox.value, size);
      made.get_model_by_name("marked").data = points(marked, labels, measureBox.value, size);
      chart.below[0].axis_label = `${unit} on a device`;
    }
  }

  fill(kindBox, reportData.kinds.map((kind, i) => [i, kind.name]));
  // the segment with the most to see first: the one that was measured in most ways
  const most = Math.max(...reportData.kinds.map((kind) => kind.options.length));
  kindBox.value = String(reportData.kinds.findIndex((kind) => kind.options.length === most));
  fillBlocks();
  kindBox.addEventListener("input", () => { fillBlocks(); draw(); });
  blockBox.addEventListener("input", () => { fillStrategies(); draw(); });
  for (const box of [strategyBox, stateBox, keepBox, measureBox]) box.addEventListener("input", draw);
  form.addEventListener("submit", (event) => event.preventDefault());
  await chartsReady;
  draw();
})();
