"""Tiny models with samples and plans, for what runs masked candidates."""

from dataclasses import replace

from analysis.drain import drain
from analysis.families.listing import FAMILIES
from analysis.model.moe_model import ModelRef
from builders.tokens import answers
from families.configs import BY_NAME
from families.tiny_models import tiny_model
from pruning.engine.full_side import run_full
from pruning.measures.samples import make_samples
from pruning.plan.plan import PruningPlan
from pruning.search.fitness import Subject

# Padded to three lengths in batches of two; the last batch has one row.
LENGTHS = (9, 5, 12, 7, 11)


def sequences():
    return answers(LENGTHS)


def layers_of(case):
    return FAMILIES[case.model_type].layers(tiny_model(case).config.to_dict())


def plans_of(case, model=None):
    """Removed -> plan. The last experts go; ids rotate with the layer, so that layers differ."""
    layers, ref = layers_of(case), model or ModelRef("tiny", "00" * 32)

    def plan(removed):
        kept = {}
        for layer, gone in zip(layers, removed, strict=True):
            size = layer.num_experts // layer.num_groups
            count = size - gone // layer.num_groups
            kept[layer.index] = tuple(
                sorted(
                    group * size + (number + layer.index) % size
                    for group in range(layer.num_groups)
                    for number in range(count)
                )
            )
        return PruningPlan(ref, kept)

    return plan


def candidates_of(case):
    """Related allocations that remove equally many, some of which begin alike."""
    step = case.groups
    layers = len(case.sparse)
    found = []
    for more in range(layers):
        for less in range(layers):
            removed = [step] * layers
            if more != less and 2 * step <= case.experts - case.smallest:
                removed[more] += step
                removed[less] -= step
                found.append(tuple(removed))
    return sorted({(step,) * layers, *found})


def values_of(fitness, candidates):
    """Blocks of each candidate, while all before it are held."""
    found = []
    for number, removed in enumerate(candidates):
        found.append([fitness.block(removed, block) for block in range(fitness.num_blocks)])
        fitness.hold(candidates[: number + 1])
    return found


def subject_of(case, model):
    full = drain(run_full(model, make_samples(sequences(), batch_size=2)))
    return Subject(model, FAMILIES[case.model_type], case.sparse, full, plans_of(case))


def deeper(case, layers):
    """The case with more layers, all with experts."""
    settings = {**case.settings, "num_hidden_layers": layers}
    return replace(case, settings=settings, sparse=tuple(range(layers)))


DEEP = [deeper(BY_NAME[name], 5) for name in ("olmoe", "mixtral", "granitemoe")]
