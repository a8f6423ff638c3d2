"""ERNIE 4.5: selection by softmax plus a bias that lies in a module of its own."""

from analysis.checkpoint.index import Config
from analysis.families.base import MoEFamily, RouterTensor, SharedExperts
from analysis.families.rules import index_of, whole_number


def _is_sparse(config: Config, layer: int) -> bool:
    step = whole_number(config, "moe_layer_interval")
    last = config["moe_layer_end_index"]
    # -1 is the last layer.
    last = index_of(config, "moe_layer_end_index") if last != -1 else layer
    return (layer + 1) % step == 0 and index_of(config, "moe_layer_start_index") <= layer <= last


ERNIE4_5_MOE = MoEFamily(
    model_type="ernie4_5_moe",
    label="ERNIE 4.5",
    gate_rule="softmax; selection by softmax + correction bias; renormalised",
    router_tensors=(
        RouterTensor("gate.weight"),
        RouterTensor(
            "gate.moe_statics.e_score_correction_bias",
            on_disk="moe_statics.e_score_correction_bias",
            axis=1,
        ),
    ),
    count_keys=("moe_num_experts", "num_experts"),
    top_k_key="moe_k",
    defaults={
        "moe_k": 6,
        "moe_layer_interval": 1,
        "moe_layer_start_index": 1,
        "moe_layer_end_index": -1,
    },
    is_sparse=_is_sparse,
    shared=SharedExperts("moe_intermediate_size", "moe_num_shared_experts", width_is_each=True),
    single=(".e_score_correction_bias", ".gate.weight"),
)
