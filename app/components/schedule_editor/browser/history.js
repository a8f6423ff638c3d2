// Undo and redo. Pure except for `historyOf`, which keeps one history per budget and set of rules
// while the tab is open, across pages.

const DEPTH = 200;
const histories = new Map();

export function historyOf(id) {
  if (!histories.has(id)) histories.set(id, { past: [], future: [] });
  return histories.get(id);
}

export const sameState = (one, other) =>
  one.counts.length === other.counts.length &&
  one.counts.every((count, i) => count === other.counts[i]) &&
  one.locked.length === other.locked.length &&
  one.locked.every((layer, i) => layer === other.locked[i]);

// Records `state` before it is replaced.
export function remember(history, state) {
  history.past.push(state);
  history.past.splice(0, history.past.length - DEPTH);
  history.future.length = 0;
}

// The state before or after `state`; undefined if there is none.
export function step(history, state, isRedo) {
  const [from, to] = isRedo ? [history.future, history.past] : [history.past, history.future];
  const found = from.pop();
  if (found) to.push(state);
  return found;
}
