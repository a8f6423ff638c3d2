"""Budgets from sizes, found by trying every one, and schedules from files."""

import shutil
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from allocations import SPENDERS, evidence_in
from exports import edit_tensors, with_head
from hypothesis import given
from hypothesis import strategies as st

from analysis.errors import PlanError
from analysis.families.base import MoELayer
from analysis.model.opening import load_model_index
from builders import as_gib
from pruning.plan.budget import (
    Budget,
    SizeTarget,
    count_budget,
    even_budget,
    parse_gib,
    size_budget,
    sparsity_budget,
)
from pruning.plan.constraints import Constraints
from pruning.plan.layer_words import parse_counts, parse_experts, parse_numbers, ranges
from pruning.plan.plan import PruningPlan, model_ref
from pruning.plan.sizes import size_report
from pruning.plan.units import expert_units
from pruning.schedules import Evidence, allocate, counts_budget, from_counts, side_by_side, uniform
from pruning.schedules.counts import read_counts

THREE = tuple(MoELayer(index, 8, 2) for index in (0, 2, 3))
GIB = 1 << 30


@pytest.fixture
def model(checkpoint):
    return load_model_index(str(checkpoint("qwen3_moe").path))


@pytest.mark.parametrize("text", ["", "much", "0", "-1", "nan", "1e-999999999", "inf"])
def test_a_bad_target_is_one_line(text):
    with pytest.raises(PlanError, match=r"The target size .* is no "):
        parse_gib(text)


def test_budgets_read_decimals_exactly():
    layers = (MoELayer(0, 60, 4), MoELayer(1, 40, 4))
    budget = sparsity_budget(expert_units(layers), 0.55)
    assert (budget.total, budget.floors, budget.text) == (33 + 22, (33, 22), "0.55")
    assert sparsity_budget(expert_units(layers), "55%").floors == budget.floors
    assert budget.to_dict() == {"kind": "sparsity", "asked": "0.55", "removed": 55}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "layer,kept\n0,5\n2,6\n3,8\n"),
        ("a.csv", "\ufefflayer,removed\r\n2,2\r\n0,3\r\n"),
        ("a.json", '{"kept": {"0": 5, "2": 6}}'),
        ("a.json", '{"schema_version": 1, "best": {"removed": {"0": 3, "2": 2}}}'),
        ("a.yaml", "allocation:\n  kept: {0: 5, 2: 6, 3: 8}\n"),
        ("a.yml", "removed:\n  0: 3\n  2: 2\n"),
        ("plan.json", '{"kept": {"0": [0, 1, 2, 3, 4], "2": [2, 3, 4, 5, 6, 7]}}'),
    ],
)
def test_counts_are_read_from_each_kind_of_file(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    kept = read_counts(path, THREE)
    assert kept == {0: 5, 2: 6, 3: 8}
    units = expert_units(THREE)
    made = allocate("file", units, counts_budget(units, kept, name), Evidence(counts=kept))
    assert made == from_counts(units, kept)
    assert made.keep == (5, 6, 8)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "layer,count\n0,5\n", r"lacks the columns layer and kept \(or removed\)\.$"),
        ("a.csv", "", "lacks the columns"),
        # More than Python's reader of CSV takes.
        ("a.csv", f"layer,kept\n0,{'5' * 200_000}\n", r"field larger than field limit \(131072\)"),
        ("a.csv", "layer,kept\n0,5\n0,6\n", "names layer 0 twice"),
        ("a.csv", "layer,kept\n0,five\n", "gives layer 0 the number 'five'"),
        ("a.csv", "layer,kept\n0\n", "gives layer 0 the number None"),
        ("a.json", '{"kept": {"1": 5}}', r"names layer 1, .*; the sparse layers are 0,2-3"),
        ("a.json", '{"kept": {"0": 9}}', r"gives layer 0 the number 9; its experts are 8\.$"),
        ("a.json", '{"kept": {"0": 5, "0": 6}}', "cannot be read: it holds 0 twice"),
        ("a.json", '{"kept": {"0": -1}}', "the number -1"),
        ("a.json", '{"kept": {"0": true}}', "the number True"),
        ("a.json", '{"kept": {"0": 5}, "removed": {"0": 3}}', "either 'kept' or 'removed'"),
        ("a.json", '{"0": 5}', "either 'kept' or 'removed'"),
        ("a.json", "{", "cannot be read"),
        ("a.yaml", "kept: [1, 2", "cannot be read"),
        ("a.yaml", "!!python/object/apply:os.getcwd []", "cannot be read"),
    ],
)
def test_bad_files_are_one_line(tmp_path, name, text, message):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(PlanError, match=message) as caught:
        read_counts(path, THREE)
    assert "\n" not in str(caught.value)


def test_a_layer_set_by_hand_takes_from_the_others_and_the_total_stays():
    base = {0: 5, 2: 6, 3: 8}
    # Layer 0 loses 2 more, which is all that layer 2 lost.
    assert from_counts(expert_units(THREE, Constraints(fixed={0: 3})), base).keep == (3, 8, 8)
    assert from_counts(expert_units(THREE, Constraints(fixed={0: 4})), base).keep == (4, 7, 8)
    # Two of the layers change, one is locked: the last one gives.
    held = Constraints(fixed={0: 7}, locked=frozenset({2}))
    units = expert_units(THREE, held)
    budget = counts_budget(units, base, "by hand")
    assert allocate("file", units, budget, Evidence(counts=base)).keep == (7, 6, 6)
    with pytest.raises(PlanError, match="at most"):
        from_counts(expert_units(THREE, Constraints(fixed={0: 8, 2: 8, 3: 8})), base)


def test_a_table_of_schedules_comes_back_as_a_file(tmp_path):
    table, _ = side_by_side(expert_units(THREE), sparsity_budget(expert_units(THREE), "40%"))
    late = table[table["schedule"] == "late"]
    late.to_csv(tmp_path / "late.csv", index=False)
    assert list(read_counts(tmp_path / "late.csv", THREE).values()) == late["kept"].tolist()


def test_layers_and_experts_as_people_write_them():
    assert parse_numbers("0,5-7", what="layers") == {0, 5, 6, 7}
    assert parse_experts(["3:5,7-9", "3:1", "0-1:2"]) == {
        3: frozenset({1, 5, 7, 8, 9}),
        0: frozenset({2}),
        1: frozenset({2}),
    }
    assert parse_counts(["3=20", "0-1=24"]) == {3: 20, 0: 24, 1: 24}


@given(numbers=st.sets(st.integers(0, 99), min_size=1))
def test_ranges_are_read_back_as_the_same_numbers(numbers):
    assert parse_numbers(ranges(numbers), what="layers") == numbers


@pytest.fixture
def uneven(checkpoint, tmp_path):
    """The experts of layer 1 have half the bytes of those of layers 0 and 2."""
    path = shutil.copytree(checkpoint("olmoe", shards=1).path, tmp_path / "uneven")

    def halve(held):
        narrow = {name: held[name].bfloat16() for name in held if "layers.1.mlp.experts" in name}
        return held | narrow

    edit_tensors(path / "model.safetensors", halve)
    return load_model_index(str(path))


@pytest.fixture
def headed(checkpoint, tmp_path):
    """With a prediction head that has experts, which goes with the first expert of all layers."""
    return with_head(checkpoint("olmoe").path, tmp_path / "headed", "mtp.layers.0.")


@pytest.mark.parametrize(
    ("limits", "dtype"),
    [(Constraints(), "bfloat16"), (Constraints(multiple_of=2, floor=3), "own")],
    ids=["free", "pairs"],
)
@pytest.mark.parametrize("name", SPENDERS)
@pytest.mark.parametrize("kind", ["uneven", "headed"])
def test_the_smallest_budget_of_every_schedule(request, kind, name, dtype, limits):
    model = request.getfixturevalue(kind)
    values = np.random.default_rng(3).normal(size=(3, 7))
    evidence = evidence_in(values)

    units = expert_units(model.layers, limits)

    def taken(total):
        made = allocate(name, units, Budget(total, "size", ""), evidence)
        return [
            layer.num_experts - keep for layer, keep in zip(model.layers, made.keep, strict=True)
        ]

    def size(removed):
        kept = {
            layer.index: tuple(range(gone, layer.num_experts))
            for layer, gone in zip(model.layers, removed, strict=True)
        }
        report = size_report(model, PruningPlan(model_ref(model), kept))
        return report.bytes_after if dtype == "own" else 2 * report.params_after

    sizes = {total: size(taken(total)) for total in units.totals}
    first = units.totals[0]
    for wanted in sorted({size - 1 for size in sizes.values()} | set(sizes.values())):
        fitting = [total for total, size in sizes.items() if size <= wanted]
        target = SizeTarget("size", as_gib(wanted), dtype)
        if fitting:
            if wanted >= max(size([0] * len(units.sizes)), sizes[first]):
                continue  # nothing would go
            budget = size_budget(model, target, limits, spread=taken)
            assert budget.total == fitting[0]
        else:
            with pytest.raises(PlanError, match="smallest target that works is") as caught:
                size_budget(model, target, limits, spread=taken)
            named = str(caught.value).rpartition(" is ")[2].rstrip(".")
            smallest = SizeTarget("size", named, dtype)
            assert sizes[size_budget(model, smallest, limits, spread=taken).total] == min(
                sizes.values()
            )
            assert min(sizes.values()) <= parse_gib(named) * GIB < min(sizes.values()) * 1.002


EVEN_LIMITS = {
    "free": Constraints(),
    "pairs": Constraints(multiple_of=2, floor=3),
    "pinned": Constraints(pinned={1: frozenset({0, 2, 4, 5})}, dropped={2: frozenset({1})}),
    "protected": Constraints(protected=frozenset({2})),
    "set": Constraints(fixed={1: 4}),
}


@pytest.fixture
def grouped(checkpoint):
    """A router that chooses among groups, and a dense layer 0."""
    return load_model_index(str(checkpoint("deepseek_v3").path))


def reports_of_equal_counts(model, limits):
    """Number kept -> sizes, of every number that all layers but those held can keep."""
    reports = {}
    for count in range(1, max(layer.num_experts for layer in model.layers) + 1):
        whole = {layer.index: layer.num_experts for layer in model.layers}
        kept = dict.fromkeys(whole, count) | limits.fixed
        kept |= {layer: whole[layer] for layer in limits.protected}
        gone = max(0, model.num_experts - sum(kept.values()))
        removed = count_budget(expert_units(model.layers), gone)
        try:
            made = uniform(model.layers, removed, replace(limits, fixed=kept)).counts
        except PlanError:
            continue  # a router or a constraint does not allow this number
        plan = {layer: tuple(range(keep)) for layer, keep in made.items()}
        reports[count] = size_report(model, PruningPlan(model_ref(model), plan))
    return reports


def targets_of(most, whole, measure):
    """Every way to ask for a size of at most so much."""
    share = 1 - Fraction(most, whole)
    # Rounded down so far behind the point that no size is near.
    exact = f"{share.numerator * 10**30 // share.denominator}e-30"
    if measure == "params":
        return [SizeTarget("params", exact)]
    scale = 2 if measure == "bfloat16" else 1
    size = SizeTarget("size", as_gib(scale * most), measure)
    return [size, SizeTarget("shrink", exact, measure)]


@pytest.mark.parametrize(
    ("limits", "measure"),
    [*((name, "own") for name in EVEN_LIMITS), ("free", "bfloat16"), ("pairs", "params")],
)
@pytest.mark.parametrize("kind", ["uneven", "headed", "grouped"])
def test_the_largest_equal_count_that_meets_a_target(request, kind, limits, measure):
    model, limits = request.getfixturevalue(kind), EVEN_LIMITS[limits]
    held, reports = {*limits.protected, *limits.fixed}, reports_of_equal_counts(model, limits)
    name = "bytes" if measure == "own" else "params"
    sizes = {count: getattr(report, f"{name}_after") for count, report in reports.items()}
    whole = getattr(size_report(model), f"{name}_before")
    wanted = sorted({size - 1 for size in sizes.values()} | set(sizes.values()))
    for most in (most for most in wanted if most < whole):
        fitting = [count for count, size in sizes.items() if size <= most]
        for target in targets_of(most, whole, measure):
            if not fitting:
                with pytest.raises(PlanError, match="that works is"):
                    even_budget(model, target, limits)
                continue
            budget = even_budget(model, target, limits)
            made = uniform(model.layers, budget, limits).counts
            assert {keep for layer, keep in made.items() if layer not in held} == {max(fitting)}
            assert budget.kind == target.kind
            # Said if no smaller cut saves anything, and this one takes twice what was asked.
            fewer = [size for count, size in sizes.items() if count > max(fitting)]
            is_least = all(size >= whole for size in fewer)
            is_much = whole - sizes[max(fitting)] >= 2 * (whole - most)
            assert bool(budget.least) == (is_least and is_much)


def test_a_share_that_a_layer_cannot_lose_leaves_the_sum_to_be_rounded():
    # In pairs, layers of 9 lose 1, 3, 5 or 7, and one of 4 that needs 3 loses none. A quarter is 2,
    # 2 and 1: 4 of these 5 can go. Were each share rounded first, it would be 2.
    layers = (MoELayer(0, 9, 2), MoELayer(1, 9, 2), MoELayer(2, 4, 3))
    budget = sparsity_budget(expert_units(layers, Constraints(multiple_of=2)), "25%")
    assert (budget.total, budget.floors) == (4, (2, 2, 1))
    # A layer that is set has no share of its own.
    by_hand = expert_units(layers[:2], Constraints(multiple_of=2, fixed={0: 4}))
    budget = sparsity_budget(by_hand, "25%")
    assert (budget.total, budget.floors) == (4, (2, 2))


@pytest.mark.parametrize("kind", ["shrink", "params"])
def test_a_share_of_nothing_removes_nothing(kind):
    # The demo's head is copied, and the copy is as large as twelve experts.
    demo, nothing = load_model_index("demo"), SizeTarget(kind, "0%")
    assert even_budget(demo, nothing).total == size_budget(demo, nothing).total == 0
    # What a constraint removes is not nothing: refused, as a sparsity of 0 is.
    for budget in (even_budget, size_budget):
        with pytest.raises(PlanError, match=r"removes 0 .* but at least 24 \(12.5%\) must go"):
            budget(demo, nothing, Constraints(multiple_of=7))
    assert set(even_budget(demo, SizeTarget(kind, "5%"), Constraints(multiple_of=7)).floors) == {4}
