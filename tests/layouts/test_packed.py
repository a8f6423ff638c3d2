"""AWQ and GPTQ: experts are cut by their bytes, and the settings that name them follow."""

import json
import re

import pytest
from exports import edit_tensors, export, failed, same_bytes, tensors_of, verified

from analysis.errors import CheckpointError, ExportError
from analysis.model.opening import load_model_index
from builders import edit_json
from layouts.small_packed import EXPERTS, ROLES, small_packed
from pruning.plan.plan import PruningPlan, keep_all, model_ref
from pruning.surgery import module_names

KEPT = {0: (1, 2, 4), 1: (0, 2, 5)}
EXPERT = re.compile(r"model\.layers\.(\d+)\.mlp\.experts\.(\d+)\.(\w+)\.(\w+)")


def exported(source, out, kept=None):
    """The `quantization_config` of an export that verification finds right."""
    model = load_model_index(str(source))
    export(model, PruningPlan(model_ref(model), kept or KEPT), out)
    assert not failed(out, source=source, level="bytes")
    return json.loads((out / "config.json").read_text())["quantization_config"]


@pytest.mark.parametrize("method", ROLES)
def test_kept_experts_keep_every_byte(tmp_path, method):
    source, out = small_packed(tmp_path / "in", method), tmp_path / "out"
    exported(source, out)
    before, after = tensors_of(source), tensors_of(out)
    roles = set()
    for name, tensor in after.items():
        if match := EXPERT.fullmatch(name):
            layer, new, part, role = match.groups()
            old = KEPT[int(layer)][int(new)]
            wanted = before[f"model.layers.{layer}.mlp.experts.{old}.{part}.{role}"]
            roles.add(role)
        elif name.endswith("mlp.gate.weight"):
            wanted = before[name][list(KEPT[int(name.split(".")[2])])]
        else:
            wanted = before[name]
        assert same_bytes(tensor, wanted), name
    assert roles == set(ROLES[method])
    gone = 2 * (EXPERTS - 3) * 3 * len(ROLES[method])
    assert len(after) == len(before) - gone


@pytest.mark.parametrize("method", ROLES)
def test_what_verification_could_not_check_is_said(tmp_path, method):
    source, out = small_packed(tmp_path / "in", method), tmp_path / "out"
    exported(source, out)
    report = verified(out, source=source)
    assert report.level == "bytes"
    unknown = "not checked: whether it loads, and its logits, as checkpoints quantised with"
    assert report.reason.startswith(f"{unknown} {method} cannot be loaded: ")
    card = (out / "README.md").read_text()
    assert "# Not by transformers: checkpoints quantised with" in card
    assert "from_pretrained" not in card


def in_every_layer(numbers):
    return [f"mlp.experts.{number}.{part}_proj" for part in ("up", "gate") for number in numbers]


# What a list or an object of the settings says -> what it says of the experts in `KEPT`.
FOLLOWING = {
    "all, as in any layer": (
        [["self_attn.q_proj"], in_every_layer(range(EXPERTS)), []],
        [["self_attn.q_proj"], in_every_layer(range(3)), []],
    ),
    "all, as one list": (
        ["self_attn.o_proj", *in_every_layer(range(EXPERTS))],
        ["self_attn.o_proj", *in_every_layer(range(3))],
    ),
    "whole names": (
        ["gate", "model.layers.0.mlp.experts.4.down_proj", "model.layers.0.mlp.experts.3",
         "lm_head", "model.layers.1.mlp.experts.5.up_proj", "model.layers.1.mlp.gate"],
        ["gate", "model.layers.0.mlp.experts.2.down_proj",
         "lm_head", "model.layers.1.mlp.experts.2.up_proj", "model.layers.1.mlp.gate"],
    ),
    "another trunk": (
        ["layers.0.mlp.experts.2", "language_model.model.layers.1.mlp.experts.2.up_proj"],
        ["layers.0.mlp.experts.1", "language_model.model.layers.1.mlp.experts.1.up_proj"],
    ),
    "patterns of a name": (
        ["re:.*mlp.gate$", r"re:model\.layers\.0\.mlp\.experts\.4\..*", "re:.*lm_head.*"],
        ["re:.*mlp.gate$", r"re:model\.layers\.0\.mlp\.experts\.2\..*", "re:.*lm_head.*"],
    ),
    "patterns that no number can be told by": (
        [r"re:.*mlp\.(gate|up)_proj.*", "re:.*shared_.*", r".*experts\..+\.up_proj", "*gate*"],
        [r"re:.*mlp\.(gate|up)_proj.*", "re:.*shared_.*", r".*experts\..+\.up_proj", "*gate*"],
    ),
    "objects": (
        {"+:.*self_attn.*": {"bits": 8}, "-:model.layers.0.mlp.experts.1.up_proj": {},
         "model.layers.1.mlp.experts.2": {"bits": 2}, "model.layers.1.mlp.experts.1": {"bits": 8}},
        {"+:.*self_attn.*": {"bits": 8}, "-:model.layers.0.mlp.experts.0.up_proj": {},
         "model.layers.1.mlp.experts.1": {"bits": 2}},
    ),
    "one that has the same number in all layers": (["mlp.experts.2.up_proj"],
                                                   ["mlp.experts.1.up_proj"]),
    "counts and groups": (
        [r"re:.*layers\.\d{1,2}\..*self_attn\.((q|k|v|o)_proj)"],
        [r"re:.*layers\.\d{1,2}\..*self_attn\.((q|k|v|o)_proj)"],
    ),
    "shared ones": (["mlp.shared_experts.4.up_proj"], ["mlp.shared_experts.4.up_proj"]),
}  # fmt: skip


@pytest.mark.parametrize(
    ("case", "inside"), [*((case, False) for case in FOLLOWING), ("whole names", True)]
)
def test_names_of_experts_follow(tmp_path, case, inside):
    before, after = FOLLOWING[case]
    given = {"config_groups": {"0": {"targets": before}}} if inside else {"ignore": before}
    wanted = {"config_groups": {"0": {"targets": after}}} if inside else {"ignore": after}
    source = small_packed(tmp_path / "in", "awq", **given)
    found = exported(source, tmp_path / "out")
    assert {key: found[key] for key in wanted} == wanted


def test_layers_of_different_sizes_list_as_many_as_the_largest(tmp_path):
    names = in_every_layer(range(EXPERTS))
    source = small_packed(tmp_path / "in", "gptq", modules_in_block_to_quantize=[names])
    found = exported(source, tmp_path / "out", {0: (1, 3, 4, 5), 1: (0, 2)})
    assert found["modules_in_block_to_quantize"] == [in_every_layer(range(4))]


def test_files_with_nothing_but_settings_come_along(tmp_path):
    source = small_packed(tmp_path / "in", "awq")
    listed = {"bits": 4, "modules_to_not_convert": ["model.layers.1.mlp.experts.5"]}
    (source / "quant_config.json").write_text(json.dumps(listed))
    exported(source, tmp_path / "out")
    found = json.loads((tmp_path / "out" / "quant_config.json").read_text())
    assert found == listed | {"modules_to_not_convert": ["model.layers.1.mlp.experts.2"]}


def test_what_is_kept_whole_is_not_written_again(tmp_path):
    source = small_packed(
        tmp_path / "in", "gptq", ignore=in_every_layer((4, 1, 1)), dynamic={"(": 1}
    )
    model = load_model_index(str(source))
    export(model, keep_all(model), tmp_path / "out")
    name = "config.json"
    assert (tmp_path / "out" / name).read_bytes() == (source / name).read_bytes()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"modules_in_block_to_quantize": [["mlp.experts.1.up_proj"]]},
            r"in_block_to_quantize\) say 'mlp\.experts\.1\.up_proj', which are others in each",
        ),
        ({"ignore": [r"re:.*experts\.[^1]\..*"]}, r"say 're:\.\*experts.*', which tells"),
        (
            {"dynamic": {r"+:.*\.2\..*gate.*": {"bits": 8}}},
            r"tells model\.layers\.0\.mlp\.experts\.2\.gate_proj from .*\.experts\.1\.gate_proj",
        ),
    ],
    ids=["layers differ", "a pattern of numbers", "a pattern meant for a layer"],
)
def test_what_cannot_be_renumbered_is_refused(tmp_path, settings, message):
    source = small_packed(tmp_path / "in", "gptq", **settings)
    with pytest.raises(ExportError, match=message) as caught:
        exported(source, tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


CALLS = ("(?R)x", "(?0)x", "(?1)(x?)", "(?P<a>x?)(?&a)", "(?P<a>x?)(?P>a)")


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        (r"re:([\w.]|[\w.][\w.])+[!?]$", "which takes longer than 0.5 s to search for"),
        (r"re:.*experts\.(" + "7|" * 2000 + r"8)\..*", "has 4021 letters, so they cannot be ren"),
        (r"re:(?:a{9999}){9999}", "whose counts repeat parts more than 1000 times, so"),
        (r"re:(?:a{32}){32}", "whose counts repeat parts more than 1000 times, so"),
        (r"re:(?x)a{1, 9999 }", "whose counts repeat parts more than 1000 times, so"),
        (r"re:" + "(" * 900 + "2" + ")" * 900, "whose groups are nested 900 deep, so"),
        (r"re:" + r"([)]\)" * 21 + ")" * 21, "whose groups are nested 21 deep, so"),
        (r"re:(?V1)" + "[" * 900 + "2" + "]" * 900, "which takes too much memory, so"),
        *((f"re:{call}", "in which a group is called, so") for call in CALLS),
    ],
    ids=[
        *("without end", "long", "counted", "nested counts", "spaced count"),
        *("groups", "brackets", "sets", *CALLS),
    ],
)
def test_a_pattern_that_would_take_for_ever_is_given_up(tmp_path, monkeypatch, pattern, says):
    monkeypatch.setattr(module_names, "_MOST_SECONDS", 0.5)
    source = small_packed(tmp_path / "in", "gptq", ignore=[pattern])
    with pytest.raises(ExportError, match=says):
        exported(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_names_of_experts_outside_the_quantisation_stay(tmp_path):
    names = [f"model.layers.0.mlp.experts.{expert}.up_proj" for expert in range(4)]
    source = small_packed(tmp_path / "in", "gptq", ignore=names)
    edit_json(source / "config.json", measured={"experts": names})
    assert exported(source, tmp_path / "out")["ignore"] != names
    assert json.loads((tmp_path / "out" / "config.json").read_text())["measured"] == {
        "experts": names
    }


def test_a_pattern_as_large_as_allowed_is_searched_for(tmp_path):
    patterns = ["re:" + "(" * 20 + "z2" + ")" * 20, "re:z{1000}", "re:(?:z{40}){25}"]
    source = small_packed(tmp_path / "in", "gptq", ignore=patterns)
    assert exported(source, tmp_path / "out")["ignore"] == patterns


def test_a_router_that_is_missing_is_not_called_quantised(tmp_path):
    source = small_packed(tmp_path / "in", "gptq")

    def without(tensors):
        return {name: tensor for name, tensor in tensors.items() if "mlp.gate." not in name}

    edit_tensors(source / "model.safetensors", without)
    with pytest.raises(CheckpointError, match=r"Layer 0 has no router tensor\."):
        load_model_index(str(source))
