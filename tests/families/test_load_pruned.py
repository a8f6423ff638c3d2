"""Every layout and kind of plan of families that differ: `load_pruned` computes the plan."""

import pytest
import torch
from exports import export

from families.built import stock_load
from families.configs import DISTINCT, KINDS, Case
from families.physical import logits_of
from families.settings import WIDTH
from pruning import load_pruned
from pruning.engine.masking import masked
from pruning.plan.plan import PruningPlan, model_ref
from pruning.plan.widths import WidthChoice, WidthMode

MODES = tuple(WidthMode)
# Something else is as wide as an expert.
WIDTH_IS_SHARED = ("hunyuan_v1_moe", "jamba", "deepseek_v4")


def is_allowed(case: Case, layout: str, mode: WidthMode) -> bool:
    """Whether widths can be stored so; from the facts above, not from the program."""
    if mode is WidthMode.RAGGED:
        return layout == "experts" and case.fused_too
    return mode is WidthMode.PER_LAYER or case.model_type not in WIDTH_IS_SHARED


LAYOUTS = [
    (case, layout)
    for (case,) in (param.values for param in DISTINCT)
    for layout in (("experts", "stacked") if case.fused_too else ("experts",))
]
COUNTS = [
    (case, layout, kind)
    for case, layout in LAYOUTS
    for kind in ("uniform", "mixed")
    # With stacked experts and one number for all layers, `test_conformance` loads them.
    if (layout == "experts" if kind == "uniform" else len(case.sparse) > 1)
]
WIDTHS = [
    (case, layout, mode)
    for case, layout in LAYOUTS
    for mode in MODES
    if is_allowed(case, layout, mode) and (layout, mode) != ("stacked", WidthMode.UNIFORM)
]


def combined(combinations):
    """Tests of all combinations; in the default run one family of each kind stands for others."""
    return pytest.mark.parametrize(
        ("case", "layout", "kind"),
        [
            pytest.param(
                *combination,
                id="-".join(map(str, combination)),
                marks=() if combination[0] in KINDS else pytest.mark.slow,
            )
            for combination in combinations
        ],
    )


def kept_experts(case: Case, kind: str) -> dict[int, tuple[int, ...]]:
    """Experts that stay: the last of each group, in every other layer fewer if kinds are mixed."""
    size = case.experts // case.groups
    most = case.experts - case.groups
    kept = {}
    for number, layer in enumerate(case.sparse):
        keep = case.smallest if kind == "mixed" and number % 2 else most
        own = keep // case.groups
        starts = range(size - own, case.experts, size)
        kept[layer] = tuple(expert for start in starts for expert in range(start, start + own))
    return kept


def kept_neurons(case: Case, kept) -> dict[int, dict[int, tuple[int, ...]]]:
    """Of each expert every so many neurons; of the first that stays none."""
    return {
        layer: {
            expert: tuple(range(number % 3, 20 - 9 * (layer % 2), 1 + number % 4)) if number else ()
            for number, expert in enumerate(ids)
        }
        for layer, ids in kept.items()
    }


@combined(COUNTS)
def test_whole_experts_bit_for_bit(built, tmp_path, case, layout, kind):
    source = built(case)
    described = source.described(layout)
    plan = PruningPlan(model_ref(described), kept_experts(case, kind))
    export(described, plan, tmp_path / "out")
    model, info = load_pruned(tmp_path / "out", output_loading_info=True)
    assert not any(info.values()), info
    with masked(source.model, described.family, plan):
        wanted = logits_of(source.model)
    assert torch.equal(logits_of(model), wanted)


@combined(WIDTHS)
def test_experts_and_neurons_in_float64(built, tmp_path, case, layout, kind):
    source = built(case)
    described = source.described(layout)
    kept = kept_experts(case, "mixed")
    neurons = kept_neurons(case, kept)
    assert max(max(ids, default=0) for held in neurons.values() for ids in held.values()) < WIDTH
    plan = PruningPlan(model_ref(described), kept, granularity="neuron", kept_neurons=neurons)
    export(described, plan, tmp_path / "out", widths=WidthChoice(kind))
    exact = {"dtype": torch.float64, "experts_implementation": "eager"}
    model, info = load_pruned(tmp_path / "out", output_loading_info=True, **exact)
    assert not any(info.values()), info
    original, _ = stock_load(case, source.paths[layout], **exact)
    with masked(original, described.family, plan):
        wanted = logits_of(original)
    # Sums over fewer numbers in another order; most are equal bit for bit.
    assert (logits_of(model) - wanted).abs().max() <= 1e-12
    assert not torch.allclose(wanted, logits_of(original), atol=1e-3)
