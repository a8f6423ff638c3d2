// One bar per layer: the experts that it keeps. When a bar is dragged or moved by the arrow keys,
// the other unlocked layers compensate, so that the budget holds. Nothing is sent to Python before
// the release.

import {
  buildColumns, button, element, heightOf, icon, isHeld, layOut, paintAxis, paintBars, paintWindow,
  setAttributes, TARGET_PX,
} from "./bars.js";
import { historyOf, remember, sameState, step } from "./history.js";
import { isGuess, lossAlone, predictedLoss } from "./predict.js";
import { clamp, move, reach, sum } from "./rebalance.js";

const SAME = "no difference from uniform";
const DRAG_PX = 3; // less is a click
const HINT =
  "Drag a bar, or move with the arrow keys: up and down change a layer, left and right choose " +
  "one, L locks it.";

// ---- state -----------------------------------------------------------------------------------

const stateOf = (view) => ({ counts: view.counts, locked: [...view.locked].sort((a, b) => a - b) });

function show(view, { counts, locked }) {
  view.counts = counts;
  view.locked = new Set(locked);
  paintBars(view);
  say(view);
}

// Sends the current state; undo returns to `before`. The time stamp distinguishes answers to older
// messages from the answer to the newest.
function commit(view, before) {
  if (before && !sameState(before, stateOf(view))) remember(view.history, before);
  const { layers } = view.model;
  view.sent = Math.max(Date.now(), view.sent + 1);
  view.report({
    counts: view.counts,
    locked: stateOf(view).locked.map((index) => layers[index]),
    at: view.sent,
  });
  paintTools(view);
}

function travel(view, isRedo) {
  finish(view);
  const found = step(view.history, stateOf(view), isRedo);
  if (!found) return;
  view.gesture = null;
  show(view, found);
  commit(view, null);
}

// ---- words -----------------------------------------------------------------------------------

function moved(view) {
  const { ghost } = view.model;
  if (!ghost) return "";
  const away = sum(view.counts.map((count, i) => Math.max(0, count - ghost[i])));
  return away === 0 ? SAME : `${away} moved away from uniform`;
}

// A rounded zero has no minus.
const signed = (loss) => `${loss < -0.005 ? "\u2212" : "+"}${Math.abs(loss).toFixed(2)}`;
const removedOf = (view) => view.counts.map((count, i) => view.model.rules.sizes[i] - count);

// The loss of the bars as they stand, which answers while one is dragged.
function expected(view) {
  const { terms } = view.model;
  if (!terms) return "";
  const removed = removedOf(view);
  const kind = isGuess(terms, removed) ? "a guess: loss" : "predicted loss";
  return `${kind} ${signed(predictedLoss(terms, removed))}`;
}

function paintTools(view) {
  const { budget, rules } = view.model;
  const all = sum(rules.sizes);
  const kept = sum(view.counts);
  const text = `${kept.toLocaleString("en")} of ${all.toLocaleString("en")} experts kept`;
  if (view.budgetText.textContent !== text) view.budgetText.textContent = text;
  view.badge.title = kept === budget ? "The budget is spent exactly" : `The budget is ${budget}`;
  const note = [expected(view), moved(view), rules.step > 1 ? `steps of ${rules.step}` : ""];
  view.moved.textContent = note.filter(Boolean).join(" \u00b7 ");
  view.undo.disabled = view.history.past.length === 0;
  view.redo.disabled = view.history.future.length === 0;
}

function readout(view) {
  const index = view.hovered ?? view.active;
  if (index === null || index === undefined || index >= view.counts.length) return HINT;
  const { layers, rules, ghost, terms } = view.model;
  const [count, size] = [view.counts[index], rules.sizes[index]];
  const parts = [
    `layer ${layers[index]} keeps ${count} of ${size} (${Math.round((100 * count) / size)}%)`,
  ];
  if (ghost) {
    const away = count - ghost[index];
    const sign = away > 0 ? "+" : "\u2212";
    parts.push(away ? `uniform ${ghost[index]}, ${sign}${Math.abs(away)}` : SAME);
  }
  if (terms) parts.push(`alone it loses ${signed(lossAlone(terms, index, size - count))}`);
  if (view.gesture && view.gesture.index === index) {
    const others = view.counts.filter((n, i) => i !== index && n !== view.gesture.base[i]).length;
    if (others) parts.push(`${others} other layer${others > 1 ? "s" : ""} changed`);
  }
  if (rules.low[index] === rules.high[index]) parts.push("cannot change");
  else if (view.locked.has(index)) parts.push("locked");
  else {
    const [low, high] = reach(rules, view.counts, view.locked, index);
    parts.push(`can keep ${low} to ${high}`);
  }
  return parts.join(" \u00b7 ");
}

function say(view) {
  const text = readout(view);
  if (view.readout.textContent !== text) view.readout.textContent = text;
  paintTools(view);
}

// ---- gestures --------------------------------------------------------------------------------

// All moves of one layer start from the same base, so that moving it back restores the counts.
function moveTo(view, index, wanted) {
  if (view.gesture?.index !== index) view.gesture = { index, base: view.counts };
  view.counts = move(view.model.rules, view.gesture.base, view.locked, index, wanted);
  view.active = index;
  paintBars(view);
  say(view);
}

function finish(view) {
  if (!view.pending) return;
  const before = view.pending;
  view.pending = null;
  if (!sameState(before, stateOf(view))) commit(view, before);
}

function toggleLock(view, index) {
  const { low, high } = view.model.rules;
  if (low[index] === high[index]) return;
  finish(view);
  const before = stateOf(view);
  if (!view.locked.delete(index)) view.locked.add(index);
  view.gesture = null;
  view.active = index;
  show(view, stateOf(view));
  commit(view, before);
}

function startDrag(view, index, event) {
  if (event.button !== 0) return;
  finish(view);
  setFocus(view, index, true);
  if (isHeld(view, index)) return;
  const { column } = view.columns[index];
  column.setPointerCapture(event.pointerId);
  view.drag = {
    index,
    startY: event.clientY,
    startCount: view.counts[index],
    before: stateOf(view),
    base: view.counts,
    isMoving: false,
  };
}

function drag(view, event) {
  const { drag: held } = view;
  if (!held) return;
  const up = held.startY - event.clientY;
  if (!held.isMoving && Math.abs(up) < DRAG_PX) return;
  if (!held.isMoving) {
    held.isMoving = true;
    view.gesture = { index: held.index, base: held.base };
    view.root.classList.add("dragging");
  }
  moveTo(view, held.index, held.startCount + up / heightOf(view.model, 1));
}

function endDrag(view, isCanceled) {
  const { drag: held } = view;
  if (!held) return;
  view.drag = null;
  view.root.classList.remove("dragging");
  if (isCanceled) {
    view.gesture = null;
    show(view, held.before);
  } else if (held.isMoving && !sameState(held.before, stateOf(view))) commit(view, held.before);
  if (view.late) update(view, view.late);
}

function setFocus(view, index, isTaken) {
  view.focus = clamp(index, 0, view.counts.length - 1);
  view.active = view.focus;
  view.columns.forEach(({ column }, i) => {
    column.tabIndex = i === view.focus ? 0 : -1;
    column.classList.toggle("active", i === view.focus);
  });
  const { cell, column } = view.columns[view.focus];
  if (isTaken) column.focus({ preventScroll: true });
  const { viewport } = view;
  const [left, right] = [cell.offsetLeft, cell.offsetLeft + cell.offsetWidth];
  if (left < viewport.scrollLeft) viewport.scrollLeft = left;
  else if (right > viewport.scrollLeft + viewport.clientWidth) {
    viewport.scrollLeft = right - viewport.clientWidth;
  }
  say(view);
}

function bigStep({ rules }) {
  const tenth = Math.max(...rules.sizes) / 10;
  return Math.max(1, Math.round(tenth / rules.step)) * rules.step;
}

const CHANGES = {
  ArrowUp: (view) => view.model.rules.step,
  ArrowDown: (view) => -view.model.rules.step,
  PageUp: (view) => bigStep(view.model),
  PageDown: (view) => -bigStep(view.model),
  Home: () => -Infinity,
  End: () => Infinity,
};
const PLACES = { ArrowLeft: -1, ArrowRight: 1 };

function onKey(view, index, event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key in CHANGES) {
    if (!view.pending) view.pending = stateOf(view);
    const wanted = view.counts[index] + CHANGES[event.key](view);
    const { low, high } = view.model.rules;
    if (!isHeld(view, index)) moveTo(view, index, clamp(wanted, low[index], high[index]));
  } else if (event.key in PLACES) {
    finish(view);
    setFocus(view, index + PLACES[event.key], true);
  } else if (event.key.toLowerCase() === "l") toggleLock(view, index);
  else if (event.key === "Escape" && view.drag) endDrag(view, true);
  else return;
  event.preventDefault();
  event.stopPropagation(); // the page's own shortcuts must not fire as well
}

function isTyping(event) {
  const target = event.composedPath()[0];
  return target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName ?? "");
}

function onShortcut(view, event) {
  const isUndo = (event.ctrlKey || event.metaKey) && !event.altKey && event.key.toLowerCase() === "z";
  const isRedoToo = event.ctrlKey && !event.altKey && event.key.toLowerCase() === "y";
  if (!(isUndo || isRedoToo) || isTyping(event) || !view.model || !view.root.isConnected) return;
  event.preventDefault();
  travel(view, isRedoToo || event.shiftKey);
}

// ---- zoom ------------------------------------------------------------------------------------

function zoom(view, factor) {
  const all = view.viewport.clientWidth / view.model.layers.length;
  const wanted = view.columnPx * factor;
  view.zoom = Math.max(1, Math.min(120, wanted) / all);
  const middle = (view.viewport.scrollLeft + view.viewport.clientWidth / 2) / view.columnPx;
  layOut(view);
  view.viewport.scrollLeft = middle * view.columnPx - view.viewport.clientWidth / 2;
}

function fit(view) {
  const all = view.viewport.clientWidth / view.model.layers.length;
  // A second press returns to columns wide enough to click.
  view.zoom = view.columnPx > all + 0.5 || all >= TARGET_PX ? 1 : null;
  layOut(view);
}

function scrollTo(view, event) {
  const box = view.overview.getBoundingClientRect();
  const share = (event.clientX - box.left) / box.width;
  view.viewport.scrollLeft = share * view.layers.offsetWidth - view.viewport.clientWidth / 2;
}

// ---- mount and update ------------------------------------------------------------------------

function toolbar(view) {
  view.budgetText = element("span", "budget");
  view.badge = element("span", "badge", icon("check"), view.budgetText);
  view.moved = element("span", "moved");
  view.undo = button("Undo (Ctrl+Z)", "undo", "Undo");
  view.redo = button("Redo (Ctrl+Shift+Z)", "redo", "Redo");
  view.undo.append(element("kbd", "", "Ctrl+Z"));
  view.out = button("Narrower columns", "out");
  const wider = button("Wider columns", "in");
  view.fit = element("button", "", "All layers");
  view.fit.type = "button";
  view.undo.addEventListener("click", () => travel(view, false));
  view.redo.addEventListener("click", () => travel(view, true));
  view.out.addEventListener("click", () => zoom(view, 1 / 1.4));
  wider.addEventListener("click", () => zoom(view, 1.4));
  view.fit.addEventListener("click", () => fit(view));
  const edits = element("span", "group", view.undo, view.redo);
  const sizes = element("span", "group", view.out, wider, view.fit);
  return element("div", "toolbar", view.badge, view.moved, edits, sizes);
}

function legend({ ghost, terms }) {
  const entries = [
    ["bar", "kept"],
    ["track", "pruned"],
    ...(ghost ? [["ghost", "uniform schedule"]] : []),
    ...(terms ? [["alone", "loss if this layer alone kept so many"]] : []),
    ["floor", "floor: what the router needs"],
  ];
  const items = entries.map(([kind, caption]) => {
    const swatch = element("span", "swatch", element("span", kind));
    return element("span", "item", swatch, element("span", "", caption));
  });
  return element("div", "legend", ...items);
}

function listen(view) {
  const { layers, viewport, overview } = view;
  const indexOf = (event) => {
    const cell = event.target.closest(".cell");
    return cell ? view.columns.findIndex((column) => column.cell === cell) : -1;
  };
  layers.addEventListener("pointerdown", (event) => {
    if (event.target.closest(".column")) startDrag(view, indexOf(event), event);
  });
  layers.addEventListener("pointermove", (event) => {
    drag(view, event);
    if (view.drag) return;
    view.hovered = indexOf(event);
    if (view.hovered < 0) view.hovered = null;
    say(view);
  });
  layers.addEventListener("pointerleave", () => {
    view.hovered = null;
    say(view);
  });
  layers.addEventListener("pointerup", () => endDrag(view, false));
  layers.addEventListener("pointercancel", () => endDrag(view, true));
  layers.addEventListener("click", (event) => {
    if (event.target.closest(".lock")) toggleLock(view, indexOf(event));
  });
  layers.addEventListener("keydown", (event) => {
    if (event.target.closest(".column")) onKey(view, indexOf(event), event);
  });
  layers.addEventListener("keyup", (event) => event.key in CHANGES && finish(view));
  layers.addEventListener("focusin", (event) => {
    if (event.target.closest(".column")) setFocus(view, indexOf(event), false);
  });
  layers.addEventListener("focusout", () => finish(view));
  viewport.addEventListener("scroll", () => paintWindow(view));
  overview.addEventListener("pointerdown", (event) => {
    overview.setPointerCapture(event.pointerId);
    scrollTo(view, event);
  });
  overview.addEventListener("pointermove", (event) => event.buttons && scrollTo(view, event));
}

function mount(root) {
  const view = {
    root, columns: [], counts: [], locked: new Set(), focus: 0, active: null, hovered: null,
    gesture: null, pending: null, drag: null, late: null, zoom: null, columnPx: TARGET_PX,
    sent: 0, history: historyOf(""),
  };
  view.axis = element("div", "axis");
  view.layers = element("div", "layers");
  view.layers.setAttribute("role", "group");
  view.viewport = element("div", "viewport", view.layers);
  view.strip = icon("check");
  view.window = element("div", "window");
  view.overview = element("div", "overview", view.strip, view.window);
  view.overview.setAttribute("aria-hidden", "true");
  view.readout = element("div", "readout");
  setAttributes(view.readout, { role: "status", "aria-live": "polite" });
  const plot = element("div", "plot", view.viewport, view.overview);
  const chart = element("div", "chart", view.axis, plot);
  view.legendPlace = element("div", "");
  root.replaceChildren(toolbar(view), chart, view.legendPlace, view.readout);
  listen(view);
  const observer = new ResizeObserver(() => view.model && layOut(view));
  observer.observe(view.viewport);
  const shortcut = (event) => onShortcut(view, event);
  document.addEventListener("keydown", shortcut);
  // Streamlit cleans up a superseded call at once, while the editor is still on the page.
  view.destroy = () => {
    if (root.isConnected) return;
    observer.disconnect();
    document.removeEventListener("keydown", shortcut);
  };
  return view;
}

const shapeOf = ({ layers, rules, floors, ghost, terms }) =>
  JSON.stringify([layers, rules, floors, ghost, terms]);

function update(view, model) {
  view.late = null;
  if (view.drag) {
    view.late = model; // applied after the drag
    return;
  }
  const isNew = !view.model || shapeOf(view.model) !== shapeOf(model);
  const id = JSON.stringify([model.model, model.rules, model.budget]);
  const isOther = !view.model || id !== view.id;
  const isOlder = (model.seen ?? 0) < view.sent;
  view.model = model;
  view.id = id;
  view.history = historyOf(id);
  if (isNew) {
    buildColumns(view);
    paintAxis(view);
    view.legendPlace.replaceChildren(legend(model));
    view.layers.setAttribute("aria-label", "Experts kept in each layer");
    view.focus = Math.min(view.focus, model.layers.length - 1);
  }
  const locked = model.locked.map((layer) => model.layers.indexOf(layer)).filter((i) => i >= 0);
  const given = { counts: model.counts, locked };
  if (isOther || !(isOlder || view.pending)) {
    // Another schedule, an edited cell or an import can be undone, like a move of a bar.
    if (!isOther && !sameState(given, stateOf(view))) {
      remember(view.history, stateOf(view));
      view.gesture = null;
    }
    if (isOther) view.gesture = view.pending = null;
    view.counts = given.counts;
    view.locked = new Set(given.locked);
  }
  layOut(view);
  paintBars(view);
  say(view);
  // Animate the bars, except on the first paint.
  view.root.classList.toggle("resting", isNew);
}

// Streamlit calls the function again after every change of data or theme, on the same elements,
// and the last cleanup when the component leaves the page.
const views = new WeakMap();

export default function scheduleEditor({ data, parentElement, setStateValue }) {
  const root = parentElement.querySelector(".schedule-editor");
  if (!views.has(root)) views.set(root, mount(root));
  const view = views.get(root);
  view.report = (edit) => setStateValue("edit", edit);
  update(view, data);
  return view.destroy;
}
