"""Names of tensors on the hub where `save_pretrained` writes others, which it reads as well."""

from collections.abc import Mapping

from torch import Tensor

# Model type -> (beginning of a name that transformers saves, the same on the hub).
PUBLISHED = {
    "deepseek_v4": (
        ("model.embed_tokens.", "embed."),
        ("model.hc_head.hc_", "hc_head_"),
        ("model.", ""),
    ),
    "kimi_k25": (
        ("language_model.model.blocks.", "language_model.model.layers."),
        ("vision_tower.encoder.patch_embed.", "vision_tower.patch_embed."),
        ("model.mm_projector.", "mm_projector."),
    ),
}


def as_published(model_type: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a saved checkpoint under the names of the hub."""

    def renamed(name: str) -> str:
        for saved, hub in PUBLISHED.get(model_type, ()):
            if name.startswith(saved):
                return hub + name.removeprefix(saved)
        return name

    return {renamed(name): tensor for name, tensor in tensors.items()}
