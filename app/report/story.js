// The story: one finding at a time, a sentence, its controls, its chart and its numbers. What was
// measured is read from the file; what is ranked is computed here.

(() => {
  "use strict";

  const story = JSON.parse(document.getElementById("data").textContent);
  const find = (id) => document.getElementById(id);
  const slides = story.slides.filter((slide) => !slide.missing);
  const byName = Object.fromEntries(slides.map((slide) => [slide.name, slide]));
  const NARROW = 760; // of two panels side by side
  const LONG = 115; // letters of a sentence in smaller type
  const state = { slide: slides[0].name, percent: story.percent, scale: "rescaled", even: "even" };

  // Elements. Words are text: names of models and corpora are foreign.

  function make(name, attributes = {}, ...children) {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (key in element && key !== "list") element[key] = value;
      else element.setAttribute(key, value);
    }
    element.append(...children);
    return element;
  }

  /** Radio buttons that look like one control. */
  function choice(key, label, options) {
    const radios = options.map(([value, words]) => {
      const radio = make("input", { type: "radio", name: key, value, checked: state[key] === value });
      radio.addEventListener("change", () => set(key, value));
      return make("label", {}, radio, make("span", {}, words));
    });
    return make("fieldset", { className: "choice" }, make("legend", {}, label),
      make("div", {}, ...radios));
  }

  function table(caption, columns, rows) {
    const cell = (value, place) => make(place ? "td" : "th", place ? {} : { scope: "row" }, String(value));
    return make("table", {}, make("caption", {}, caption),
      make("thead", {}, make("tr", {}, ...columns.map((name) => make("th", { scope: "col" }, name)))),
      make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map(cell)))));
  }

  // Rankings.

  const criteria = byName.criteria, strata = byName.stratification, corpora = byName.corpora;
  const sums = criteria && ranking.sumsOf(criteria.sums, criteria.width, story.experts);
  const ownOrder = criteria && ordersIn(criteria.order);
  const orders = new Map(); // by exponents, as text
  if (criteria) [state.b, state.alpha, state.beta] = criteria.first.split(",").map(Number);
  if (corpora) Object.assign(state, { corpus: corpora.corpus });
  if (byName.budget) state.schedule = byName.budget.steps[story.percent][0].name;

  function ordersIn(text) {
    return ranking.byLayer(ranking.unpack(text, "u2"), story.experts).map((row) => [...row]);
  }

  function ordersBy(exponents) {
    const key = exponents.join(",");
    if (!orders.has(key)) {
      orders.set(key, ranking.ordersOf(ranking.scores(sums, exponents), story.groups));
    }
    return orders.get(key);
  }

  const keptAt = () => story.kept[state.percent];
  const keptBy = (order) =>
    order.map((row, layer) => ranking.keptOf(row, keptAt()[layer]));

  /** Rows of places in `charts.FATES`: both, the first alone, the second alone, neither. */
  function fatesOf(first, second) {
    const [mine, theirs] = [keptBy(first), keptBy(second)];
    return story.experts.map((count, layer) => Array.from({ length: count }, (_, expert) =>
      mine[layer].has(expert) ? (theirs[layer].has(expert) ? 0 : 1)
        : theirs[layer].has(expert) ? 2 : 3));
  }

  const countOf = (fates, code) =>
    fates.reduce((sum, row) => sum + row.filter((fate) => fate === code).length, 0);

  const filled = (template, values) =>
    template.replace(/\{(\w+)\}/g, (whole, name) => values[name] ?? whole);

  // The findings: each returns its sentence, and what draws and lists its numbers.

  const share = () => `${state.percent}%`;
  const lossOf = (mean) => (mean === null || mean === undefined ? "not measured" : charts.signed(mean));

  function saves(slide) {
    const step = slide.steps[state.percent];
    const label = `Size and loss of plans: at ${share()} sparsity ${charts.size(step.bytes)}.`;
    return {
      sentence: step.sentence,
      note: slide.note,
      draw: (width) => [slide.points
        ? charts.lossBySize(width, 460, { ...slide, step, percent: state.percent, label })
        : charts.sizeBars(width, { parts: step.parts, label })],
      tables: () => [table("Each sparsity", ["sparsity", "size", "loss increase"],
        story.percents.map((percent) => {
          const row = slide.steps[percent];
          const predicted = row.mean !== null && !row.measured ? ", predicted" : "";
          return [`${percent}%`, charts.size(row.bytes), lossOf(row.mean) + predicted];
        }))],
    };
  }

  /** The map of two rankings, and its numbers by layer. */
  function pairOf(first, second, names) {
    const fates = fatesOf(first, second);
    const label = `Map of experts by layer: ${countOf(fates, 1)} kept by ${names[0]} alone, ` +
      `${countOf(fates, 2)} by ${names[1]} alone.`;
    const ranks = [first, second].map((orders) => orders.map(ranking.ranksOf));
    const read = (layer, expert) => `layer ${story.layers[layer]}, expert ${expert}: rank ` +
      `${ranks[0][layer][expert]} by ${names[0]}, ${ranks[1][layer][expert]} by ${names[1]}`;
    return {
      draw: (width) => [{
        ...charts.keptMap(width, { layers: story.layers, fates, names, label }), read,
      }],
      numbers: table("Experts of each layer",
        ["layer", "kept by both", `${names[0]} alone`, `${names[1]} alone`, "pruned by both"],
        fates.map((row, layer) => [story.layers[layer],
          ...[0, 1, 2, 3].map((code) => row.filter((fate) => fate === code).length)])),
      count: countOf(fates, 1),
    };
  }

  function disagree(slide) {
    const exponents = [state.b, state.alpha, state.beta], key = exponents.join(",");
    const name = slide.labels[key], measured = slide.steps[state.percent];
    const isPair = name && key !== slide.exponents;
    const pair = pairOf(isPair ? ordersBy(exponents) : ownOrder, ownOrder,
      [isPair ? name : slide.own, slide.own]);
    let sentence = name ? slide.itself : slide.same;
    if (isPair) {
      const instead = measured[key]?.instead ?? slide.unmeasured;
      sentence = filled(slide.template, { keeps: name, drops: slide.own, instead,
        count: pair.count.toLocaleString("en-US") });
    }
    return {
      sentence,
      note: [`S(b, \u03b1, \u03b2) = N\u207b\u1d47 \u03a3 g\u1d45 \u2016f\u2016\u1d5d, summed over the ` +
        `tokens of ${slide.corpus} and ranked in your browser.`, slide.note].filter(Boolean).join(" "),
      draw: pair.draw,
      tables: () => [pair.numbers,
        table(`All variants at ${share()}`, ["variant", "b, \u03b1, \u03b2", "loss increase"],
          Object.entries(slide.labels).map(([variant, label]) =>
            [label, variant, lossOf(measured[variant]?.mean)]))],
    };
  }

  /** Scores of a panel of stratification at the scale of the controls. */
  function panelOf(panel) {
    const saliency = ranking.byLayer(ranking.unpack(panel.saliency, "f8"), story.experts);
    const orders = ranking.ordersOf(saliency, story.groups);
    const relative = saliency.map(ranking.relative);
    const gaps = relative.map((row, layer) => ranking.gapAt(row, orders[layer], keptAt()[layer]));
    const values = { relative, rescaled: saliency.map(ranking.rescaled),
      raw: saliency.map((row) => Array.from(row, (value) => panel.sign * value)) }[state.scale];
    const measures = [
      { name: "--series-0", place: 0, rows: panel.spread, words: "spread" },
      { name: "--series-1", place: 2, rows: gaps, words: "gap at the cut" },
    ];
    if (panel.random_gaps) {
      const each = ranking.byLayer(ranking.unpack(panel.random_gaps, "f4"),
        story.experts.map((count) => count - 1));
      const chance = each.map((row, layer) => row[keptAt()[layer] - 1] ?? null);
      measures.unshift(
        { name: "--muted", place: 0, rows: panel.random_spread, words: "spread, random weights", hollow: true },
        { name: "--muted", place: 2, rows: chance, words: "gap, random weights", hollow: true });
    }
    return { name: panel.name, orders, values, measures,
      isTurned: state.scale === "raw" && panel.sign < 0 };
  }

  function separation(slide) {
    const panels = slide.panels.map(panelOf);
    const ends = (list) => list.flat(2).reduce(
      ([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
    const all = panels.flatMap(({ measures }) => measures.flatMap(({ rows }) => rows))
      .filter((value) => value > 0);
    const shared = state.scale === "relative" ? ends(panels.map(({ values }) => values)) : null;
    const scale = slide.scales.find(({ name }) => name === state.scale);
    const charted = (width) => panels.map((panel) => {
      const range = state.scale === "rescaled" ? [0, 1] : shared ?? ends(panel.values);
      const label = `Scores by ${panel.name}, by layer and rank; ${scale.about}.`;
      const read = (layer, rank) => {
        const expert = panel.orders[layer][rank];
        return expert === undefined ? "" : `${panel.name}: layer ${story.layers[layer]}, ` +
          `rank ${rank + 1} is expert ${expert}, ${panel.values[layer][expert].toPrecision(4)}`;
      };
      return { ...charts.strata(width, { layers: story.layers, panel, kept: keptAt(), range,
        measures: { all: all.length ? all : [1] }, label }), read };
    });
    const text = (value) => (value === null || value === undefined ? "" : charts.percent(value));
    return {
      sentence: slide.sentence,
      note: `Colours: ${scale.about}. ${slide.about}`,
      draw: (width) => charted(width >= NARROW ? (width - 32) / 2 : width),
      legend: [["scale", "", { rescaled: "0 to 1", relative: "lowest to highest" }[state.scale] ??
        "lowest to highest"],
        ...[...panels[0].measures].sort((one, other) => !!one.hollow - !!other.hollow).map(({ name, place, words, hollow }) =>
          [`mark-${place}${hollow ? "-hollow" : ""}`, name, words]), ["cut", "--ink", "cut"]],
      tables: () => panels.map((panel) => {
        const columns = [...panel.measures].sort((one, other) => !!one.hollow - !!other.hollow);
        return table(`${panel.name}, shares of the layer's mean`,
          ["layer", ...columns.map(({ words }) => words)],
          story.layers.map((layer, row) => [layer, ...columns.map(({ rows }) => text(rows[row]))]));
      }),
    };
  }

  function calibrations(slide) {
    const step = slide.steps[state.percent], measured = step.measured[state.corpus];
    const named = (name) => slide.options.find((option) => option.name === name).label;
    if (measured) {
      const changes = Object.fromEntries(slide.options.filter(({ name }) => step.measured[name])
        .map(({ name }) => [name, step.measured[name].change]));
      const names = Object.keys(measured.change);
      return {
        sentence: measured.sentence,
        draw: (width) => [charts.corpusBars(width, { changes, chosen: state.corpus, named,
          label: `Loss increase on each corpus, calibrated on ${named(state.corpus)} and on others.` })],
        tables: () => [table("Loss increase, nats per token", ["calibrated on", ...names],
          Object.entries(changes).map(([name, change]) =>
            [named(name), ...names.map((corpus) => lossOf(change[corpus]))]))],
      };
    }
    const order = (name) => ordersIn(slide.options.find((option) => option.name === name).order);
    const other = state.corpus === slide.corpus
      ? slide.options.find(({ name }) => name !== slide.corpus).name : slide.corpus;
    const pair = pairOf(order(state.corpus), order(other), [state.corpus, other].map(named));
    return { sentence: step.unmeasured, note: slide.note, draw: pair.draw, tables: () => [pair.numbers] };
  }

  function spread(slide) {
    const rows = slide.steps[state.percent];
    const row = rows.find(({ name }) => name === state.schedule) ?? rows[0];
    state.schedule = row.name;
    return {
      sentence: row.sentence,
      draw: (width) => [charts.schedules(width, { layers: story.layers, experts: story.experts, rows,
        chosen: row.name, choose: (name) => { set("schedule", name); buildControls(); },
        label: `Experts kept of each layer by ${rows.length} schedules.` })],
      tables: () => [table("Experts kept of each layer", ["schedule", ...story.layers],
        rows.map(({ label, kept }) => [label, ...kept]))],
    };
  }

  function ships(slide) {
    const step = slide.steps[state.percent][state.even];
    const sizes = step.parts.map(([part, ...both]) => [part, ...both.map(charts.size)]);
    return {
      sentence: step.sentence,
      draw: (width) => [charts.sizeBars(width, { parts: step.parts,
        label: "Bytes of each part of the model, before and after." })],
      tables: () => [table("Bytes", ["part", "before", "after"], sizes)],
    };
  }

  const told = { saves, criteria: disagree, stratification: separation, corpora: calibrations,
    budget: spread, ships };
  const CONTROLS = {
    criteria: () => [
      choice("b", "b", [[0, "0"], [1, "1"]]),
      choice("alpha", "\u03b1", [[0, "0"], [1, "1"], [2, "2"]]),
      choice("beta", "\u03b2", [[0, "0"], [1, "1"], [2, "2"]]),
    ],
    stratification: () => [choice("scale", "Colours", strata.scales.map(({ name, label }) => [name, label]))],
    corpora: () => [choice("corpus", "Calibrated on", corpora.options.map(({ name, label }) => [name, label]))],
    budget: () => [choice("schedule", "Schedule",
      byName.budget.steps[state.percent].map(({ name, label }) => [name, label]))],
    ships: () => [choice("even", "Layers",
      [["even", "equal counts"], ["uneven", "uneven counts"]])],
  };
  const finding = (name = state.slide) => told[name](byName[name]);

  // Drawing.

  function legendOf(entries) {
    return make("ul", { className: "legend" }, ...entries.map(([kind, color, text]) => {
      const key = make("span", { className: `key ${kind}`, ariaHidden: "true" });
      if (color) key.style.setProperty("--own", `var(${color})`);
      return make("li", {}, key, text);
    }));
  }

  /** The charts of a finding into an element. */
  function drawInto(place, shown, width) {
    const drawn = shown.draw(width);
    place.replaceChildren(legendOf(shown.legend ?? drawn.flatMap(({ legend }) => legend)),
      make("div", { className: "charts" }, ...drawn.map(({ svg }) => svg)));
    for (const chart of drawn.filter(({ read }) => read)) {
      chart.svg.addEventListener("pointermove", (event) => {
        const frame = chart.svg.getBoundingClientRect(), { box, cell } = chart;
        const column = Math.floor((event.clientX - frame.left - box.left) / cell.width);
        const row = Math.floor((event.clientY - frame.top - box.top) / cell.height);
        const isInside = row >= 0 && row < story.layers.length && column >= 0 &&
          column < story.experts[row];
        find("readout").textContent = isInside ? chart.read(row, column) : "";
      });
    }
  }

  function update() {
    const shown = finding();
    find("percent").textContent = share();
    find("sparsity").setAttribute("aria-valuetext", share());
    if (find("sentence").textContent !== shown.sentence) find("sentence").textContent = shown.sentence;
    find("sentence").classList.toggle("long", shown.sentence.length > LONG);
    find("readout").textContent = "";
    find("note").textContent = shown.note ?? "";
    drawInto(find("figure"), shown, Math.max(find("figure").clientWidth, 280));
    if (find("numbers").open) find("tables").replaceChildren(...shown.tables());
    history.replaceState(null, "", `#${state.slide}/${state.percent}`);
  }

  function set(key, value) {
    state[key] = value;
    update();
  }

  function buildControls() {
    find("controls").replaceChildren(...(CONTROLS[state.slide]?.() ?? []));
  }

  function turn(name) {
    state.slide = name;
    const place = slides.findIndex((slide) => slide.name === name);
    find("title").textContent = slides[place].title;
    find("place").textContent = `${place + 1} / ${slides.length}`;
    find("back").disabled = place === 0;
    find("next").disabled = place === slides.length - 1;
    for (const link of document.querySelectorAll("nav a")) {
      if (link.hash === `#${name}`) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    buildControls();
    update();
  }

  function step(by) {
    const place = slides.findIndex((slide) => slide.name === state.slide) + by;
    if (slides[place]) turn(slides[place].name);
  }

  /** The finding and sparsity that the end of the URL names. */
  function open() {
    const [name, percent] = location.hash.slice(1).split("/");
    if (name && !byName[name]) return; // the link that skips to the sentence
    if (story.percents.includes(Number(percent))) state.percent = Number(percent);
    find("sparsity").value = story.percents.indexOf(state.percent);
    turn(byName[name] ? name : slides[0].name);
  }

  function listen() {
    const slider = find("sparsity");
    slider.max = story.percents.length - 1;
    slider.addEventListener("input", () => {
      set("percent", story.percents[slider.value]);
      buildControls(); // some schedules are impossible at some sparsities
    });
    find("back").addEventListener("click", () => step(-1));
    find("next").addEventListener("click", () => step(1));
    find("numbers").addEventListener("toggle", update);
    window.addEventListener("hashchange", open);
    document.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      // Arrows belong to the slider and to radio buttons while these have the focus.
      const isTaken = event.target.matches?.("input, summary, .tables");
      const by = { PageDown: 1, PageUp: -1, ...(isTaken ? {} : { ArrowRight: 1, ArrowLeft: -1 }) }[event.key];
      if (!by) return;
      event.preventDefault();
      step(by);
    });
    let width = 0;
    new ResizeObserver(([{ contentRect }]) => {
      if (Math.abs(contentRect.width - width) < 1) return;
      width = contentRect.width;
      update();
    }).observe(find("figure"));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", update);
    // On paper stand all findings, on white.
    window.addEventListener("beforeprint", () => {
      document.documentElement.dataset.theme = "light";
      find("paper").replaceChildren(...slides.map(({ name, title }) => {
        const shown = finding(name), figure = make("figure", {});
        drawInto(figure, shown, 980);
        return make("section", {}, make("h2", {}, title),
          make("p", { className: "sentence long" }, shown.sentence), figure,
          make("p", { className: "note" }, shown.note ?? ""));
      }));
    });
    window.addEventListener("afterprint", () => {
      delete document.documentElement.dataset.theme;
      find("paper").replaceChildren();
    });
  }

  listen();
  open();
  // What tests compare with the package.
  window.story = { state, set, turn, ordersBy, ordersIn, panelOf, finding };
})();
