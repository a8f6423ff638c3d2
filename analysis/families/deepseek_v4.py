"""DeepSeek-V4: some layers select by a table of token ids; several residual streams."""

from analysis.families.base import MoEFamily, RouterTensor, SharedExperts

DEEPSEEK_V4 = MoEFamily(
    model_type="deepseek_v4",
    label="DeepSeek-V4",
    gate_rule="sqrt(softplus), renormalised; selection by that + correction bias, in some layers "
    "by a table of token ids",
    # Published checkpoints have no prefix; transformers writes one.
    trunks=("layers", "model.layers"),
    disk_block="ffn",
    projections={"gate": "w1", "up": "w3", "down": "w2"},
    router_tensors=(
        RouterTensor("gate.weight"),
        RouterTensor("gate.e_score_correction_bias", on_disk="gate.bias"),
        RouterTensor("gate.tid2eid", holds_ids=True),
    ),
    can_exclude=True,
    count_keys=("n_routed_experts", "num_local_experts"),
    width_shared_with="the shared expert",
    streams_key="hc_mult",
    shared=SharedExperts("moe_intermediate_size"),
    needs_transformers="5.18",  # it did not compute in bfloat16 before
)
