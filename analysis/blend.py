"""Blends: the statistics of several corpora added with weights."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from analysis.errors import StatsError
from analysis.stats import MOMENT_COLUMNS, ExpertStats
from analysis.store import Run, check_addable, digest_of, load_expert_stats, read_vectors


@dataclass(frozen=True, slots=True)
class Part:
    """One run of a blend; `weight` multiplies all its sums (1 and 1 = a plain merge)."""

    run: Run
    weight: float = 1.0


def blend(parts: Sequence[Part]) -> ExpertStats:
    """Statistics of a mix of corpora: sum over the parts of weight times sums.

    Only the proportion of the weights counts: the largest is taken as 1. num_tokens becomes
    fractional. Every criterion of routed tokens works on the result.

    Raises:
        StatsError: nothing to blend, a weight that is not positive, or see `check_addable`.
    """
    if not parts:
        raise StatsError("Nothing to blend; name at least one corpus.")
    for part in parts:
        if not (part.weight > 0 and np.isfinite(part.weight)):
            raise StatsError(f"The weight {part.weight} of {part.run.manifest.corpus} must be > 0.")
    check_addable([part.run for part in parts])
    stats = [load_expert_stats(part.run) for part in parts]
    if len(parts) == 1:
        return stats[0]  # a common factor changes no ranking and no mean
    largest = max(part.weight for part in parts)
    weights = [part.weight / largest for part in parts]
    vectors = np.sum(
        [weight * read_vectors(part.run) for weight, part in zip(weights, parts, strict=True)],
        axis=0,
    )
    sums = {
        column: sum(
            weight * each.table[column] for weight, each in zip(weights, stats, strict=True)
        )
        for column in MOMENT_COLUMNS
    }
    table = stats[0].table.assign(**sums, vector_sum_sq=(vectors**2).sum(axis=1))
    manifest = replace(
        stats[0].manifest,
        run_id="+".join(part.run.manifest.run_id for part in parts),
        digest=digest_of({part.run.manifest.digest: part.weight for part in parts}),
        corpora=tuple(corpus for part in parts for corpus in part.run.manifest.corpora),
        made={},
    )
    return ExpertStats(manifest, table)
