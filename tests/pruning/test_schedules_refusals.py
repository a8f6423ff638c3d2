"""What schedules and counts refuse, and what they say of an allocation, word for word.

Every number in these lines is by hand: they tell a person what would work.
"""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from allocations import ranked_globally

from analysis.errors import PlanError
from analysis.families.base import MoELayer
from analysis.ranking.experts import fold_ranking
from pruning.plan.budget import check_removes, count_budget, sparsity_budget
from pruning.plan.constraints import Constraints
from pruning.plan.kept import check_kept, count_reason
from pruning.plan.selection import Allocation
from pruning.plan.units import Units, apportion, expert_units
from pruning.planning.choice import check_counts
from pruning.schedules import (
    SCHEDULES,
    Evidence,
    allocate,
    allocation_notes,
    budget_notes,
    from_counts,
    uniform,
)
from pruning.schedules.counts import counts_from_text, read_counts
from pruning.schedules.listing import unbounded

TWO = (MoELayer(1, 8, 2), MoELayer(3, 8, 2))


def said(function, *arguments, **options):
    """What a refusal says."""
    with pytest.raises(PlanError) as caught:
        function(*arguments, **options)
    return str(caught.value)


def test_why_a_layer_cannot_keep_a_number():
    layer = MoELayer(3, 8, 2)
    assert count_reason(layer, 8) is None
    assert count_reason(layer, 2) is None
    assert count_reason(layer, 1) == (
        "Layer 3 would keep 1 of 8 experts, but its router picks 2 per token"
    )
    assert said(Allocation, (layer,), (9,)) == "Layer 3 would keep 9 experts, but it has only 8."
    with pytest.raises(ValueError, match=r"^1 layers but 2 counts$"):
        Allocation((layer,), (8, 8))
    assert said(check_kept, layer, (5,)) == (
        "Layer 3 would keep 1 of 8 experts, but its router picks 2 per token; at most 75% of them "
        "can go."
    )


ROUTER = "its router picks 2 per token"
SUITS, NONE = "nearest sparsity that suits every layer", "no sparsity suits every layer, but"
FOUR = f"{NONE} 4 experts can go in all (--remove 4)"


@pytest.mark.parametrize(
    ("sizes", "multiple", "sparsity", "refused", "why", "nearest"),
    [
        # Shares 6 and 3, but the smaller layer has room for 2: it has 2 up to 62.5%, which is 5 of
        # the larger one.
        ((8, 4), 1, "75%", (3, 1, 4), ROUTER, f"{SUITS}: 62.5%"),
        # Five experts keep 4, eight keep 4 or 8. Below 20% the first loses none, from 40% on 2.
        ((5, 8), 4, "10%", (1, 5, 5), "layers are to keep 4 to 4", f"{SUITS}: 20%"),
        ((5, 8), 4, "60%", (1, 2, 5), "layers are to keep 4 to 4", f"{SUITS}: 20%"),
        # Of 1 of 5 and 3 of 7 none is the share of both: 20% to 40%, and from 42.86% on.
        ((5, 7), 4, "30%", (3, 5, 7), "layers are to keep 4 to 4", FOUR),
        # Layers that are alike.
        ((12, 12), 4, "90%", (1, 2, 12), "layers are to keep 4 to 12", f"{SUITS}: 66.67%"),
        ((7, 7), 2, "0", (1, 7, 7), "layers are to keep 2 to 6", f"{SUITS}: 14.29%"),
    ],
)
def test_a_share_that_does_not_suit_names_those_that_do(
    sizes, multiple, sparsity, refused, why, nearest
):
    layers = tuple(MoELayer(2 * n + 1, size, 2) for n, size in enumerate(sizes))
    index, keep, size = refused
    assert said(uniform, layers, sparsity, Constraints(multiple_of=multiple)) == (
        f"Layer {index} would keep {keep} of {size} experts, but {why}; {nearest}."
    )


def test_one_expert_alone_can_go():
    # Six experts keep 5, from 1/6 on; the ten of a router that picks ten all stay, below 1/10.
    layers = (MoELayer(1, 6, 2), MoELayer(3, 10, 10))
    assert said(uniform, layers, "10%", Constraints(multiple_of=5)) == (
        "Layer 1 would keep 6 of 6 experts, but layers are to keep 5 to 5; "
        f"{NONE} 1 expert can go in all (--remove 1)."
    )


def test_a_share_beside_a_fixed_layer_counts_what_it_keeps():
    # Layer 1 loses none, so of 50%, 12 in all, the others lose 6 each, as they can.
    layers = (*TWO, MoELayer(4, 8, 2))
    held = Constraints(fixed={1: 8})
    assert uniform(layers, "50%", held).keep == (8, 2, 2)
    assert said(uniform, layers, "62.5%", held) == (
        "The budget removes 15 (62.5%) of 24 experts, but at most 12 (--remove 12) can go."
    )


@pytest.mark.parametrize(
    ("sizes", "kept", "sparsity", "refused", "named"),
    [
        # At most 0 + 6 + 3 can go. 60% is 4 + 4 + 3, 50% is 4 + 4 + 2: too many; 40% 3 + 3 + 2.
        ((8, 8, 5), 8, "80%", (4, 1, 5), "40%"),
        # 87.5% is 7 of each; the two that are free lose 12 at most, as they do at 50%.
        ((8, 8, 8), 8, "87.5%", (3, 1, 8), "50%"),
        # Now 1 + 6 + 3, which 50% fills.
        ((8, 8, 5), 7, "80%", (4, 1, 5), "50%"),
    ],
)
def test_what_is_named_beside_a_fixed_layer_fits(sizes, kept, sparsity, refused, named):
    layers = tuple(MoELayer(index, size, 2) for index, size in zip((1, 3, 4), sizes, strict=True))
    limits = Constraints(fixed={1: kept})
    index, keep, size = refused
    assert said(uniform, layers, sparsity, limits) == (
        f"Layer {index} would keep {keep} of {size} experts, but {ROUTER}; {SUITS}: {named}."
    )
    for word in named.split(" or "):
        assert uniform(layers, word, limits).keep[0] == kept


def test_names_that_are_none():
    assert said(allocate, "uniformly", expert_units(TWO), count_budget(expert_units(TWO), 1)) == (
        "Unknown schedule 'uniformly'. Did you mean 'uniform'? Known: "
        f"{', '.join(sorted(SCHEDULES))}."
    )
    with pytest.raises(ValueError, match=r"^the schedule's evidence is missing$"):
        allocate("file", expert_units(TWO), count_budget(expert_units(TWO), 1))
    with pytest.raises(ValueError, match=r"^the schedule's evidence is missing$"):
        allocate("global", expert_units(TWO), count_budget(expert_units(TWO), 1))


def test_every_expert_needs_a_saliency():
    saliency = np.ones((2, 8))
    saliency[1, 7] = np.nan
    with pytest.raises(ValueError, match=r"^every expert needs a saliency$"):
        ranked_globally(TWO, count_budget(expert_units(TWO), 1), saliency)


def test_shares_say_what_they_share():
    with pytest.raises(ValueError, match=r"^weights must be positive$"):
        apportion(1, [1, 0], Units((4, 4), (0, 0), (3, 3)))
    assert said(apportion, 4, [1], Units((4,), (0,), (3,), what="neurons")) == (
        "The budget removes 4 (100%) of 4 neurons, but at most 3 (75%) can go."
    )


def test_locked_layers_are_named_with_their_numbers():
    limits = Constraints(fixed={4: 8}, locked=frozenset({3, 1}))
    layers = (*TWO, MoELayer(4, 8, 2))
    # 9 are 3 of each; layer 4 loses none, layers 1 and 3 their 3: 3 are too few.
    units = expert_units(layers, limits)
    assert said(allocate, "uniform", units, count_budget(units, 9)) == (
        "The budget removes 9 (37.5%) of 24 experts, but at most 6 (--remove 6) can go. Locked "
        "layers follow the budget; for these numbers put --set 1=5 --set 3=5 in place of --lock."
    )
    # With those numbers set, what the error names can be spent.
    named = Constraints(fixed={1: 5, 3: 5, 4: 8})
    units = expert_units(layers, named)
    assert allocate("uniform", units, count_budget(units, 6)).keep == (5, 5, 8)


def test_a_ranking_that_lacks_experts_says_so():
    lacks = "The ranking does not hold every expert of every layer exactly once."
    ranking = pd.DataFrame({"layer": [1], "expert": [0], "saliency": [1.0]})
    assert said(fold_ranking, ranking, TWO) == lacks
    # A ninth expert of the first of two neighbours is not the second's first.
    layers = MoELayer(1, 8, 2), MoELayer(2, 8, 2)
    ids = {"layer": [1] * 9 + [2] * 7, "expert": [*range(9), *range(1, 8)]}
    assert said(fold_ranking, pd.DataFrame(ids).assign(saliency=1.0), layers) == lacks


def test_notes_compare_with_what_the_evidence_asks_for():
    # The seven least of all are in layer 1, which may lose six: the seventh is of layer 3.
    evidence = Evidence(np.arange(16.0).reshape(2, 8))
    units = expert_units(TWO)
    budget = count_budget(units, 7)
    assert unbounded("global", units, budget, evidence) == (7, 0)
    made = allocate("global", units, budget, evidence)
    assert made.removed == (6, 1)
    moved = (
        "Bounds took effect: the schedule alone would remove 1 more from layer 1 and as many fewer "
        "from layer 3."
    )
    readers = (
        "Layers keep from 2 to 7 experts: only moeprune's loader, and transformers with "
        "trust_remote_code, will load the export. Serving engines need equal numbers, or `moeprune "
        "export --pad` if the router allows it."
    )
    assert budget_notes("global", units, budget, made, evidence) == (moved,)
    assert allocation_notes("global", units, budget, made, evidence) == (moved, readers)


def test_a_share_below_one_expert_is_refused_and_zero_is_not():
    # 5% of eight experts is 0.4: rounded down in each layer, nothing is left to remove.
    with pytest.raises(PlanError, match=r"^A sparsity of 5% removes nothing: .* Give 12\.5% or"):
        check_removes(sparsity_budget(expert_units(TWO), "5%"), expert_units(TWO))
    limits = Constraints(multiple_of=4)
    units = expert_units(TWO, limits)
    with pytest.raises(PlanError, match=r"at most 2 blocks of 4 experts .* Give 50% or more"):
        check_removes(sparsity_budget(units, "49%"), units)
    for nothing in ("0", "0%", "0.000"):
        assert check_removes(sparsity_budget(units, nothing), units).total == 0
    assert check_removes(sparsity_budget(units, "50%"), units).total == 8


def test_counts_that_spend_another_budget_or_do_not_fit():
    units = expert_units(TWO)
    budget = sparsity_budget(units, "50%")
    assert said(allocate, "file", units, budget, Evidence(counts={1: 8, 3: 5})) == (
        "The file removes 3 experts, but 50% is 8; leave the budget out, or correct the file."
    )
    # Multiples of two of seven experts: 2, 4, 6. Of 4 and 6, equally near, the one that keeps more.
    layers = (MoELayer(1, 7, 2), MoELayer(3, 7, 2))
    assert said(from_counts, expert_units(layers, Constraints(multiple_of=2)), {1: 5, 3: 6}) == (
        "Layer 1 would keep 5 experts, but it can keep from 2 to 6 in steps of 2; nearest: 6."
    )


def test_a_layer_may_lose_nothing_or_everything_that_a_file_says():
    assert counts_from_text("removed: {1: 0, 3: 2}", Path("a.yaml"), TWO) == {1: 8, 3: 6}
    assert counts_from_text("kept: {1: 0}", Path("a.yaml"), TWO) == {1: 0, 3: 8}
    assert counts_from_text("kept: {1: 8}", Path("a.yaml"), TWO) == {1: 8, 3: 8}


def test_files_that_are_too_large_or_no_text(tmp_path):
    large, binary, padded = (tmp_path / name for name in ("large.csv", "binary.csv", "padded.csv"))
    with large.open("wb") as file:
        file.truncate((1 << 24) + 1)
    binary.write_bytes(b"layer,kept\n1,\xff\n")
    column = "," + " " * 99_999
    padded.write_text(("layer,kept\n1,5" + column * (1 << 8))[: 1 << 24])
    assert said(read_counts, large, TWO) == (
        f"The schedule {large} cannot be read: it is larger than {1 << 24:,} bytes."
    )
    assert said(read_counts, binary, TWO) == (
        f"The schedule {binary} cannot be read: it is no UTF-8 text."
    )
    assert read_counts(padded, TWO) == {1: 5, 3: 8}


def test_counts_by_hand_are_refused_with_a_reason_for_layers_alike():
    layers = tuple(MoELayer(index, 8, 2) for index in range(6))
    units = expert_units(layers)
    model = SimpleNamespace(layers=layers, num_experts=48)
    budget = count_budget(units, 24)
    alike = {0: 1, 1: 1, 2: 9, 3: 4, 4: 4, 5: 5}
    assert said(check_counts, model, alike, units, budget) == (
        "The counts by hand, 1.1.9.4.4.5, do not fit: "
        "layers 0-1 cannot keep 1 experts: each can keep 2 to 8, and its router picks 2; "
        "layer 2 cannot keep 9 experts: each can keep 2 to 8, and its router picks 2."
    )
    # Of five reasons three are said.
    apart = {0: 9, 1: 10, 2: 11, 3: 12, 4: 1, 5: 4}
    words = said(check_counts, model, apart, units, budget)
    assert words.count("cannot keep") == 3
    assert words.endswith("; 2 more like these.")
