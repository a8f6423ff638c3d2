"""Names and layouts of tensors on the hub where `save_pretrained` writes others."""

from collections.abc import Mapping

from torch import Tensor

# Model type -> (beginning of a name that transformers saves, the same on the hub).
PUBLISHED = {
    # transformers also renames the dense layer, the first, when it saves.
    "kimi_linear": (("model.layers.0.block_sparse_moe.", "model.layers.0.mlp."),),
    "deepseek_v4": (
        ("model.embed_tokens.", "embed."),
        ("model.hc_head.hc_", "hc_head_"),
        ("model.", ""),
    ),
    # transformers loads both and saves all as `dense`.
    "bailing_hybrid": tuple(
        (f"model.layers.{n}.attention.dense.", f"model.layers.{n}.attention.o_proj.")
        for n in range(2)
    ),
    # transformers saves a part of the name in another place, and gates of all kinds as attention's.
    "hy_v4": (
        *(
            (f"model.layers.{n}.mlp.{part}linear_gate.", f"model.layers.{n}.mlp.{part}gate_proj.")
            for n in range(3)
            for part in ("", "shared_experts.")
        ),
        ("model.hc_pre.hc_head.", "model.hc_head."),
        *(
            (f"model.layers.{n}.hc_pre.{part}.", f"model.layers.{n}.{part}.hc_pre.")
            for n in range(3)
            for part in ("hc_attn_layer", "hc_mlp_layer")
        ),
    ),
    "kimi_k25": (
        ("language_model.model.blocks.", "language_model.model.layers."),
        ("vision_tower.encoder.patch_embed.", "vision_tower.patch_embed."),
        ("model.mm_projector.", "mm_projector."),
    ),
}
# Published experts are (experts, in, out); what is saved is as loaded models have it.
TURNED = ("qwen3_vl_moe",)


def as_published(model_type: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a saved checkpoint under the names of the hub, and turned as there."""

    def renamed(name: str) -> str:
        for saved, hub in PUBLISHED.get(model_type, ()):
            if name.startswith(saved):
                return hub + name.removeprefix(saved)
        return name

    def turned(name: str, tensor: Tensor) -> Tensor:
        is_turned = model_type in TURNED and ".experts." in name
        return tensor.transpose(1, 2).contiguous() if is_turned else tensor

    return {renamed(name): turned(name, tensor) for name, tensor in tensors.items()}
