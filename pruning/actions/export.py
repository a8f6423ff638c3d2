"""Export: the pruned checkpoint is written, and verified and converted if that is asked for."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any, Final

from analysis.files.shipped import DEMO_MODEL
from analysis.model.moe_model import MoEModel
from analysis.model.opening import load_model_index
from pruning.actions.action import Action, Call, Line, Note, Outcome, Section
from pruning.actions.checks import checked
from pruning.plan.bits import FORMATS
from pruning.plan.expert_sizes import fits_k_types
from pruning.plan.plan import NEURON_GRANULARITY
from pruning.plan.size_words import growth_words, less_in_words
from pruning.plan.sizes import format_bytes
from pruning.requests.model import ExportRequest
from pruning.serving.commands import LLAMA_CPP, serve_commands, serve_gguf, served_by
from pruning.serving.engines import contents_of, equal_cut, summary, verdicts
from pruning.serving.gguf import gguf_path
from pruning.serving.tensor_types import REST, quantise_command, tensor_types
from pruning.spec.base import command_line, option_words
from pruning.surgery.manifest import Manifest, read_manifest
from pruning.surgery.padding import plan_padding
from pruning.surgery.source_checks import left_behind, missing_files
from pruning.tasks import Steps
from pruning.tasks.export import dry_export, export_run

_UNQUANTISED: Final = ("bf16", "f16", "f32")  # types of --gguf
Result = Mapping[str, Any]  # of `export_run`


def _tell(call: Call[ExportRequest], result: Result) -> Outcome:
    """The checkpoint, its verification, and the files beside it."""
    parts = [_checkpoint(call.request, result)]
    if "verify" in result:
        parts.append(checked(call.request.out, result["verify"]))
    if "gguf" in result:
        parts.append(_gguf(call.request, result))
    if "recipe" in result:
        parts.append(_recipe(result["recipe"]))
    numbers: dict[str, object] = {}
    for part in parts:
        numbers |= part.numbers
    return Outcome(
        "\n".join(part.sentence for part in parts),
        numbers,
        tuple(chain.from_iterable(part.shown for part in parts)),
        tuple(chain.from_iterable(part.following for part in parts)),
    )


def _checkpoint(request: ExportRequest, result: Result) -> Outcome:
    """What an export takes and saves, and what serves it."""
    model, folder = load_model_index(request.model, revision=request.revision), request.out
    manifest, exported = read_manifest(folder), load_model_index(str(folder))
    before, after = sum(shard.size for shard in model.checkpoint.shards), manifest.nbytes
    removes = equal_cut(manifest.plan, padded=manifest.padded)
    found = verdicts(replace(contents_of(exported), removes=removes))
    bits = _bits_by_layer(result)
    served = served_by(found, str(folder), exported.dtype, tried_only=True, bits_by_layer=bits)
    serving = serve_commands(served)
    notes = [*_made_of(model, manifest, result), summary(found)]
    if any(engine.verdict.engine == LLAMA_CPP for engine in served):
        notes += _bits_words(exported, bits)
    named = str(model.checkpoint.path) if model.name != DEMO_MODEL else DEMO_MODEL
    # Verification reads the repair's files.
    place = option_words(request, only=("stats_dir",)) if result["repair"] else ()
    verify = command_line("verify", str(folder), "--source", named, *place)
    numbers = {**result, "folder": str(folder), "serve": serving}
    words = f"{folder}: files with headers {less_in_words(before, after)}"
    words += f", plan {result['plan_digest'][:8]}"
    return Outcome(
        f"export: {folder} is finished, skipped" if result["skipped"] else words,
        {**numbers, "file_bytes_before": before, "file_bytes_after": after},
        (*map(Note, notes), *map(Line, serving), *_growth(before, after)),
        () if "verify" in result else (verify,),
    )


def _made_of(model: MoEModel, manifest: Manifest, result: Result) -> Iterator[str]:
    """What an export lacks of its source, and what it has besides."""
    yield from map("Left out: {}".format, left_behind(model))
    yield from missing_files(model)
    if result["heads"]:
        yield f"Prediction heads (MTP): {result['heads']}"
    if result["repair"]:
        yield f"Repair: {result['repair']}."
    if manifest.padded:
        added = plan_padding(model, manifest.plan).in_words
        yield f"Filled up so that every layer has as many: {added}"


def _growth(before: int, after: int) -> Iterator[Section]:
    """That an export is larger than its source, if it is."""
    if growth := growth_words(before, after):
        yield Note(f"warning: the export is {growth}")


def _bits_by_layer(result: Result) -> dict[int, str]:
    return {int(layer): bits for layer, bits in result.get("bits_by_layer", {}).items()}


def _bits_words(exported: MoEModel, bits: Mapping[int, str]) -> Iterator[str]:
    """What llama.cpp makes of the bits of a plan, which the export itself has not."""
    if not bits:
        return
    yield (
        f"the export has the weights as they are; llama-quantize gives its experts their bits, and "
        f"all else {REST}"
    )
    types = {FORMATS[name].tensor_type for name in bits.values() if name in FORMATS}
    if any("_k" in name for name in types) and not fits_k_types(exported):
        yield "types of K need rows of 256 weights: llama-quantize takes larger ones here"


def _gguf(request: ExportRequest, result: Result) -> Outcome:
    """The GGUF file, and how it is quantised by layer and served."""
    record = result["gguf"]
    path, kind = gguf_path(request.out, record["type"]), record["type"]
    lines = [serve_gguf(path)]
    if kind in _UNQUANTISED and (types := tensor_types(_bits_by_layer(result), kind)):
        small = gguf_path(request.out, "by-layer")
        lines = [quantise_command(types, path, small), serve_gguf(small)]
    size = format_bytes(record["bytes"])
    words = f"{path}: {size}, by the converter of {record['converter']}"
    return Outcome(words, {"gguf": record}, following=lines)


def _recipe(record: Mapping[str, Any]) -> Outcome:
    """What was written for llm-compressor."""
    on = f", {record['tokens']:,} tokens to calibrate on" if record["rows"] else ""
    words = f"{record['script']}: llm-compressor's recipe for {record['scheme']}{on}"
    return Outcome(words, {"recipe": record}, following=(record["command"],))


def _cost(call: Call[ExportRequest]) -> Steps[Outcome]:
    """The size of an export, and the verdict on it; nothing is written."""
    request = call.request
    model = load_model_index(request.model, revision=request.revision)
    prepared, is_there = yield from dry_export(request, model)
    before, after = model.checkpoint.nbytes, prepared.tensor_bytes
    numbers: dict[str, object] = {"bytes_before": before, "bytes_after": after}
    shown = list(_growth(before, after))
    if verdict := prepared.verdict:
        numbers["verdict"] = verdict.numbers
        shown += map(Note, (verdict.headline, *verdict.lines))
    by_neuron = prepared.plan.granularity == NEURON_GRANULARITY
    words = "" if by_neuron else f"{less_in_words(before, after)}; "  # a table has its sizes
    words += f"{request.out} is finished, " if is_there else ""
    following = (request.command([str(path) for path in call.plans]),)
    return Outcome(f"{words}nothing was written", numbers, shown, following)


ACTION: Final = Action(
    ExportRequest,
    export_run,
    _tell,
    "export demo smaller-demo --plan plan.json",
    "{about}",
    "export",
    _cost,
)
