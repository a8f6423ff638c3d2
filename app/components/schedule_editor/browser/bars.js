// Draws the editor: one column per layer, with its bar, lock and name, and the overview of all
// layers. Strings from Python become text, never markup.

import { lossAlone } from "./predict.js";

export const PLOT_PX = 290;
export const TARGET_PX = 26; // width of a clickable column; at least 24
const NUMBER_PX = 22; // narrowest column that shows its number
const SVG = "http://www.w3.org/2000/svg";

const ICONS = {
  undo: ["M9 14 4 9l5-5", "M4 9h10.5a5.5 5.5 0 0 1 0 11H11"],
  redo: ["m15 14 5-5-5-5", "M20 9H9.5a5.5 5.5 0 0 0 0 11H13"],
  locked: ["M6 11h12v9H6z", "M8 11V8a4 4 0 0 1 8 0v3"],
  open: ["M6 11h12v9H6z", "M8 11V8a4 4 0 0 1 7.5-2"],
  out: ["M5 12h14"],
  in: ["M5 12h14", "M12 5v14"],
  check: ["m5 13 4 4L19 7"],
};

// Strings among the children become text, never markup.
export function element(tag, className, ...children) {
  const node = document.createElement(tag);
  node.className = className;
  node.append(...children);
  return node;
}

export function setAttributes(node, values) {
  for (const [name, value] of Object.entries(values)) node.setAttribute(name, value);
}

export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  setAttributes(svg, { viewBox: "0 0 24 24", "aria-hidden": true });
  for (const d of ICONS[name]) {
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("d", d);
    svg.append(path);
  }
  return svg;
}

export function button(label, name, ...text) {
  const node = element("button", "", icon(name), ...text.map((word) => element("span", "", word)));
  node.type = "button";
  node.setAttribute("aria-label", label);
  node.title = label;
  return node;
}

const tallest = (model) => Math.max(...model.rules.sizes);
export const heightOf = (model, count) => (count / tallest(model)) * PLOT_PX;

// A round number of experts between two lines, at most five of them.
function tickStep(most) {
  const rough = most / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const nice = most % 4 === 0 ? rough : [1, 2, 5, 10].find((n) => n * power >= rough) * power;
  return Math.max(1, Math.round(nice));
}

export function paintAxis(view) {
  const most = tallest(view.model);
  const gap = tickStep(most);
  const ticks = [];
  for (let count = 0; count <= most; count += gap) {
    const tick = element("span", "tick", String(count));
    tick.style.top = `calc(0.6rem + ${PLOT_PX - heightOf(view.model, count)}px)`;
    ticks.push(tick);
  }
  view.axis.replaceChildren(...ticks);
  view.layers.style.setProperty("--gap", `${heightOf(view.model, gap)}px`);
}

// What each layer alone loses with every number of its experts, as a line across its column: the
// further to the right, the more, up to the most that any layer loses.
function sensitivityLines({ layers, rules, terms }) {
  if (!terms) return [];
  const losses = layers.map((_, index) => {
    const counts = Array.from({ length: rules.sizes[index] + 1 }, (_, count) => count)
      .filter((count) => count >= rules.low[index]);
    return counts.map((count) => [count, lossAlone(terms, index, rules.sizes[index] - count)]);
  });
  const most = Math.max(...losses.flat().map(([, loss]) => loss), 1e-9);
  return losses.map((points) => {
    const svg = document.createElementNS(SVG, "svg");
    const path = document.createElementNS(SVG, "path");
    const steps = points.map(([count, loss]) => [
      (100 * Math.max(0, loss)) / most, PLOT_PX - heightOf({ rules }, count),
    ]);
    path.setAttribute("d", `M${steps.map(([x, y]) => `${x.toFixed(2)} ${y.toFixed(2)}`).join("L")}`);
    setAttributes(svg, {
      class: "alone", viewBox: `0 0 100 ${PLOT_PX}`, preserveAspectRatio: "none", "aria-hidden": true,
    });
    svg.append(path);
    return svg;
  });
}

export function buildColumns(view) {
  const { layers, rules, floors, ghost } = view.model;
  const sensitivity = sensitivityLines(view.model);
  view.columns = layers.map((layer, index) => {
    const track = element("div", "track");
    track.style.height = `${heightOf(view.model, rules.sizes[index])}px`;
    const at = (className, count) => {
      const line = element("div", className);
      line.style.bottom = `${heightOf(view.model, count)}px`;
      return line;
    };
    const lines = [at("floor", floors[index]), ...(ghost ? [at("ghost", ghost[index])] : [])];
    const [bar, value] = [element("div", "bar"), element("div", "value")];
    const curve = sensitivity.slice(index, index + 1);
    const column = element("div", "column", track, bar, ...lines, ...curve, value);
    column.style.height = `${PLOT_PX}px`;
    setAttributes(column, {
      role: "slider",
      "aria-orientation": "vertical",
      "aria-label": `Layer ${layer}, experts kept`,
      "aria-valuemin": rules.low[index],
      "aria-valuemax": rules.high[index],
    });
    const lock = element("button", "lock");
    lock.type = "button";
    lock.tabIndex = -1; // the key L of the bar does the same
    const name = element("div", "name", String(layer));
    const cell = element("div", "cell", column, lock, name);
    return { cell, column, bar, value, lock, name };
  });
  view.layers.replaceChildren(...view.columns.map(({ cell }) => cell));
}

export function layOut(view) {
  const width = view.viewport.clientWidth;
  if (width === 0) return; // inside a closed expander: wait for the observer
  const count = view.model.layers.length;
  const all = width / count;
  const each = Math.max(all, view.zoom === null ? TARGET_PX : all * view.zoom);
  view.columnPx = each;
  const every = Math.max(1, Math.ceil(TARGET_PX / each));
  view.columns.forEach(({ cell, name }, index) => {
    cell.style.width = `${each}px`;
    name.textContent = index % every === 0 ? String(view.model.layers[index]) : "";
  });
  view.layers.classList.toggle("wide", each >= TARGET_PX + 8);
  view.layers.style.width = `${each * count}px`;
  view.overview.hidden = each * count <= width + 1;
  view.out.disabled = each <= all + 0.5;
  paintWindow(view);
  paintBars(view);
}

export function paintWindow(view) {
  const whole = view.layers.offsetWidth || 1;
  const { scrollLeft, clientWidth } = view.viewport;
  view.window.style.left = `${(100 * scrollLeft) / whole}%`;
  view.window.style.width = `${Math.min(100, (100 * clientWidth) / whole)}%`;
}

function paintOverview(view) {
  const most = tallest(view.model);
  const viewBox = `0 0 ${view.counts.length} ${most}`;
  setAttributes(view.strip, { viewBox, preserveAspectRatio: "none" });
  const bars = view.counts.map((count, i) => `M${i + 0.08} ${most}V${most - count}h0.84V${most}z`);
  view.strip.firstChild.setAttribute("d", bars.join(""));
}

export function isHeld(view, index) {
  const { low, high } = view.model.rules;
  return view.locked.has(index) || low[index] === high[index];
}

export function paintBars(view) {
  const { rules, layers } = view.model;
  view.columns.forEach(({ column, bar, value, lock }, index) => {
    const count = view.counts[index];
    const px = heightOf(view.model, count);
    bar.style.height = `${px}px`;
    const isProtected = rules.low[index] === rules.high[index];
    const held = isHeld(view, index);
    column.classList.toggle("held", held);
    setAttributes(column, {
      "aria-valuenow": count,
      "aria-valuetext": `${count} of ${rules.sizes[index]} experts${held ? ", locked" : ""}`,
      "aria-disabled": held,
    });
    column.tabIndex = index === view.focus ? 0 : -1;
    value.textContent = view.columnPx >= NUMBER_PX ? String(count) : "";
    const above = px < 20;
    value.classList.toggle("above", above);
    value.style.bottom = `${above ? px + 3 : px - 19}px`;
    lock.replaceChildren(icon(held ? "locked" : "open"));
    setAttributes(lock, { "aria-pressed": held, "aria-label": `Lock layer ${layers[index]}` });
    lock.title = isProtected ? "This layer cannot change" : `Lock layer ${layers[index]} (L)`;
    lock.disabled = isProtected;
  });
  if (!view.overview.hidden) paintOverview(view);
}
