"""Gemma 4: router and experts lie in the decoder layer itself, beside a dense MLP.

The weights of the selected experts are divided by their sum, then multiplied by `per_expert_scale`,
before the experts run. So the scale is a factor of the gate weight, f is an expert's output without
it, and the gate weights of a token need not sum to 1. The sum over experts is then normalised (RMS)
and added to the dense MLP's; statistics are of what comes before that norm.
"""

from dataclasses import replace

from analysis.checkpoint.index import Config
from analysis.families.base import MoEFamily, RouterTensor, SharedExperts
from analysis.families.rules import AllOrNone

_PER_LAYER_INPUT = 256  # transformers' default of hidden_size_per_layer_input


def _inseparable(config: Config) -> str:
    """The small models give each layer embeddings of its own."""
    if not config.get("hidden_size_per_layer_input", _PER_LAYER_INPUT):
        return ""
    return "each layer also gets what embed_tokens_per_layer makes of the tokens"


GEMMA4_TEXT = MoEFamily(
    model_type="gemma4_text",
    label="Gemma 4 (text)",
    gate_rule="softmax, then top-k, renormalised, times per_expert_scale",
    disk_block="",
    module_block="",
    router="router",
    returns_probabilities=True,
    router_tensors=(
        RouterTensor("router.proj.weight"),
        RouterTensor("router.per_expert_scale", is_factor=True),
    ),
    router_others=("router.scale",),
    projections={},
    count_keys=("num_experts",),
    top_k_key="top_k_experts",
    inseparable=_inseparable,
    shares_top_k=True,
    is_sparse=AllOrNone(lambda config: bool(config.get("enable_moe_block"))),
    shared=SharedExperts("intermediate_size", note="a dense MLP beside the experts"),
)
GEMMA4 = replace(
    GEMMA4_TEXT,
    model_type="gemma4",
    label="Gemma 4",
    trunks=("model.language_model.layers",),
    module_trunks=("model.language_model.layers",),
    config_path=("text_config",),
)
