// A part of the map that fills it: dragged over layers or ranks, or by keys.

const DRAG_PX = 8; // less is a click, or leaves a direction whole
const LEAST = { rows: 1, columns: 8 };
const STEP = 2;

const clamp = (value, low, high) => Math.max(low, Math.min(high, value));

// A range of so many within `all`, around a middle.
function around(middle, count, all) {
  const first = clamp(Math.round(middle - count / 2), 0, all - count);
  return [first, first + count];
}

const isWhole = ({ rows, columns }, model) =>
  rows[1] - rows[0] === model.layers.length && columns[1] - columns[0] === model.width;

// The part of these rows and columns; null is the whole map.
function partOf(model, rows, columns) {
  const part = { rows, columns };
  return isWhole(part, model) ? null : part;
}

// Nearer to a cell (row and column), or further from it.
export function stepped(model, { rows, columns }, [row, column], isNearer) {
  const size = (range, least, all) => {
    const now = range[1] - range[0];
    return isNearer
      ? Math.max(Math.min(least, all), Math.ceil(now / STEP))
      : Math.min(all, now * STEP);
  };
  const high = model.layers.length;
  return partOf(
    model,
    around(row + 0.5, size(rows, LEAST.rows, high), high),
    around(column + 0.5, size(columns, LEAST.columns, model.width), model.width),
  );
}

// The same size, moved as little as shows a cell.
export function following(model, { rows, columns }, [row, column]) {
  const move = ([first, end], place) => {
    const by = Math.min(0, place - first) + Math.max(0, place + 1 - end);
    return [first + by, end + by];
  };
  return partOf(model, move(rows, row), move(columns, column));
}

// Pixels of the canvas that were dragged over, whole in a direction that was hardly dragged.
export function draggedBox(box, [from, to]) {
  const span = (name, start, length) => {
    const ends = [from[name], to[name]].map((at) => clamp(at * box.pixels, start, start + length));
    ends.sort((one, other) => one - other);
    const isShort = ends[1] - ends[0] < DRAG_PX * box.pixels;
    return isShort ? [start, start + length] : ends;
  };
  return { x: span("x", box.left, box.width), y: span("y", box.top, box.height) };
}

export const isDrag = ([from, to]) =>
  Math.max(Math.abs(to.x - from.x), Math.abs(to.y - from.y)) >= DRAG_PX;

// The part of the map that was dragged over.
export function draggedPart(model, box, drag) {
  const { x, y } = draggedBox(box, drag);
  const range = ([low, high], start, length, [first, end], least, all) => {
    const each = length / (end - first);
    const from = first + Math.floor((low - start) / each);
    const to = Math.min(end, first + Math.ceil((high - start) / each));
    return around((from + to) / 2, clamp(to - from, Math.min(least, all), all), all);
  };
  return partOf(
    model,
    range(y, box.top, box.height, box.rows, LEAST.rows, model.layers.length),
    range(x, box.left, box.width, box.columns, LEAST.columns, model.width),
  );
}
