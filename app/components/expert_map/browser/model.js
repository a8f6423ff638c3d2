// Decodes what payload.py packed, and answers questions about one expert.

// The length of the JSON in 4 bytes, the JSON, and the deflated tables of each panel.
function parse(message) {
  const length = new DataView(message.buffer, message.byteOffset).getUint32(0, true);
  let start = 4 + length;
  const data = JSON.parse(new TextDecoder().decode(message.subarray(4, start)));
  for (const panel of data.panels) panel.packed = message.subarray(start, (start += panel.size));
  return data;
}

async function inflate(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

// A score travels as a half float: its distance from the layer's smallest score, where 2^15
// stands for the layer's whole range.
function shareOf(half) {
  const exponent = half >> 10;
  const fraction = (half & 1023) / 1024;
  return (exponent ? 2 ** (exponent - 15) * (1 + fraction) : 2 ** -14 * fraction) / 32768;
}

// In place; the sums wrap as the unsigned steps did.
function sumSteps(steps, width) {
  for (let cell = 1; cell < steps.length; cell += 1) {
    if (cell % width) steps[cell] += steps[cell - 1];
  }
  return steps;
}

// Tables are by rank, as they travel; only `ranks` is by expert.
async function readPanel(packed, { layers, counts, width, wide }) {
  const buffer = await inflate(packed.packed);
  let start = 0;
  const take = (Kind, length) => {
    const part = buffer.slice(start, (start += length * Kind.BYTES_PER_ELEMENT));
    return new Kind(part);
  };
  const cells = layers.length * width;
  const lowest = take(Float32Array, layers.length);
  const span = take(Float32Array, layers.length);
  const order = take(wide ? Uint16Array : Uint8Array, cells);
  const levels = sumSteps(take(Uint8Array, cells), width);
  const high = take(Uint8Array, cells);
  const low = take(Uint8Array, cells);
  const halves = sumSteps(Uint16Array.from(high, (byte, cell) => byte * 256 + low[cell]), width);
  const shares = Float64Array.from(halves, shareOf);
  const ranks = new Int32Array(cells).fill(-1);
  counts.forEach((count, row) => {
    for (let rank = 0; rank < count; rank += 1) ranks[row * width + order[row * width + rank]] = rank;
  });
  const { title, subtitle, kept } = packed;
  const others = new Set(packed.others);
  return { title, subtitle, kept, others, lowest, span, order, levels, shares, ranks };
}

export async function readModel(message) {
  const data = parse(message);
  const panels = await Promise.all(data.panels.map((panel) => readPanel(panel, data)));
  const single = data.mode === "values" && panels.length > 1;
  const lit = data.lit && new Map(data.lit);
  const mostLit = lit ? Math.max(...lit.values(), 0) : 0;
  const model = { ...data, panels, single, limit: 1, lit, mostLit };
  if (data.mode === "fates") {
    model.fateOfCell = new Uint8Array(data.layers.length * data.width);
    forEachExpert(model, (row, expert) => {
      model.fateOfCell[row * data.width + expert] = askedFate(model, row, expert);
    });
  }
  if (data.mode === "delta") {
    forEachExpert(model, (row, expert) => {
      model.limit = Math.max(model.limit, Math.abs(rankChange(model, row, expert)));
    });
  }
  return model;
}

// Of the gate weight that a token gave to its layer's experts, how much this one had; null: no
// token is searched.
export const litShare = (model, row, expert) =>
  model.lit && (model.lit.get(row * model.width + expert) ?? 0);

export function forEachExpert(model, visit) {
  model.counts.forEach((count, row) => {
    for (let expert = 0; expert < count; expert += 1) visit(row, expert);
  });
}

export const rankOf = (model, panel, row, expert) => panel.ranks[row * model.width + expert];
// By its rank, unless the plan says otherwise: a person's limits, or a search with its own order.
export const isKept = (model, panel, row, expert) =>
  (rankOf(model, panel, row, expert) < panel.kept[row])
    !== panel.others.has(row * model.width + expert);
export const columnOf = (model, panel, row, expert) =>
  model.arrangement === "rank" ? rankOf(model, panel, row, expert) : expert;

export function rankChange(model, row, expert) {
  const [first, second] = model.panels;
  return rankOf(model, first, row, expert) - rankOf(model, second, row, expert);
}

export function expertAt(model, panel, row, column) {
  if (column < 0 || column >= model.counts[row]) return -1;
  return model.arrangement === "rank" ? panel.order[row * model.width + column] : column;
}

export const isDelta = (model, index) => model.mode === "delta" && index === 1;
export const prunesAny = (model, index) =>
  model.panels[index].kept.some((count, row) => count < model.counts[row]);

// Both keep it, only the first, only the second, neither: 0..3.
export const fateOf = (model, row, expert) => model.fateOfCell[row * model.width + expert];
const askedFate = (model, row, expert) =>
  model.panels.reduce((code, panel) => 2 * code + Number(!isKept(model, panel, row, expert)), 0);

export function fateDiffers(model, row, expert) {
  const [first, second] = model.panels;
  return Boolean(second) && isKept(model, first, row, expert) !== isKept(model, second, row, expert);
}
