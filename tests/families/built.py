"""A case on disk and loaded."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedModel

from analysis.model.moe_model import MoEModel
from analysis.model.opening import load_model_index
from families.configs import Case
from families.settings import IMAGE_TEXT

# Layers hand the positions to attend to on to the next: no layer runs alone, and no prefix is kept.
HAND_ON_MORE = frozenset({"glm_moe_dsa", "glm5_next", "hy_v4"})


def stock_load(case: Case, path: Path, **options: Any) -> tuple[PreTrainedModel, Any]:
    """The model as transformers loads it, and what it has to say about the tensors."""
    whole = case.model_type in IMAGE_TEXT
    auto = AutoModelForImageTextToText if whole else AutoModelForCausalLM
    model, info = auto.from_pretrained(path, output_loading_info=True, **options)
    # Off the file's map: a kernel may add in another order where the bytes of a weight lie at
    # another alignment, and two files differ in that.
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.clone()
    return model.eval(), info


@dataclass(frozen=True)
class Built:
    """A case on disk and loaded; nobody writes into it."""

    case: Case
    # layout ("experts": one tensor an expert, or as the family has it; "stacked") -> checkpoint
    paths: dict[str, Path]

    @cached_property
    def model(self) -> PreTrainedModel:
        """The model, loaded once."""
        return stock_load(self.case, self.paths["experts"])[0]

    def described(self, layout: str = "experts") -> MoEModel:
        """What the program understands of the checkpoint."""
        return load_model_index(str(self.paths[layout]))
