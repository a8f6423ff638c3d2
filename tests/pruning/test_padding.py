"""Layers that keep fewer experts, filled up with experts that the router cannot choose."""

import pytest
import torch
import transformers
from exports import edit_tensors, export, failed, keeping, shards_of, tensors_of, uneven, verified

from analysis.errors import ExportError
from analysis.model.opening import load_model_index
from families.configs import BY_NAME
from families.tiny_models import tiny_model
from pruning import load_pruned
from pruning.surgery.manifest import MANIFEST_NAME
from pruning.surgery.padding import plan_padding

IDS = torch.arange(3, 51).reshape(3, 16)
# One of each kind: groups with a correction bias; a bias of the router; a bias in the block.
PADDED = (
    *("deepseek_v3-groups", "gpt_oss", "minimax_m2", "lfm2_moe", "nemotron_h", "laguna"),
    *("minimax_m3_vl", "deepseek_v4"),
)


@pytest.fixture
def saved(tmp_path):
    def save(name, **options):
        tiny_model(BY_NAME[name]).save_pretrained(tmp_path / "source", **options)
        return load_model_index(str(tmp_path / "source"))

    return save


def logits_of(model):
    with torch.no_grad():
        return model.eval()(IDS, use_cache=False).logits


@pytest.mark.parametrize("stacked", [False, True], ids=["experts", "stacked"])
@pytest.mark.parametrize(
    "name", [*PADDED[:2], *(pytest.param(name, marks=pytest.mark.slow) for name in PADDED[2:])]
)
def test_a_padded_export_loads_anywhere_and_computes_the_same(saved, tmp_path, name, stacked):
    if stacked and not BY_NAME[name].fused_too:
        pytest.skip("this family has one layout")
    model = saved(name, save_original_format=not stacked, max_shard_size="40KB")
    plan, out = uneven(model), tmp_path / "out"
    export(model, plan, tmp_path / "uneven")
    manifest = export(model, plan, out, pad=True)
    assert manifest.padded
    most = max(map(len, plan.kept.values()))
    assert [layer.num_experts for layer in load_model_index(str(out)).layers] == [
        most for _ in model.layers
    ]
    auto_class = getattr(transformers, model.family.auto_class)
    stock, info = auto_class.from_pretrained(out, output_loading_info=True)
    assert not any(info.values())
    difference = (logits_of(stock) - logits_of(load_pruned(tmp_path / "uneven"))).abs().max()
    assert difference <= 1e-5  # grouped products of another number of experts
    assert verified(out, source=model.checkpoint.path).level == "logits"
    sizes = [load_model_index(str(tmp_path / name)).checkpoint.nbytes for name in ("out", "uneven")]
    assert sizes[0] - sizes[1] == plan_padding(model, plan).nbytes > 0
    assert "experts of zeros" in (out / "README.md").read_text()


@pytest.mark.parametrize("name", ["minimax_m2", "olmoe"])  # with and without a bias
def test_equal_counts_need_no_padding(saved, tmp_path, name):
    model = saved(name)
    plan = keeping(model, tuple(range(4)))
    for out, pad in (("plain", False), ("padded", True)):
        assert not export(model, plan, tmp_path / out, pad=pad).padded
    names = {path.name for path in (tmp_path / "plain").iterdir()}
    assert names == {path.name for path in (tmp_path / "padded").iterdir()}
    for file_name in names - {MANIFEST_NAME}:
        assert (tmp_path / "padded" / file_name).read_bytes() == (
            tmp_path / "plain" / file_name
        ).read_bytes()


def test_verification_sees_a_router_that_might_choose_an_expert_of_zeros(saved, tmp_path):
    model = saved("minimax_m2")
    export(model, uneven(model), tmp_path / "out", pad=True)
    name = next(name for name in tensors_of(tmp_path / "out") if name.endswith("correction_bias"))
    for shard in shards_of(tmp_path / "out"):
        if name in tensors_of(shard):
            edit_tensors(shard, lambda held: {**held, name: held[name].abs()})
    assert failed(tmp_path / "out", source=model.checkpoint.path)


# ERNIE's bias is added to a softmax over all experts, which one more changes.
@pytest.mark.parametrize("name", ["olmoe", "ernie4_5_moe"])
def test_routers_that_cannot_rule_an_expert_out_are_refused(saved, tmp_path, name):
    model = saved(name)
    with pytest.raises(ExportError, match="no bias that rules an expert out"):
        export(model, uneven(model), tmp_path / "out", pad=True)
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_that_lacks_the_bias_of_its_family_is_refused(saved):
    path = saved("gpt_oss").checkpoint.path  # whose experts have biases
    for shard in shards_of(path):
        edit_tensors(shard, lambda held: {n: t for n, t in held.items() if "router.bias" not in n})
    model = load_model_index(str(path))
    with pytest.raises(ExportError, match="no bias that rules an expert out"):
        plan_padding(model, uneven(model))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_the_bias_of_an_expert_of_zeros_in_other_types(saved, tmp_path, dtype):
    case = BY_NAME["gpt_oss"]
    tiny_model(case).to(dtype).save_pretrained(tmp_path / "source")
    model = load_model_index(str(tmp_path / "source"))
    export(model, uneven(model), tmp_path / "out", pad=True)
    biases = [t for name, t in tensors_of(tmp_path / "out").items() if "router.bias" in name]
    assert min(float(bias.min()) for bias in biases) == pytest.approx(-1e4, rel=1e-2)
    assert verified(tmp_path / "out", source=tmp_path / "source").ok
