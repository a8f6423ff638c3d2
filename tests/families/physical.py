"""Physical pruning of a loaded model, written by hand from each family's module tree.

Nothing here knows the families' tables in `analysis`: it is the oracle of masking and export.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from families.configs import Case
from families.settings import VOCAB

TOKENS = torch.randint(3, VOCAB, (2, 12), generator=torch.Generator().manual_seed(3))


@dataclass(frozen=True)
class Tree:
    """Where the parts of one MoE block are, relative to it."""

    block: str  # the block, relative to its decoder layer; empty if that is it
    rows: tuple[str, ...]  # tensors with one entry per expert along the first axis
    counts: tuple[str, ...]  # attributes that hold the number of experts, the router's first
    columns: tuple[str, ...] = ()  # the same along the last axis
    table: str = ""  # lists the experts of each token id, in layers that have no correction bias
    router: str = "gate"
    top_k: str = "top_k"  # relative to the router, its experts per token


_EXPERTS = ("experts.gate_up_proj", "experts.down_proj")
_GATE = Tree("mlp", ("gate.weight", *_EXPERTS), ("gate.num_experts", "experts.num_experts"))
_ROUTER = Tree(
    *("mlp", ("router.weight", *_EXPERTS), ("router.num_experts", "experts.num_experts")),
    router="router",
)
_CORRECTED = replace(_GATE, rows=("gate.e_score_correction_bias", *_GATE.rows))
_GEMMA4 = Tree(
    *("", ("router.proj.weight", "router.per_expert_scale", *_EXPERTS)),
    counts=("router.proj.out_features", "experts.num_experts"),
    router="router",
    top_k="config.top_k_experts",
)
_GRANITE = replace(_ROUTER, block="block_sparse_moe")

TREES = {
    **dict.fromkeys(("olmoe", "flex_olmo", "qwen2_moe", "qwen3_moe", "qwen3_next"), _GATE),
    **dict.fromkeys(("qwen3_5_moe", "qwen3_5_moe_text", "mixtral", "minimax"), _GATE),
    **dict.fromkeys(("deepseek", "deepseek_v2"), _GATE),
    **dict.fromkeys(("deepseek_v3", "glm4_moe", "dots1", "laguna", "kimi_k25"), _CORRECTED),
    **dict.fromkeys(("kimi_linear", "bailing_hybrid", "kimi_k2"), _CORRECTED),
    **dict.fromkeys(("deepseek_v32", "axk1", "axk2", "beam", "hy_v4"), _CORRECTED),
    **dict.fromkeys(("glm_moe_dsa", "glm4_moe_lite", "glm4v_moe", "glm5_next"), _CORRECTED),
    **dict.fromkeys(("solar_open", "exaone_moe", "mimo_v2_flash"), _CORRECTED),
    **dict.fromkeys(("cohere2_moe", "mellum", "flint", "qwen4_exp_text", "qwen3_vl_moe"), _GATE),
    **dict.fromkeys(("qwen3_omni_moe", "qwen3_omni_moe_thinker"), _GATE),
    "deepseek_v4": replace(_CORRECTED, table="gate.tid2eid"),
    **dict.fromkeys(("minimax_m3_vl", "minimax_m3_vl_text"), _CORRECTED),
    **dict.fromkeys(("mistral3", "mistral4"), _GATE),
    **dict.fromkeys(
        ("granitemoe", "granitemoeshared", "granitemoehybrid", "granitemoe_swa"), _GRANITE
    ),
    **dict.fromkeys(("aria", "aria_text"), _ROUTER),
    **dict.fromkeys(
        ("minimax_m2", "hy_v3"), replace(_GATE, rows=("e_score_correction_bias", *_GATE.rows))
    ),
    "phimoe": replace(_ROUTER, counts=(*_ROUTER.counts, "router.out_features", "num_experts")),
    "ernie4_5_moe": replace(
        _GATE,
        counts=(*_GATE.counts, "num_experts"),
        columns=("gate.moe_statics.e_score_correction_bias",),
    ),
    "gpt_oss": replace(
        _ROUTER, rows=("router.bias", *(f"{name}_bias" for name in _EXPERTS), *_ROUTER.rows)
    ),
    **dict.fromkeys(("gemma4", "gemma4_text"), _GEMMA4),
    "afmoe": Tree(
        "mlp",
        ("router.gate.weight", "expert_bias", *_EXPERTS),
        (*_ROUTER.counts, "router.gate.out_features"),
        router="router",
    ),
    "hunyuan_v1_moe": Tree(
        "mlp", ("gate.wg.weight", *_EXPERTS), (*_GATE.counts, "gate.wg.out_features")
    ),
    "jamba": replace(_ROUTER, block="feed_forward", counts=(*_ROUTER.counts, "num_experts")),
    "lfm2_moe": Tree("feed_forward", ("expert_bias", *_GATE.rows), _GATE.counts),
    "nemotron_h": Tree(
        "mixer",
        ("gate.weight", *_CORRECTED.rows[:1], "experts.up_proj", "experts.down_proj"),
        _GATE.counts,
    ),
}


def layers_of(model: PreTrainedModel) -> nn.ModuleList:
    """The decoder layers; a composite model has them inside its language model."""
    text = model.model
    return getattr(text, "language_model", text).layers


def block_of(model: PreTrainedModel, case: Case, layer: int) -> nn.Module:
    """The MoE block of a layer."""
    return layers_of(model)[layer].get_submodule(TREES[case.model_type].block)


def router_of(model: PreTrainedModel, case: Case, layer: int) -> nn.Module:
    """The router of a layer."""
    return block_of(model, case, layer).get_submodule(TREES[case.model_type].router)


def choice_of(model: PreTrainedModel, case: Case, layer: int) -> tuple[int, int]:
    """Experts that a layer's router chooses among, and how many it chooses for a token."""
    block, router = block_of(model, case, layer), router_of(model, case, layer)
    tree = TREES[case.model_type]
    return attrgetter(tree.counts[0])(block), attrgetter(tree.top_k)(router)


@dataclass
class Heard:
    """By layer, what its router and its experts took and gave: (arguments, output)."""

    routed: dict[int, Any] = field(default_factory=dict)
    ran: dict[int, Any] = field(default_factory=dict)


@contextmanager
def listening(model: PreTrainedModel, case: Case) -> Iterator[Heard]:
    """Inside the block, forwards of routers and experts are heard."""
    heard = Heard()

    def listen(into: dict[int, Any], layer: int, _: nn.Module, args: Any, out: Any) -> None:
        into[layer] = args, out

    with ExitStack() as hooks:
        for layer in case.sparse:
            router, experts = router_of(model, case, layer), block_of(model, case, layer).experts
            for module, into in ((router, heard.routed), (experts, heard.ran)):
                handle = module.register_forward_hook(partial(listen, into, layer))
                hooks.callback(handle.remove)
        yield heard


def physically_pruned(
    model: PreTrainedModel, case: Case, kept: Mapping[int, Sequence[int]]
) -> PreTrainedModel:
    """A copy whose layers hold the kept experts only."""
    pruned, tree = copy.deepcopy(model), TREES[case.model_type]
    for layer, ids in kept.items():
        block = block_of(pruned, case, layer)
        for axis, names in ((0, tree.rows), (-1, tree.columns)):
            bias = {name for name in names if "bias" in name and layer in case.hashed}
            for name in set(names) - set(case.absent) - bias:
                _select(block, name, axis, torch.tensor(ids))
        if layer in case.hashed:
            _look_up_others(block.get_submodule(tree.router), tree.table, ids)
        for name in tree.counts:
            owner, _, attribute = name.rpartition(".")
            assert getattr(block.get_submodule(owner), attribute) == case.experts
            setattr(block.get_submodule(owner), attribute, len(ids))
    return pruned


def _look_up_others(router: nn.Module, name: str, ids: Sequence[int]) -> None:
    """Every removed expert of a token id becomes the next one that its row does not name."""
    table = getattr(router, name.rpartition(".")[2])
    for token, row in enumerate(table.tolist()):
        for place, expert in enumerate(row):
            if expert not in ids:
                order = [ids[(token + expert + step) % len(ids)] for step in range(len(ids))]
                row[place] = next(other for other in order if other not in row)
        table[token] = torch.tensor([list(ids).index(expert) for expert in row])


def _select(block: nn.Module, name: str, axis: int, ids: torch.Tensor) -> None:
    path, _, last = name.rpartition(".")
    owner = block.get_submodule(path)
    cut = getattr(owner, last).detach().index_select(axis, ids)
    if last in owner._parameters:
        setattr(owner, last, nn.Parameter(cut, requires_grad=False))
    else:
        owner._buffers[last] = cut


def logits_of(model: PreTrainedModel) -> torch.Tensor:
    """Logits of a few fixed tokens."""
    with torch.no_grad():
        return model(input_ids=TOKENS, use_cache=False).logits
