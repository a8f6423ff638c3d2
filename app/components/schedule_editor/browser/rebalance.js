// Rebalances the other layers when the count of one layer changes, as `from_counts` does in Python,
// in integers. They change in proportion to their size by largest remainder, in steps, within their
// limits; ties go to the lower layer. Pure.
//
// rules: { sizes, low, high, step }, the first three with one number per layer; a layer may keep
// low, low + step, ..., high. counts: experts kept. fixed: Map of position -> experts kept.

export const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);
export const clamp = (number, low, high) => (number < low ? low : number > high ? high : number);

// Numbers that sum to `total`, in proportion to `weights`, each a multiple of `step` from 0 to its
// entry in `most`. BigInt, because the shares are exact fractions over one common denominator.
export function apportion(total, weights, most, step) {
  const w = weights.map(BigInt);
  const top = most.map(BigInt);
  const unit = w.reduce((one, other) => (one * other) / gcd(one, other), 1n);
  // A level is p / unit; a layer's quota is level * weight, capped at its limit.
  const filled = (p) => w.reduce((all, each, i) => all + clamp(p * each, 0n, top[i] * unit), 0n);
  const bounds = [0n, ...top.map((limit, i) => limit * (unit / w[i]))];
  const levels = [...new Set(bounds)].sort((one, other) => (one < other ? -1 : 1));
  const wanted = BigInt(total) * unit;
  const after = levels.findIndex((level) => filled(level) >= wanted);
  let [numerator, denominator] = [levels[Math.max(after, 0)], 1n];
  if (after > 0) {
    const [below, above] = [levels[after - 1], levels[after]];
    const [start, end] = [filled(below), filled(above)];
    denominator = end - start;
    numerator = below * denominator + (above - below) * (wanted - start);
  }
  const whole = denominator * unit * BigInt(step);
  const quotas = w.map((each, i) => clamp(numerator * each, 0n, top[i] * denominator * unit));
  const steps = quotas.map((quota) => Number(quota / whole));
  const missing = total / step - sum(steps);
  const byRemainder = quotas
    .map((quota, i) => [quota % whole, i])
    .sort(([one, i], [other, j]) => (one === other ? i - j : one < other ? 1 : -1));
  for (const [, i] of byRemainder.slice(0, missing)) steps[i] += 1;
  return steps.map((count) => count * step);
}

function gcd(one, other) {
  while (other) [one, other] = [other, one % other];
  return one;
}

// The nearest counts with the same total and the fixed layers at their numbers; null if the other
// layers cannot absorb the difference.
export function rebalance(rules, counts, fixed) {
  const { sizes, step } = rules;
  const low = rules.low.map((number, i) => fixed.get(i) ?? number);
  const high = rules.high.map((number, i) => fixed.get(i) ?? number);
  const start = counts.map((count, i) => {
    const within = clamp(count, low[i], high[i]);
    // Up to the next possible number, as removal rounds down.
    return within + ((((high[i] - within) % step) + step) % step);
  });
  const missing = sum(start) - sum(counts);
  const most = start.map((count, i) => (missing >= 0 ? count - low[i] : high[i] - count));
  const amount = Math.abs(missing);
  if (amount > sum(most) || amount % step !== 0) return null;
  const shares = apportion(amount, sizes, most, step);
  return start.map((count, i) => (missing >= 0 ? count - shares[i] : count + shares[i]));
}

// The range that one layer can keep while the other unlocked layers compensate.
export function reach(rules, counts, locked, index) {
  const others = counts.map((_, i) => i).filter((i) => i !== index && !locked.has(i));
  const give = sum(others.map((i) => counts[i] - rules.low[i]));
  const take = sum(others.map((i) => rules.high[i] - counts[i]));
  return [
    Math.max(rules.low[index], counts[index] - take),
    Math.min(rules.high[index], counts[index] + give),
  ];
}

// One layer moved to the reachable number nearest to `wanted`; the locked ones stay.
export function move(rules, counts, locked, index, wanted) {
  if (locked.has(index)) return counts;
  const [low, high] = reach(rules, counts, locked, index);
  const steps = Math.round((clamp(wanted, low, high) - counts[index]) / rules.step);
  const kept = clamp(counts[index] + steps * rules.step, low, high);
  const fixed = new Map([...locked].map((i) => [i, counts[i]]));
  return rebalance(rules, counts, fixed.set(index, kept)) ?? counts;
}
