"""The tiny random models of the configurations; what is zero at initialisation is not left zero."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedModel,
)

from analysis.families.listing import FAMILIES
from analysis.families.native import register_native
from analysis.families.needs import why_too_old
from families.configs import COMMON, Case
from families.settings import IMAGE_TEXT


def tiny_config(case: Case) -> Any:
    """The configuration of a case; skips the test where transformers is too old for its family."""
    if why := why_too_old(FAMILIES[case.model_type]):
        pytest.skip(why)
    register_native(case.model_type)
    settings = deepcopy(dict(case.settings))  # transformers adds to what is nested in them
    if case.composite:
        return AutoConfig.for_model(case.model_type, **settings)
    has_own = settings.keys() & {"moe_topk", "moe_k", "top_k_experts"}
    top_k = {} if has_own else {"num_experts_per_tok": case.top_k}
    return AutoConfig.for_model(case.model_type, **{**COMMON, **top_k, **settings})


def redraw(model: PreTrainedModel, std: float = 0.3) -> None:
    """Random values in place of the initial ones, which make all experts nearly alike."""
    with torch.no_grad():
        for module in model.modules():
            if hasattr(module, "tid2eid"):  # distinct experts for each token id
                order = torch.rand(len(module.tid2eid), module.num_experts).argsort(dim=1)
                module.tid2eid.copy_(order[:, : module.top_k])
        for name, parameter in model.named_parameters():
            if name.endswith("per_expert_scale"):
                parameter.uniform_(0.5, 1.5)  # gate weights must not cancel in their sum
            elif "norm" not in name:
                parameter.normal_(std=std)
        for name, buffer in model.named_buffers():
            if name.endswith(("correction_bias", "expert_bias")):
                buffer.normal_(std=std)
            elif name.endswith("layer_scalar"):
                buffer.fill_(0.75)


def tiny_model(case: Case) -> PreTrainedModel:
    """The model of a case in evaluation mode, seeded without touching the global generator."""
    whole = case.composite or case.model_type in IMAGE_TEXT
    auto = AutoModelForImageTextToText if whole else AutoModelForCausalLM
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = auto.from_config(tiny_config(case), dtype=torch.float32)
        redraw(model)
    return model.eval()
