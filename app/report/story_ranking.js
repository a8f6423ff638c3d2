// What the file holds, as numbers, and how experts are ranked by them: as the package ranks, which
// a test compares.

const ranking = (() => {
  "use strict";

  const ARRAYS = { f8: Float64Array, f4: Float32Array, u2: Uint16Array };

  /** Numbers of base64, little endian as every browser's processor is. */
  function unpack(text, width) {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    return new ARRAYS[width](bytes.buffer);
  }

  /** A long row of all experts as a row per layer. */
  function byLayer(values, experts) {
    let start = 0;
    return experts.map((count) => values.subarray(start, (start += count)));
  }

  /** The nine sums of every expert, g^alpha |f|^beta at 3 * alpha + beta: a list of rows by layer. */
  function sumsOf(text, width, experts) {
    const values = unpack(text, width === 8 ? "f8" : "f4");
    const total = experts.reduce((sum, count) => sum + count, 0);
    return Array.from({ length: 9 }, (_, place) =>
      byLayer(values.subarray(place * total, (place + 1) * total), experts));
  }

  /** S(b, alpha, beta) of every expert: the sum, or with b = 1 its mean over the tokens. */
  function scores(sums, [b, alpha, beta]) {
    const totals = sums[3 * alpha + beta], tokens = sums[0];
    if (!b) return totals;
    return totals.map((row, layer) => row.map((total, expert) => {
      const count = tokens[layer][expert];
      return count > 0 ? total / count : 0;
    }));
  }

  /** Experts of a layer, the first to keep first; of equal ones the lower number. */
  function orderOf(saliency, groups) {
    const ids = Array.from(saliency, (_, expert) => expert);
    const highFirst = (one, other) =>
      saliency[other] > saliency[one] ? 1 : saliency[other] < saliency[one] ? -1 : 0;
    ids.sort(highFirst);
    if (groups < 2) return ids;
    // The best of each group of the router, then the second best of each, ...
    const size = ids.length / groups, seen = new Array(groups).fill(0), turn = [];
    for (const expert of ids) turn[expert] = seen[Math.floor(expert / size)]++;
    return ids.sort((one, other) => turn[one] - turn[other]);
  }

  /** Orders of all layers. */
  const ordersOf = (saliency, groups) =>
    saliency.map((row, layer) => orderOf(row, groups[layer]));

  /** Rank of each expert of a layer, from 1. */
  function ranksOf(order) {
    const ranks = [];
    order.forEach((expert, place) => { ranks[expert] = place + 1; });
    return ranks;
  }

  /** Experts that a layer keeps. */
  const keptOf = (order, count) => new Set(Array.from(order).slice(0, count));

  /** (x - mean) / |mean| of each score of a layer; 0 where all are equal. */
  function relative(saliency) {
    const low = Math.min(...saliency), high = Math.max(...saliency);
    if (low === high) return Array.from(saliency, () => 0);
    const mean = saliency.reduce((sum, value) => sum + value, 0) / saliency.length;
    return Array.from(saliency, (value) => (value === mean ? 0 : (value - mean) / Math.abs(mean)));
  }

  /** A layer's scores between 0 and 1. */
  function rescaled(saliency) {
    const low = Math.min(...saliency), high = Math.max(...saliency);
    return Array.from(saliency, (value) => (high > low ? (value - low) / (high - low) : 0));
  }

  /** The last expert kept less the first removed, of relative scores; null if none is removed. */
  function gapAt(values, order, count) {
    return count > 0 && count < order.length
      ? values[order[count - 1]] - values[order[count]]
      : null;
  }

  return { unpack, byLayer, sumsOf, scores, ordersOf, ranksOf, keptOf, relative, rescaled, gapAt };
})();
