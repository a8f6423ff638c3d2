"""Tiny random checkpoints that engines take, and the cuts of them that are compared.

The families are those of the conformance suite, in sizes for which engines have kernels, with the
keys that published configurations have and those saved by transformers 5 lack.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import torch
from engines.as_published import KEYS, LARGER, SETTINGS
from exports import export
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3OmniMoeForConditionalGeneration,
)

from analysis.checkpoint.index import INDEX_NAME
from analysis.errors import UserError
from analysis.model.moe_model import MoEModel
from analysis.model.opening import load_model_index
from builders.fp8 import fp8_settings, to_fp8_blocks
from builders.mxfp4 import to_mxfp4
from families.configs import BY_NAME, Case
from families.published import PUBLISHED, TURNED, as_published
from families.settings import HIDDEN, VOCAB, WIDTH
from families.tiny_models import redraw, tiny_model
from pruning.plan.plan import NEURON_GRANULARITY, PruningPlan, model_ref
from pruning.plan.widths import WidthChoice, WidthMode
from pruning.serving.engine_results import CUTS

Tensors = dict[str, torch.Tensor]

PROMPTS: Final = ((5, 9, 33, 21), (7, 40, 41, 12, 50, 3, 9))
TOKENS: Final = 32
_SPECIAL: Final = 3  # padding, beginning, end: never chosen, so that nothing ends early
_SIZES: Final = (
    *("hidden_size", "intermediate_size", "moe_intermediate_size", "head_dim"),
    *("shared_expert_intermediate_size", "shared_intermediate_size", "moe_latent_size"),
    *("moe_shared_expert_intermediate_size", "mamba_head_dim", "mamba_dt_rank"),
    *("kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"),
    *("linear_key_head_dim", "linear_value_head_dim", "global_head_dim", "index_head_dim"),
    *("rotary_dim", "dense_intermediate_size", "linear_head_dim", "indexer_head_dim"),
)
# Families whose published checkpoints hold the experts of a layer stacked.
_STACKED: Final = ("qwen3_5_moe", "qwen3_5_moe_text")

# The demo is a tied OLMoE.
_TIED: Final = replace(
    BY_NAME["olmoe"],
    name="olmoe-tied",
    settings={**BY_NAME["olmoe"].settings, "tie_word_embeddings": True},
)
# Published ones are the whole, of which the conformance suite loads the part with the experts.
_THINKER: Final = BY_NAME["qwen3_omni_moe_thinker"]
_OMNI: Final = replace(_THINKER, name="qwen3_omni_moe", model_type="qwen3_omni_moe")
_FP8: Final = tuple(
    replace(BY_NAME[name], name=f"{name}-fp8") for name in ("deepseek_v3", "qwen3_moe")
)
_MXFP4: Final = replace(BY_NAME["gpt_oss"], name="gpt_oss-mxfp4")
ENGINE_CASES: Final = {
    **{name: case for name, case in BY_NAME.items() if case is not _THINKER},
    **{case.name: case for case in (_TIED, _OMNI, *_FP8, _MXFP4)},
}
_BLOCK: Final = (128, 128)  # the last blocks of narrower matrices are cut, as in published ones
# Of those whose matrices are stored in fewer bits: how, and what config.json says of it.
QUANTISED: Final[Mapping[str, tuple[Callable[[Tensors], Tensors], Mapping[str, Any]]]] = {
    **dict.fromkeys(
        (case.name for case in _FP8),
        (lambda tensors: to_fp8_blocks(tensors, _BLOCK, even=True)[0], fp8_settings(_BLOCK)),
    ),
    _MXFP4.name: (partial(to_mxfp4, plain_dtype=torch.float32), {"quant_method": "mxfp4"}),
}


def engine_case(name: str) -> Case:
    """A family of ENGINE_CASES in sizes that engines compute, as published models of it are."""
    case = ENGINE_CASES[name]
    published = dict(SETTINGS.get(case.model_type, {}))
    settings = dict(case.settings)
    if "text_config" in settings:
        settings["text_config"] = settings["text_config"] | published.pop("text_config", {})
    settings |= published
    defaults = {"hidden_size": HIDDEN} if "text_config" not in settings else {}
    larger = dict(_enlarged({**defaults, **settings}))
    if "text_config" in settings:
        larger["text_config"] = dict(_enlarged(settings["text_config"]))
        vision = dict(settings["vision_config"])
        if "out_hidden_size" in vision:
            vision["out_hidden_size"] = larger["text_config"]["hidden_size"]
        larger["vision_config"] = vision
    return replace(case, settings=MappingProxyType(larger))


def _enlarged(settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        yield key, value * LARGER if key in _SIZES and value else value


def save(case: Case, folder: Path) -> MoEModel:
    """The original: weights, a tokenizer that converters take, and the published keys."""
    model = _whole_omni(case) if case.model_type == _OMNI.model_type else tiny_model(case)
    with torch.no_grad():  # logits of 0 for special tokens, which are never the largest
        head = getattr(model, "thinker", model).get_output_embeddings()
        head.weight[:_SPECIAL] = 0
        if head.bias is not None:
            head.bias[:_SPECIAL] = 0
    model.save_pretrained(folder, save_original_format=case.model_type not in _STACKED)
    if case.model_type in (*PUBLISHED, *TURNED):
        _rewrite(folder, partial(as_published, case.model_type))
    quantise, quantisation = QUANTISED.get(case.name, (None, {}))
    if quantise:
        _rewrite(folder, quantise)
    _save_tokenizer(folder)
    file = folder / "config.json"
    config = json.loads(file.read_text())
    part, said = config, case.settings
    if case.composite:
        part, said = config.get("thinker_config", config)["text_config"], said["text_config"]
    rope = part.get("rope_parameters") or {}
    missing = {**({"rope_scaling": None} if "rope_theta" in rope else {}), **said}
    missing |= {key: rope[key] for key in ("rope_theta", "partial_rotary_factor") if key in rope}
    part |= {key: value for key, value in missing.items() if key not in part}
    keys = dict(published_keys(case))
    if quantisation:
        config["quantization_config"] = quantisation
    config["architectures"] = keys.pop("architectures", config["architectures"])
    part |= keys
    file.write_text(json.dumps(config, indent=2))
    return load_model_index(str(folder))


def _rewrite(folder: Path, change: Callable[[Tensors], Tensors]) -> None:
    """Put changed tensors in place of the saved ones."""
    tensors: Tensors = {}
    for shard in folder.glob("*.safetensors"):
        tensors |= load_file(shard)
        shard.unlink()
    (folder / INDEX_NAME).unlink(missing_ok=True)
    save_file(change(tensors), folder / "model.safetensors", {"format": "pt"})


def _whole_omni(case: Case) -> PreTrainedModel:
    """Qwen3-Omni without its talker, as Qwen3-Omni-30B-A3B-Thinking is published."""
    thinker = {**case.settings, "model_type": _THINKER.model_type}
    config = AutoConfig.for_model(
        case.model_type, thinker_config=thinker, enable_audio_output=False
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Qwen3OmniMoeForConditionalGeneration._from_config(config, dtype=torch.float32)
        redraw(model)
    return model.eval()


def published_keys(case: Case) -> Mapping[str, Any]:
    """What config.json holds besides what transformers 5 saves."""
    return KEYS.get(case.name) or KEYS.get(case.model_type, {})


def _save_tokenizer(folder: Path) -> None:
    """Byte-level BPE; llama.cpp's converter wants a merge, and the class that published ones name.

    transformers 5 names another, which transformers 4 does not know.
    """
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ01234567"
    words = ["<pad>", "<s>", "</s>", *letters, "ab"]
    ids = {word: number for number, word in enumerate(words)}
    assert len(ids) == VOCAB
    tokenizer = Tokenizer(models.BPE(ids, [("a", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
    file = folder / "tokenizer_config.json"
    named = json.loads(file.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    file.write_text(json.dumps(named))


def plan_of(model: MoEModel, cut: str) -> PruningPlan:
    """What a cut keeps of a model: expert 0 always goes, so ids move up."""
    kept, neurons = {}, {}
    for place, layer in enumerate(model.layers):
        size = layer.num_experts // layer.num_groups
        keep = max(2, size // 2)
        if cut in ("experts per layer", "padded") and place % 2:
            keep = size - 1
        kept[layer.index] = tuple(
            group * size + index
            for group in range(layer.num_groups)
            for index in range(size - keep, size)
        )
        narrow = 2 * WIDTH + 16 * (place % 2)
        neurons[layer.index] = dict.fromkeys(range(layer.num_experts), tuple(range(8, 8 + narrow)))
    if "neurons" in cut:
        return PruningPlan(
            model_ref(model), {}, granularity=NEURON_GRANULARITY, kept_neurons=neurons
        )
    return PruningPlan(model_ref(model), kept)


def write_cuts(
    original: MoEModel, folder: Path, cuts: Collection[str] = CUTS
) -> dict[str, Path | str]:
    """Cut -> the folder of its export, or why this program refuses to write it."""
    written: dict[str, Path | str] = {"original": original.checkpoint.path}
    for cut in CUTS[1:]:
        options: dict[str, Any] = {"pad": cut == "padded"}
        if cut not in cuts or (cut == "padded" and not original.family.can_exclude):
            continue
        if "neurons" in cut and original.quantisation:
            continue  # blocks of FP8 are wider than these experts, and MXFP4 is not cut
        if "neurons" in cut:
            mode = WidthMode.PER_LAYER if "per layer" in cut else WidthMode.UNIFORM
            options["widths"] = WidthChoice(mode)
        try:
            export(original, plan_of(original, cut), folder / cut, **options)
        except UserError as error:
            written[cut] = str(error)
        else:
            written[cut] = folder / cut
    return written
