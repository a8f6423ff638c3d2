"""Kimi-K2 (`model_type: kimi_k2`) for transformers 5, which has no class of that type.

Its code on the hub is that of DeepSeek-V3, which transformers has, and engines read it as such.
The code that a checkpoint brings along is never run.
"""

from transformers.models.deepseek_v3.configuration_deepseek_v3 import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import (
    DeepseekV3ForCausalLM,
    DeepseekV3Model,
)


class KimiK2Config(DeepseekV3Config):  # type: ignore[misc]
    """DeepSeek-V3's under the name of Kimi-K2."""

    model_type = "kimi_k2"


class KimiK2Model(DeepseekV3Model):  # type: ignore[misc]
    """The decoder without its head."""

    config_class = KimiK2Config

    @classmethod
    def _can_set_experts_implementation(cls) -> bool:
        # transformers looks for its decorator in this file, but the experts are DeepSeek-V3's.
        return True


class KimiK2ForCausalLM(DeepseekV3ForCausalLM):  # type: ignore[misc]
    """The decoder with its head."""

    config_class = KimiK2Config

    @classmethod
    def _can_set_experts_implementation(cls) -> bool:
        return True


CLASSES = (KimiK2Config, KimiK2Model, KimiK2ForCausalLM)
NAMED_AS = "deepseek_v3"
