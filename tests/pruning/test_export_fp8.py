"""Neurons of FP8 experts: their scales go along block by block, or the plan is refused."""

import itertools
import json
from dataclasses import replace

import pytest
import torch
from exports import edit_tensors, export, failed, keeping_neurons, shards_of, tensors_of, verified
from neuron_cases import zeroed
from nonuniform_cases import config_of
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM

from analysis.errors import ExportError, PlanError
from analysis.model.opening import load_model_index
from families.built import stock_load
from families.configs import BY_NAME
from families.physical import logits_of
from families.settings import WIDTH
from families.tiny_models import tiny_model
from pruning import load_pruned
from pruning.plan.sizes import neuron_plan_sizes
from pruning.plan.widths import WidthChoice, WidthMode
from pruning.surgery.width_sizes import width_options

BLOCK = 8  # an expert of 24 neurons has three blocks, the 16 numbers of a token two
CASE = BY_NAME["qwen3_moe"]
CLOSE = 1e-5
# Expert -> blocks of neurons that stay; in layer 1 also the last alone, and none.
BLOCKS = {1: {0: (0, 2), 1: (2,), 2: (), 3: (0, 1, 2), 4: (1, 2)}, 3: {0: (1,), 5: (0,), 1: (2,)}}


def in_blocks(tensor):
    """The FP8 numbers of a matrix and the scale of each block of it."""
    rows, columns = (size // BLOCK for size in tensor.shape)
    parts = tensor.reshape(rows, BLOCK, columns, BLOCK)
    scales = parts.abs().amax((1, 3)) / torch.finfo(torch.float8_e4m3fn).max
    numbers = (parts / scales[:, None, :, None]).reshape(tensor.shape)
    return numbers.to(torch.float8_e4m3fn), scales


def plain(numbers, scales):
    """Numbers times their scales, one by one."""
    found = torch.zeros(numbers.shape)
    for row, column in itertools.product(*map(range, numbers.shape)):
        scale = scales[row // BLOCK, column // BLOCK]
        found[row, column] = numbers[row, column].float() * scale
    return found


def saved_in_fp8(case, path):
    """A checkpoint of a case, its routed experts in FP8."""
    model = tiny_model(case)
    model.save_pretrained(path)
    tensors = load_file(path / "model.safetensors")
    for name in [name for name in tensors if ".experts." in name]:
        tensors[name], tensors[f"{name}_scale_inv"] = in_blocks(tensors[name])
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    settings = {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]}
    settings["modules_to_not_convert"] = linear
    config = {**config_of(path), "quantization_config": settings}
    (path / "config.json").write_text(json.dumps(config))
    return load_model_index(str(path))


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return saved_in_fp8(CASE, tmp_path_factory.mktemp("fp8"))


def plan_of(source, blocks=BLOCKS):
    kept = {
        layer: {
            expert: tuple(BLOCK * block + n for block in held for n in range(BLOCK))
            for expert, held in experts.items()
        }
        for layer, experts in blocks.items()
    }
    return keeping_neurons(source, kept)


def export_widths(source, plan, out, mode="per-layer", multiple=BLOCK):
    export(source, plan, out, widths=WidthChoice(WidthMode(mode), multiple))


@pytest.mark.parametrize("mode", ["per-layer", "uniform"])
def test_every_number_has_the_scale_that_it_had(source, tmp_path, mode):
    plan = plan_of(source)
    export_widths(source, plan, tmp_path / "out", mode)
    before, after = tensors_of(source.checkpoint.path), tensors_of(tmp_path / "out")
    for layer in CASE.sparse:
        for expert in range(CASE.experts):
            kept = plan.kept_neurons[layer].get(expert, tuple(range(WIDTH)))
            for part in ("gate", "up", "down"):
                name = f"model.layers.{layer}.mlp.experts.{expert}.{part}_proj.weight"
                old = plain(before[name], before[f"{name}_scale_inv"])
                new = plain(after[name], after[f"{name}_scale_inv"])
                old, new = (old.T, new.T) if part == "down" else (old, new)
                assert torch.equal(new[: len(kept)], old[list(kept)])
                assert not new[len(kept) :].any()
                assert len(new) == WIDTH  # of experts that keep everything


def test_layers_become_as_wide_as_their_blocks(source, tmp_path):
    blocks = {layer: dict.fromkeys(range(CASE.experts), (0, 2)) for layer in (1, 3)}
    blocks[3] = {expert: (expert % 3,) for expert in range(CASE.experts)}
    plan = plan_of(source, blocks)
    export_widths(source, plan, tmp_path / "out")
    after = tensors_of(tmp_path / "out")
    for layer, width in ((1, 16), (3, 8)):
        name = f"model.layers.{layer}.mlp.experts.4.up_proj.weight"
        assert after[name].shape == (width, 16)
        assert after[f"{name}_scale_inv"].shape == (width // BLOCK, 2)
    # transformers multiplies numbers and scales as it loads, where there is no GPU.
    original, _ = stock_load(CASE, source.checkpoint.path, dtype=torch.float32)
    wanted = logits_of(zeroed(original, CASE, plan))
    pruned, info = load_pruned(tmp_path / "out", dtype=torch.float32, output_loading_info=True)
    assert not any(info.values()), info
    assert (logits_of(pruned) - wanted).abs().max() <= CLOSE
    assert not torch.allclose(wanted, logits_of(original), atol=1e-3)
    remote = AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", dtype=torch.float32, trust_remote_code=True
    )
    assert type(remote).__module__.startswith("transformers_modules.")
    assert torch.equal(logits_of(remote), logits_of(pruned))
    report = verified(tmp_path / "out", source=source.checkpoint.path)
    assert report.level == "logits"


def test_a_changed_scale_is_found(source, tmp_path):
    export_widths(source, plan_of(source), tmp_path / "out")
    name = "model.layers.1.mlp.experts.1.down_proj.weight_scale_inv"
    edit_tensors(shards_of(tmp_path / "out")[0], lambda held: held | {name: held[name] * 2})
    found = failed(tmp_path / "out", level="bytes", source=source.checkpoint.path)["tensors"]
    assert found.startswith(f"{name} is not the plan's cut of the source's {name}")


def refuse(source, plan, out, match, **options):
    with pytest.raises((ExportError, PlanError), match=match) as raised:
        export_widths(source, plan, out, **options)
    assert "\n" not in str(raised.value)
    assert list(out.parent.iterdir()) == []


@pytest.mark.parametrize(
    ("kept", "odd", "nearest"),
    [
        # Of block 0 two neurons, of block 1 all, of block 2 five.
        ((3, 5, *range(8, 16), 16, 17, 18, 20, 23), "0-7", "8-23"),
        ((3,), "0-7", "none"),
        ((*range(8), 9, *range(16, 24)), "8-15", "0-7,16-23"),
        (range(13), "8-15", "0-15"),
        ((8, 10, 11, 15), "8-15", "8-15"),  # half of a block stays whole
        (range(1, 24), "0-7", "0-23"),
        ((*range(8), 23), "16-23", "0-7"),
    ],
)
def test_the_nearest_blocks_are_named(source, tmp_path, kept, odd, nearest):
    plan = keeping_neurons(source, {3: {5: tuple(kept)}})
    match = (
        rf"^Expert 5 in layer 3 would keep some of its neurons {odd} and lose others, but they "
        rf"share a scale \(FP8\) and stay or go together; nearest that works: keep {nearest}\.$"
    )
    refuse(source, plan, tmp_path / "out", match)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"mode": "ragged"}, "use the width mode per-layer or uniform"),
        ({"multiple": 3}, r"would be 9 neurons wide, but 8 .*use --width-multiple-of 8"),
    ],
)
def test_what_scales_do_not_fit_is_refused(source, tmp_path, options, match):
    plan = plan_of(source, {1: {}, 3: dict.fromkeys(range(CASE.experts), (1,))})
    refuse(source, plan, tmp_path / "out", match, **options)


@pytest.mark.parametrize("shared", [1, 2])
def test_shared_experts_are_counted_anew_but_not_filled_up(tmp_path, shared):
    case = BY_NAME["deepseek_v3"]
    case = replace(case, settings={**case.settings, "n_shared_experts": shared})
    for name in ("source", "refused"):
        (tmp_path / name).mkdir()
    source = saved_in_fp8(case, tmp_path / "source")
    plan = plan_of(source, {layer: dict.fromkeys(range(7), (0, 2)) for layer in (1, 2)})
    if shared == 1:  # of 24 neurons, which two of 16 do not make
        refuse(source, plan, tmp_path / "refused" / "out", "cannot be filled up", mode="uniform")
        return
    export_widths(source, plan, tmp_path / "out", "uniform")
    config = config_of(tmp_path / "out")
    assert (config["moe_intermediate_size"], config["n_shared_experts"]) == (16, 3)
    before, after = tensors_of(source.checkpoint.path), tensors_of(tmp_path / "out")
    same = [name for name in before if "shared_experts" in name]
    assert same
    assert all(torch.equal(before[name], after[name]) for name in same)


def test_sizes_count_the_scales_of_the_neurons_that_stay(source, tmp_path):
    plan = plan_of(source)
    table = neuron_plan_sizes(source, plan, BLOCK).set_index("mode")
    for mode in ("uniform", "per-layer"):
        export_widths(source, plan, tmp_path / mode, mode)
        assert table.loc[mode, "disk"] == sum(
            t.nbytes for t in tensors_of(tmp_path / mode).values()
        )


def test_sizes_say_which_ways_are_refused(source):
    found = {option.mode: option for option in width_options(source, plan_of(source))}
    assert "per-layer or uniform" in found[WidthMode.RAGGED].refused
    assert not found[WidthMode.PER_LAYER].refused
    assert not found[WidthMode.UNIFORM].refused
