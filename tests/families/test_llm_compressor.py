"""What llm-compressor would quantise of each family, by the names of its loaded modules."""

import re

import pytest
from torch import nn

from analysis.errors import ExportError
from families.configs import BY_NAME, KINDS
from families.physical import TREES
from pruning.serving.engines import contents_of
from pruning.serving.llm_compressor import check_quantisable, group_of, recipe, unquantised

CASES = [*KINDS, *map(BY_NAME.get, ("qwen3_next", "qwen3_5_moe_text", "hunyuan_v1_moe"))]
# What is quantised outside of the routed experts, by the last names of its modules.
_MATRICES = r".*\.(self_attn\.\w+|\w*shared\w*\.\w+_proj|(mlp|feed_forward|mixer)\.\w+_proj)"


def stays(name, patterns):
    """As llm-compressor matches names: `re:` is a pattern from the name's beginning."""
    return any(re.match(pattern.removeprefix("re:"), name) for pattern in patterns)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_routers_gates_head_and_other_mixers_stay(case, built):
    model, patterns = built(case).model, unquantised(built(case).described())
    tree = TREES[case.model_type]
    blocks = [name for name, module in model.named_modules() if hasattr(module, "experts")]
    assert len(blocks) >= len(case.sparse)
    for block in blocks:
        assert stays(f"{block}.{tree.rows[0].removesuffix('.weight')}", patterns) or (
            "bias" in tree.rows[0]
        )
        # As llm-compressor names the experts that it takes apart.
        for projection in ("gate_proj", "up_proj", "down_proj"):
            assert not stays(f"{block}.experts.0.{projection}", patterns)
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    assert stays("lm_head", patterns)
    quantised = [name for name in linear if not stays(name, patterns)]
    assert quantised
    for name in quantised:
        assert re.fullmatch(_MATRICES, name), name
        assert "gate_proj" in name or not re.search(r"gate$|router|linear_attn|mamba|conv", name)


def test_awq_is_refused_where_up_is_no_factor(built):
    for name, is_factor in {"olmoe": True, "gpt_oss": False, "nemotron_h": False}.items():
        model = built(BY_NAME[name]).described()
        asked = {"has_tokenizer": True, "scheme": "awq"}
        if is_factor:
            check_quantisable(model, contents_of(model), **asked)
            continue
        with pytest.raises(ExportError, match="not linear in the up projection"):
            check_quantisable(model, contents_of(model), **asked)


def test_a_group_divides_every_row(built):
    model = built(BY_NAME["olmoe"]).described()
    assert group_of(model, "fp8") == 1
    with pytest.raises(ExportError, match=r"nvfp4: it needs rows of a multiple of 16 weights"):
        group_of(model, "nvfp4")
    assert "config_groups" not in str(recipe(model, "fp8"))
