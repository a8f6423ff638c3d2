"""Packed documents do not see each other, in every family; where they would, packing is refused."""

import pytest
import torch

from analysis.calibration.feed import check_config
from analysis.errors import UnsupportedModelError
from analysis.families.packing import check_packing
from families.configs import SOURCES
from families.settings import VOCAB
from families.tiny_models import tiny_model

LENGTHS = (7, 12, 5)


def documents():
    source = torch.Generator().manual_seed(5)
    return [torch.randint(3, VOCAB, (length,), generator=source) for length in LENGTHS]


@pytest.mark.parametrize("attention", ["sdpa", pytest.param("eager", marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", SOURCES)
def test_documents_are_kept_apart_or_packing_is_refused(case, attention):
    model = tiny_model(case).eval()
    # Of a larger model the text part, as others may lack that attention.
    text = getattr(model.model, "language_model", model)
    text.set_attn_implementation(attention if text._supports_sdpa else "eager")
    parts = documents()
    places = torch.cat([torch.arange(len(part)) for part in parts])
    with torch.no_grad():
        alone = torch.cat([model.base_model(part[None], use_cache=False)[0][0] for part in parts])
        row = {"input_ids": torch.cat(parts)[None], "position_ids": places[None]}
        packed = model.base_model(**row, attention_mask=None, use_cache=False)[0][0]
    difference = float((packed - alone).abs().max() / alone.abs().max())
    try:
        check_config(model.config)
    except UnsupportedModelError as error:
        # Refused only where they do see each other: by far, not by rounding.
        assert difference > 0.1, error
        return
    assert difference < 1e-5


def test_refusals_say_why():
    with pytest.raises(UnsupportedModelError, match=r"kind conv, linear_attention carry a state"):
        check_packing("some_model", ("full_attention", "conv", "linear_attention"))
    with pytest.raises(UnsupportedModelError, match="its attention is not known to keep them"):
        check_packing("some_model", ("full_attention",))
    with pytest.raises(UnsupportedModelError, match="the attention flash_attention_2; choose one"):
        check_packing("dots1", (), "flash_attention_2")
