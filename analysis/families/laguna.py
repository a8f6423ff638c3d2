"""Laguna: the correction bias lies among the experts on disk, in the router of the loaded model."""

from analysis.families.base import MoEFamily, RouterTensor, SharedExperts
from analysis.families.rules import by_kinds, with_step

LAGUNA = MoEFamily(
    model_type="laguna",
    label="Laguna",
    gate_rule="sigmoid of the logits, which may be capped; selection by sigmoid + correction bias; "
    "renormalised",
    router_tensors=(
        RouterTensor("gate.weight"),
        RouterTensor("gate.e_score_correction_bias", on_disk="experts.e_score_correction_bias"),
    ),
    can_exclude=True,
    defaults={"mlp_only_layers": [0]},
    is_sparse=by_kinds("mlp_layer_types", with_step),
    shared=SharedExperts("shared_expert_intermediate_size", on_disk="shared_expert"),
)
