"""All 18 variants on 3 corpora of a 48 x 128 model: scores, pruned sets and pairwise overlaps."""

from fractions import Fraction

import numpy as np
from timing import in_turns, report

from analysis.families.base import MoELayer
from analysis.ranking.overlap import variant_overlaps
from analysis.stats.columns import EXPERT_COLUMNS
from analysis.stats.grid import Grid
from analysis.stats.manifest import MeasuredModel, RunManifest
from analysis.stats.tables import ExpertStats

LAYERS = tuple(MoELayer(index, 128, 8) for index in range(48))


def stats(seed: int) -> ExpertStats:
    generator = np.random.default_rng(seed)
    table = Grid(LAYERS).index()
    columns = {
        name: generator.random(len(table)) * 1000 + 1
        for name in EXPERT_COLUMNS
        if name not in ("layer", "expert")
    }
    model = MeasuredModel("synthetic", "0" * 64, "qwen3_moe", LAYERS)
    manifest = RunManifest("routed", str(seed), str(seed), model, (), {}, {})
    return ExpertStats(manifest, table.assign(**columns).astype(dict(EXPERT_COLUMNS)))


def main() -> None:
    corpora = {str(seed): stats(seed) for seed in range(3)}
    half = Fraction(1, 2)
    seconds = in_turns({"overlaps": lambda: variant_overlaps(corpora, "applied", half)}, rounds=20)
    report("17 rankable variants x 3 corpora, 48 x 128", seconds, "overlaps")


if __name__ == "__main__":
    main()
