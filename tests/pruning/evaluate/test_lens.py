"""The lens of a text against plain forwards in float64, and its tables against hand arithmetic."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from nonuniform_cases import keeps_of, plan_of

from analysis.drain import drain
from analysis.errors import StatsError
from analysis.model.opening import load_model_index
from families.configs import BY_NAME
from families.physical import listening, physically_pruned
from families.tiny_models import tiny_model
from pruning.engine.lens_run import run_lens, token_texts
from pruning.plan.plan import fit_plan
from pruning.records.lens import (
    LensLayer,
    LensPlan,
    LensQuestion,
    LensRecord,
    LensStore,
    gone_shares,
    in_short,
    lens_table,
    lost_experts,
    num_carrying,
    token_table,
    tokens_read,
)
from pruning.records.plan_facts import PlanFacts

IDS = [5, 17, 40, 3, 9, 22, 31, 8]
ASKED = LensQuestion(text="x")


def plain(model, case, start):
    """Losses of the tokens from `start` on, and by layer the experts and weights of each token."""
    ids = torch.tensor([IDS])
    with torch.no_grad(), listening(model, case) as heard:
        logits = model(input_ids=ids, use_cache=False).logits[0].double()
    losses = [-float(logits[t - 1].log_softmax(-1)[IDS[t]]) for t in range(start, len(IDS))]
    ran = {layer: args[1:3] for layer, (args, _) in heard.ran.items()}
    return losses, {layer: (index.tolist(), weights) for layer, (index, weights) in ran.items()}


# Weights that are renormalised, and a router with a correction bias and groups.
@pytest.mark.parametrize("name", ["olmoe", "granitemoe", "deepseek_v3"])
@pytest.mark.parametrize("start", [1, 4])
def test_losses_and_experts_are_those_of_plain_forwards(name, start, tmp_path):
    case = BY_NAME[name]
    tiny_model(case).save_pretrained(tmp_path)
    described = load_model_index(str(tmp_path))
    plan = fit_plan(plan_of(described, case, keeps_of(case)), described)
    model = tiny_model(case).double()
    model.set_experts_implementation("eager")  # grouped products do not know float64
    record = LensRecord.new(described, ASKED, (IDS, list("abcdefgh")), "float64", start)
    lens = drain(run_lens(model, described, [plan], record))
    losses, chosen = plain(model, case, start)
    assert lens.losses == pytest.approx(losses, abs=1e-5)  # five decimals are kept
    for layer in lens.layers:
        index, weights = chosen[layer.layer]
        # Of each token, by falling weight.
        order = weights.argsort(descending=True, stable=True)
        wanted = torch.tensor(index).gather(-1, order)
        assert layer.experts == tuple(wanted.flatten().tolist())
        gates = weights.gather(-1, order).flatten().tolist()
        assert layer.gates == pytest.approx(gates, abs=1e-5)
    pruned_losses, pruned = plain(physically_pruned(model, case, plan.kept), case, start)
    of_plan = lens.of_plan(plan.digest)
    assert of_plan.losses == pytest.approx(pruned_losses, abs=1e-5)
    assert max(np.abs(np.subtract(losses, pruned_losses))) > 0.01
    for place, layer in enumerate(described.layers):
        kept = plan.kept[layer.index]
        ids = [kept[number] for row in pruned[layer.index][0] for number in row]
        assert list(of_plan.experts[place]) == ids
        assert set(of_plan.removed[place]) | set(kept) == set(range(layer.num_experts))
    # What is known is not run again, and the file is the record.
    assert drain(run_lens(None, described, [plan], lens)) == lens
    store = LensStore([tmp_path / "stats"])
    store.save(lens)
    assert store.find(record) == lens


def layer(index, experts, gates):
    return LensLayer(layer=index, num_experts=4, top_k=2, experts=experts, gates=gates)


def by_hand():
    """Two layers of four experts, top-2, three tokens; the plan removes 0.1, and 3.0 and 3.2."""
    plan = LensPlan(
        plan_digest="p",
        plan=PlanFacts(criterion="reap"),
        losses=(3.0, 1.5),
        removed=((1,), (0, 2)),
        # Token by token; layer 0 puts 3 in the place of 1, layer 3 has no one left but 1 and 3.
        experts=((0, 3, 2, 3, 0, 2), (1, 3, 1, 3, 1, 3)),
    )
    model = SimpleNamespace(name="hand", identity="00" * 32, revision=None)
    record = LensRecord.new(model, ASKED, ([7, 8, 9], ["a", " b", " b"]), "float32")
    layers = (
        layer(0, (0, 1, 1, 2, 0, 2), (0.6, 0.2, 0.5, 0.5, 0.7, 0.1)),
        layer(3, (2, 0, 3, 1, 0, 1), (0.3, 0.1, 0.2, 0.2, 0.6, 0.2)),
    )
    return record.finished({}, losses=(1.0, 2.0), layers=layers, plans=(plan,)), plan


def test_what_took_over_and_the_share_that_is_gone_by_hand():
    record, plan = by_hand()
    gone = [[0.2 / 0.8, 1.0], [0.5, 0.0], [0.0, 0.6 / 0.8]]
    np.testing.assert_allclose(gone_shares(record, plan), gone)
    # The third token is predicted at the second one.
    table = lens_table(record, plan, 3)
    assert table.drop(columns=["gate", "share"]).to_numpy().tolist() == [
        [0, 2, "wanted", False],
        [0, 1, "wanted", True],
        [0, 3, "took over", False],
        [3, 3, "wanted", False],
        [3, 1, "wanted", False],
    ]
    assert table["share"].tolist()[:2] == [0.5, 0.5]
    assert lens_table(record, plan, 2)["expert"].tolist() == [0, 1, 3, 2, 0, 1, 3]
    tokens = token_table(record, plan)
    assert tokens["change"].tolist()[1:] == [2.0, -0.5]
    assert tokens["gone"].tolist()[1:] == pytest.approx([(0.25 + 1) / 2, 0.25])
    assert tokens.loc[0, ["loss", "change", "gone"]].isna().all()
    assert in_short(record, plan) == (
        "loss increase +0.750 nats a token; 1 of 2 tokens carry 70% of it"
    )
    lost = lost_experts(record, plan)
    assert lost[["layer", "expert", "num_tokens"]].to_numpy().tolist() == [
        [3, 0, 2],
        [0, 1, 2],
        [3, 2, 1],
    ]
    assert lost["share"].tolist() == pytest.approx([0.7 / 1.6, 0.7 / 2.6, 0.3 / 1.6])
    read = tokens_read([record], 3, 1)
    assert read.to_numpy().tolist() == [[" b", pytest.approx(0.4), 2]]
    assert tokens_read([record], 3, 99).empty
    with pytest.raises(StatsError, match="no token 1 to predict; the text has 2 to 3"):
        lens_table(record, plan, 1)


@pytest.mark.parametrize(
    ("changes", "count"),
    # 70% of 4 is 2.8: 2 and 1 are enough; what gets better counts against the total.
    [([1.0, 2.0, 1.0], 2), ([3.0, -1.0, 2.0, np.nan], 1), ([-1.0, 0.5], 0), ([0.0], 0)],
)
def test_the_tokens_that_carry_the_loss(changes, count):
    assert num_carrying(np.array(changes)) == count


class Bytes:
    """A tokenizer whose tokens are bytes: its characters may need several."""

    def decode(self, token_ids, *, skip_special_tokens):
        return bytes(token_ids).decode(errors="replace")


def test_a_character_of_several_tokens_belongs_to_the_last():
    ids = "aé 日b".encode()
    assert token_texts(Bytes(), ids) == ["a", "", "é", " ", "", "", "日", "b"]
    # One that is never finished is shown as broken.
    assert token_texts(Bytes(), [97, 230]) == ["a", "\ufffd"]
