// What counts will lose, as `SumError.bands` of Python computes its medians: see `SumError.terms`.

const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);

// The value at `x` of the line through the points (xs, ys), level outside them.
function between(x, xs, ys) {
  const above = xs.findIndex((level) => level >= x);
  if (above <= 0) return above < 0 ? ys[ys.length - 1] : ys[0];
  const share = (x - xs[above - 1]) / (xs[above] - xs[above - 1]);
  return ys[above - 1] + share * (ys[above] - ys[above - 1]);
}

// What the layer alone loses if so many are removed from it, the mean over corpora.
export function lossAlone({ corpora }, index, removed) {
  return sum(
    corpora.map(({ levels, costs }) => between(removed, levels[index], costs[index])),
  ) / corpora.length;
}

function onCorpus({ levels, costs, shares, pull, own }, { prior, reach, least }, removed) {
  const aboveZero = (loss) => Math.max(loss + least, least / 2);
  const total = sum(removed.map((count, i) => between(count, levels[i], costs[i])));
  const mine = removed.map((count, i) => count / levels[i][levels[i].length - 1]);
  let ratio = 0;
  for (const [pair, theirs] of shares.entries()) {
    const apart = sum(theirs.map((share, i) => Math.abs(share - mine[i]))) / mine.length;
    if (apart === 0) return Math.exp(own[pair]) * aboveZero(total) - least;
    ratio += prior * Math.exp(-apart / reach) * pull[pair];
  }
  return Math.exp(ratio) * aboveZero(total) - least;
}

// The loss increase of a plan that removes so many from each layer, the mean over corpora.
export function predictedLoss(terms, removed) {
  if (removed.every((count) => count === 0)) return 0;
  const { corpora } = terms;
  return sum(corpora.map((corpus) => onCorpus(corpus, terms, removed))) / corpora.length;
}

// Whether that is no more than a guess: see `SumError.is_guess`.
export function isGuess({ corpora, known }, removed) {
  const { levels } = corpora[0];
  const ruined = removed.filter((count, i) => count > levels[i][levels[i].length - 2]).length;
  const others = known.some((plan) => plan.some((count, i) => count !== removed[i]));
  return ruined > removed.length / 2 || !others;
}
