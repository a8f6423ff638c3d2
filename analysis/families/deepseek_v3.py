"""DeepSeek-V3 and the models with its router: sigmoid, a correction bias, groups of experts."""

from dataclasses import replace

from analysis.families.base import GroupRule, MoEFamily, RouterTensor, SharedExperts
from analysis.families.rules import after_first, by_kinds, by_mlp_types, every_layer, with_frequency

DEEPSEEK_V3 = MoEFamily(
    model_type="deepseek_v3",
    label="DeepSeek-V3",
    gate_rule="sigmoid; selection by sigmoid + correction bias; renormalised if norm_topk_prob",
    router_tensors=(RouterTensor("gate.weight"), RouterTensor("gate.e_score_correction_bias")),
    can_exclude=True,
    count_keys=("n_routed_experts", "num_local_experts"),
    defaults={"first_k_dense_replace": 3, "n_group": 8, "topk_group": 4},
    is_sparse=after_first("first_k_dense_replace"),
    groups=GroupRule(2),
    shared=SharedExperts("moe_intermediate_size", "n_shared_experts", width_is_each=True),
    appended_heads_key="num_nextn_predict_layers",
    engine_keys=("topk_method", "scoring_func"),
    single=(".e_score_correction_bias",),
)
# The same architecture by another name, for which transformers has no class: see `native`.
KIMI_K2 = replace(DEEPSEEK_V3, model_type="kimi_k2", label="Kimi-K2")
# The text model of Kimi-K2.5 and K2.6, whose other part sees images. Published names say `layers`;
# transformers 5.23 reads them, but saves `blocks`, as it renames those of the vision part back.
KIMI_K25 = replace(
    DEEPSEEK_V3,
    model_type="kimi_k25",
    label="Kimi-K2.5",
    trunks=(
        "language_model.model.layers",
        "language_model.model.blocks",
        "model.language_model.layers",
    ),
    module_trunks=("model.language_model.layers",),
    config_path=("text_config",),
    auto_class="AutoModelForImageTextToText",
    appended_heads_key="",  # published without heads
)
# The router alone: other models have heads of another layout, if any, and other keys.
V3_ROUTER = replace(DEEPSEEK_V3, appended_heads_key="", engine_keys=())
# Its sparse attention chose padding among the tokens before.
_SPARSE_ATTENTION = "5.17"
DEEPSEEK_V32 = replace(
    DEEPSEEK_V3,
    model_type="deepseek_v32",
    label="DeepSeek-V3.2",
    is_sparse=by_mlp_types,
    needs_transformers=_SPARSE_ATTENTION,
)
DOTS1 = replace(DEEPSEEK_V3, model_type="dots1", label="dots.llm1", defaults={})
SOLAR_OPEN = replace(
    V3_ROUTER,
    model_type="solar_open",
    label="Solar Open",
    defaults={},
    is_sparse=every_layer,
)
EXAONE_MOE = replace(
    V3_ROUTER,
    model_type="exaone_moe",
    label="K-EXAONE",
    router_tensors=(
        RouterTensor("gate.weight"),
        RouterTensor("gate.e_score_correction_bias", on_disk="e_score_correction_bias"),
    ),
    count_keys=("num_experts", "num_local_experts"),
    defaults={"first_k_dense_replace": 1},
    is_sparse=by_mlp_types,
    shared=SharedExperts("moe_intermediate_size", "num_shared_experts", width_is_each=True),
)
AXK1 = replace(
    V3_ROUTER,
    model_type="axk1",
    label="A.X-K1",
    defaults={"first_k_dense_replace": 1, "n_group": 8, "topk_group": 4},
    is_sparse=by_kinds("mlp_layer_types", with_frequency),
)
AXK2 = replace(
    AXK1,
    model_type="axk2",
    label="A.X-K2",
    defaults={"first_k_dense_replace": 1},
    # Experts of the groups that are not chosen score 0 instead of minus infinity, whatever their
    # bias is: where those of the chosen groups score less, they are selected.
    can_exclude=False,
    needs_transformers=_SPARSE_ATTENTION,
)
MIMO_V2_FLASH = replace(
    V3_ROUTER,
    model_type="mimo_v2_flash",
    label="MiMo-V2-Flash",
    defaults={"first_k_dense_replace": 1},
    is_sparse=by_mlp_types,
    shared=None,
)
BEAM = replace(
    V3_ROUTER,
    model_type="beam",
    label="Beam",
    count_keys=("num_experts", "num_local_experts"),
    is_sparse=by_mlp_types,
    shared=None,
    single=(*V3_ROUTER.single, ".gate.weight"),
    needs_transformers="5.20",
)
