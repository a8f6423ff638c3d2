"""How models are loaded: offloaded, with a chosen attention, from quantised checkpoints."""

import shutil
from dataclasses import replace
from functools import partial
from itertools import product
from types import SimpleNamespace

import psutil
import pytest
import torch
from calibrations import calibrated, calibration, describe, make_sequences, make_settings
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from analysis.calibration import blocks, free, memory
from analysis.calibration.loading import Placement, load_model, resolve_device
from analysis.calibration.skeleton import EMBEDDINGS, HEAD, Skeleton
from analysis.errors import CheckpointError, UnsupportedModelError
from analysis.model.loadable import cut_blocks
from analysis.model.opening import load_model_index
from builders import edit_json, tiny_checkpoint, tiny_model
from builders.fp8 import write_fp8_pair
from builders.mxfp4 import from_mxfp4, to_mxfp4
from families.configs import BY_NAME
from families.tiny_models import tiny_config as family_config
from families.tiny_models import tiny_model as family_model

STREAMED = Placement(stream_layers=True)
LENGTHS = (9, 5, 7, 3, 9)
DISK = Placement(device_map="auto", max_memory=(("cpu", "30KB"),))
EITHER = pytest.mark.parametrize("placement", [Placement(), STREAMED], ids=["whole", "streamed"])
IN_BLOCKS = replace(STREAMED, experts_at_once=4)
PLACES = {"memory": Placement(), "disk": DISK, "streamed": STREAMED, "in blocks": IN_BLOCKS}
WHOLE_LAYERS, NOT_ON_DISK = ("memory", "disk", "streamed"), ("memory", "streamed", "in blocks")


def run(path, stats, **changes):
    described = load_model_index(str(path))
    sequences = make_sequences(LENGTHS, vocabulary=described.config["vocab_size"])
    return calibrated(described, stats, sequences, **{"batch_size": 2, **changes})


@pytest.mark.parametrize(("limit", "device"), [("30KB", "disk"), ("1GB", "cpu")])
def test_weights_on_disk_give_the_numbers_of_weights_in_memory(limit, device, tmp_path):
    # The first limit is below one layer, the second has room for all.
    tiny_checkpoint(tmp_path / "model", "mixtral")
    place = replace(DISK, max_memory=(("cpu", limit),), offload_folder=tmp_path / "offload")
    spread = run(tmp_path / "model", tmp_path / "spread", placement=place)
    whole = run(tmp_path / "model", tmp_path / "whole")
    assert spread.manifest.files == whole.manifest.files
    assert list((tmp_path / "offload").glob("*")) == []
    assert (spread.manifest.made["device"], spread.manifest.made["way"]) == (device, "batches")


def with_misaligned_weights(folder):
    """The same tensors in files whose data start 8 bytes after a multiple of 64."""
    for file in folder.glob("*.safetensors"):
        content = file.read_bytes()
        size = 8 + int.from_bytes(content[:8], "little")
        header = content[8:size] + b" " * (-size % 64 + 8)
        file.write_bytes(len(header).to_bytes(8, "little") + header + content[size:])
    return folder


def record_and_run(starts, module, forward, *args, **kwargs):
    starts.extend(weight.data_ptr() % 64 for weight in module.parameters(recurse=False))
    return forward(*args, **kwargs)


@pytest.mark.parametrize("place", ["memory", "disk"])
def test_weights_start_where_their_file_does_not_matter(place, tmp_path):
    # Fails on every processor without the alignment; the bits differ on some only.
    tiny_checkpoint(tmp_path / "model", "mixtral", fused=True)
    described = load_model_index(str(with_misaligned_weights(tmp_path / "model")))
    settings = make_settings(placement=DISK if place == "disk" else Placement())
    model = load_model(described, settings, tmp_path / "offload")
    starts = []
    for module in model.modules():
        # accelerate's own forward fetches the weights, calls this one and drops them.
        name = "_old_forward" if hasattr(module, "_old_forward") else "forward"
        setattr(module, name, partial(record_and_run, starts, module, getattr(module, name)))
    with torch.no_grad():
        model(torch.arange(6)[None])
    assert len(starts) >= len(list(model.parameters()))
    assert set(starts) == {0}


def test_an_interrupted_run_leaves_nothing_offloaded(tmp_path):
    described = describe(tmp_path / "model")
    kept = tmp_path / "offload" / "of somebody else"
    kept.mkdir(parents=True)
    place = replace(DISK, offload_folder=tmp_path / "offload")
    task = calibration(described, tmp_path / "stats", placement=place)
    next(task), next(task)
    (own,) = set((tmp_path / "offload").iterdir()) - {kept}
    assert list(own.iterdir())
    task.close()
    assert list((tmp_path / "offload").iterdir()) == [kept]


def test_a_model_larger_than_memory_names_the_way_that_fits(tmp_path, monkeypatch):
    described = describe(tmp_path / "model")
    sequences = make_sequences(LENGTHS)
    needs = memory.memory_needs(described, sequences, make_settings(batch_size=2))
    monkeypatch.setattr(blocks, "free_memory", lambda: needs.whole_model - 1)
    weights = sum(entry.numel for entry in described.checkpoint.tensors.values()) * 4
    layer = [e for name, e in described.checkpoint.tensors.items() if "layers.1." in name]
    assert needs.whole_model - needs.streamed == (
        weights
        - sum(entry.numel for entry in layer) * 4
        - sequences.num_tokens * 16 * 4
        - sequences.num_padded(2) * 16 * 4
    )
    with pytest.raises(CheckpointError, match=r"With --stream-layers it needs about"):
        run(tmp_path / "model", tmp_path / "stats")
    run(tmp_path / "model", tmp_path / "stats", placement=STREAMED)


def limited_group(path, limit, current, inactive=0):
    path.mkdir(parents=True, exist_ok=True)
    (path / "memory.max").write_text(f"{limit}\n")
    (path / "memory.current").write_text(f"{current}\n")
    (path / "memory.stat").write_text(f"anon 7\ninactive_file {inactive}\nactive_file 3\n")


def test_the_tightest_control_group_limits_memory(tmp_path, monkeypatch):
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    # What is available changes from one moment to the next.
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1 << 30))
    own = tmp_path / "cgroup"
    own.write_text("4:memory:/elsewhere\n0::/a/b\n")
    groups = tmp_path / "fs"
    assert free.free_memory(groups, own) == free.free_memory(groups, tmp_path / "no such file")
    limited_group(groups / "a" / "b", "max", 900)
    limited_group(groups / "a", 5000, 3500, inactive=1000)
    assert free.free_memory(groups, own) == 5000 - 3500 + 1000 + 3
    limited_group(groups / "elsewhere", 1, 1)  # not this process's
    (groups / "a" / "b" / "memory.max").write_text("2000")
    assert free.free_memory(groups, own) == 2000 - 900 + 3
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")  # processes of one machine share it
    assert free.free_memory(groups, own) == (2000 - 900 + 3) // 4
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    # Mounted so that the path leads nowhere: the container's own limit is at the top.
    own.write_text("0::/docker/0123\n")
    limited_group(tmp_path / "container", 300, 400)
    assert free.free_memory(tmp_path / "container", own) == 0


@EITHER
def test_attention_is_chosen_and_recorded(placement, tmp_path):
    tiny_checkpoint(tmp_path / "model", "olmoe")
    runs = {
        name: run(tmp_path / "model", tmp_path / name, attention=name, placement=placement)
        for name in ("eager", "sdpa", "auto")
    }
    # Of its own accord transformers chooses sdpa.
    used = [runs[name].manifest.made["attention"] for name in runs]
    assert used == ["eager", "sdpa", "sdpa"]
    # The same statistics but for rounding, so the same run.
    assert runs["eager"].manifest.digest == runs["sdpa"].manifest.digest


@pytest.mark.parametrize(
    ("placement", "name"), [(Placement(), "flash_attention_2"), (STREAMED, "swift")]
)
def test_attention_that_is_not_there_is_refused_in_one_line(name, placement, tmp_path):
    tiny_checkpoint(tmp_path / "model", "olmoe")
    with pytest.raises(CheckpointError, match=r"cannot load model: .+") as refused:
        run(tmp_path / "model", tmp_path / "stats", attention=name, placement=placement)
    assert "\n" not in str(refused.value)


def fp8_pair(tmp_path, model_type, plain_dtype="bfloat16"):
    """All matrices that are not quantised are in bfloat16; `cut blocks` are of a DeepSeek-V3."""
    if model_type == "cut blocks":
        return write_fp8_pair(tmp_path)
    model = tiny_model(model_type, dtype=torch.bfloat16)
    return write_fp8_pair(tmp_path, getattr(torch, plain_dtype), model=model, block=(8, 8))


@pytest.mark.parametrize(
    ("model_type", "place", "dtype"),
    [
        *(("olmoe", "memory", None), ("qwen3_moe", "streamed", None)),
        *(("qwen3_moe", *case) for case in product(WHOLE_LAYERS, ("float32", "float64"))),
        *(("cut blocks", *case) for case in product(NOT_ON_DISK, ("float32", "bfloat16"))),
    ],
)
def test_fp8_gives_the_numbers_of_its_plain_weights(model_type, place, dtype, tmp_path):
    fp8, plain = fp8_pair(tmp_path, model_type, dtype or "bfloat16")
    placement, asked = PLACES[place], {"dtype": dtype} if dtype else {}
    if place == "disk":
        placement = replace(placement, offload_folder=tmp_path / "offload")
    quantised = run(fp8, tmp_path / "a", placement=placement, **asked)
    assert bool(cut_blocks(load_model_index(str(fp8)))) is (model_type == "cut blocks")
    assert quantised.manifest.settings["dtype"] == (dtype or "bfloat16")
    assert quantised.manifest.files == run(plain, tmp_path / "b", **asked).manifest.files


@EITHER
def test_wide_matrices_beside_fp8_are_cast(placement, tmp_path):
    """Such as routers in float32, which transformers leaves so beside what it dequantises."""
    fp8, _ = fp8_pair(tmp_path, "qwen3_moe")
    wanted = run(fp8, tmp_path / "a")
    file = fp8 / "model.safetensors"
    tensors = load_file(file)
    wide = {name: tensors[name].float() for name in tensors if tensors[name].itemsize == 2}
    save_file({**tensors, **wide}, file, metadata={"format": "pt"})
    found = run(fp8, tmp_path / "b", placement=placement)
    assert found.manifest.files == wanted.manifest.files


def load_streamed(described, settings):
    skeleton = Skeleton(described, settings)
    for layer in (EMBEDDINGS, 1, HEAD, 0):
        skeleton.load(layer)


@pytest.mark.parametrize("load", [load_model, load_streamed], ids=["whole", "streamed"])
def test_tensors_of_experts_that_transformers_leaves_out_are_no_detail(load, tmp_path):
    tiny_checkpoint(tmp_path, "olmoe", shards=1)
    (shard,) = tmp_path.glob("*.safetensors")
    name = "model.layers.{}.mlp.experts.1.up_proj.weight_scale_inv"
    # Of a prediction head, and one that older versions of transformers saved.
    allowed = (name.format(99), "model.layers.0.self_attn.rotary_emb.inv_freq")
    extra = {tensor_name: torch.ones(1) for tensor_name in allowed}
    save_file(load_file(shard) | extra, shard, {"format": "pt"})
    load(load_model_index(str(tmp_path)), make_settings())
    save_file({**load_file(shard), name.format(0): torch.ones(1)}, shard, {"format": "pt"})
    # Older transformers name it as the loaded model would.
    named = r"model\.layers\.0\.mlp\.experts\.(1\.up_proj\.weight|gate_up_proj)_scale_inv"
    says = rf"leaves out {named}, .*\(1 such"
    with pytest.raises(UnsupportedModelError, match=says):
        load(load_model_index(str(tmp_path)), make_settings())


def test_a_quantisation_that_cannot_be_undone_is_refused(tmp_path):
    tiny_checkpoint(tmp_path / "model", "olmoe")
    edit_json(tmp_path / "model" / "config.json", quantization_config={"quant_method": "gptq"})
    with pytest.raises(UnsupportedModelError, match=r"quantised with gptq .* fp8 and mxfp4 can"):
        run(tmp_path / "model", tmp_path / "stats")


def write_mxfp4(tmp_path, dtype=torch.bfloat16):
    config = family_config(BY_NAME["gpt_oss"])
    config.hidden_size, config.intermediate_size, config.head_dim = 32, 32, 8
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(tmp_path / "plain")
    file = tmp_path / "plain" / "model.safetensors"
    stored = to_mxfp4(load_file(file))
    shutil.copytree(tmp_path / "plain", tmp_path / "mxfp4")
    save_file(from_mxfp4(stored, dtype), file, metadata={"format": "pt"})
    save_file(stored, tmp_path / "mxfp4" / file.name, metadata={"format": "pt"})
    kept = {"quant_method": "mxfp4", "modules_to_not_convert": ["self_attn", "router", "lm_head"]}
    edit_json(tmp_path / "mxfp4" / "config.json", quantization_config=kept)


@pytest.mark.parametrize("place", NOT_ON_DISK)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_mxfp4_gives_the_numbers_of_its_plain_weights(place, dtype, tmp_path):
    write_mxfp4(tmp_path, getattr(torch, dtype))
    asked = {} if dtype == "bfloat16" else {"dtype": dtype}
    packed = run(tmp_path / "mxfp4", tmp_path / "a", placement=PLACES[place], **asked)
    plain = run(tmp_path / "plain", tmp_path / "b", dtype=dtype)
    assert packed.manifest.settings["dtype"] == dtype
    assert packed.manifest.files == plain.manifest.files


def test_gradients_of_packed_experts(tmp_path):
    """Their shapes do not tell how many neurons they have."""
    write_mxfp4(tmp_path)
    packed, plain = (
        run(tmp_path / name, tmp_path / f"stats of {name}", groups=("routed", "gradient"))
        for name in ("mxfp4", "plain")
    )
    assert packed.manifest.files == plain.manifest.files


@EITHER
def test_a_dtype_that_transformers_mixes_with_others_is_refused_in_one_line(placement, tmp_path):
    family_model(BY_NAME["deepseek_v4"]).save_pretrained(tmp_path / "model")
    with pytest.raises(UnsupportedModelError, match=r"float16 .* --dtype, such as bfloat16"):
        run(tmp_path / "model", tmp_path / "stats", dtype="float16", placement=placement)


def test_each_process_of_a_machine_asks_for_a_device_of_its_own(monkeypatch):
    # There is no such device here: the message tells which one was asked for.
    monkeypatch.setenv("WORLD_SIZE", "100")
    monkeypatch.setenv("LOCAL_RANK", "99")
    with pytest.raises(CheckpointError, match="The device 'cuda:99' is not available"):
        resolve_device("cuda")
    assert resolve_device("cpu").type == "cpu"
    with pytest.raises(CheckpointError, match=r"'warp' is not available here; try cpu"):
        resolve_device("warp")
