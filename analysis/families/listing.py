"""The families, listed once. A new one is a file beside these and a line below."""

from collections.abc import Mapping

from analysis.checkpoint.index import Config
from analysis.errors import UnsupportedModelError
from analysis.families.afmoe import AFMOE
from analysis.families.aria import ARIA, ARIA_TEXT
from analysis.families.base import MoEFamily
from analysis.families.cohere2_moe import COHERE2_MOE
from analysis.families.deepseek import DEEPSEEK
from analysis.families.deepseek_v2 import DEEPSEEK_V2
from analysis.families.deepseek_v3 import (
    AXK1,
    AXK2,
    BEAM,
    DEEPSEEK_V3,
    DEEPSEEK_V32,
    DOTS1,
    EXAONE_MOE,
    KIMI_K2,
    KIMI_K25,
    MIMO_V2_FLASH,
    SOLAR_OPEN,
)
from analysis.families.deepseek_v4 import DEEPSEEK_V4
from analysis.families.discovery import COUNT_KEYS, discover, oriented
from analysis.families.ernie4_5_moe import ERNIE4_5_MOE
from analysis.families.gemma4 import GEMMA4, GEMMA4_TEXT
from analysis.families.glm import GLM4_MOE, GLM4_MOE_LITE, GLM4V_MOE, GLM5_NEXT, GLM_MOE_DSA
from analysis.families.gpt_oss import GPT_OSS
from analysis.families.granitemoe import (
    GRANITEMOE,
    GRANITEMOE_SWA,
    GRANITEMOEHYBRID,
    GRANITEMOESHARED,
)
from analysis.families.hunyuan_v1_moe import HUNYUAN_V1_MOE
from analysis.families.hy import HY_V3, HY_V4
from analysis.families.jamba import JAMBA
from analysis.families.kimi_linear import BAILING_HYBRID, KIMI_LINEAR
from analysis.families.laguna import LAGUNA
from analysis.families.lfm2_moe import LFM2_MOE
from analysis.families.minimax_m3 import MINIMAX_M3, MINIMAX_M3_TEXT
from analysis.families.mistral4 import MISTRAL3, MISTRAL4
from analysis.families.mixtral import MINIMAX, MINIMAX_M2, MIXTRAL, PHIMOE
from analysis.families.nemotron_h import NEMOTRON_H
from analysis.families.olmoe import FLEX_OLMO, OLMOE
from analysis.families.qwen_moe import (
    FLINT,
    MELLUM,
    QWEN2_MOE,
    QWEN3_5_MOE,
    QWEN3_5_MOE_TEXT,
    QWEN3_MOE,
    QWEN3_NEXT,
    QWEN3_OMNI_MOE,
    QWEN3_OMNI_MOE_THINKER,
    QWEN3_VL_MOE,
    QWEN4_EXP_TEXT,
)
from analysis.families.refused import REFUSED

_LISTED = (
    OLMOE,
    FLEX_OLMO,
    QWEN2_MOE,
    QWEN3_MOE,
    QWEN3_NEXT,
    QWEN3_5_MOE,
    QWEN3_5_MOE_TEXT,
    QWEN4_EXP_TEXT,
    QWEN3_VL_MOE,
    QWEN3_OMNI_MOE,
    QWEN3_OMNI_MOE_THINKER,
    MELLUM,
    FLINT,
    MIXTRAL,
    MINIMAX,
    MINIMAX_M2,
    PHIMOE,
    GRANITEMOE,
    GRANITEMOESHARED,
    GRANITEMOEHYBRID,
    GRANITEMOE_SWA,
    DEEPSEEK,
    DEEPSEEK_V2,
    DEEPSEEK_V3,
    DEEPSEEK_V32,
    DEEPSEEK_V4,
    DOTS1,
    KIMI_K2,
    KIMI_K25,
    GLM4_MOE,
    GLM4_MOE_LITE,
    GLM4V_MOE,
    GLM_MOE_DSA,
    GLM5_NEXT,
    SOLAR_OPEN,
    EXAONE_MOE,
    AXK1,
    AXK2,
    MIMO_V2_FLASH,
    BEAM,
    HY_V4,
    COHERE2_MOE,
    GEMMA4,
    GEMMA4_TEXT,
    HY_V3,
    LAGUNA,
    AFMOE,
    KIMI_LINEAR,
    BAILING_HYBRID,
    ERNIE4_5_MOE,
    GPT_OSS,
    HUNYUAN_V1_MOE,
    JAMBA,
    LFM2_MOE,
    NEMOTRON_H,
    ARIA,
    ARIA_TEXT,
    MINIMAX_M3,
    MINIMAX_M3_TEXT,
    MISTRAL3,
    MISTRAL4,
)
FAMILIES = {family.model_type: family for family in _LISTED}


def family_of(config: Config, shapes: Mapping[str, tuple[int, ...]] | None = None) -> MoEFamily:
    """The family of a whole `config.json`.

    With `shapes`, of every tensor of the checkpoint by name, a model type that is not in the table
    is discovered if it follows the common layout.
    """
    model_type = str(config.get("model_type", ""))
    if (family := FAMILIES.get(model_type)) and _is_sparse(family, config):
        is_open = shapes is not None and family.may_be_transposed
        return oriented(family, config, shapes or {}) if is_open else family
    supported = ", ".join(sorted(FAMILIES))
    if reason := REFUSED.get(model_type):
        raise UnsupportedModelError(
            f"The model type {model_type!r} is not supported: {reason}. Supported: {supported}."
        )
    # Composite models keep their text part in a configuration of its own.
    inner = config.get("text_config")
    inner = inner if isinstance(inner, dict) else {}
    is_counted = any(part.get(key) for part in (config, inner) for key in COUNT_KEYS)
    if not is_counted and (where := _sign_of_experts(config, shapes or {})):
        raise UnsupportedModelError(
            f"This {model_type or 'unnamed'} model has experts ({where}), but its config.json does "
            f"not count them where other models do: by {', '.join(COUNT_KEYS)}, at the top or in "
            f"text_config. Supported MoE model types: {supported}."
        )
    if not is_counted:
        raise UnsupportedModelError(
            f"This {model_type or 'unnamed'} model is dense as far as its config.json tells: "
            "it names no experts, so there is nothing to prune."
        )
    if shapes is None:
        raise UnsupportedModelError(
            f"The model type {model_type!r} is not in the table of families, so its config.json "
            "does not tell how its tensors are named; leave out --config-only, as the names in a "
            "checkpoint may be understood."
        )
    return discover(config, shapes)


def _is_sparse(family: MoEFamily, config: Config) -> bool:
    """Whether a configuration of this model type counts experts: wrappers hold dense models too."""
    if not family.config_path:
        return True
    text = family.text_config(config)
    return any(text.get(key) is not None for key in family.count_keys)


def _sign_of_experts(config: Config, shapes: Mapping[str, tuple[int, ...]]) -> str:
    """A sign of experts where nothing is looked for: a part that counts some, or a tensor."""
    parts = (key for key, part in config.items() if isinstance(part, dict))
    counting = (key for key in parts if any(config[key].get(count_key) for count_key in COUNT_KEYS))
    tensors = (name for name in shapes if "experts" in name and "shared" not in name)
    # Keys alone say little where tensors are known: leftovers stand in dense configurations too.
    keys = (key for key in config if "expert" in key and config[key] and not shapes)
    return next(counting, next(tensors, next(keys, "")))
