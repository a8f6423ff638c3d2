"""Which neurons stay: the most salient, within each expert, within each layer, or of all layers."""

from collections.abc import Sequence
from enum import StrEnum
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from analysis.errors import PlanError, unknown_name
from analysis.neuron_norms import NeuronScores
from analysis.sparsity import num_removed
from pruning.atoms.kept import KeptAtoms, ordered_atoms


class AtomScope(StrEnum):
    """Among which neurons a budget is spent."""

    EXPERT = "expert"  # the same number in every expert: fills one width without zeros
    LAYER = "layer"  # HEAPr-L
    GLOBAL = "global"  # HEAPr-G


def parse_scope(text: str) -> AtomScope:
    """A scope by name.

    Raises:
        PlanError: no such scope.
    """
    known = [str(scope) for scope in AtomScope]
    if text not in known:
        raise PlanError(unknown_name("scope of a budget of neurons", text, known))
    return AtomScope(text)


def select_atoms(
    saliency: NeuronScores, sparsity: Fraction, scope: AtomScope, multiple_of: int = 1
) -> KeptAtoms:
    """The neurons that stay, of every expert that loses some.

    floor(sparsity * neurons) of each expert, each layer or all layers go, the least salient first;
    ties keep the lower layer, then the lower expert, then the lower neuron. An expert may lose all.
    With `multiple_of`, each expert then gets its best removed neurons back until its number is a
    multiple, or all: never fewer stay than without it.

    Args:
        saliency: layer -> for each expert, a number for each neuron; higher stays.
        sparsity: fraction of neurons that goes, 0 to 1.
        scope: among which neurons.
        multiple_of: of how many neurons the number that an expert keeps is a multiple.

    Raises:
        PlanError: a multiple below 1, or a saliency that is no number.
    """
    if multiple_of < 1:
        raise PlanError(f"Experts cannot keep multiples of {multiple_of} neurons; give 1 or more.")
    for layer, held in saliency.items():
        if any(np.isnan(each).any() for each in held):
            raise PlanError(f"The saliency of a neuron in layer {layer} is no number.")
    experts = {(layer, e): s for layer in sorted(saliency) for e, s in enumerate(saliency[layer])}
    counts: dict[tuple[int, int], int] = {}
    for group in _groups(list(experts), scope):
        counts |= zip(group, _kept_counts([experts[key] for key in group], sparsity), strict=True)
    kept: dict[int, dict[int, tuple[int, ...]]] = {}
    for (layer, expert), values in experts.items():
        count = min(-(-counts[layer, expert] // multiple_of) * multiple_of, len(values))
        if count < len(values):
            best = np.argsort(-values, kind="stable")[:count]
            kept.setdefault(layer, {})[expert] = tuple(np.sort(best).tolist())
    return ordered_atoms(kept)


def _groups(keys: Sequence[tuple[int, int]], scope: AtomScope) -> list[list[tuple[int, int]]]:
    """Experts whose neurons compete, in order of layer and id."""
    if scope is AtomScope.GLOBAL:
        return [list(keys)]
    if scope is AtomScope.EXPERT:
        return [[key] for key in keys]
    return [[key for key in keys if key[0] == layer] for layer in dict.fromkeys(k for k, _ in keys)]


def _kept_counts(values: Sequence[NDArray[np.float64]], sparsity: Fraction) -> list[int]:
    """How many neurons of each expert are among the most salient of all of them together."""
    sizes = [len(each) for each in values]
    total = sum(sizes)
    order = np.argsort(-np.concatenate(values), kind="stable")
    stays = order[: total - num_removed(total, sparsity)]
    owner = np.repeat(np.arange(len(sizes)), sizes)
    counts: list[int] = np.bincount(owner[stays], minlength=len(sizes)).tolist()
    return counts
