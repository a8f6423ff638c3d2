"""Small checkpoints in packed integers, with the names, types and roles of published ones."""

import json

import torch
from safetensors.torch import load_file, save_file

EXPERTS, TOP_K, HIDDEN, WIDTH, GROUP = 6, 2, 64, 32, 32
QWEN = {
    "model_type": "qwen2_moe", "num_hidden_layers": 2, "hidden_size": HIDDEN, "vocab_size": 40,
    "num_attention_heads": 2, "num_key_value_heads": 2, "num_experts": EXPERTS,
    "num_experts_per_tok": TOP_K, "moe_intermediate_size": WIDTH, "intermediate_size": 48,
    "shared_expert_intermediate_size": 32, "max_position_embeddings": 64,
}  # fmt: skip
ROLES = {"gptq": ("qweight", "qzeros", "scales", "g_idx"), "awq": ("qweight", "qzeros", "scales")}
SETTINGS = {
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": True},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"},
}


class _Drawn:
    def __init__(self):
        self.seeded = torch.Generator().manual_seed(0)

    def floats(self, *shape):
        return torch.randn(shape, generator=self.seeded).to(torch.float16)

    def ints(self, *shape):
        drawn = torch.randint(-(2**31), 2**31, shape, generator=self.seeded)
        return drawn.to(torch.int32)

    def packed(self, method, stem, rows, columns):
        """A matrix of `rows` outputs."""
        groups = columns // GROUP
        shape = (columns // 8, rows) if method == "gptq" else (columns, rows // 8)
        found = {
            f"{stem}.qweight": self.ints(*shape),
            f"{stem}.qzeros": self.ints(groups, rows // 8),
            f"{stem}.scales": self.floats(groups, rows),
        }
        if method == "gptq":  # with desc_act the order of the groups is no plain one
            order = torch.randperm(columns, generator=self.seeded)
            found[f"{stem}.g_idx"] = (order // GROUP).to(torch.int32)
        return found


def small_packed(folder, method, **settings):
    """Write a Qwen2-MoE of two layers; `settings` are more of its `quantization_config`."""
    drawn = _Drawn()
    tensors = {
        "model.embed_tokens.weight": drawn.floats(40, HIDDEN),
        "model.norm.weight": drawn.floats(HIDDEN),
        "lm_head.weight": drawn.floats(40, HIDDEN),
    }
    for layer in range(2):
        name = f"model.layers.{layer}"
        for norm in ("input", "post_attention"):
            tensors[f"{name}.{norm}_layernorm.weight"] = drawn.floats(HIDDEN)
        for part in "qkvo":
            tensors |= drawn.packed(method, f"{name}.self_attn.{part}_proj", HIDDEN, HIDDEN)
        sizes = {"gate": (WIDTH, HIDDEN), "up": (WIDTH, HIDDEN), "down": (HIDDEN, WIDTH)}
        for owner in ("shared_expert", *(f"experts.{expert}" for expert in range(EXPERTS))):
            for part, shape in sizes.items():
                tensors |= drawn.packed(method, f"{name}.mlp.{owner}.{part}_proj", *shape)
        tensors[f"{name}.mlp.gate.weight"] = drawn.floats(EXPERTS, HIDDEN)
        tensors[f"{name}.mlp.shared_expert_gate.weight"] = drawn.floats(1, HIDDEN)
    folder.mkdir(parents=True)
    config = QWEN | {"quantization_config": SETTINGS[method] | settings}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def original_of(packed, folder):
    """The checkpoint in bfloat16 that a packed one could have been made of."""
    folder.mkdir()
    config = json.loads((packed / "config.json").read_text())
    method = config.pop("quantization_config")["quant_method"]
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {}
    for name, tensor in load_file(packed / "model.safetensors").items():
        stem, _, role = name.rpartition(".")
        if role == "qweight":
            first, last = tensor.shape
            shape = (last, first * 8) if method == "gptq" else (last * 8, first)
            tensors[f"{stem}.weight"] = torch.zeros(shape, dtype=torch.bfloat16)
        elif role == "weight":
            tensors[name] = tensor.bfloat16()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder
