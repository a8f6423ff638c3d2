"""Exports quantised by llm-compressor: its recipe, and a script that runs it; nothing runs here.

What is quantised are the matrices of routed and shared experts, of dense layers and of softmax
attention. Everything else stays, by name: routers, gates of shared experts, the head, other mixers,
and what lies outside of the layers, such as a vision part.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from analysis.checkpoint.index import TensorEntry
from analysis.errors import ExportError
from analysis.families.base import MoEFamily
from analysis.files.durable import write_durably
from analysis.model.moe_model import OUTPUT_HEAD, MoEModel
from analysis.model.widths import computed_widths
from pruning.serving.engines import Contents

TRIED: Final = "0.14.0.1"
_AWQ_GROUPS: Final = (128, 64, 32)
# Scales of AWQ go from up into down, where an expert's output is linear in up. By its own mappings
# llm-compressor also scales the norm before the experts, and not the router behind it: other
# experts would be chosen.
_AWQ_MAPPINGS: Final = [{"smooth_layer": r"re:.*up_proj$", "balance_layers": [r"re:.*down_proj$"]}]
_ATTENTION: Final = "self_attn"
_PROJECTIONS: Final = ("gate_proj", "up_proj", "down_proj", "gate_up_proj")  # of dense layers


@dataclass(frozen=True, slots=True)
class Scheme:
    """A way to quantise."""

    label: str
    preset: str  # llm-compressor's name of it; empty: groups of integers, see `recipe`
    groups: tuple[int, ...] = (1,)  # weights of a row that share a scale, the first that divides
    needs_text: bool = True


SCHEMES: Final = {
    "fp8": Scheme(
        "FP8 with a scale for each row",
        "FP8_DYNAMIC",
        needs_text=False,
    ),
    "nvfp4": Scheme("NVFP4, weights and activations", "NVFP4", (16,)),
    "awq": Scheme("AWQ, weights in 4 bits", "", _AWQ_GROUPS),
}


@dataclass(frozen=True, slots=True)
class QuantisedFiles:
    """The files beside an export, for one scheme."""

    out: Path  # the export
    scheme: str

    def _beside(self, ending: str) -> Path:
        return self.out.with_name(f"{self.out.name}-{self.scheme}{ending}")

    @property
    def target(self) -> Path:
        """The folder that the script writes."""
        return self._beside("")

    @property
    def recipe(self) -> Path:
        """llm-compressor's recipe."""
        return self._beside(".yaml")

    @property
    def script(self) -> Path:
        """What runs it."""
        return self._beside(".py")

    @property
    def rows(self) -> Path | None:
        """The calibration tokens, for schemes that need some."""
        return self._beside(".rows.jsonl") if SCHEMES[self.scheme].needs_text else None

    @property
    def written(self) -> tuple[Path, ...]:
        """All files of them, the script last."""
        return (self.recipe, *([self.rows] if self.rows else ()), self.script)

    @property
    def command(self) -> str:
        """The command line that runs the script."""
        return f"python {shlex.quote(str(self.script))}"


def check_quantisable(
    model: MoEModel, contents: Contents, *, has_tokenizer: bool, scheme: str
) -> None:
    """Refuse what llm-compressor could not load or run; `contents` are of the export of `model`."""
    instead = ""
    if contents.quantisation:
        instead = f"it is quantised already ({contents.quantisation}); FP8 takes --dequantise"
    elif contents.has_own_widths:
        instead = (
            "its experts have widths of their own, and llm-compressor loads it by transformers, "
            "which reads one; give --width-mode uniform"
        )
    elif not contents.is_uniform:
        instead = (
            "its layers differ, and llm-compressor loads it by transformers, which reads equal "
            "ones; leave --uneven and the like out of the plan, or add --pad"
        )
    elif not contents.in_transformers:
        instead = f"transformers has no class for {contents.model_type}"
    elif scheme == "awq" and not _is_linear_in_up(model):
        instead = "its experts are not linear in the up projection, which AWQ scales; use nvfp4"
    elif SCHEMES[scheme].needs_text and not has_tokenizer:
        instead = "it has no tokenizer, without which llm-compressor takes no calibration text"
    if instead:
        raise ExportError(f"No recipe for {scheme}: {instead}.")


def _is_linear_in_up(model: MoEModel) -> bool:
    """Whether an expert is act(gate) * up, without a clamp or anything added to up."""
    family = model.family
    is_clamped = any("swiglu" in key and value is not None for key, value in model.config.items())
    return "gate" in family.parts and not family.is_interleaved and not is_clamped


def unquantised(model: MoEModel) -> tuple[str, ...]:
    """Modules of the loaded model that stay as they are: names, and patterns after `re:`."""
    family = model.family
    block = re.escape(f".{family.module_block}".rstrip("."))
    routers = (
        tensor.name.removesuffix(".weight")
        for tensor in family.router_tensors
        if tensor.name.endswith(".weight")
    )
    patterns = [rf"re:.*{re.escape(OUTPUT_HEAD.removesuffix('.weight'))}$"]
    patterns += [rf"re:.*\.\d+{block}\.{re.escape(name)}$" for name in routers]
    patterns += [pattern for _, pattern in _others(model) if pattern]
    return tuple(dict.fromkeys(patterns))


def _others(model: MoEModel) -> Iterator[tuple[TensorEntry, str]]:
    """Matrices outside of the routed experts and routers, with the pattern of those that stay."""
    trunks = [f"{trunk}." for trunk in model.family.trunks]
    sparse = {layer.index for layer in model.layers}
    for entry in model.unlocated:
        if len(entry.shape) < 2 or not entry.name.endswith(".weight") or entry.name == OUTPUT_HEAD:
            continue
        name = entry.name.removesuffix(".weight")
        if not (prefix := next(filter(name.startswith, trunks), "")):
            yield entry, _outside(name, trunks)
            continue
        number, _, inside = name.removeprefix(prefix).partition(".")
        if int(number) < model.depth:  # prediction heads are not loaded
            is_sparse = int(number) in sparse
            yield entry, _stays(model.family, inside, entry.shape[0], is_sparse=is_sparse)


def _outside(name: str, trunks: Sequence[str]) -> str:
    """The pattern of the part of a model that a module outside of the layers belongs to.

    By its own name alone: loaded models may have it one level deeper than checkpoints.
    """
    parts = name.split(".")
    heads = (parts[:count] for count in range(1, len(parts)))
    own = (h for h in heads if not any(trunk.startswith(f"{'.'.join(h)}.") for trunk in trunks))
    part = next(own, None)
    if part is None:
        return rf"re:(.*\.)?{re.escape(parts[-1])}$"
    return rf"re:(.*\.)?{re.escape(part[-1])}\..*"


def _stays(family: MoEFamily, inside: str, rows: int, *, is_sparse: bool) -> str:
    """The pattern of a module of a layer, by its name there, if it stays."""
    blocks = [f"{name}." for name in (family.disk_block, family.module_block) if name]
    block = next(filter(inside.startswith, blocks), "")
    first, _, rest = inside.removeprefix(block).partition(".")
    if block and is_sparse:
        is_quantised = "shared" in first and rest != ""
    elif block:
        is_quantised = {first} <= {*family.projections.values(), *_PROJECTIONS} and not rest
    else:
        is_quantised = first == "mlp" or "shared" in first
        is_quantised |= first == _ATTENTION and "." not in rest
    if is_quantised and rows > 1:  # the gate of a shared expert has one row
        return ""
    if block:
        return rf"re:.*\.\d+\.{family.module_block}\.{re.escape(inside.removeprefix(block))}$"
    part = f"{first}.{rest.partition('.')[0]}" if first == _ATTENTION else first
    return rf"re:.*\.\d+\.{re.escape(part)}\..*"


def group_of(model: MoEModel, scheme: str, built: Mapping[int, int] | None = None) -> int:
    """Weights of a row that share a scale: the largest group that divides every quantised row.

    `built`: the width that the experts of each layer will have, where it is not the model's own.
    """
    rows = [("the hidden size", model.hidden_size)]
    for layer, widths in computed_widths(model).items():
        of_layer = {built[layer]} if built else {*widths}
        rows += [(f"the width of experts in layer {layer}", width) for width in of_layer]
    rows += [(entry.name, entry.shape[-1]) for entry, stays in _others(model) if not stays]
    for group in SCHEMES[scheme].groups:
        if not any(size % group for _, size in rows):
            return group
    least = SCHEMES[scheme].groups[-1]
    name, size = next((name, size) for name, size in rows if size % least)
    raise ExportError(
        f"No recipe for {scheme}: it needs rows of a multiple of {least} weights, and {name} is "
        f"{size}; use fp8."
    )


def recipe(model: MoEModel, scheme: str) -> dict[str, Any]:
    """llm-compressor's recipe of an export, as YAML has it."""
    quantisation: dict[str, Any] = {"ignore": list(unquantised(model))}
    group = group_of(model, scheme)
    if preset := SCHEMES[scheme].preset:
        quantisation |= {"targets": ["Linear"], "scheme": preset}
        return {"quant_stage": {"quant_modifiers": {"QuantizationModifier": quantisation}}}
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group"}
    quantisation["config_groups"] = {
        "group_0": {"targets": ["Linear"], "weights": {**weights, "group_size": group}}
    }
    modifiers = {"AWQModifier": {"mappings": _AWQ_MAPPINGS}, "QuantizationModifier": quantisation}
    return {"quant_stage": {"quant_modifiers": modifiers}}


_SCRIPT: Final = '''\
"""Quantise an export by llm-compressor (tried: {tried}): {label}."""

{imports}

here = Path(__file__).resolve().parent
source, target = here / {out!r}, here / {target!r}
if target.exists():
    raise SystemExit(f"{{target}} is there already; remove it")
# Not by llm-compressor's load_context: of stacked experts it makes random ones.
model, report = {auto_class}.from_pretrained(source, dtype="auto", output_loading_info=True)
if report["missing_keys"]:
    raise SystemExit(f"{{source}} lacks {{sorted(report['missing_keys'])[:3]}}")
{calibration}oneshot(model=model, recipe=str(here / {recipe!r}){arguments})
if not any(hasattr(module, "quantization_scheme") for module in model.modules()):
    raise SystemExit("nothing was quantised")
model.save_pretrained(target)
for file in source.iterdir():
    is_of_weights = file.name == "moeprune_manifest.json" or file.name.endswith(".index.json")
    is_wanted = file.suffix in (".json", ".jinja", ".model", ".txt") and not is_of_weights
    if is_wanted and not (target / file.name).exists():
        shutil.copy(file, target)
{head}'''
_CALIBRATION: Final = """\
rows = []
for line in (here / {rows!r}).read_text().splitlines():
    ids = torch.tensor([json.loads(line)["input_ids"]])
    rows.append({{"input_ids": ids, "attention_mask": torch.ones_like(ids)}})
"""
_ARGUMENTS: Final = """
    dataset=torch.utils.data.DataLoader(rows, batch_size=None),
    processor=AutoTokenizer.from_pretrained(source),
    pipeline="sequential",
"""
_HEAD: Final = """\
# A head of its own, which llm-compressor left out as it equals the embedding.
for file in sorted(source.glob("*.safetensors")):
    with safe_open(file, "pt") as tensors:
        if "lm_head.weight" in tensors.keys():
            head = tensors.get_tensor("lm_head.weight")
file = sorted(target.glob("*.safetensors"))[-1]
save_file({{**load_file(file), "lm_head.weight": head}}, file, metadata={{"format": "pt"}})
for file, changes in (
    (target / "model.safetensors.index.json", {{"lm_head.weight": file.name}}),
    (target / "config.json", {{"tie_word_embeddings": False}}),
):
    if file.exists():
        content = json.loads(file.read_text())
        content.get("weight_map", content).update(changes)
        file.write_text(json.dumps(content, indent=2))
"""


def script(model: MoEModel, files: QuantisedFiles) -> str:
    """The script that quantises an export; it reads nothing but what lies beside it."""
    has_rows = files.rows is not None
    has_head = model.family.needs_own_head and OUTPUT_HEAD in model.checkpoint.tensors
    lines = {
        "import json": has_rows or has_head,
        "import shutil\nfrom pathlib import Path\n": True,
        "import torch": has_rows,
        "from llmcompressor import oneshot": True,
        "from safetensors import safe_open": has_head,
        "from safetensors.torch import load_file, save_file": has_head,
        f"from transformers import {model.family.auto_class}{', AutoTokenizer' * has_rows}": True,
    }
    return _SCRIPT.format(
        out=files.out.name,
        target=files.target.name,
        recipe=files.recipe.name,
        tried=TRIED,
        label=SCHEMES[files.scheme].label,
        auto_class=model.family.auto_class,
        imports="\n".join(line for line, is_needed in lines.items() if is_needed),
        calibration=_CALIBRATION.format(rows=files.rows.name) if files.rows else "",
        arguments=f",{_ARGUMENTS}" if has_rows else "",
        head=_HEAD.format() if has_head else "",
    )


def write_quantised(
    model: MoEModel, files: QuantisedFiles, rows: Sequence[Sequence[int]]
) -> dict[str, Any]:
    """Write recipe, calibration tokens and script of a finished export, the script last.

    Files of these names with another content are refused.
    """
    texts = {files.recipe: yaml.safe_dump(recipe(model, files.scheme), sort_keys=False)}
    if files.rows:
        texts[files.rows] = "".join(f"{json.dumps({'input_ids': list(row)})}\n" for row in rows)
    texts[files.script] = script(model, files)
    for path, text in texts.items():
        if path.exists() and not (path.is_file() and path.read_bytes() == text.encode()):
            raise ExportError(f"{path} is there already, with another content; remove it.")
    for path, text in texts.items():
        write_durably(path, text.encode())
    return {
        "scheme": files.scheme,
        "recipe": str(files.recipe),
        "script": str(files.script),
        "rows": str(files.rows) if files.rows else None,
        "tokens": sum(map(len, rows)),
        "command": files.command,
    }
