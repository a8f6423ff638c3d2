"""Super experts: the few whose outputs hold the largest values of a whole model.

Found and named by "Unveiling Super Experts in Mixture-of-Experts Large Language Models"
(arXiv:2507.23279): with three of its 6,144 experts removed, Qwen3-30B-A3B repeats itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from analysis.families.base import MoELayer
from analysis.stats.columns import LARGEST
from analysis.stats.grid import Grid
from analysis.stats.manifest import Run
from analysis.stats.reading import load_expert_stats

_PERCENTILE = 99.5
_SHARE_OF_LARGEST = 0.1
_DEPTH = 0.75  # share of the decoder's layers, from the first


@dataclass(frozen=True, eq=False)
class SuperExperts:
    """The super experts of a model, as calibration runs saw them."""

    # Layer -> expert -> its largest output, as a multiple of the median expert's.
    multiples: Mapping[int, Mapping[int, float]]
    runs: tuple[str, ...]  # ids of the runs
    unknown: tuple[str, ...] = ()  # ids of runs without largest outputs; then nothing is known

    @property
    def experts(self) -> dict[int, frozenset[int]]:
        """Layer -> super experts; only layers that have some."""
        return {layer: frozenset(multiple) for layer, multiple in self.multiples.items()}


def super_experts(runs: Sequence[Run]) -> SuperExperts:
    """The experts that these calibration runs of one model show to be super experts.

    With a(l, j) the maximum over tokens and features of |f|, f the output of expert j of layer l
    before its gate weight (the paper's output of `down_proj`; where a family adds a bias or a norm,
    f has it), and A the a(l, j) of all experts that got a token, an expert is one if

        a(l, j) > the 99.5th percentile of A  and  a(l, j) > max(A) / 10,

    the percentile by linear interpolation. The paper also asks that layer l forms massive
    activations of the residual stream. These are not measured here: as in its authors' program,
    A and the super experts are of the first three quarters of the decoder's layers instead, since
    experts of the last layers have large outputs that form none. The decoder is taken to end with
    its last sparse layer.

    The largest of A always fulfils both, so a model without super experts has one, too: among 201
    experts or fewer it is exactly one, if no two are equal. `multiples` tells how far they stick
    out. Several runs count as one over all of their tokens, whatever the weights of a blend.
    """
    ids = tuple(run.manifest.run_id for run in runs)
    tables = [load_expert_stats(run).table for run in runs]
    pairs = zip(ids, tables, strict=True)
    if unknown := tuple(run_id for run_id, table in pairs if LARGEST not in table):
        return SuperExperts({}, ids, unknown)
    largest_E = reduce(np.maximum, (table[LARGEST].to_numpy() for table in tables))
    num_tokens_E = sum(table["num_tokens"].to_numpy() for table in tables)
    layers = runs[0].manifest.model.layers
    table = Grid(layers).index().assign(largest=largest_E)
    table = table[(num_tokens_E > 0) & (table["layer"] < _DEPTH * _decoder_layers(layers))]
    if table.empty:
        return SuperExperts({}, ids)
    peaks = table["largest"].to_numpy()
    limit = max(np.percentile(peaks, _PERCENTILE), _SHARE_OF_LARGEST * peaks.max())
    multiples: dict[int, dict[int, float]] = {}
    for layer, expert, largest in table[peaks > limit].itertuples(index=False):
        multiples.setdefault(int(layer), {})[int(expert)] = float(largest / np.median(peaks))
    return SuperExperts(multiples, ids)


def _decoder_layers(layers: Sequence[MoELayer]) -> int:
    return layers[-1].index + 1
