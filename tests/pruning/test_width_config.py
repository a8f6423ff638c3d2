"""What width modes say: in config.json, and to who asks for the widths of a plan without any."""

import json
import shutil

import pytest
from exports import export, keeping_neurons, verified

from analysis.errors import PlanError
from analysis.model import load_model_index
from families.configs import BY_NAME
from pruning.atoms.widths import WidthChoice, WidthMode, plan_widths
from pruning.heads import HeadPlan
from pruning.plan import PruningPlan, fit_plan, model_ref
from pruning.surgery.config import pruned_config
from pruning.surgery.width_sizes import width_option, width_options

OLMOE = BY_NAME["olmoe"]


@pytest.mark.parametrize("asked", [True, False, None])
def test_the_balancing_loss_is_off_beside_other_widths(atom_source, tmp_path, asked):
    source = atom_source(OLMOE)
    plan = fit_plan(source.plan, source.described)
    config = json.loads((source.path / "config.json").read_text())
    config["output_router_logits"] = asked
    path = shutil.copytree(source.path, tmp_path / "source")
    (path / "config.json").write_text(json.dumps(config))
    model = load_model_index(str(path))
    widths = plan_widths(model, plan, WidthChoice(WidthMode.UNIFORM))
    written = json.loads(pruned_config(model, plan, HeadPlan(), widths))
    # The widest expert keeps 13 neurons, and widths are multiples of 8.
    assert written == {**config, "intermediate_size": 16, "output_router_logits": False}
    unchanged = pruned_config(model, plan, HeadPlan(), None)
    assert unchanged == (path / "config.json").read_bytes()


def test_a_plan_of_whole_experts_has_no_widths(atom_source):
    model = atom_source(OLMOE).described
    plan = fit_plan(PruningPlan(model_ref(model), {OLMOE.sparse[0]: (0, 1, 4)}), model)
    with pytest.raises(PlanError, match=r"removes whole experts only, so no width changes"):
        width_options(model, plan)
    option = width_option(model, plan, WidthChoice(WidthMode.UNIFORM))
    assert "whole experts" in option.refused


@pytest.mark.parametrize(("second", "stock"), [((0, 1, 4), True), ((0, 1, 2, 4), False)])
def test_plain_transformers_reads_one_number_of_experts(atom_source, tmp_path, second, stock):
    model = atom_source(OLMOE).described
    atoms = {0: {1: (0, 2, 3)}}
    kept = {0: (0, 1, 4), 1: second}
    plan = PruningPlan(model_ref(model), kept, granularity="atomic", kept_atoms=atoms)
    option = width_option(model, fit_plan(plan, model), WidthChoice(WidthMode.UNIFORM))
    assert option.stock is stock
    export(model, plan, tmp_path / "out", widths=WidthChoice(WidthMode.UNIFORM))
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config.get("per_layer_num_experts") is None) is stock
    assert ("auto_map" not in config) is stock


@pytest.mark.parametrize("name", ["gpt_oss", "olmoe"])
def test_zeros_in_place_of_neurons_where_the_width_stays(atom_source, tmp_path, name):
    source = atom_source(BY_NAME[name])
    layer = BY_NAME[name].sparse[0]
    # One expert loses all but five neurons; the others keep all 24, and so does the width.
    plan = keeping_neurons(source.described, {layer: {1: (0, 2, 3, 9, 23)}})
    manifest = export(
        source.described, plan, tmp_path / "out", widths=WidthChoice(WidthMode.UNIFORM)
    )
    verified(tmp_path / "out", source=source.path, level="bytes")
    # Gate, up and down of that expert; of gpt_oss gate and up in one, their bias, and down.
    assert sum(shard.cut for shard in manifest.shards) == 3
