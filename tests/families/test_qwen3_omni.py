"""Qwen3-Omni as it is published: the thinker's experts are pruned, talker and towers copied whole.

The thinker saved alone runs through the conformance suite; here it is a part of a checkpoint.
"""

import json

import pytest
import torch
from calibrations import calibrated, make_sequences
from exports import export, tensors_of, verified
from transformers import AutoConfig, AutoModelForMultimodalLM, Qwen3OmniMoeForConditionalGeneration

from analysis.calibration.config_outline import outline_model
from analysis.calibration.loading import Placement
from analysis.families.listing import FAMILIES
from analysis.families.needs import why_too_old
from analysis.model.heads import beside_text
from analysis.model.opening import load_model_index
from analysis.stats.reading import load_expert_stats
from families.configs import BY_NAME
from families.physical import logits_of, physically_pruned
from families.plain import overheard
from families.settings import HIDDEN, THINKER, VOCAB
from families.test_conformance import LENGTHS, assert_sums
from families.tiny_models import redraw
from pruning import load_pruned
from pruning.engine.masking import masked
from pruning.plan.plan import PruningPlan, model_ref
from pruning.plan.sizes import size_report
from pruning.serving.engines import Reads, contents_of, load_code, verdicts

CASE = BY_NAME["qwen3_omni_moe_thinker"]
UNIFORM = {0: (1, 3, 4, 6), 2: (0, 2, 3, 5)}
UNEVEN = {0: (1, 4), 2: (0, 2, 3, 5, 6)}
_SPEECH = {
    "vocab_size": 32, "hidden_size": HIDDEN, "num_attention_heads": 2, "num_key_value_heads": 1,
    "head_dim": 8, "num_hidden_layers": 1, "intermediate_size": 16,
}  # fmt: skip
WHOLE = {
    "thinker_config": {**THINKER, "model_type": "qwen3_omni_moe_thinker"},
    # As many experts as the thinker, so that a count alone does not tell them apart.
    "talker_config": {
        "text_config": {**_SPEECH, "num_hidden_layers": 2, "num_experts": 7,
                        "num_experts_per_tok": 2, "moe_intermediate_size": 24,
                        "shared_expert_intermediate_size": 8},
        "code_predictor_config": {**_SPEECH, "num_code_groups": 3},
        "thinker_hidden_size": HIDDEN, "num_code_groups": 3, "spatial_merge_size": 2,
    },
    "code2wav_config": {
        "codebook_size": 8, "hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 2,
        "intermediate_size": 8, "num_hidden_layers": 1, "num_quantizers": 2, "decoder_dim": 8,
        "upsample_rates": [2], "upsampling_ratios": [2],
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def whole():
    if why := why_too_old(FAMILIES["qwen3_omni_moe"]):
        pytest.skip(why)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = AutoConfig.for_model("qwen3_omni_moe", **json.loads(json.dumps(WHOLE)))
        made = Qwen3OmniMoeForConditionalGeneration._from_config(config, dtype=torch.float32)
        redraw(made)
    return made.eval()


@pytest.fixture(scope="module", params=["published", "stacked"])
def source(request, whole, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    original = request.param == "published"
    whole.save_pretrained(folder, max_shard_size="60KB", save_original_format=original)
    return folder


def plan_of(model, kept):
    return PruningPlan(model_ref(model), kept)


def test_the_grid_is_the_thinkers(source, whole):
    model = load_model_index(str(source))
    found = [(layer.index, layer.num_experts, layer.top_k) for layer in model.layers]
    assert found == [(0, 7, 2), (2, 7, 2)]
    # What no text token meets: all but the language model.
    names = (name for name, _ in whole.named_parameters() if "thinker.model.language" not in name)
    aside = sum(model.num_weights(model.checkpoint.tensors[name]) for name in beside_text(model))
    named = sum(whole.get_parameter(name).numel() for name in names if "lm_head" not in name
                or name.startswith("talker"))  # fmt: skip
    assert aside == named
    assert size_report(model).active_before < model.num_params - aside


def test_the_talker_is_copied_and_its_count_stays(source, tmp_path):
    model = load_model_index(str(source))
    export(model, plan_of(model, UNIFORM), tmp_path / "out")
    before, after = tensors_of(source), tensors_of(tmp_path / "out")
    others = {name for name in before if not name.startswith("thinker.")}
    assert any("talker.model.layers.0.mlp.experts" in name for name in others)
    assert {name for name in after if not name.startswith("thinker.")} == others
    assert all(torch.equal(before[name], after[name]) for name in others)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["thinker_config"]["text_config"]["num_experts"] == 4
    talker = json.loads((source / "config.json").read_text())["talker_config"]
    assert config["talker_config"] == talker


def test_the_export_is_the_physically_pruned_thinker(source, whole, tmp_path):
    model = load_model_index(str(source))
    wanted = logits_of(physically_pruned(whole.thinker, CASE, UNIFORM))
    with masked(whole.thinker, model.family, plan_of(model, UNIFORM)):
        assert torch.equal(logits_of(whole.thinker), wanted)
    export(model, plan_of(model, UNIFORM), tmp_path / "out")
    assert verified(tmp_path / "out", level="logits", source=source, tokens=24).max_abs_diff == 0
    again, info = AutoModelForMultimodalLM.from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert torch.equal(logits_of(again.eval().thinker), wanted)
    said = again.generate(
        input_ids=torch.arange(3, 9)[None], return_audio=False, thinker_max_new_tokens=3,
        thinker_eos_token_id=2,
    )  # fmt: skip
    assert said.shape[1] > 6


def test_layers_of_different_sizes_load_here_and_only_here(source, whole, tmp_path):
    model = load_model_index(str(source))
    export(model, plan_of(model, UNEVEN), tmp_path / "out")
    wanted = logits_of(physically_pruned(whole.thinker, CASE, UNEVEN))
    assert torch.equal(logits_of(load_pruned(tmp_path / "out")), wanted)
    assert verified(tmp_path / "out", level="logits", source=source, tokens=24).max_abs_diff == 0
    assert not (tmp_path / "out" / "modeling_pruned.py").exists()
    contents = contents_of(load_model_index(str(tmp_path / "out")))
    found = [verdict for verdict in verdicts(contents) if verdict.engine.startswith("transformers")]
    assert [verdict.reads for verdict in found] == [Reads.FAILS]
    assert "load_pruned(name)" in load_code(model, contents, '"x"')


@pytest.mark.parametrize("placement", ["whole", "streamed"])
def test_statistics_equal_a_double_loop(source, whole, tmp_path, placement):
    sequences = make_sequences(LENGTHS, vocabulary=VOCAB)
    model = load_model_index(str(source))
    more = {"placement": Placement(stream_layers=True)}
    if placement == "whole":
        with overheard(CASE.model_type, CASE.sparse, padding=0) as heard:
            run = calibrated(model, tmp_path, sequences, seq_len=7, dtype="float64")
        assert_sums(run, CASE, heard, 1e-9)
    else:
        first = calibrated(model, tmp_path / "a", sequences, seq_len=7, dtype="float64")
        run = calibrated(model, tmp_path / "b", sequences, seq_len=7, dtype="float64", **more)
        assert run.manifest.files == first.manifest.files
    assert load_expert_stats(run).table["num_tokens"].sum() == 2 * 2 * sum(LENGTHS)


def test_a_configuration_alone_tells_the_tensors_of_the_whole(whole, tmp_path):
    whole.save_pretrained(tmp_path, save_original_format=True)
    tensors = load_model_index(str(tmp_path)).checkpoint.tensors
    (tmp_path / "model.safetensors").unlink()
    outline = outline_model(str(tmp_path / "config.json")).checkpoint
    found = {name: (tensor.dtype, tensor.shape) for name, tensor in outline.tensors.items()}
    assert found == {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}
    assert not outline.caveats
