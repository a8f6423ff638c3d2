"""Architectures that are not listed, with layers of their own sizes: they work, or are refused.

The table of families is used without these model types.
"""

import json
import shutil
from functools import partial
from unittest.mock import patch

import pytest
import torch
from exports import export, keeping_neurons, verified
from remote_reader import read_by_others
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from analysis.errors import ExportError
from analysis.families.listing import FAMILIES
from analysis.model.opening import load_model_index
from builders import edit_json, tiny_checkpoint
from families.physical import logits_of
from families.tiny_models import redraw
from pruning import load_pruned
from pruning.engine.masking import masked
from pruning.plan.plan import PruningPlan, model_ref
from pruning.plan.widths import WidthChoice, WidthMode
from pruning.serving.engines import contents_of, verdicts

COMMON = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 40,
    "moe_intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "num_experts_per_tok": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# Correction bias in the router; shared experts and dense layers; groups.
NOVEL = {
    "exaone_moe": {"num_experts": 8, "num_shared_experts": 1, "first_k_dense_replace": 1},
    "exaone_moe-groups": {"num_experts": 8, "n_group": 2, "topk_group": 1},
    "solar_open": {"n_routed_experts": 8, "n_shared_experts": 1},
    "cohere2_moe": {
        "num_experts": 8,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": None,  # experts are as wide as intermediate_size says
    },
    # The same with a key that its code does not read.
    "cohere2_moe-misleading": {"num_experts": 8, "first_k_dense_replace": 1},
    "mellum": {"num_experts": 8},
}
COMPOSITE = "qwen3_vl_moe"
CLOSE = 1e-5  # of logits in float32: sums over fewer neurons, in another order


@pytest.fixture(autouse=True)
def _unlisted():
    with patch.dict(FAMILIES):  # which keeps their order, of which a page is written
        for model_type in {COMPOSITE, *(name.partition("-")[0] for name in NOVEL)}:
            del FAMILIES[model_type]
        yield


@pytest.fixture(scope="module")
def novel(tmp_path_factory):
    """`novel(name)`: the checkpoint of an unlisted model, and the model; each is made once."""
    made = {}

    def get(name):
        if name not in made:
            model_type = name.partition("-")[0]
            config = AutoConfig.for_model(model_type, **{**COMMON, **NOVEL[name]})
            with torch.random.fork_rng():
                torch.manual_seed(0)
                model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
                redraw(model)
            path = tmp_path_factory.mktemp(name)
            model.save_pretrained(path, max_shard_size="40KB")
            made[name] = path, model
        return made[name]

    return get


def counts_plan(described):
    """4 and 6 of 8 experts by turns; as many in each half, which may be a group."""
    keeps = ((0, 3, 4, 6), (0, 1, 2, 4, 5, 6))
    layers = enumerate(described.layers)
    return PruningPlan(model_ref(described), {x.index: keeps[n % 2] for n, x in layers})


def neuron_plan(described):
    """Expert 0 keeps no neuron, the others different ones; fewer in every other layer."""
    neurons = {
        layer.index: {
            expert: tuple(range(expert, expert + 9 - 2 * (number % 2))) if expert else ()
            for expert in range(layer.num_experts)
        }
        for number, layer in enumerate(described.layers)
    }
    return keeping_neurons(described, neurons)


def export_novel(path, out, mode):
    described = load_model_index(str(path))
    assert described.family.discovered
    plan = neuron_plan(described) if mode else counts_plan(described)
    export(described, plan, out, widths=WidthChoice(WidthMode(mode)) if mode else None)
    return described, plan


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        *(("exaone_moe-groups", ""), ("cohere2_moe", ""), ("mellum", "")),
        *(("exaone_moe", "per-layer"), ("solar_open", "ragged"), ("cohere2_moe", "ragged")),
    ],
)
def test_loads_as_the_masked_original(novel, tmp_path, name, mode):
    path, model = novel(name)
    described, plan = export_novel(path, tmp_path / "out", mode)
    pruned, info = load_pruned(tmp_path / "out", output_loading_info=True)
    assert not any(info.values()), info
    with masked(model, described.family, plan):
        wanted = logits_of(model)
    assert (logits_of(pruned) - wanted).abs().max() <= (CLOSE if mode else 0)
    assert not torch.allclose(wanted, logits_of(model), atol=1e-3)
    held = load_model_index(str(tmp_path / "out"))
    assert [x.num_experts for x in held.layers] == [len(ids) for ids in plan.kept.values()] or mode
    report = verified(tmp_path / "out", source=path)
    assert report.level == "logits"
    said = {verdict.engine: verdict.reads for verdict in verdicts(contents_of(held))}
    assert said["transformers"] == "fails"
    assert said["transformers, trust_remote_code=True"] == "tried"


@pytest.mark.parametrize("mode", ["", "per-layer"], ids=["counts", "per-layer"])
def test_the_text_part_of_a_composite(tmp_path, mode):
    text = {**COMMON, "num_hidden_layers": 2, "num_experts": 8}
    text["rope_parameters"] = {
        "rope_type": "default",
        "rope_theta": 1e4,
        "mrope_section": [2, 1, 1],
    }
    vision = {"hidden_size": 8, "intermediate_size": 8, "depth": 1, "num_heads": 1}
    vision |= {"out_hidden_size": 16, "patch_size": 2, "deepstack_visual_indexes": []}
    config = AutoConfig.for_model(COMPOSITE, text_config=text, vision_config=vision)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32).eval()
        redraw(model)
    model.save_pretrained(tmp_path / "source")
    described, plan = export_novel(tmp_path / "source", tmp_path / "out", mode)
    with masked(model, described.family, plan):
        wanted = logits_of(model)
    trusting = partial(AutoModelForImageTextToText.from_pretrained, trust_remote_code=True)
    for load in (load_pruned, trusting):
        pruned, info = load(tmp_path / "out", output_loading_info=True)
        assert not any(info.values()), info
        assert (logits_of(pruned) - wanted).abs().max() <= (CLOSE if mode else 0)
    report = verified(tmp_path / "out", source=tmp_path / "source")
    assert report.level == "logits"


def refuse(path, out, match, mode=""):
    with pytest.raises(ExportError, match=match) as raised:
        export_novel(path, out, mode)
    assert "\n" not in str(raised.value)
    assert "schedule uniform" in str(raised.value)
    assert list(out.parent.iterdir()) == []


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "to").mkdir()
    return tmp_path / "to"


@pytest.mark.parametrize("mode", ["", "ragged"], ids=["counts", "ragged"])
def test_a_type_that_transformers_lacks_is_refused(tmp_path, folder, mode):
    source = tmp_path / "source"
    tiny_checkpoint(source, "olmoe")
    changes = {"model_type": "unheard_of", "auto_map": {"AutoModelForCausalLM": "theirs.Model"}}
    edit_json(source / "config.json", **changes)
    refuse(source, folder / "out", "'unheard_of', .* transformers has no class for it", mode)
    # With one number for all layers the model's own code reads it, so that is fine.
    export(source, (1, 3, 6), folder / "out")
    written = json.loads((folder / "out" / "config.json").read_text())
    assert written["auto_map"] == changes["auto_map"]


def test_layers_that_cannot_be_built_alone_are_refused(novel, tmp_path, folder, monkeypatch):
    # A class that looks at all layers at once, as those do that share things between layers.
    path, model = novel("mellum")
    source = tmp_path / "source"
    shutil.copytree(path, source)
    layer = type(model.model.layers[0])
    stock = layer.__init__

    def together(self, config, layer_idx):
        if config.num_experts != 8:
            raise ValueError("all layers have as many experts")
        stock(self, config, layer_idx)

    monkeypatch.setattr(layer, "__init__", together)
    match = "building them fails with ValueError: all layers have as many experts"
    refuse(source, folder / "out", match)


def test_layers_that_do_not_get_their_sizes_are_refused(novel, folder):
    path, _ = novel("cohere2_moe-misleading")
    refuse(path, folder / "out", "layer 1 is 40 wide instead of 16", "ragged")


@pytest.mark.slow
def test_plain_transformers_reads_them(novel, tmp_path):
    exports = {}
    for name, mode in (("exaone_moe", ""), ("solar_open", "ragged"), ("mellum", "per-layer")):
        out = tmp_path / name
        export_novel(novel(name)[0], out, mode)
        exports[name] = out, logits_of(load_pruned(out))
    found = read_by_others(exports, tmp_path / "remote")
    assert len(found) == 3
    for said in found.values():
        assert said["exact"] and said["exact_again"] and not said["info"]
        assert max(said["differences"].values()) <= CLOSE
