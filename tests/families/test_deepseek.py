"""DeepSeekMoE-16B: a checkpoint as on the hub against the architecture written out in plain torch.

The conformance tests cover the family as they do all others; here is what only it has.
"""

import json
import math
import subprocess
import sys

import pytest
import torch
from exports import export
from safetensors.torch import save_file
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM

from analysis.families.native import register_native
from analysis.model.opening import load_model_index
from pruning.plan.plan import PruningPlan, model_ref

HIDDEN, HEADS, LAYERS, EXPERTS, TOP_K, VOCAB = 16, 2, 4, 7, 3, 64
# The keys of deepseek-moe-16b-base's config.json, made small.
HUB_CONFIG = json.loads("""
{"architectures": ["DeepseekForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
"auto_map": {"AutoConfig": "configuration_deepseek.DeepseekConfig", "AutoModel":
"modeling_deepseek.DeepseekModel", "AutoModelForCausalLM":
"modeling_deepseek.DeepseekForCausalLM"}, "aux_loss_alpha": 0.001, "bos_token_id": 1,
"eos_token_id": 2, "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 16,
"initializer_range": 0.02, "intermediate_size": 40, "max_position_embeddings": 64, "model_type":
"deepseek", "moe_intermediate_size": 24, "moe_layer_freq": 1, "n_routed_experts": 7,
"n_shared_experts": 2, "norm_topk_prob": false, "num_attention_heads": 2, "num_experts_per_tok":
3, "num_hidden_layers": 4, "num_key_value_heads": 2, "pretraining_tp": 1, "rms_norm_eps": 1e-06,
"rope_scaling": null, "rope_theta": 10000, "scoring_func": "softmax", "seq_aux": true,
"tie_word_embeddings": false, "torch_dtype": "float32", "transformers_version": "4.36.0",
"use_cache": true, "vocab_size": 64}
""")


def is_sparse(config, layer):
    return layer >= config["first_k_dense_replace"] and layer % config["moe_layer_freq"] == 0


def hub_tensors(config):
    seeded = torch.Generator().manual_seed(11)

    def draw(*shape):
        return torch.randn(*shape, generator=seeded) * 0.3

    def mlp(name, width):
        return {
            f"{name}.gate_proj.weight": draw(width, HIDDEN),
            f"{name}.up_proj.weight": draw(width, HIDDEN),
            f"{name}.down_proj.weight": draw(HIDDEN, width),
        }

    tensors = {
        "model.embed_tokens.weight": draw(VOCAB, HIDDEN),
        "model.norm.weight": 1 + draw(HIDDEN),
        "lm_head.weight": draw(VOCAB, HIDDEN),
    }
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        for name in ("q", "k", "v", "o"):
            tensors[f"{at}.self_attn.{name}_proj.weight"] = draw(HIDDEN, HIDDEN)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{at}.{name}.weight"] = 1 + draw(HIDDEN)
        if not is_sparse(config, layer):
            tensors |= mlp(f"{at}.mlp", 40)
            continue
        tensors[f"{at}.mlp.gate.weight"] = draw(EXPERTS, HIDDEN)
        tensors |= mlp(f"{at}.mlp.shared_experts", 24 * config["n_shared_experts"])
        for expert in range(EXPERTS):
            tensors |= mlp(f"{at}.mlp.experts.{expert}", 24)
    return tensors


def write_checkpoint(path, config):
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    save_file(hub_tensors(config), path / "model.safetensors", metadata={"format": "pt"})
    return path


@pytest.fixture(
    params=[{}, {"norm_topk_prob": True}, {"moe_layer_freq": 2, "rope_theta": 50.0}], ids=str
)
def hub_checkpoint(request, tmp_path):
    config = {**HUB_CONFIG, **request.param}
    path = write_checkpoint(tmp_path / "model", config)
    return path, config, hub_tensors(config)


def load(path, **options):
    register_native("deepseek")
    model, info = AutoModelForCausalLM.from_pretrained(path, output_loading_info=True, **options)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return model.eval()


def plain_mlp(tensors, name, x):
    names = [f"{name}.{part}_proj.weight" for part in ("gate", "up")]
    if ".experts." in name:  # transformers joins the two, which rounds otherwise
        gate, up = functional.linear(x, torch.cat([tensors[n] for n in names])).chunk(2, dim=-1)
    else:
        gate, up = (functional.linear(x, tensors[n]) for n in names)
    return functional.linear(functional.silu(gate) * up, tensors[f"{name}.down_proj.weight"])


def plain_moe(tensors, config, name, x):
    probabilities = functional.linear(x.float(), tensors[f"{name}.gate.weight"].float()).softmax(-1)
    output = torch.zeros_like(x)
    chosen = probabilities.argsort(dim=-1, descending=True)[:, :TOP_K]
    weights = probabilities.gather(1, chosen)
    if config["norm_topk_prob"]:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    for expert in range(EXPERTS):
        # By the place among the top k, as the loop of transformers: rows may round by their place.
        places, rows = chosen.T.eq(expert).nonzero(as_tuple=True)
        if len(rows):
            f = plain_mlp(tensors, f"{name}.experts.{expert}", x[rows])
            output[rows] += f * weights[rows, places, None]
    return output + plain_mlp(tensors, f"{name}.shared_experts", x)


def plain_norm(x, weight):
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight


def rotate(x, angles):
    first, second = x.chunk(2, dim=-1)
    turned = torch.cat([-second, first], dim=-1)
    return x * angles.cos() + turned * angles.sin()


def plain_attention(tensors, config, name, x):
    q, k, v = (
        functional.linear(x, tensors[f"{name}.{part}_proj.weight"])
        .view(len(x), HEADS, -1)
        .transpose(0, 1)
        for part in "qkv"
    )
    size = HIDDEN // HEADS
    frequencies = float(config["rope_theta"]) ** (-torch.arange(0, size, 2, dtype=x.dtype) / size)
    angles = torch.arange(len(x), dtype=x.dtype)[:, None] * frequencies.repeat(2)
    scores = rotate(q, angles) @ rotate(k, angles).transpose(1, 2) / math.sqrt(size)
    future = torch.ones(len(x), len(x)).triu(1).bool()
    mixed = scores.masked_fill(future, -math.inf).softmax(-1) @ v
    return functional.linear(
        mixed.transpose(0, 1).reshape(len(x), -1), tensors[f"{name}.o_proj.weight"]
    )


def plain_logits(tensors, config, ids):
    x = tensors["model.embed_tokens.weight"][ids]
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        normed = plain_norm(x, tensors[f"{at}.input_layernorm.weight"])
        x = x + plain_attention(tensors, config, f"{at}.self_attn", normed)
        normed = plain_norm(x, tensors[f"{at}.post_attention_layernorm.weight"])
        if is_sparse(config, layer):
            x = x + plain_moe(tensors, config, f"{at}.mlp", normed)
        else:
            x = x + plain_mlp(tensors, f"{at}.mlp", normed)
    x = plain_norm(x, tensors["model.norm.weight"])
    return functional.linear(x, tensors["lm_head.weight"])


def test_a_hub_checkpoint_computes_the_architecture(hub_checkpoint):
    path, config, tensors = hub_checkpoint
    model = load(path, dtype=torch.float64, experts_implementation="eager")
    wide = {name: tensor.double() for name, tensor in tensors.items()}
    ids = torch.randint(3, VOCAB, (12,), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        found = model(ids[None], use_cache=False).logits[0]
    # Router, norms and angles are computed in float32, whatever the rest is.
    torch.testing.assert_close(found, plain_logits(wide, config, ids), rtol=0, atol=2e-5)


def test_absent_keys_have_the_defaults_of_the_hub_code(tmp_path):
    register_native("deepseek")
    left_out = ("norm_topk_prob", "scoring_func", "moe_layer_freq", "first_k_dense_replace")
    config = {key: value for key, value in HUB_CONFIG.items() if key not in left_out}
    (tmp_path / "config.json").write_text(json.dumps(config))
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert loaded.norm_topk_prob is False
    assert loaded.mlp_layer_types == ["sparse"] * LAYERS


@pytest.mark.parametrize(
    ("change", "message"),
    [({"scoring_func": "sigmoid"}, "only softmax"), ({"n_shared_experts": None}, "at least one")],
)
def test_what_the_architecture_does_not_have_is_refused(tmp_path, change, message):
    register_native("deepseek")
    (tmp_path / "config.json").write_text(json.dumps({**HUB_CONFIG, **change}))
    with pytest.raises(Exception, match=message):
        AutoConfig.from_pretrained(tmp_path)


def test_an_export_changes_only_the_count_in_a_hub_config(tmp_path):
    path = write_checkpoint(tmp_path / "model", HUB_CONFIG)
    described = load_model_index(str(path))
    assert [(x.index, x.num_experts, x.top_k) for x in described.layers] == [
        (layer, EXPERTS, TOP_K) for layer in (1, 2, 3)
    ]
    kept = {1: (0, 2, 3, 6), 2: (1, 2, 4, 5), 3: (0, 1, 5, 6)}
    export(described, PruningPlan(model_ref(described), kept), tmp_path / "out")
    after = json.loads((tmp_path / "out" / "config.json").read_text())
    assert after == {**HUB_CONFIG, "n_routed_experts": 4, "output_router_logits": False}
    pruned = load(tmp_path / "out")
    for layer, ids in kept.items():
        gate = hub_tensors(HUB_CONFIG)[f"model.layers.{layer}.mlp.gate.weight"]
        assert torch.equal(pruned.model.layers[layer].mlp.gate.weight, gate[list(ids)])


def test_generation_with_a_cache_is_greedy_decoding_without_one(hub_checkpoint):
    path, *_ = hub_checkpoint
    model = load(path)
    ids = torch.tensor([[5, 9, 3, 17]])
    wanted = ids
    for _ in range(5):
        with torch.no_grad():
            last = model(wanted, use_cache=False).logits[:, -1]
        wanted = torch.cat([wanted, last.argmax(-1, keepdim=True)], dim=1)
    options = {"do_sample": False, "max_new_tokens": 5, "eos_token_id": None, "pad_token_id": 0}
    assert model.generate(ids, **options).tolist() == wanted.tolist()
    # Padding on the left must not move the positions.
    padded = torch.tensor([[0, 0, 5, 9, 3, 17], [4, 6, 8, 10, 12, 14]])
    mask = (padded != 0).long()
    found = model.generate(padded, attention_mask=mask, **options)
    assert found[0, 2:].tolist() == wanted[0].tolist()


def test_code_that_comes_with_the_checkpoint_is_not_run(tmp_path):
    path = write_checkpoint(tmp_path / "model", HUB_CONFIG)
    for name in ("configuration_deepseek", "modeling_deepseek"):
        (path / f"{name}.py").write_text("raise SystemExit('remote code was run')")
    assert type(load(path, trust_remote_code=True)).__module__ == "analysis.families.deepseek_model"
    # Registering again changes nothing, nor does it for types that transformers or nobody has.
    known = type(AutoConfig.for_model("deepseek", n_shared_experts=1))
    for name in ("deepseek", "olmoe", "no such type"):
        register_native(name)
    assert type(AutoConfig.for_model("deepseek", n_shared_experts=1)) is known


PROGRAM = """
import sys
from pathlib import Path
import numpy as np
from analysis.calibration.loading import CalibrationSettings
from analysis.calibration.run import calibrate
from analysis.corpora.sequences import TokenSequences
from analysis.drain import drain
from analysis.model.opening import load_model_index
from analysis.stats.reading import load_expert_stats
from analysis.stats.store import StatsStore

sequences = TokenSequences("a", (np.arange(3, 11, dtype=np.int32),), 1, 0)
settings = CalibrationSettings(seq_len=8, device="cpu")
store = StatsStore(Path(sys.argv[2]))
run = drain(calibrate(load_model_index(sys.argv[1]), sequences, settings, store))
print(int(load_expert_stats(run).table["num_tokens"].sum()))
"""


@pytest.mark.slow
def test_the_program_loads_it_without_being_asked_to(tmp_path):
    # In a fresh process, because here the class is registered by now.
    path = write_checkpoint(tmp_path / "model", HUB_CONFIG)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path), str(tmp_path / "stats")],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-500:]
    assert int(done.stdout) == 3 * TOP_K * 8
