"""Lists of kept experts, ours and other programs'."""

import json

import pytest
from exports import export, keeping, uneven

from analysis.errors import PlanError
from analysis.families.base import MoELayer
from analysis.model.opening import load_model_index
from pruning.model import Model
from pruning.plan.keep_list import read_keep_list
from pruning.plan.plan import KEEP_LIST_NAME
from pruning.plan.plan_file import load_plan
from pruning.spec.spec import spec_of

LAYERS = (MoELayer(0, 4, 2), MoELayer(3, 6, 2))
KEPT = {0: (0, 1), 3: (0, 2, 5)}


def lines(*objects):
    return "\n".join(json.dumps(entry) for entry in objects) + "\n"


# A file of each form in which KEPT is said.
FORMS = {
    "ours": {"0": [0, 1], "3": [0, 2, 5]},
    "in another order": {"3": [5, 0, 2], "0": [1, 0]},
    "by modules": {"model.layers.0.mlp": [0, 1], "model.layers.3.mlp": [0, 2, 5]},
    "named layers": {"layer_0": [0, 1], "layer 3": [0, 2, 5]},
    "below a word": {"retained_experts": {"0": [0, 1], "3": [0, 2, 5]}, "pruned_experts": 5},
    "kept_by_layer": {"kept_by_layer": {"0": [0, 1], "3": [0, 2, 5]}, "old_num_experts": 6},
    "a report": {
        "model.layers.0.mlp": {"kept": [0, 1], "pruned": [2, 3], "num_experts": 4},
        "model.layers.3.mlp": {"retained": [0, 2, 5], "scores": [0.5] * 6, "ranked": [1] * 9},
    },
    "only what goes": {"pruned": {"0": [2, 3], "3": [1, 3, 4]}},
    "layers below a key": {
        "name": "a report", "layers": {"0": {"kept_experts": [0, 1]}, "3": {"kept": [0, 2, 5]}},
    },
    "a list of objects": [
        {"layer": 0, "experts": [0, 1]}, {"layer_idx": 3, "retained_expert_indices": [0, 2, 5]},
    ],
    "objects by names": {
        "layers": [
            {"name": "model.layers.0.mlp", "keep": [0, 1]},
            {"name": "model.layers.3.mlp", "removedExperts": [1, 3, 4]},
        ]
    },
    "pairs that go": {"pruned_experts": [[0, 2], [3, 1], [0, 3], [3, 3], [3, 4]]},
    "a list of lists": [[0, 1], [0, 2, 5]],
    "a list for every layer": {"kept": [[0, 1], [], [], [0, 2, 5]]},
    "lists of what goes": {"pruned_experts": [[2, 3], [1, 3, 4]]},
    "an empty list of a dense layer": {"0": [0, 1], "1": [], "3": [0, 2, 5]},
    "lines": lines({"layer": 0, "experts": [0, 1]}, {"layer": 3, "experts": [0, 2, 5]}),
    "lines of experts": lines(
        *({"layer": 0, "expert": n, "kept": n < 2} for n in range(4)),
        *({"layer": 3, "expert": n, "pruned": n not in (0, 2, 5)} for n in range(6)),
    ),
    "lines of kept experts": lines(
        *({"layer": layer, "expert": expert} for layer, ids in KEPT.items() for expert in ids)
    ),
    "experts of objects": {
        "0": [{"id": 0, "keep": True}, {"id": 1, "keep": True}, {"id": 2, "keep": False},
              {"id": 3, "keep": False}],
        "3": {"kept": [0, 2, 5]},
    },
}  # fmt: skip


def read(tmp_path, content, name="list.json", layers=LAYERS):
    text = content if isinstance(content, str) else json.dumps(content)
    (tmp_path / name).write_text(text)
    return read_keep_list(tmp_path / name, layers)


@pytest.mark.parametrize("content", FORMS.values(), ids=FORMS)
def test_every_form_says_the_same(content, tmp_path):
    assert read(tmp_path, content) == KEPT


def test_layers_that_are_not_named_stay_whole(tmp_path):
    assert read(tmp_path, {"3": [0, 2, 5]}) == {3: (0, 2, 5)}


def test_an_order_of_experts_that_are_said_to_stay_is_no_ranking(tmp_path):
    by_saliency = (5, 0, 1, 2, 3, 4)
    objects = ({"layer": 3, "expert": expert, "kept": True} for expert in by_saliency)
    assert read(tmp_path, lines(*objects)) == {3: tuple(range(6))}


WRONG = {
    "unknown layer": ({"1": [0, 1]}, r"layer 1, which has no routed experts; .* are 0,3\."),
    "expert beyond": ({"3": [0, 6]}, r"expert 6 of layer 3, which has 6 experts \(0\.\.5\)"),
    "negative expert": ({"3": [0, -1]}, "expert -1 of layer 3"),
    "too few": ({"3": [0]}, r"Layer 3 .*1"),
    "none": ({"3": []}, "Layer 3"),
    "a row twice": ([[0, 1], [0, 2, 2]], "layer 3 lists expert 2 twice"),
    "a number beside lists": ([[0, 1], 3], "without their layer"),
    "twice": ({"3": [0, 2, 2]}, "layer 3 lists expert 2 twice"),
    "a mask": ({"3": [1, 0, 1, 0, 0, 1]}, "is a mask"),
    "truths": ({"3": [True, False]}, "whole numbers"),
    "words": ({"3": ["0", "2"]}, "whole numbers"),
    "a layer twice": ({"3": [0, 2], "model.layers.3.mlp": [1, 2]}, "names layer 3 twice"),
    "a name twice": ('{"3": [0, 2], "3": [1, 2]}', "holds 3 twice"),
    "both": ({"3": {"kept": [0, 1, 2], "pruned": [2, 3, 4, 5]}}, "expert 2 .* both kept and"),
    "neither": ({"3": {"kept": [0, 1, 2], "pruned": [4, 5]}}, "expert 3 of layer 3 is kept or"),
    "no layer": ({"kept": [0, 1]}, "without their layer"),
    "a list": ([0, 1], "without their layer"),
    "lists of other layers": (
        [[0, 1], [0, 2, 5], [1, 2]],
        r"list of 3 lists, and the model has 2 sparse layers \(0,3\)",
    ),
    "an empty row": ([[0, 1, 2], [], [], []], "Layer 3 would keep 0"),
    "too few rows": ([[0, 1, 2]], "list of 1 lists"),
    "rows like pairs": ([[0, 1], [0, 2]], "pairs may be a layer and an expert each, or two"),
    "a ranking": ({"3": [5, 0, 1, 2, 3, 4]}, "all 6 experts of layer 3 in an order of their own"),
    "neurons": ({"kept_neurons": {"3": {"0": [1, 2]}}}, "no list of its experts"),
    "nothing": ({}, "lists no experts"),
    "a number": ("3", "where experts should be listed"),
    "no JSON": ("{", "not valid JSON"),
    "a bad line": ('{"layer": 0, "experts": [0, 1]}\n{"layer": 3,\n', "line 2 is not valid JSON"),
    "empty": ("", "not valid JSON"),
    "deep": ("[" * 3000 + "]" * 3000, "cannot be used"),
}


@pytest.mark.parametrize(("content", "message"), WRONG.values(), ids=WRONG)
def test_a_list_that_cannot_be_used_is_one_line(content, message, tmp_path):
    with pytest.raises(PlanError, match=message) as caught:
        read(tmp_path, content)
    assert "\n" not in str(caught.value)
    assert "list.json" in str(caught.value)


def test_a_bare_list_whose_name_speaks_of_removal_is_ambiguous(tmp_path):
    with pytest.raises(PlanError, match=r"kept or removed; write \{\"removed\""):
        read(tmp_path, FORMS["ours"], name="pruned_experts.json")
    assert read(tmp_path, FORMS["below a word"], name="pruned_experts.json") == KEPT


def test_groups_of_a_router_keep_as_many(tmp_path):
    grouped = (MoELayer(0, 8, 2, num_groups=2),)
    assert read(tmp_path, {"0": [0, 1, 5, 6]}, layers=grouped) == {0: (0, 1, 5, 6)}
    with pytest.raises(PlanError, match="same number in each"):
        read(tmp_path, {"0": [0, 1, 2, 5]}, layers=grouped)


@pytest.mark.parametrize("choose", [uneven, lambda model: keeping(model, (0, 2, 5))])
def test_an_export_and_back(choose, checkpoint, tmp_path):
    path = checkpoint("qwen3_moe").path
    model = load_model_index(str(path))
    plan = choose(model)
    export(path, plan, tmp_path / "out", keep_list=True)
    for source in (tmp_path / "out", tmp_path / "out" / KEEP_LIST_NAME):
        again = Model(str(path)).plan(kept_experts=source)
        assert again.kept == plan.kept
        assert again.digest == plan.digest
    assert again.provenance.schedule == "file"
    assert again.provenance.schedule_parameters == {"file": KEEP_LIST_NAME}
    again.save(tmp_path / "plan.json")
    # A plan.json is a keep list too, also for a copy of its model.
    assert read_keep_list(tmp_path / "plan.json", model.layers) == again.kept
    assert load_plan(tmp_path / "plan.json", model=model) == again


def test_a_keep_list_says_all(tmp_path):
    assert spec_of(kept_experts=tmp_path / "list.json", top_k=1).spread.full_file == "kept_experts"


def test_rows_of_two_experts(tmp_path):
    """They look like pairs of a layer and an expert, which there are one of for each layer."""
    assert read(tmp_path, [[1, 2], [0, 5]]) == {0: (1, 2), 3: (0, 5)}  # there is no layer 1
    pairs = {"pruned": [[0, 2], [3, 1]]}
    assert read(tmp_path, pairs) == {0: (0, 1, 3), 3: (0, 2, 3, 4, 5)}
