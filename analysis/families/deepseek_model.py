"""DeepSeekMoE-16B (`model_type: deepseek`) for transformers 5, which has no class of that type.

The architecture is that of DeepSeek-OCR-2's text tower: multi-head attention, ungated shared
experts, greedy softmax routing. What differs is added here: which layers are dense, and
`norm_topk_prob`. The code that the checkpoint brings along needs transformers 4 and is never run.
What is computed otherwise than there: docs/dev/decisions/0002-deepseekmoe.md.
"""

from typing import Any

from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import GenerationMixin
from transformers.modeling_outputs import MoeCausalLMOutputWithPast
from transformers.models.deepseek_ocr2.configuration_deepseek_ocr2 import DeepseekOcr2TextConfig
from transformers.models.deepseek_ocr2.modeling_deepseek_ocr2 import (
    DeepseekOcr2TextDecoderLayer,
    DeepseekOcr2TextModel,
    DeepseekOcr2TextMoe,
    DeepseekOcr2TextPreTrainedModel,
    DeepseekOcr2TextTopkRouter,
)
from transformers.utils.generic import can_return_tuple


@strict
class DeepseekConfig(DeepseekOcr2TextConfig):  # type: ignore[misc]
    """The configuration as on the hub; absent keys have the defaults of its own code."""

    model_type = "deepseek"
    has_no_defaults_at_init = True  # shared experts have no number of their own

    first_k_dense_replace: int = 0  # layers at the start that are dense
    moe_layer_freq: int = 1  # after those, the layers whose number it divides have experts
    # Experts that every token uses, as one of so many times the width.
    n_shared_experts: int | None = None
    norm_topk_prob: bool = False  # divide the selected gate weights by their sum
    scoring_func: str = "softmax"  # softmax, the only one there is

    def __post_init__(self, **kwargs: Any) -> None:
        self.mlp_layer_types = [
            "sparse"
            if layer >= self.first_k_dense_replace and layer % self.moe_layer_freq == 0
            else "dense"
            for layer in range(self.num_hidden_layers)
        ]
        super().__post_init__(**kwargs)

    def validate_routing(self) -> None:
        """Refuse what the architecture does not have."""
        if self.scoring_func != "softmax":
            raise ValueError(f"scoring_func is {self.scoring_func!r}; only softmax is known.")
        if not self.n_shared_experts:
            raise ValueError("n_shared_experts is missing; DeepSeekMoE has at least one.")


class DeepseekRouter(DeepseekOcr2TextTopkRouter):  # type: ignore[misc]
    """Softmax over all experts, top-k, and renormalisation if the configuration says so."""

    def __init__(self, config: DeepseekConfig) -> None:
        super().__init__(config)
        self.norm_topk_prob = config.norm_topk_prob

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(router logits, gate weights, expert ids): (tokens, experts), twice (tokens, top-k)."""
        logits, weights, indices = super().forward(hidden_states)
        if self.norm_topk_prob and self.top_k > 1:
            weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
        return logits, weights, indices


class DeepseekDecoderLayer(DeepseekOcr2TextDecoderLayer):  # type: ignore[misc]
    """A layer whose router obeys `norm_topk_prob`."""

    def __init__(self, config: DeepseekConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        if isinstance(self.mlp, DeepseekOcr2TextMoe):
            self.mlp.gate = DeepseekRouter(config)


class DeepseekModel(DeepseekOcr2TextModel):  # type: ignore[misc]
    """The decoder without its head."""

    config: DeepseekConfig
    _no_split_modules = ["DeepseekDecoderLayer"]  # noqa: RUF012

    def __init__(self, config: DeepseekConfig) -> None:
        super().__init__(config)
        self.layers = nn.ModuleList(
            DeepseekDecoderLayer(config, layer) for layer in range(config.num_hidden_layers)
        )
        self.post_init()

    @classmethod
    def _can_set_experts_implementation(cls) -> bool:
        # transformers looks for its decorator in this file, but the experts are its own class.
        return True


class DeepseekForCausalLM(DeepseekOcr2TextPreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """The decoder with its head."""

    config: DeepseekConfig
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: DeepseekConfig) -> None:
        super().__init__(config)
        self.model = DeepseekModel(config)
        self.vocab_size = config.vocab_size
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @classmethod
    def _can_set_experts_implementation(cls) -> bool:
        return True

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(  # noqa: PLR0913 - generation looks at the names
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> MoeCausalLMOutputWithPast:
        """Logits (batch, tokens, vocabulary); of the last `logits_to_keep` tokens if not 0.

        The cache, whose name differs between versions of transformers, is handed through.
        """
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(outputs.last_hidden_state[:, kept, :])
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.vocab_size)
        others = {name: output for name, output in outputs.items() if name != "last_hidden_state"}
        return MoeCausalLMOutputWithPast(loss=loss, logits=logits, **others)


CLASSES = (DeepseekConfig, DeepseekModel, DeepseekForCausalLM)
NAMED_AS = "qwen2_moe"
