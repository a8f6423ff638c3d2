"""One forward pass over a batch, with what is padded kept out of the sums."""

import torch
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from analysis.calibration.experts import batch_mask
from analysis.calibration.loading import LOADING_ERRORS, load_error
from analysis.corpora import TokenBatch
from analysis.families.packing import check_packing
from analysis.model import MoEModel


def prepare(model: PreTrainedModel, batch: TokenBatch) -> dict[str, torch.Tensor | None]:
    """Say inside `collecting` what the next forward's positions are; returns what it takes."""
    if batch.positions is not None:
        check_config(model.config)
    device = input_device(model)
    counted = None if batch.counted.all() else torch.from_numpy(batch.counted).to(device)
    shard = torch.from_numpy(batch.token_shard).to(device)
    sample = torch.arange(batch.first, batch.first + len(shard), device=device)
    batch_mask(counted, shard, sample[:, None].expand_as(shard))
    return model_inputs(batch, device)


def feed(model: PreTrainedModel, batch: TokenBatch) -> None:
    """Run the model on a batch inside `collecting`."""
    # The head is not needed: the statistics are complete after the last layer.
    model.base_model(**prepare(model, batch), use_cache=False)


def input_device(model: PreTrainedModel) -> torch.device:
    """Where a model takes its input: where the first weights are that are not kept elsewhere."""
    held = (parameter.device for parameter in model.parameters() if not parameter.is_meta)
    return next(held, torch.device("cpu"))


def model_inputs(batch: TokenBatch, device: torch.device) -> dict[str, torch.Tensor | None]:
    """What a model's forward takes of a batch, to be called with `use_cache=False`.

    Packed documents are told apart by their positions, and only where there is neither a mask nor
    a cache. Padding then needs no mask: its positions are all 0, so each is a document by itself.
    """
    ids = torch.from_numpy(batch.input_ids).to(device)
    if batch.positions is not None:
        positions = torch.from_numpy(batch.positions).to(device)
        return {"input_ids": ids, "attention_mask": None, "position_ids": positions}
    if batch.mask.all():
        return {"input_ids": ids, "attention_mask": None}
    mask = torch.from_numpy(batch.mask).to(device=device, dtype=torch.int64)
    return {"input_ids": ids, "attention_mask": mask}


def check_config(config: PreTrainedConfig, attention: str = "auto") -> None:
    """Refuse packed documents where a model of this configuration would let them see each other."""
    text = config.get_text_config()
    kinds = getattr(text, "layer_types", None) or ()
    own = getattr(config, "_attn_implementation", None)
    check_packing(text.model_type, kinds, own if attention == "auto" else attention)


def check_model_packs(model: MoEModel, attention: str = "auto") -> None:
    """As `check_config`, before the model is loaded, where its configuration says enough."""
    try:
        config = AutoConfig.from_pretrained(model.checkpoint.path, trust_remote_code=False)
    except ValueError:
        return  # an architecture that transformers does not know; loading says so
    except LOADING_ERRORS as error:
        raise load_error(model, error) from error
    check_config(config, attention)
