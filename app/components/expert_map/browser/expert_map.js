// One or two linked layer x rank heatmaps: layer 0 on top, rank 1 (first to keep) on the left.
// Hovering and moving the cursor stay in the browser; only a selection is sent to Python.
// Strings from Python become text, never markup.

import {
  columnOf, expertAt, isDelta, isKept, litShare, prunesAny, rankOf, readModel,
} from "./model.js";
import {
  cellBox, DIVERGING, measure, paintPanel, readTheme, showsChanged,
} from "./paint.js";

const STACK_BELOW_PX = 700;
const MORPH_MS = 200;
// A slower frame ends the morph: the new order must be there as soon as it can.
const SLOW_FRAME_MS = 12;
// Of more cells nobody follows one, and frames would keep the page from its other changes.
const MOST_MOVING = 2048;
const HINT = "Hover a cell or use the arrow keys to read an expert; click or Enter selects it.";
const SHARED = "Experts share pixels at this width; the arrow keys read each, Enter selects it.";

// ---- overlay, readout, legend ----------------------------------------------------------------

function paintRing(view, context, index, { row, expert }, colors) {
  const { ratio } = view.box;
  const cell = cellBox(view, index, row, expert);
  const w = Math.max(cell.w, 6 * ratio);
  const h = Math.max(cell.h, 6 * ratio);
  const x = cell.x + (cell.w - w) / 2;
  const y = cell.y + (cell.h - h) / 2;
  [[3, colors[1]], [1.5, colors[0]]].forEach(([width, color]) => {
    context.strokeStyle = color;
    context.lineWidth = width * 1.4 * ratio;
    context.strokeRect(x - ratio, y - ratio, w + 2 * ratio, h + 2 * ratio);
  });
}

function paintOverlay(view) {
  view.panels.forEach(({ overlay, index }) => {
    const context = overlay.getContext("2d");
    context.clearRect(0, 0, overlay.width, overlay.height);
    if (view.selected) paintRing(view, context, index, view.selected, ["#ff5fa8", "#3d0020"]);
    if (view.cursor) paintRing(view, context, index, view.cursor, ["#ffffff", "#000000"]);
  });
  const text = readoutText(view);
  if (view.readout.textContent !== text) view.readout.textContent = text;
}

// Enough digits to tell the experts of one layer apart, even if all scores are close.
function scoreText(model, panel, row, expert) {
  const span = panel.span[row];
  const cell = row * model.width + rankOf(model, panel, row, expert);
  const score = panel.lowest[row] + span * panel.shares[cell];
  if (score === 0) return "0";
  const shared = span > 0 ? Math.floor(Math.log10(Math.abs(score) / span)) : 0;
  const digits = 3 + Math.max(0, Math.min(3, shared));
  const isPlain = Math.abs(score) >= 1e-4 && Math.abs(score) < 1e6;
  return isPlain
    ? score.toLocaleString("en", { maximumSignificantDigits: digits, minimumSignificantDigits: 3 })
    : score.toExponential(digits - 1);
}

function readoutText(view) {
  const { model } = view;
  const cell = view.cursor ?? view.selected;
  if (!cell) return view.box.sharesPixels ? SHARED : HINT;
  const { row, expert } = cell;
  const fates = model.panels.map((panel) => {
    const rank = rankOf(model, panel, row, expert) + 1;
    const fate = isKept(model, panel, row, expert) ? "kept" : "pruned";
    const score = scoreText(model, panel, row, expert);
    return `${panel.title}: rank ${rank}/${model.counts[row]}, score ${score}, ${fate}`;
  });
  const isSelected = view.selected && sameCell(cell, view.selected);
  const place = `layer ${model.layers[row]} \u00b7 expert ${expert}`;
  if (model.lit) fates.unshift(`${(100 * litShare(model, row, expert)).toFixed(1)}% of the token`);
  return [place, ...fates, ...(isSelected ? ["selected"] : [])].join(" \u00b7 ");
}

// Strings among the children become text, never markup.
function element(tag, className, ...children) {
  const node = document.createElement(tag);
  node.className = className;
  node.append(...children);
  return node;
}

function colorBar(low, high, stops, caption) {
  const bar = element("span", "bar");
  bar.style.background = `linear-gradient(90deg, ${stops.join(", ")})`;
  const ends = [low, high].map((end) => element("span", "end", end));
  return element("span", "item", ends[0], bar, ends[1], element("span", "", caption));
}

function swatch(kind, caption) {
  return element("span", "item", element("span", `swatch ${kind}`), element("span", "", caption));
}

function showLegend(view) {
  const { mode, arrangement, panels, limit } = view.model;
  const items = [];
  if (mode === "mask") items.push(swatch("kept", "kept"));
  else items.push(colorBar("0", "1", view.theme.stops, "saliency, rescaled within each layer"));
  if (mode === "delta") {
    const caption = `rank in ${panels[0].title} minus rank in ${panels[1].title}`;
    items.push(colorBar(`\u2212${limit}`, `+${limit}`, DIVERGING, caption));
  }
  if (panels.some((_, index) => prunesAny(view.model, index))) {
    items.push(swatch(mode === "mask" ? "pruned" : "pruned low", "pruned"));
    if (arrangement === "rank") items.push(swatch("cut", "cut"));
  }
  if (view.model.lit) items.push(swatch("changed", "over twice an even share of the token"));
  if (panels.length > 1 && showsChanged(view.model)) {
    items.push(swatch("changed", `${panels[0].title} decides otherwise`));
  }
  const { pruned, values, other, text } = view.theme;
  view.legend.style.setProperty("--pruned", mode === "mask" ? pruned : values[64]);
  view.legend.style.setProperty("--other", mode === "mask" ? text : other);
  view.legend.replaceChildren(...items);
}

// ---- layout ----------------------------------------------------------------------------------

// With one map, the first panel only says where its criterion decides otherwise.
function shownPanels(model) {
  const last = model.panels.length - 1;
  return model.single ? [last] : model.panels.map((_, index) => index);
}

function buildPanels(view) {
  view.panels = shownPanels(view.model).map((index) => {
    const [title, subtitle] = [element("span", "title"), element("span", "subtitle")];
    const [base, overlay] = [element("canvas", "base"), element("canvas", "overlay")];
    const stack = element("div", "stack", base, overlay);
    const figure = element("div", "panel", element("div", "head", title, subtitle), stack);
    base.addEventListener("pointermove", (event) => hover(view, index, event));
    base.addEventListener("pointerleave", () => setCursor(view, null));
    base.addEventListener("click", (event) => {
      hover(view, index, event);
      if (view.cursor) toggle(view, view.cursor);
    });
    return { index, figure, title, subtitle, stack, base, overlay };
  });
  view.stage.replaceChildren(...view.panels.map(({ figure }) => figure));
}

// A canvas that is told its own size is made anew all the same.
function fit(canvas, { canvasWidth, canvasHeight }) {
  if (canvas.width !== canvasWidth) canvas.width = canvasWidth;
  if (canvas.height !== canvasHeight) canvas.height = canvasHeight;
}

function resize(view) {
  const isStacked = view.root.clientWidth < STACK_BELOW_PX;
  view.stage.classList.toggle("stacked", isStacked || view.panels.length === 1);
  const width = view.panels[0].stack.clientWidth;
  if (width === 0) return; // inside a closed tab or expander: wait for the observer
  view.box = measure(view.model, view.root, width);
  view.root.classList.toggle("narrow", view.box.isNarrow);
  view.panels.forEach(({ stack, base, overlay, index }) => {
    stack.style.height = `${view.box.canvasHeight / view.box.pixels}px`;
    for (const canvas of [base, overlay]) fit(canvas, view.box);
    paintPanel(view, index);
  });
  paintOverlay(view);
}

// ---- morph -----------------------------------------------------------------------------------

const calm = window.matchMedia("(prefers-reduced-motion: reduce)");

// Whether cells of the same experts have other places or fates.
function canMorph(view, before, model) {
  if (!view.box || !before || calm.matches) return false;
  if (model.layers.length * model.width > MOST_MOVING) return false;
  const shape = (each) => String([each.layers, each.counts, shownPanels(each)]);
  const state = (each) => String([each.arrangement, each.mode === "mask"]);
  const moves = ({ ranks, kept }, index) => {
    const now = model.panels[index];
    return String(kept) !== String(now.kept) || ranks.some((rank, at) => rank !== now.ranks[at]);
  };
  if (shape(before) !== shape(model)) return false;
  return state(before) !== state(model) || shownPanels(model).some(
    (index) => moves(before.panels[index], index),
  );
}

// Only the cells move: all that reads or selects is of the new order from the start.
function morph(view) {
  const { before } = view;
  const start = performance.now();
  const step = (now) => {
    if (view.before !== before) return; // a newer order
    const passed = Math.max(0, now - start) / MORPH_MS;
    view.share = passed * (2 - passed);
    if (passed >= 1) view.before = null;
    const began = performance.now();
    view.panels.forEach(({ index }) => paintPanel(view, index));
    if (!view.before) return;
    if (performance.now() - began > SLOW_FRAME_MS) {
      view.before = null;
      view.panels.forEach(({ index }) => paintPanel(view, index));
    } else requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
}

function describe(model) {
  const titles = shownPanels(model).map((index) => model.panels[index].title).join(" beside ");
  return (
    `Expert map, ${titles}: ${model.layers.length} layers by ${model.width} experts. ` +
    "Arrow keys move between experts and layers, Home and End go to the first and last expert, " +
    "Enter selects, Escape clears."
  );
}

function update(view, model) {
  view.before = canMorph(view, view.model, model) ? view.model : null;
  view.share = 0;
  view.model = model;
  view.theme = readTheme(view.root);
  view.selected = findCell(model, model.selected);
  if (view.cursor && view.cursor.expert >= (model.counts[view.cursor.row] ?? 0)) {
    view.cursor = null;
  }
  const shown = shownPanels(model);
  if (String(view.panels.map(({ index }) => index)) !== String(shown)) buildPanels(view);
  if (!shown.includes(view.active)) [view.active] = shown;
  view.panels.forEach(({ index, title, subtitle }) => {
    const panel = model.panels[index];
    title.textContent = panel.title;
    subtitle.textContent = isDelta(model, index)
      ? `red: nearer to keep than in ${model.panels[0].title}, blue: nearer to prune`
      : panel.subtitle;
  });
  view.stage.setAttribute("aria-label", describe(model));
  showLegend(view);
  resize(view);
  if (view.before) morph(view);
}

// ---- interaction -----------------------------------------------------------------------------

const sameCell = (one, other) => one.row === other.row && one.expert === other.expert;

function findCell(model, selected) {
  if (!selected) return null;
  const row = model.layers.indexOf(selected[0]);
  return row >= 0 && selected[1] < model.counts[row] ? { row, expert: selected[1] } : null;
}

function setCursor(view, cell) {
  view.cursor = cell;
  if (view.box) paintOverlay(view);
}

function hover(view, index, event) {
  if (view.box.pixels !== window.devicePixelRatio) resize(view); // moved to another screen
  const { model, box } = view;
  const column = Math.floor(((event.offsetX * box.pixels - box.left) * model.width) / box.width);
  const row = Math.floor((event.offsetY * box.pixels - box.top) / box.row);
  const isInside = row >= 0 && row < model.layers.length;
  const expert = isInside ? expertAt(model, model.panels[index], row, column) : -1;
  view.active = index;
  setCursor(view, expert < 0 ? null : { row, expert });
}

// The time stamp makes a repeated choice a new value, so that Python sees it.
function select(view, cell) {
  view.selected = cell;
  view.report({
    layer: cell ? view.model.layers[cell.row] : null,
    expert: cell ? cell.expert : null,
    at: Date.now(),
  });
  paintOverlay(view);
}

function toggle(view, cell) {
  select(view, view.selected && sameCell(cell, view.selected) ? null : cell);
}

function move(view, rows, columns) {
  const { model } = view;
  const panel = model.panels[view.active];
  const from = view.cursor ?? view.selected;
  if (!from) return setCursor(view, { row: 0, expert: expertAt(model, panel, 0, 0) });
  const row = Math.max(0, Math.min(model.layers.length - 1, from.row + rows));
  const column = columnOf(model, panel, from.row, from.expert) + columns;
  const within = Math.max(0, Math.min(model.counts[row] - 1, column));
  return setCursor(view, { row, expert: expertAt(model, panel, row, within) });
}

const KEYS = {
  ArrowUp: (view) => move(view, -1, 0),
  ArrowDown: (view) => move(view, 1, 0),
  ArrowLeft: (view) => move(view, 0, -1),
  ArrowRight: (view) => move(view, 0, 1),
  Home: (view) => move(view, 0, -Infinity),
  End: (view) => move(view, 0, Infinity),
  Enter: (view) => view.cursor && toggle(view, view.cursor),
  " ": (view) => view.cursor && toggle(view, view.cursor),
  Escape: (view) => {
    if (view.selected) select(view, null);
    setCursor(view, null);
  },
};

function onKey(view, event) {
  const action = KEYS[event.key];
  if (!action || !view.box || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  event.stopPropagation(); // the page's own shortcuts must not fire as well
  action(view);
}

function mount(root) {
  const stage = element("div", "stage");
  stage.tabIndex = 0;
  stage.setAttribute("role", "application");
  const legend = element("div", "legend");
  const readout = element("div", "readout");
  readout.setAttribute("role", "status");
  readout.setAttribute("aria-live", "polite");
  root.replaceChildren(stage, legend, readout);
  const view = { root, stage, legend, readout, panels: [], active: 0, cursor: null, selected: null };
  stage.addEventListener("keydown", (event) => onKey(view, event));
  const observer = new ResizeObserver(() => view.model && resize(view));
  observer.observe(root);
  document.fonts.ready.then(() => view.model && root.isConnected && resize(view));
  // Streamlit cleans up a superseded call at once, while the map is still on the page.
  view.destroy = () => root.isConnected || observer.disconnect();
  return view;
}

// Streamlit calls the function again after every change of data or theme, on the same elements,
// and the last cleanup when the component leaves the page.
const views = new WeakMap();

export default async function expertMap({ data, parentElement, setStateValue }) {
  const root = parentElement.querySelector(".expert-map");
  if (!views.has(root)) views.set(root, mount(root));
  const view = views.get(root);
  view.report = (selection) => setStateValue("selection", selection);
  view.newest = data;
  const model = await readModel(data);
  if (view.newest === data) update(view, model);
  return view.destroy;
}
