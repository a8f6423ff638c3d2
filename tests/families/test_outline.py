"""What is said of a model from its config.json alone is what is saved of it, in every family."""

import json
import shutil
from pathlib import Path

import pytest
from exports import tensors_of
from safetensors.torch import save_file

from analysis.calibration.config_outline import outline_model
from analysis.errors import CheckpointError, UnsupportedModelError
from analysis.model.opening import load_model_index
from analysis.model.outline import without_weights
from builders import edit_json
from families.configs import BY_NAME, EVERY
from families.test_quantised import to_fp8
from pruning.plan.sizes import size_report


def config_of(built, name, folder):
    """A copy of a case's configuration."""
    return Path(shutil.copy(built(BY_NAME[name]).paths["experts"] / "config.json", folder))


def headers_of(model):
    """name -> dtype and shape."""
    return {entry.name: (entry.dtype, entry.shape) for entry in model.checkpoint.tensors.values()}


@pytest.mark.parametrize("case", EVERY)
def test_the_outline_of_every_family_is_its_checkpoint(built, tmp_path, case):
    path = built(case).paths["experts"]
    real = load_model_index(str(path))
    config = json.loads((path / "config.json").read_text())
    # transformers writes how many prediction heads there were, and no head.
    heads = {key: 0 for key in (real.family.appended_heads_key,) if key in config}
    (tmp_path / "config.json").write_text(json.dumps({**config, **heads}))
    outline = outline_model(str(tmp_path))
    assert outline.layers == real.layers
    assert outline.identity != real.identity
    wanted = headers_of(real)
    if case.name == "qwen3_5_moe":  # its auto class builds the text model alone
        wanted = {
            name.replace("model.language_model.", "model."): header
            for name, header in wanted.items()
            if not name.startswith("model.visual.")
        }
    assert headers_of(outline) == wanted


@pytest.mark.parametrize("name", ["nemotron_h", "kimi_linear", "qwen3_next"])
def test_heads_of_a_layout_that_the_table_does_not_know_are_not_counted(built, tmp_path, name):
    edit_json(config_of(built, name, tmp_path), num_nextn_predict_layers=1)
    outline = outline_model(str(tmp_path))
    assert headers_of(outline) == headers_of(built(BY_NAME[name]).described())
    said = "Prediction heads (num_nextn_predict_layers = 1) are not counted."
    assert without_weights(outline).caveats == (said,)


def test_layers_with_numbers_of_their_own(built, tmp_path):
    file = config_of(built, "olmoe", tmp_path)
    edit_json(file, per_layer_num_experts=[7, 1])
    outline = outline_model(str(file))
    assert [(layer.num_experts, layer.top_k) for layer in outline.layers] == [(7, 2), (1, 1)]
    report, expert = size_report(outline), 3 * 16 * 24
    table = report.table.set_index("part")["params_before"]
    assert table["routed experts"] == (7 + 1) * expert
    assert report.params_before - report.active_before == (7 - 2) * expert
    assert report.expert_flops == 2 * (2 + 1) * expert


def test_the_element_type_can_be_chosen(built, tmp_path):
    config_of(built, "mixtral", tmp_path)
    single, half = (outline_model(str(tmp_path), dtype=d) for d in ("float32", "bfloat16"))
    assert single.checkpoint.nbytes == 2 * half.checkpoint.nbytes
    assert size_report(half).loaded("float32") == size_report(single).loaded()
    with pytest.raises(CheckpointError, match="Did you mean 'float16'"):
        outline_model(str(tmp_path), dtype="float1")


def test_quantised_models_count_their_weights_once(built, tmp_path):
    source = built(BY_NAME["qwen3_moe"])
    model, held = source.model, tensors_of(source.paths["experts"])
    save_file(to_fp8(held), tmp_path / "model.safetensors")
    shutil.copy(source.paths["experts"] / "config.json", tmp_path)
    fp8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    edit_json(tmp_path / "config.json", quantization_config=fp8)
    quantised = load_model_index(str(tmp_path))
    report = size_report(quantised)
    assert report.params_before == sum(parameter.numel() for parameter in model.parameters())
    assert report.loaded("bfloat16")[0] == 2 * report.params_before
    assert report.loaded()[0] == quantised.checkpoint.nbytes


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        ({"model_type": "llama"}, UnsupportedModelError, "llama"),
        ({"model_type": "olmoe", "num_hidden_layers": 2}, CheckpointError, "num_experts"),
        (
            {"model_type": "olmoe", "num_hidden_layers": 2, "num_experts": 4,
             "num_experts_per_tok": 2, "hidden_size": "wide"},
            CheckpointError, "transformers cannot build",
        ),
    ],
)  # fmt: skip
def test_a_configuration_that_describes_nothing(tmp_path, config, error, message):
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(error, match=message) as raised:
        outline_model(str(tmp_path))
    assert "\n" not in str(raised.value)


def test_models_are_named_as_checkpoints_are(built, tmp_path):
    folder = tmp_path / "some-model"
    folder.mkdir()
    for missing, says in ((folder, r"has no config\.json"), ("nowhere", "is not a directory")):
        with pytest.raises(CheckpointError, match=says):
            outline_model(str(tmp_path / missing))
    config_of(built, "olmoe", folder)
    names = [outline_model(str(place)).name for place in (folder, folder / "config.json", "demo")]
    assert names == ["some-model", "some-model", "demo"]


def test_a_type_that_is_not_listed_is_not_judged_by_its_layout(tmp_path):
    config = {"model_type": "new_moe", "num_experts": 8, "num_experts_per_tok": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModelError, match="'new_moe' is not in the table") as caught:
        outline_model(str(tmp_path))
    assert "layout" not in str(caught.value)
