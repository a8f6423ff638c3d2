// Paints one panel: cells, veil, cut line, axes.

import {
  columnOf, expertAt, fateDiffers, fateOf, isDelta, isKept, litShare, prunesAny, rankChange, rankOf,
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
// Narrower cells are not told apart: as many neighbours as fill this share one.
const SHARED_PX = 4;
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
// Of what the first alone and the second alone keeps: "/" and "\\", down from the left is 1.
const STROKES = { 1: -1, 2: 1 };
// Opacity of cells while a token is searched: of those that read least of it, and of the others.
const DIM = { lit: 0.45, dark: 0.12 };
// Of a cell, in each direction: pruned experts are small, in the colour of their value.
const PRUNED = { width: 0.62, height: 0.6 };

export function readTheme(root, fates) {
  const style = getComputedStyle(root);
  const color = (name, fallback) => rgbOf(style.getPropertyValue(name).trim() || fallback);
  const background = color("--st-background-color", "#ffffff");
  const text = color("--st-text-color", "#17242d");
  const kept = color("--st-primary-color", "#0f6d7e");
  const isDark = background[0] + background[1] + background[2] < 384;
  const pruned = mix(background, text, isDark ? 0.22 : 0.12);
  return {
    font: style.getPropertyValue("--st-font").trim() || "sans-serif",
    text: css(text),
    muted: css(mix(text, background, 0.25)),
    background: css(background),
    empty: css(color("--st-secondary-background-color", "#f3f6f8")),
    pruned: css(pruned),
    fates: Array.from({ length: 256 }, (_, level) => css(mix(pruned, kept, level / 255))),
    mixtures: new Map(),
    fateColors: (fates[Number(isDark)] ?? []).map(rgbOf),
    stops: isDark ? DARK : LIGHT,
    values: shades(isDark ? DARK : LIGHT),
    other: css(color("--st-orange-color", isDark ? "#f08a3c" : "#c2570c")),
  };
}

// ---- geometry, in device pixels --------------------------------------------------------------

// Rows fill the target, so some are a pixel higher than others.
function mapHeight(model) {
  const wanted = ROW_PX.target / model.layers.length;
  return Math.max(ROW_PX.min, Math.min(ROW_PX.max, wanted)) * model.layers.length;
}

// What is in sight: rows and columns, from the first to before the last.
const whole = (model) => ({ rows: [0, model.layers.length], columns: [0, model.width] });

// The height is that of the whole map, so that nothing moves when a part of it fills it.
export function measure(model, root, cssWidth, zoom) {
  const ratio = window.devicePixelRatio || 1;
  const { rows, columns } = zoom ?? whole(model);
  const digits = String(Math.max(...model.layers)).length;
  const left = Math.round((MARGIN_PX.left + digits * 7) * ratio);
  const top = Math.round(MARGIN_PX.top * ratio);
  const height = Math.round(mapHeight(model) * ratio);
  const row = height / (rows[1] - rows[0]);
  const wide = Math.floor(cssWidth * ratio - MARGIN_PX.right * ratio) - left;
  const width = Math.max(wide, 1);
  const each = width / (columns[1] - columns[0]);
  const together = each < SHARED_PX * ratio ? Math.ceil((SHARED_PX * ratio) / each) : 1;
  const smallest = Math.min(each * together, row);
  return {
    pixels: ratio, ratio, left, top, row, width, height, rows, columns, together,
    gap: smallest >= 9 * ratio && together === 1 ? Math.round(ratio) : 0,
    isNarrow: smallest < FRAMED_PX * ratio || together > 1,
    sharesPixels: each < 1,
    canvasWidth: Math.round(cssWidth * ratio),
    canvasHeight: top + height + Math.round(MARGIN_PX.bottom * ratio),
    edge: (column) => left + Math.round((column - columns[0]) * each),
    upper: (place) => top + Math.round((place - rows[0]) * row),
  };
}

export const isInSight = ({ rows, columns }, row, column) =>
  row >= rows[0] && row < rows[1] && column >= columns[0] && column < columns[1];

function boxOf(box, row, column, after) {
  const [x, y] = [box.edge(column), box.upper(row)];
  const w = Math.max(1, box.edge(after) - x - box.gap);
  return { column, x, y, w, h: box.upper(row + 1) - y - box.gap };
}

export function cellBox(view, index, row, expert) {
  const { model, box } = view;
  const column = columnOf(model, model.panels[index], row, expert);
  return boxOf(box, row, column, column + 1);
}

// The experts that share each cell in sight, and the cell's place.
function forEachCell(view, index, visit) {
  const { model, box } = view;
  const panel = model.panels[index];
  const [first, last] = box.columns;
  for (let row = box.rows[0]; row < box.rows[1]; row += 1) {
    const end = Math.min(last, model.counts[row]);
    for (let column = first; column < end; column += box.together) {
      const experts = [];
      const after = Math.min(end, column + box.together);
      for (let each = column; each < after; each += 1) {
        experts.push(expertAt(model, panel, row, each));
      }
      visit(row, experts, boxOf(box, row, column, after));
    }
  }
}

const meanOf = (items, value) => items.reduce((sum, each) => sum + value(each), 0) / items.length;
const largestOf = (items, value) =>
  items.map(value).reduce((most, each) => (Math.abs(each) > Math.abs(most) ? each : most));

// ---- painting the cells ----------------------------------------------------------------------

// Of experts that share a cell: their mean, or the largest change of rank.
function fillOf(view, index, row, experts) {
  const { model, theme } = view;
  const panel = model.panels[index];
  if (model.mode === "mask") {
    return theme.fates[Math.round(255 * keptShare(model, index, row, experts))];
  }
  if (model.mode === "fates") {
    return mixedFates(theme, experts.map((expert) => fateOf(model, row, expert)));
  }
  if (isDelta(model, index)) {
    const change = largestOf(experts, (expert) => rankChange(model, row, expert));
    return DELTAS[Math.round(127.5 + (127.5 * change) / model.limit)];
  }
  const level = (expert) => panel.levels[row * model.width + rankOf(model, panel, row, expert)];
  return theme.values[Math.round(meanOf(experts, level))];
}

// Few mixtures fill thousands of cells.
function mixedFates({ fateColors, mixtures }, fates) {
  const name = String(fates);
  if (!mixtures.has(name)) {
    const rgb = [0, 1, 2].map((part) => meanOf(fates, (fate) => fateColors[fate][part]));
    mixtures.set(name, css(rgb));
  }
  return mixtures.get(name);
}

const keptShare = (model, index, row, experts) =>
  meanOf(experts, (expert) => Number(isKept(model, model.panels[index], row, expert)));

// 1 for cells of full size, 0 for those of pruned experts.
const sizeOf = (model, index, row, experts) =>
  ["mask", "fates"].includes(model.mode) ? 1 : keptShare(model, index, row, experts);

// While the map morphs, cells are between the places and sizes that they had and have.
function paintCells(view, index, context) {
  const { model, box, theme, before, share } = view;
  const between = (was, is) => (before ? was() + (is - was()) * share : is);
  // Small cells of pruned experts are low only: gaps of parts of a pixel would shimmer.
  const narrowest = box.isNarrow ? 1 : PRUNED.width;
  const snapped = (value) => (box.isNarrow ? Math.round(value) : value);
  context.fillStyle = theme.empty;
  context.fillRect(box.left, box.top, box.width, box.height);
  forEachCell(view, index, (row, experts, { x: place, y, w, h }) => {
    const x = between(
      () => box.edge(columnOf(before, before.panels[index], row, experts[0])), place,
    );
    const size = between(
      () => sizeOf(before, index, row, experts), sizeOf(model, index, row, experts),
    );
    const width = Math.max(1, w * (narrowest + (1 - narrowest) * size));
    const height = Math.max(1, snapped(h * (PRUNED.height + (1 - PRUNED.height) * size)));
    context.fillStyle = fillOf(view, index, row, experts);
    context.globalAlpha = alphaOf(model, row, experts);
    context.fillRect(x + (w - width) / 2, y + snapped((h - height) / 2), width, height);
  });
  context.globalAlpha = 1;
}

// Experts that do not read the searched token are dim.
function alphaOf(model, row, experts) {
  if (!model.lit) return 1;
  const share = largestOf(experts, (expert) => litShare(model, row, expert));
  return share ? DIM.lit + (1 - DIM.lit) * (share / model.mostLit) : DIM.dark;
}

// Of those with more than twice an even share; the wider the frame, the more of the token.
function paintLit(view, context) {
  const { model, box, theme } = view;
  context.strokeStyle = theme.other;
  forEachCell(view, view.painted, (row, experts, cell) => {
    const share = largestOf(experts, (expert) => litShare(model, row, expert));
    if (share <= 2 / model.counts[row]) return;
    const most = Math.max(1, Math.min(cell.w / 4, 5 * box.ratio));
    const line = Math.max(1, Math.round(most * (share / model.mostLit)));
    context.lineWidth = line;
    context.strokeRect(cell.x + line / 2, cell.y + line / 2, cell.w - line, cell.h - line);
  });
}

// Strokes over what one alone keeps: told without colour, where cells have room for it.
function paintFates(view, index, context) {
  const { model, box, theme } = view;
  if (box.isNarrow) return;
  const path = new Path2D();
  forEachCell(view, index, (row, [expert], { x, y, w, h }) => {
    const slope = STROKES[fateOf(model, row, expert)];
    if (!slope) return;
    path.moveTo(x + 0.2 * w, y + h * (0.5 - 0.3 * slope));
    path.lineTo(x + 0.8 * w, y + h * (0.5 + 0.3 * slope));
  });
  context.strokeStyle = theme.background;
  context.lineWidth = 1.5 * box.ratio;
  context.stroke(path);
}

// The foot of a cell is as wide as those of its experts that it tells of.
function paintChanged(view, index, context) {
  const { model, box, theme } = view;
  const line = Math.max(1, Math.round((box.gap ? 2 : 1) * box.ratio));
  const color = model.mode === "mask" ? theme.text : theme.other;
  Object.assign(context, { strokeStyle: color, fillStyle: color, lineWidth: line });
  forEachCell(view, index, (row, experts, { column, x, y, w, h }) => {
    const count = experts.filter((expert) => fateDiffers(model, row, expert)).length;
    if (!count) return;
    const foot = Math.max(line, Math.round(FOOT * h));
    const wide = Math.max(1, box.edge(column + count) - x - box.gap);
    if (box.isNarrow) context.fillRect(x, y + h - foot, wide, foot);
    else context.strokeRect(x + line / 2, y + line / 2, w - line, h - line);
  });
}

// One vertical line, or steps if the layers keep different numbers.
function paintCut(view, index, context) {
  const { model, box, theme } = view;
  const { kept } = model.panels[index];
  const path = new Path2D();
  for (let row = box.rows[0]; row < box.rows[1]; row += 1) {
    const x = box.edge(kept[row]) - box.gap / 2;
    if (row === box.rows[0]) path.moveTo(x, box.top - 4 * box.ratio);
    path.lineTo(x, box.upper(row));
    path.lineTo(x, box.upper(row + 1));
  }
  context.save();
  context.beginPath();
  context.rect(box.left, 0, box.width, box.top + box.height);
  context.clip();
  for (const [color, width] of [[theme.background, 4.5], [theme.text, 2]]) {
    context.strokeStyle = color;
    context.lineWidth = width * box.ratio;
    context.stroke(path);
  }
  context.restore();
}

export const showsChanged = (model) => !model.lit && (model.mode === "mask" || model.single);

const panelAt = (view, index) => view.panels.find((each) => each.index === index);

export function paintPanel(view, index) {
  const { model, box } = view;
  const context = panelAt(view, index).base.getContext("2d");
  context.clearRect(0, 0, box.canvasWidth, box.canvasHeight);
  paintCells(view, index, context);
  if (model.arrangement === "rank" && prunesAny(model, index)) paintCut(view, index, context);
  if (model.mode === "fates") paintFates(view, index, context);
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
  const layers = model.layers.slice(...box.rows);
  const every = tickStep(layers.length, box.height / ratio / 20);
  layers.forEach((layer, row) => {
    if (row % every) return;
    context.fillText(String(layer), box.left - 6 * ratio, box.top + (row + 0.5) * box.row);
  });
  context.textBaseline = "top";
  context.textAlign = "center";
  const start = model.arrangement === "rank" ? 1 : 0;
  const middle = (column) => (box.edge(column) + box.edge(column + 1)) / 2;
  const label = (column) =>
    context.fillText(String(column + start), middle(column), bottom + 5 * ratio);
  const [first, end] = box.columns;
  const step = tickStep(end - first, 5);
  label(first);
  label(end - 1);
  const second = (Math.floor((first + start) / step) + 1) * step - start;
  for (let column = second; column < end - step / 2; column += step) {
    if (column >= first + step / 2 || !first) label(column);
  }
  const order = model.mode === "fates" ? `rank in ${model.panels[0].title}` : "rank";
  const name = model.arrangement === "rank" ? `${order} (1 = first to keep)` : "expert index";
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
