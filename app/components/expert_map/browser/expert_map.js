// One or two linked layer x rank heatmaps: layer 0 on top, rank 1 (first to keep) on the left.
// Hovering and moving the cursor stay in the browser; only a selection is sent to Python.
// Strings from Python become text, never markup.

import {
  columnOf, expertAt, fateOf, forEachExpert, isDelta, isKept, litShare, prunesAny, rankOf,
  readModel,
} from "./model.js";
import {
  cellBox, DIVERGING, isInSight, measure, paintPanel, readTheme, showsChanged,
} from "./paint.js";
import { draggedBox, draggedPart, following, isDrag, stepped } from "./zoom.js";

const STACK_BELOW_PX = 700;
const MORPH_MS = 200;
// A slower frame ends the morph: the new order must be there as soon as it can.
const SLOW_FRAME_MS = 12;
// Of more cells nobody follows one, and frames would keep the page from its other changes.
const MOST_MOVING = 2048;
const HINT = "Hover or use arrow keys to read an expert; click or Enter selects it; drag, + or - zooms.";
// As strokes on the cells: what the first alone keeps, and the second.
const SIGNS = { 1: "\u2571", 2: "\u2572" };
const SHARED = "Experts share pixels: drag, + or - zooms; the arrow keys read each, Enter selects it.";

// ---- overlay, readout, legend ----------------------------------------------------------------

function paintRing(view, context, index, { row, expert }, colors) {
  const { ratio } = view.box;
  const column = columnOf(view.model, view.model.panels[index], row, expert);
  if (!isInSight(view.box, row, column)) return;
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
    if (view.drag) paintDrag(view, context);
  });
  const text = readoutText(view);
  if (view.readout.textContent !== text) view.readout.textContent = text;
}

function paintDrag(view, context) {
  const { x, y } = draggedBox(view.box, view.drag);
  const ends = [x[0], y[0], x[1] - x[0], y[1] - y[0]];
  context.fillStyle = "rgb(128 128 128 / 35%)";
  context.fillRect(...ends);
  context.strokeStyle = view.theme.text;
  context.lineWidth = 1.5 * view.box.ratio;
  context.strokeRect(...ends);
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
    const place = `${panel.title}: rank ${rank}/${model.counts[row]}`;
    if (model.mode === "fates") return `${place}, ${fate}`;
    return `${place}, score ${scoreText(model, panel, row, expert)}, ${fate}`;
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
  if (mode === "fates") return view.legend.replaceChildren(...fateItems(view), ...ofSight(view));
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
  return view.legend.replaceChildren(...items, ...ofSight(view));
}

// How many experts share a cell, and the way back to the whole map.
function ofSight(view) {
  const items = view.box.together > 1 ? [element("span", "", togetherWords(view))] : [];
  return view.zoom ? [...items, wholeButton(view)] : items;
}

function fateItems({ model, theme, box }) {
  const counts = [0, 0, 0, 0];
  forEachExpert(model, (row, expert) => (counts[fateOf(model, row, expert)] += 1));
  const [a, b] = model.panels.map(({ title, subtitle }) => `only ${title}, ${subtitle}`);
  const names = ["both", a, b, "neither"];
  const items = names.map((name, fate) => {
    const sign = box.isNarrow ? "" : (SIGNS[fate] ?? "");
    const item = swatch("fate", `${name}: ${counts[fate].toLocaleString("en")}`);
    item.firstChild.style.background = `rgb(${theme.fateColors[fate].join(" ")})`;
    item.firstChild.textContent = sign;
    return item;
  });
  return prunesAny(model, 0) ? [...items, swatch("cut", `cut of ${model.panels[0].title}`)] : items;
}

function togetherWords({ box, model }) {
  const names = model.arrangement === "rank" ? "ranks" : "experts";
  const values = {
    fates: "colours mixed", delta: "their mean, the largest change", mask: "the share kept",
  };
  return `each cell: ${box.together} ${names}, ${values[model.mode] ?? "their mean"}`;
}

function wholeButton(view) {
  const [[row, end], [column, last]] = [view.box.rows, view.box.columns];
  const { layers, arrangement } = view.model;
  const [names, start] = arrangement === "rank" ? ["ranks", 1] : ["experts", 0];
  const part = `layers ${layers[row]}\u2013${layers[end - 1]}, `
    + `${names} ${column + start}\u2013${last - 1 + start}`;
  const button = element("button", "all", "Whole map");
  button.type = "button";
  button.addEventListener("click", () => showAll(view));
  return element("span", "item", element("span", "", part), button);
}

// ---- layout ----------------------------------------------------------------------------------

// With one map, the first panel only says where its criterion decides otherwise; fates are drawn in
// the order of the first.
function shownPanels(model) {
  const last = model.panels.length - 1;
  if (model.mode === "fates") return [0];
  return model.single ? [last] : model.panels.map((_, index) => index);
}

function buildPanels(view) {
  view.panels = shownPanels(view.model).map((index) => {
    const [title, subtitle] = [element("span", "title"), element("span", "subtitle")];
    const [base, overlay] = [element("canvas", "base"), element("canvas", "overlay")];
    const stack = element("div", "stack", base, overlay);
    const figure = element("div", "panel", element("div", "head", title, subtitle), stack);
    base.addEventListener("pointerdown", (event) => beginDrag(view, event));
    base.addEventListener("pointermove", (event) => continueDrag(view, index, event));
    base.addEventListener("pointerup", () => endDrag(view));
    base.addEventListener("pointercancel", () => forgetDrag(view));
    base.addEventListener("pointerleave", () => setCursor(view, null));
    base.addEventListener("click", (event) => {
      if (view.hasDragged) return;
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
  view.box = measure(view.model, view.root, width, view.zoom);
  view.root.classList.toggle("narrow", view.box.isNarrow);
  showLegend(view);
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
  if (!view.box || !before || calm.matches || view.zoom) return false;
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
  const name = ({ title, subtitle }) => (model.mode === "fates" ? `${title}: ${subtitle}` : title);
  const shown = model.mode === "fates" ? [0, 1] : shownPanels(model);
  const titles = shown.map((index) => name(model.panels[index])).join(" beside ");
  return (
    `Expert map, ${titles}: ${model.layers.length} layers by ${model.width} experts. ` +
    "Arrow keys move between experts and layers, Home and End go to the first and last expert, " +
    "Enter selects, plus and minus zoom, Escape clears."
  );
}

// Whether a part of one map is the same part of the other.
const isLike = (one, other) => String([one?.arrangement, one?.layers, one?.counts])
  === String([other.arrangement, other.layers, other.counts]);

function update(view, model) {
  if (!isLike(view.model, model)) view.zoom = null;
  view.before = canMorph(view, view.model, model) ? view.model : null;
  view.share = 0;
  view.model = model;
  view.theme = readTheme(view.root, model.fates);
  view.selected = findCell(model, model.selected);
  if (view.cursor && view.cursor.expert >= (model.counts[view.cursor.row] ?? 0)) {
    view.cursor = null;
  }
  const shown = shownPanels(model);
  if (String(view.panels.map(({ index }) => index)) !== String(shown)) buildPanels(view);
  if (!shown.includes(view.active)) [view.active] = shown;
  view.panels.forEach(({ index, title, subtitle }) => {
    const panel = model.panels[index];
    title.textContent = model.mode === "fates" ? "" : panel.title;
    subtitle.textContent = model.mode === "fates" ? "" : isDelta(model, index)
      ? `red: nearer to keep than in ${model.panels[0].title}, blue: nearer to prune`
      : panel.subtitle;
  });
  view.stage.setAttribute("aria-label", describe(model));
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
  const [first, end] = box.columns;
  const across = ((event.offsetX * box.pixels - box.left) * (end - first)) / box.width;
  const column = first + Math.floor(across);
  const row = box.rows[0] + Math.floor((event.offsetY * box.pixels - box.top) / box.row);
  const isInside = isInSight(box, row, column);
  const expert = isInside ? expertAt(model, model.panels[index], row, column) : -1;
  view.active = index;
  setCursor(view, expert < 0 ? null : { row, expert });
}

// ---- zoom ------------------------------------------------------------------------------------

const placeOf = ({ offsetX, offsetY }) => ({ x: offsetX, y: offsetY });

function beginDrag(view, event) {
  view.hasDragged = false;
  if (event.button === 0) view.from = placeOf(event);
}

function continueDrag(view, index, event) {
  if (!(event.buttons & 1)) view.from = view.drag = null; // released outside of the map
  const drag = view.from && [view.from, placeOf(event)];
  if (!drag || !(view.drag || isDrag(drag))) return hover(view, index, event);
  if (!view.drag) event.target.setPointerCapture(event.pointerId);
  view.drag = drag;
  return setCursor(view, null);
}

function forgetDrag(view) {
  if (view.drag) view.hasDragged = true; // the click that follows is none
  view.from = view.drag = null;
  paintOverlay(view);
}

function endDrag(view) {
  const { drag } = view;
  forgetDrag(view);
  if (drag) zoomTo(view, draggedPart(view.model, view.box, drag));
}

function zoomTo(view, part) {
  view.zoom = part;
  resize(view);
}

const placeIn = (view, { row, expert }) =>
  [row, columnOf(view.model, view.model.panels[view.active], row, expert)];

// Around the cursor; without one, around the middle of what is in sight.
function step(view, isNearer) {
  const { rows, columns } = view.box;
  const middle = [rows, columns].map(([first, end]) => (first + end - 1) / 2);
  const cell = view.cursor ?? view.selected;
  zoomTo(view, stepped(view.model, view.box, cell ? placeIn(view, cell) : middle, isNearer));
}

function showAll(view) {
  zoomTo(view, null);
  view.stage.focus();
}

// ---- choosing --------------------------------------------------------------------------------

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

function firstInSight({ model, box }, panel) {
  const [row, column] = [box.rows[0], box.columns[0]];
  return { row, expert: expertAt(model, panel, row, Math.min(column, model.counts[row] - 1)) };
}

function move(view, rows, columns) {
  const { model } = view;
  const panel = model.panels[view.active];
  const from = view.cursor ?? view.selected;
  if (!from) return setCursor(view, firstInSight(view, panel));
  const row = Math.max(0, Math.min(model.layers.length - 1, from.row + rows));
  const column = columnOf(model, panel, from.row, from.expert) + columns;
  const within = Math.max(0, Math.min(model.counts[row] - 1, column));
  if (view.zoom && !isInSight(view.box, row, within)) {
    zoomTo(view, following(model, view.zoom, [row, within]));
  }
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
  "+": (view) => step(view, true),
  "-": (view) => step(view, false),
  Escape: (view) => {
    if (view.drag) return forgetDrag(view);
    if (view.zoom) return zoomTo(view, null);
    if (view.selected) select(view, null);
    return setCursor(view, null);
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
  const view = {
    root, stage, legend, readout, panels: [], active: 0, cursor: null, selected: null,
    zoom: null, from: null, drag: null, hasDragged: false,
  };
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
