// The charts of the story, as SVG: each takes a width and its numbers and returns
// {svg, legend}, where the legend is a list of [mark, colour, words]. Words are set as text, never
// as HTML: names are foreign.

const charts = (() => {
  "use strict";

  const SPACE = "http://www.w3.org/2000/svg";
  const COLORS = ["--series-0", "--series-1", "--series-2", "--series-3", "--series-4", "--series-5"];

  /** An element of SVG. */
  function draw(name, attributes = {}, ...children) {
    const element = document.createElementNS(SPACE, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  }

  const words = (x, y, text, attributes = {}) => draw("text", { x, y, ...attributes }, String(text));

  function canvas(width, height, label) {
    return draw("svg", {
      viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label,
    });
  }

  /** The value of a colour of the page. */
  const color = (name) =>
    getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const parts = (hex) => [1, 3, 5].map((place) => parseInt(hex.slice(place, place + 2), 16));

  /** The colour of the sequential scale at 0..1, as numbers. */
  function heatAt(share) {
    const stops = color("--stops").split(" ").map(parts);
    const place = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
    const below = Math.min(Math.floor(place), stops.length - 2);
    return stops[below].map((low, i) => low + (stops[below + 1][i] - low) * (place - below));
  }

  /** Black or white, whichever reads better on a colour. */
  function inkOn(rgb) {
    const [r, g, b] = rgb.map((part) => {
      const value = part / 255;
      return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000000" : "#ffffff";
  }

  const signed = (value, digits = 2) => {
    const text = Math.abs(value).toFixed(digits);
    return (value < 0 && Number(text) ? "-" : "+") + text;
  };

  function percent(share) {
    return Math.abs(share) >= 0.1 ? `${(100 * share).toFixed(0)}%`
      : `${Number((100 * share).toPrecision(2))}%`;
  }

  const GIB = 2 ** 30, MIB = 2 ** 20;

  /** Three digits, in GiB, or in MiB below one. */
  function size(bytes) {
    const [value, unit] = bytes >= GIB ? [bytes / GIB, "GiB"] : [bytes / MIB, "MiB"];
    return `${value.toFixed(value >= 100 ? 0 : value >= 10 ? 1 : 2)} ${unit}`;
  }

  /** Round numbers between two ends, about so many. */
  function ticks(low, high, count) {
    const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((part) => part * power).find((part) => part >= rough);
    const first = Math.ceil(low / step - 1e-9);
    const last = Math.floor(high / step + 1e-9);
    return Array.from({ length: last - first + 1 }, (_, place) =>
      Number(((first + place) * step).toPrecision(12)));
  }

  /** A tick for every so many places, so that numbers do not touch. */
  function everyNth(count, room, least) {
    const step = [1, 2, 4, 8, 16, 32, 64, 128].find((part) => room * part >= least) ?? 256;
    return Array.from({ length: Math.ceil(count / step) }, (_, place) => place * step);
  }

  // Marks by number: circle, square, diamond, triangle, cross.
  const MARKS = [
    (r) => `M${-r} 0a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0Z`,
    (r) => `M${-r} ${-r}h${2 * r}v${2 * r}h${-2 * r}Z`,
    (r) => `M0 ${-1.3 * r}L${1.3 * r} 0L0 ${1.3 * r}L${-1.3 * r} 0Z`,
    (r) => `M0 ${-1.2 * r}L${1.2 * r} ${r}H${-1.2 * r}Z`,
    (r) => `M${-r} ${-r}L${r} ${r}M${r} ${-r}L${-r} ${r}`,
  ];

  function mark(place, x, y, radius, attributes = {}) {
    return draw("path", {
      d: MARKS[place % MARKS.length](radius), transform: `translate(${x} ${y})`, ...attributes,
    });
  }

  /** Axes with round numbers: a frame of the plot and where values lie in it. */
  function plane(svg, box, x, y) {
    const { left, top, width, height } = box;
    const across = (value) => left + ((value - x.low) / (x.high - x.low)) * width;
    const down = (value) => top + height - ((value - y.low) / (y.high - y.low)) * height;
    for (const tick of ticks(y.low, y.high, 5)) {
      svg.append(
        draw("line", { x1: left, x2: left + width, y1: down(tick), y2: down(tick),
          class: tick === 0 ? "zero" : "grid" }),
        words(left - 8, down(tick) + 4, y.words(tick), { "text-anchor": "end", class: "tick" }),
      );
    }
    for (const tick of x.ticks ?? ticks(x.low, x.high, Math.max(2, width / 110))) {
      svg.append(words(across(tick), top + height + 20, x.words(tick),
        { "text-anchor": "middle", class: "tick" }));
    }
    svg.append(
      words(left + width, top + height + 40, x.title, { "text-anchor": "end", class: "axis" }),
      words(left, top - 8, y.title, { class: "axis" }),
    );
    return { across, down };
  }

  const KINDS = { pruned: 0, "fewer bits": 2, "pruned, fewer bits": 1 };

  /** All measured plans by size, and where this one is. */
  function lossBySize(width, height, { points, random, step, percent: share, label }) {
    const svg = canvas(width, height, label);
    const unit = Math.max(...points.map((point) => point.bytes)) >= GIB ? GIB : MIB;
    const sizes = [...points.map((point) => point.bytes), step.bytes].map((bytes) => bytes / unit);
    const means = [0, ...points.map((point) => point.mean), step.mean ?? 0];
    const [low, high] = [Math.min(...sizes), Math.max(...sizes)];
    const top = Math.max(...means) * 1.06 || 1;
    const box = { left: 48, top: 26, width: width - 72, height: height - 76 };
    const at = plane(svg, box,
      { low: low - 0.03 * (high - low), high: high + 0.04 * (high - low), words: String,
        title: `weights, ${unit === GIB ? "GiB" : "MiB"}` },
      { low: Math.min(...means) * 1.06, high: top, words: (value) => String(value),
        title: "loss increase, nats per token" });
    const legend = [["ring", "--plan", step.measured ? "this plan" : "this plan, predicted"]];
    if (random.length > 1) {
      const there = random.map((row) => [at.across(row.bytes / unit), at.down(row.high)]);
      const back = random.map((row) => [at.across(row.bytes / unit), at.down(row.low)]).reverse();
      // Random goes far above the plans; what is out of the plot is cut off.
      const { left: x, top: y, ...size } = box;
      svg.append(draw("svg", { x, y, ...size, class: "clip" }, draw("polygon",
        { points: [...there, ...back].join(" "), transform: `translate(${-x} ${-y})`, class: "band" })));
      legend.push(["block", "--band", "random experts"]);
    }
    const front = points.filter((point) => point.on_front).sort((a, b) => a.bytes - b.bytes);
    const path = front.map((point, place) => {
      const x = at.across(point.bytes / unit), y = at.down(point.mean);
      return place ? `H${x}V${y}` : `M${x} ${y}`;
    });
    svg.append(draw("path", { d: path.join(""), class: "front" }));
    legend.push(["line", "--primary", "least measured loss"]);
    for (const point of points) {
      const dot = mark(KINDS[point.kind] ?? 3, at.across(point.bytes / unit), at.down(point.mean), 4,
        { class: point.kind === "pruned" ? "dot" : "dot other" });
      dot.append(draw("title", {},
        `${point.candidate}: ${size(point.bytes)}, ${signed(point.mean)}`));
      svg.append(dot);
    }
    for (const kind of new Set(points.map((point) => point.kind))) {
      const name = { pruned: "pruned", "fewer bits": "fewer bits, simulated" }[kind] ?? kind;
      legend.push([`mark-${KINDS[kind] ?? 3}`, kind === "pruned" ? "--primary" : "--ink", name]);
    }
    const x = at.across(step.bytes / unit);
    if (step.mean === null) {
      svg.append(draw("line", { x1: x, x2: x, y1: box.top, y2: box.top + box.height, class: "here" }),
        words(x + 6, box.top + 14, `${share}%, not measured`, { class: "strong" }));
    } else {
      const y = at.down(step.mean), isRight = x > box.left + 0.8 * box.width;
      svg.append(
        mark(0, x, y, 9, { class: step.measured ? "ring" : "ring predicted" }),
        words(x + (isRight ? -15 : 15), y + 5, `${share}%`,
          { class: "strong halo", "text-anchor": isRight ? "end" : "start" }),
      );
    }
    return { svg, legend };
  }

  /** A picture of cells, one pixel each, as a link that an image can have; null is no cell. */
  function picture(rows, columns, colorAt) {
    const sheet = document.createElement("canvas");
    [sheet.width, sheet.height] = [columns, rows];
    const context = sheet.getContext("2d"), data = context.createImageData(columns, rows);
    for (let row = 0; row < rows; row++) {
      for (let column = 0; column < columns; column++) {
        const rgb = colorAt(row, column);
        if (rgb) data.data.set([...rgb, 255], 4 * (row * columns + column));
      }
    }
    context.putImageData(data, 0, 0);
    return sheet.toDataURL("image/png");
  }

  /** Cells of a grid with numbers of its rows; `names` are those of rows, `first` of columns. */
  function grid(svg, box, names, columns, first, colorAt) {
    const rows = names.length, cell = { width: box.width / columns, height: box.height / rows };
    svg.append(draw("image", {
      href: picture(rows, columns, colorAt), x: box.left, y: box.top, width: box.width,
      height: box.height, preserveAspectRatio: "none", class: "cells",
    }));
    const gaps = [];
    if (cell.width >= 5) {
      for (let i = 1; i < columns; i++) gaps.push(`M${box.left + i * cell.width} ${box.top}v${box.height}`);
    }
    if (cell.height >= 5) {
      for (let i = 1; i < rows; i++) gaps.push(`M${box.left} ${box.top + i * cell.height}h${box.width}`);
    }
    svg.append(draw("path", { d: gaps.join(""), class: "gaps" }));
    for (const row of everyNth(rows, cell.height, 14)) {
      svg.append(words(box.left - 8, box.top + (row + 0.5) * cell.height + 4, names[row],
        { "text-anchor": "end", class: "tick" }));
    }
    for (const column of everyNth(columns, cell.width, 30)) {
      svg.append(words(box.left + (column + 0.5) * cell.width, box.top + box.height + 16,
        column + first, { "text-anchor": "middle", class: "tick" }));
    }
    return cell;
  }

  // Who keeps an expert: its colour, and the slope of its stroke, which small cells have not.
  const FATES = [["both", "--both", 0], ["A", "--series-0", -1], ["B", "--series-1", 1],
    ["neither", "--neither", 0]];

  /** Which of two rankings keeps which expert: `fates` are rows of places in FATES. */
  function keptMap(width, { layers, fates, names, label }) {
    const columns = Math.max(...fates.map((row) => row.length));
    const rowHeight = Math.max(7, Math.min(34, 420 / layers.length));
    const box = { left: 44, top: 20, width: width - 52, height: rowHeight * layers.length };
    const svg = canvas(width, box.height + 64, label);
    const colors = FATES.map(([, name]) => parts(color(name)));
    const cell = grid(svg, box, layers, columns, 0, (row, column) => colors[fates[row][column]]);
    if (cell.width >= 11 && cell.height >= 11) {
      FATES.forEach(([, , slope], fate) => {
        const strokes = slope ? fates.flatMap((row, layer) => [...row].flatMap((code, expert) => {
          if (code !== fate) return [];
          const reach = 0.28 * Math.min(cell.width, cell.height);
          const x = box.left + (expert + 0.5) * cell.width, y = box.top + (layer + 0.5) * cell.height;
          return [`M${x - reach} ${y - slope * reach}L${x + reach} ${y + slope * reach}`];
        })) : [];
        if (strokes.length) svg.append(draw("path", { d: strokes.join(""), class: "stroke" }));
      });
    }
    svg.append(words(box.left, 12, "layer, from top to bottom", { class: "axis" }),
      words(box.left + box.width, box.top + box.height + 38, "expert",
        { class: "axis", "text-anchor": "end" }));
    const counts = FATES.map((_, fate) =>
      fates.reduce((sum, row) => sum + row.filter((code) => code === fate).length, 0));
    const said = ["kept by both", `kept by ${names[0]} alone`, `kept by ${names[1]} alone`, "pruned by both"];
    const legend = FATES.map(([, name, slope], fate) =>
      [slope < 0 ? "slash" : slope > 0 ? "backslash" : "block", name,
        `${said[fate]}: ${counts[fate].toLocaleString("en-US")}`]);
    return { svg, legend, box, cell };
  }

  /** A criterion's scores by rank, the cut, and beside each layer how far they spread. */
  function strata(width, { layers, panel, kept, scale, range, measures, label }) {
    const columns = Math.max(...panel.orders.map((order) => order.length));
    const rowHeight = Math.max(7, Math.min(36, 430 / layers.length));
    const box = { left: 34, top: 30, width: 0.7 * (width - 40), height: rowHeight * layers.length };
    const svg = canvas(width, box.height + 84, label);
    const cell = grid(svg, box, layers, columns, 1, (row, column) => {
      const expert = panel.orders[row][column];
      if (expert === undefined) return null;
      const [low, high] = range;
      const share = high > low ? (panel.values[row][expert] - low) / (high - low) : 0;
      return heatAt(panel.isTurned ? 1 - share : share);
    });
    const cut = kept.map((count, row) => {
      const x = box.left + count * cell.width, y = box.top + row * cell.height;
      return `${row ? "L" : "M"}${x} ${y}V${y + cell.height}`;
    }).join("");
    svg.append(draw("path", { d: cut, class: "cut halo" }), draw("path", { d: cut, class: "cut" }),
      words(box.left, 18, panel.name, { class: "strong" }),
      words(box.left + box.width, box.top + box.height + 38, "rank (1 = first to keep)",
        { class: "axis", "text-anchor": "end" }));
    // The spread and the gap of each layer, on one logarithm of both panels.
    const side = { left: box.left + box.width + 14, width: width - box.left - box.width - 22 };
    const values = measures.all;
    const low = Math.log10(Math.max(Math.min(...values) / 1.5, Math.max(...values) / 1e5));
    const high = Math.log10(Math.max(...values) * 1.5);
    const across = (value) =>
      side.left + ((Math.max(Math.log10(value || 1e-12), low) - low) / (high - low)) * side.width;
    let labelled = Infinity;
    for (let power = Math.floor(high); power >= low; power--) {
      const x = across(10 ** power);
      svg.append(draw("line", { x1: x, x2: x, y1: box.top, y2: box.top + box.height, class: "grid" }));
      if (labelled - x > 44) {
        labelled = x;
        svg.append(words(x, box.top + box.height + 16, percent(10 ** power),
          { "text-anchor": "middle", class: "tick" }));
      }
    }
    for (const { rows, place, name, hollow } of panel.measures) {
      const marks = rows.map((value, row) => value === null ? null
        : [across(value), box.top + (row + 0.5) * cell.height]).filter(Boolean);
      if (hollow) svg.append(draw("polyline", { points: marks.join(" "), class: "chance" }));
      const radius = layers.length > 24 ? 2.5 : 4.5;
      for (const [x, y] of marks) {
        svg.append(mark(place, x, y, radius,
          { class: hollow ? "measure hollow" : "measure", style: `--own: var(${name})` }));
      }
    }
    svg.append(words(side.left + side.width, box.top + box.height + 38, "of the mean",
      { class: "axis", "text-anchor": "end" }));
    return { svg, box, cell };
  }

  /** The colour of a rival; that of the one in front is left out. */
  const rival = (other) => COLORS[(other < 1 ? 0 : other + 1) % COLORS.length];

  /** Loss on each corpus by the calibration in front, and by the others. */
  function corpusBars(width, { changes, chosen, named, label }) {
    const corpora = Object.keys(changes[chosen]), height = 430;
    const svg = canvas(width, height, label);
    const all = Object.values(changes).flatMap((change) => Object.values(change));
    const box = { left: 48, top: 26, width: width - 60, height: height - 96 };
    const names = Object.keys(changes), others = names.filter((name) => name !== chosen);
    const room = box.width / corpora.length;
    const isTight = corpora.some((corpus) => 7 * corpus.length > room);
    const at = plane(svg, box, { low: 0, high: corpora.length, ticks: [], words: String, title: "" },
      { low: Math.min(0, ...all) * 1.1, high: Math.max(...all) * 1.1 || 1, words: String,
        title: "loss increase, nats per token" });
    const legend = [["block", "--plan", `calibrated on ${named(chosen)}`]];
    corpora.forEach((corpus, place) => {
      const middle = at.across(place + 0.5), value = changes[chosen][corpus];
      const bar = Math.min(130, 0.5 * room), top = Math.min(at.down(value), at.down(0));
      svg.append(
        draw("rect", { x: middle - bar / 2, width: bar, y: top, rx: 3, class: "bar",
          height: Math.abs(at.down(value) - at.down(0)) }),
        // Neighbours stand on two lines where names are longer than their room.
        words(middle, box.top + box.height + (isTight && place % 2 ? 38 : 22), corpus,
          { "text-anchor": "middle", class: "axis" }),
        words(middle, box.top + box.height + (isTight ? 60 : 44), signed(value),
          { "text-anchor": "middle", class: "strong" }),
      );
      others.forEach((name, other) => {
        if (!(corpus in changes[name])) return;
        const shift = (other - (others.length - 1) / 2) * Math.min(22, bar / 4);
        svg.append(mark(1 + other, middle + shift, at.down(changes[name][corpus]), 6,
          { class: "measure rival", style: `--own: var(${rival(other)})` }));
      });
    });
    others.forEach((name, other) => legend.push(
      [`mark-${(1 + other) % MARKS.length}`, rival(other), `on ${named(name)}`]));
    return { svg, legend };
  }

  /** What each schedule keeps of each layer: rows of {label, kept}, one chosen. */
  function schedules(width, { layers, experts, rows, chosen, label, choose }) {
    const rowHeight = 40, left = width < 560 ? 112 : 150;
    const box = { left, top: 8, width: width - left - 8, height: rowHeight * rows.length };
    const svg = canvas(width, box.height + 56, label);
    const share = (row, column) => rows[row].kept[column] / experts[column];
    const cell = grid(svg, box, rows.map(() => ""), layers.length, 0,
      (row, column) => heatAt(share(row, column)));
    svg.querySelectorAll(".tick").forEach((tick) => tick.remove());
    rows.forEach((row, place) => {
      const y = box.top + (place + 0.5) * rowHeight;
      svg.append(words(box.left - 10, y + 4, row.label,
        { "text-anchor": "end", class: row.name === chosen ? "strong" : "axis" }));
      if (cell.width >= 22) {
        row.kept.forEach((count, column) => svg.append(
          words(box.left + (column + 0.5) * cell.width, y + 4, count,
            { "text-anchor": "middle", class: "count", fill: inkOn(heatAt(share(place, column))) })));
      }
      if (row.name === chosen) {
        svg.append(draw("rect", { x: box.left, y: y - rowHeight / 2, width: box.width,
          height: rowHeight, class: "frame" }));
      }
      const target = draw("rect", { x: 0, y: y - rowHeight / 2, width, height: rowHeight, class: "hit" });
      target.addEventListener("click", () => choose(row.name));
      svg.append(target);
    });
    for (const column of everyNth(layers.length, cell.width, 30)) {
      svg.append(words(box.left + (column + 0.5) * cell.width, box.top + box.height + 18,
        layers[column], { "text-anchor": "middle", class: "tick" }));
    }
    svg.append(words(box.left + box.width, box.top + box.height + 42, "layer",
      { "text-anchor": "end", class: "axis" }));
    return { svg, legend: [["scale", "", "share of experts kept, 0 to all"]] };
  }

  /** Bytes before and after by part: rows of [part, before, after]. */
  function sizeBars(width, { parts: rows, label }) {
    const totals = [1, 2].map((side) => rows.reduce((sum, row) => sum + row[side], 0));
    const most = Math.max(...totals), height = 250, left = 62;
    const svg = canvas(width, height, label);
    const room = width - left - 96, thick = 78;
    ["before", "after"].forEach((name, side) => {
      const y = 14 + side * (thick + 26);
      svg.append(words(left - 12, y + thick / 2 + 5, name, { "text-anchor": "end", class: "axis" }));
      let x = left;
      rows.forEach((row, place) => {
        const length = (row[side + 1] / most) * room;
        if (!length) return;
        const rgb = color(COLORS[place % COLORS.length]);
        const piece = draw("rect", { x, y, width: length, height: thick, fill: rgb, class: "piece" });
        piece.append(draw("title", {}, `${row[0]}: ${size(row[side + 1])}`));
        svg.append(piece);
        if (length > 66) {
          svg.append(words(x + length / 2, y + thick / 2 + 5, size(row[side + 1]),
            { "text-anchor": "middle", fill: inkOn(parts(rgb)), class: "count" }));
        }
        x += length;
      });
      svg.append(words(x + 10, y + thick / 2 + 6, size(totals[side]), { class: "strong" }));
    });
    const legend = rows.map((row, place) => ["block", COLORS[place % COLORS.length], row[0]]);
    return { svg, legend };
  }

  return { lossBySize, keptMap, strata, corpusBars, schedules, sizeBars, signed, percent, size,
    FATES, MARKS };
})();
