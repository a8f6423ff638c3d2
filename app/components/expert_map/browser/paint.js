// Paints one panel: cells, veil, cut line, axes.

import {
  columnOf, fateDiffers, forEachExpert, isDelta, isKept, litShare, prunesAny, rankChange, rankOf,
} from "./model.js";

// Low to high, on the light and on the dark page.
const LIGHT = [
  "#d5e8e4", "#a9d2cd", "#7cbabb", "#4f9da5", "#2c8390", "#17697b", "#0d4f65", "#07344d",
];
const DARK = [
  "#24444f", "#265a68", "#2b7080", "#358794", "#4ea0a8", "#76babb", "#a8d6cf", "#e0f6ec",
];
export const DIVERGING = ["#2166ac", "#67a9cf", "#f7f7f7", "#ef8a62", "#b2182b"];
const ROW_PX = { min: 5, max: 79, target: 474 };
// Frames would cover cells that are narrower or lower; a foot leaves their colour to be seen.
const FRAMED_PX = 6;
const FOOT = 0.3; // of a cell's height
const MARGIN_PX = { left: 16, right: 14, top: 20, bottom: 38 };

// ---- colour ----------------------------------------------------------------------------------

const probe = document.createElement("canvas").getContext("2d", { willReadFrequently: true });

// Theme colours come in any CSS form; painting one pixel reads them all.
function rgbOf(color) {
  probe.clearRect(0, 0, 1, 1);
  probe.fillStyle = color;
  probe.fillRect(0, 0, 1, 1);
  return [...probe.getImageData(0, 0, 1, 1).data].slice(0, 3);
}

const css = (rgb, alpha = 1) => `rgb(${rgb.map(Math.round).join(" ")} / ${alpha})`;
const mix = (from, to, share) => from.map((part, i) => part + (to[i] - part) * share);

function ramp(stops) {
  const colors = stops.map(rgbOf);
  return Array.from({ length: 256 }, (_, level) => {
    const place = (level / 255) * (colors.length - 1);
    const below = Math.min(Math.floor(place), colors.length - 2);
    return mix(colors[below], colors[below + 1], place - below);
  });
}

const shades = (stops) => ramp(stops).map((rgb) => css(rgb));
const DELTAS = shades(DIVERGING);
// Opacity of cells while a token is searched: of those that read least of it, and of the others.
const DIM = { lit: 0.45, dark: 0.12 };
// Of a cell, in each direction: pruned experts are small, in the colour of their value.
const PRUNED = { width: 0.62, height: 0.6 };

export function readTheme(root) {
  const style = getComputedStyle(root);
  const color = (name, fallback) => rgbOf(style.getPropertyValue(name).trim() || fallback);
  const background = color("--st-background-color", "#ffffff");
  const text = color("--st-text-color", "#17242d");
  const isDark = background[0] + background[1] + background[2] < 384;
  return {
    font: style.getPropertyValue("--st-font").trim() || "sans-serif",
    text: css(text),
    muted: css(mix(text, background, 0.25)),
    background: css(background),
    empty: css(color("--st-secondary-background-color", "#f3f6f8")),
    kept: css(color("--st-primary-color", "#0f6d7e")),
    pruned: css(mix(background, text, isDark ? 0.22 : 0.12)),
    stops: isDark ? DARK : LIGHT,
    values: shades(isDark ? DARK : LIGHT),
    other: css(color("--st-orange-color", isDark ? "#f08a3c" : "#c2570c")),
  };
}

// ---- geometry, in device pixels --------------------------------------------------------------

function rowHeight(model) {
  const wanted = Math.floor(ROW_PX.target / model.layers.length);
  return Math.max(ROW_PX.min, Math.min(ROW_PX.max, wanted));
}

export function measure(model, root, cssWidth) {
  const ratio = window.devicePixelRatio || 1;
  const digits = String(Math.max(...model.layers)).length;
  const left = Math.round((MARGIN_PX.left + digits * 7) * ratio);
  const top = Math.round(MARGIN_PX.top * ratio);
  const row = Math.round(rowHeight(model) * ratio);
  const wide = Math.floor(cssWidth * ratio - MARGIN_PX.right * ratio) - left;
  const width = Math.max(wide, 1);
  const smallest = Math.min(width / model.width, row);
  const height = row * model.layers.length;
  return {
    pixels: ratio, ratio, left, top, row, width, height,
    gap: smallest >= 9 * ratio ? Math.round(ratio) : 0,
    isNarrow: smallest < FRAMED_PX * ratio,
    sharesPixels: width < model.width,
    canvasWidth: Math.round(cssWidth * ratio),
    canvasHeight: top + height + Math.round(MARGIN_PX.bottom * ratio),
    edge: (column) => left + Math.round((column * width) / model.width),
  };
}

export function cellBox(view, index, row, expert) {
  const { model, box } = view;
  const column = columnOf(model, model.panels[index], row, expert);
  const x = box.edge(column);
  return {
    x,
    y: box.top + row * box.row,
    w: Math.max(1, box.edge(column + 1) - x - box.gap),
    h: box.row - box.gap,
  };
}


// ---- painting the cells ----------------------------------------------------------------------

function fillOf(view, index, row, expert) {
  const { model, theme } = view;
  const panel = model.panels[index];
  const kept = isKept(model, panel, row, expert);
  if (model.mode === "mask") return kept ? theme.kept : theme.pruned;
  if (isDelta(model, index)) {
    return DELTAS[Math.round(127.5 + (127.5 * rankChange(model, row, expert)) / model.limit)];
  }
  return theme.values[panel.levels[row * model.width + rankOf(model, panel, row, expert)]];
}

// 1 for cells of full size, 0 for those of pruned experts.
const sizeOf = (model, index, row, expert) =>
  Number(model.mode === "mask" || isKept(model, model.panels[index], row, expert));

// While the map morphs, cells are between the places and sizes that they had and have.
function paintCells(view, index, context) {
  const { model, box, theme, before, share } = view;
  const between = (was, is) => (before ? was() + (is - was()) * share : is);
  context.fillStyle = theme.empty;
  context.fillRect(box.left, box.top, box.width, box.height);
  forEachExpert(model, (row, expert) => {
    const { x: place, y, w, h } = cellBox(view, index, row, expert);
    const x = between(() => box.edge(columnOf(before, before.panels[index], row, expert)), place);
    const size = between(
      () => sizeOf(before, index, row, expert), sizeOf(model, index, row, expert),
    );
    const width = Math.max(1, w * (PRUNED.width + (1 - PRUNED.width) * size));
    const height = h * (PRUNED.height + (1 - PRUNED.height) * size);
    context.fillStyle = fillOf(view, index, row, expert);
    context.globalAlpha = alphaOf(model, row, expert);
    context.fillRect(x + (w - width) / 2, y + (h - height) / 2, width, height);
  });
  context.globalAlpha = 1;
}

// Experts that do not read the searched token are dim.
function alphaOf(model, row, expert) {
  const share = litShare(model, row, expert);
  if (share === null) return 1;
  return share ? DIM.lit + (1 - DIM.lit) * (share / model.mostLit) : DIM.dark;
}

// Of those with more than twice an even share; the wider the frame, the more of the token.
function paintLit(view, context) {
  const { model, box, theme } = view;
  context.strokeStyle = theme.other;
  forEachExpert(model, (row, expert) => {
    const share = litShare(model, row, expert);
    if (share <= 2 / model.counts[row]) return;
    const cell = cellBox(view, view.painted, row, expert);
    const most = Math.max(1, Math.min(cell.w / 4, 5 * box.ratio));
    const line = Math.max(1, Math.round(most * (share / model.mostLit)));
    context.lineWidth = line;
    context.strokeRect(cell.x + line / 2, cell.y + line / 2, cell.w - line, cell.h - line);
  });
}

function paintChanged(view, index, context) {
  const { model, box, theme } = view;
  const line = Math.max(1, Math.round((box.gap ? 2 : 1) * box.ratio));
  const color = model.mode === "mask" ? theme.text : theme.other;
  Object.assign(context, { strokeStyle: color, fillStyle: color, lineWidth: line });
  forEachExpert(model, (row, expert) => {
    if (!fateDiffers(model, row, expert)) return;
    const { x, y, w, h } = cellBox(view, index, row, expert);
    const foot = Math.max(line, Math.round(FOOT * h));
    if (box.isNarrow) context.fillRect(x, y + h - foot, w, foot);
    else context.strokeRect(x + line / 2, y + line / 2, w - line, h - line);
  });
}

// One vertical line, or steps if the layers keep different numbers.
function paintCut(view, index, context) {
  const { model, box, theme } = view;
  const { kept } = model.panels[index];
  const path = new Path2D();
  kept.forEach((count, row) => {
    const x = box.edge(count) - box.gap / 2;
    const y = box.top + row * box.row;
    if (row === 0) path.moveTo(x, y - 4 * box.ratio);
    path.lineTo(x, y);
    path.lineTo(x, y + box.row);
  });
  for (const [color, width] of [[theme.background, 4.5], [theme.text, 2]]) {
    context.strokeStyle = color;
    context.lineWidth = width * box.ratio;
    context.stroke(path);
  }
}

export const showsChanged = (model) => !model.lit && (model.mode === "mask" || model.single);

const panelAt = (view, index) => view.panels.find((each) => each.index === index);

export function paintPanel(view, index) {
  const { model, box } = view;
  const context = panelAt(view, index).base.getContext("2d");
  context.clearRect(0, 0, box.canvasWidth, box.canvasHeight);
  paintCells(view, index, context);
  if (model.arrangement === "rank" && prunesAny(model, index)) paintCut(view, index, context);
  if (model.lit) paintLit({ ...view, painted: index }, context);
  else if (!view.before && showsChanged(model)) paintChanged(view, index, context);
  paintAxes(view, context);
  paintCounts(view, index, context);
}

// ---- painting the text -----------------------------------------------------------------------

function tickStep(count, most) {
  const steps = [1, 2, 4, 5, 8, 10, 16, 20, 25, 32, 40, 50, 64, 100, 128, 200, 256, 512];
  return steps.find((step) => count / step <= most) ?? count;
}

function paintAxes(view, context) {
  const { model, box, theme } = view;
  const { ratio } = box;
  const bottom = box.top + box.height;
  context.font = `${12 * ratio}px ${theme.font}`;
  context.fillStyle = theme.muted;
  context.textAlign = "right";
  context.textBaseline = "middle";
  const every = tickStep(model.layers.length, box.height / ratio / 20);
  model.layers.forEach((layer, row) => {
    if (row % every) return;
    context.fillText(String(layer), box.left - 6 * ratio, box.top + (row + 0.5) * box.row);
  });
  context.textBaseline = "top";
  context.textAlign = "center";
  const start = model.arrangement === "rank" ? 1 : 0;
  const middle = (column) => (box.edge(column) + box.edge(column + 1)) / 2;
  const label = (column) =>
    context.fillText(String(column + start), middle(column), bottom + 5 * ratio);
  const step = tickStep(model.width, 5);
  label(0);
  label(model.width - 1);
  for (let column = step - start; column < model.width - step / 2; column += step) {
    if (column > 0) label(column);
  }
  const name = model.arrangement === "rank" ? "rank (1 = first to keep)" : "expert index";
  context.fillText(name, box.left + box.width / 2, bottom + 21 * ratio);
  context.textAlign = "left";
  context.textBaseline = "alphabetic";
  context.fillText("layer", 0, box.top - 7 * ratio);
}

function countsText(model, panel) {
  const pruned = model.counts.map((count, row) => count - panel.kept[row]);
  if (Math.max(...pruned) === 0) return ["all experts kept", ""];
  const lowest = Math.min(...panel.kept);
  const highest = Math.max(...panel.kept);
  if (lowest !== highest) return [`kept ${lowest} to ${highest} per layer`, ""];
  const alike = pruned.every((count) => count === pruned[0]);
  return [`kept ${lowest}`, alike ? `pruned ${pruned[0]}` : "pruned"];
}

// Left and right of the cut, or as near to it as the panel allows.
function paintCounts(view, index, context) {
  const { model, box, theme } = view;
  const panel = model.panels[index];
  const [left, right] = countsText(model, panel);
  context.font = `${12 * box.ratio}px ${theme.font}`;
  context.fillStyle = theme.text;
  context.textAlign = "left";
  const gap = 7 * box.ratio;
  const leftWidth = context.measureText(left).width;
  const whole = leftWidth + 2 * gap + context.measureText(right).width;
  const first = box.left + 24 * box.ratio;
  const last = box.left + box.width - whole;
  const atCut = box.edge(panel.kept[0]) - gap - leftWidth;
  const wanted = model.arrangement === "rank" && right ? atCut : first;
  const x = Math.max(first, Math.min(wanted, last));
  const y = box.top - 7 * box.ratio;
  context.fillText(left, x, y);
  context.fillText(right, x + leftWidth + 2 * gap, y);
}
