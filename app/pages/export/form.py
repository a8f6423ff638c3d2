"""The form of an export: name, checks, command lines, run button."""

import re
import shutil
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import streamlit as st

from analysis.calibration.free import free_memory
from analysis.errors import ExportError, UserError
from analysis.model.moe_model import MoEModel
from app.errors import show_error
from app.literal import literal
from app.loaded import CurrentPlan, Loaded
from app.pages.export.options import ExportChoice, options_part
from app.session.data import settings, shown_model
from app.session.job_queue import active_job, job_store, queue, shown_request
from app.widgets.charts import reasons_table
from app.widgets.job_panel import progress_part
from app.widgets.notes import show_command
from app.widgets.plan_bar import verdict_of, verdict_part
from pruning.plan.heads import HeadChoice
from pruning.plan.plan import NEURON_GRANULARITY, PruningPlan
from pruning.plan.size_words import growth_words
from pruning.plan.sizes import SizeReport, format_bytes
from pruning.planning.choice import corpora_words
from pruning.requests.model import ExportRequest
from pruning.serving.engines import readers, summary
from pruning.spec.base import validated
from pruning.surgery.source_checks import check_source, left_behind, missing_files
from pruning.surgery.verify import logits_memory
from pruning.surgery.width_sizes import WidthOption
from pruning.tasks.export import is_finished_export

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
# Room for headers, the tokenizer and small files besides the weights.
_SPACE_FACTOR = 1.1
_MOST_NUMBERED = 1000  # numbered names to try before giving up


def export_path(root: Path, name: str) -> Path:
    """The folder of this name below the export root."""
    if not _NAME.fullmatch(name):
        raise ExportError(
            f"The folder name {name!r} is not usable: letters, digits, '.', '_' and '-' only, "
            "beginning with a letter or digit."
        )
    joined = root.resolve() / name
    if joined.resolve() != joined:
        raise ExportError(f"{name} is a link; choose another name.")
    return joined


def _default_name(loaded: Loaded, current_plan: CurrentPlan) -> str:
    provenance = current_plan.plan.provenance
    corpora = corpora_words([Path(corpus).stem for corpus in provenance.corpora])
    parts = [provenance.criterion.replace(",", ""), corpora, str(loaded.percent)]
    if current_plan.file:
        parts = [Path(current_plan.file).stem]
    elif current_plan.plan.granularity == NEURON_GRANULARITY:
        units = {"params": "params", "shrink": "bytes"}
        share_of = units.get(str(provenance.budget.get("kind")), "neurons")
        parts += [share_of, str(provenance.schedule_parameters.get("scope", ""))]
    elif current_plan.ranking and current_plan.ranking.spec.limits.set:
        parts.append("hand")
    elif provenance.schedule != "uniform":
        parts.append(provenance.schedule)
    parts += ["repaired"] if current_plan.repaired_by else []
    words = "-".join(filter(None, (loaded.model.name, *parts)))
    return re.sub(r"[^A-Za-z0-9._-]+", "-", words).lstrip("._-")[:100]


def _free_name(root: Path, name: str) -> str:
    """The name, numbered if the folder exists."""
    names = (name, *(f"{name[:95]}-{number}" for number in range(2, _MOST_NUMBERED)))
    return next((free for free in names if not (root / free).exists()), name)


@dataclass(frozen=True, slots=True)
class _Finding:
    """One preflight check: whether it blocks the export, and its text."""

    ok: bool
    text: str
    warns: bool = False
    icon: tuple[str, str] = ("red", "cancel")  # colour and name, unless it is ok

    def as_markdown(self) -> str:
        """Markdown of the check."""
        color, icon = ("green", "check_circle") if self.ok else self.icon
        if self.ok and self.warns:
            color, icon = "orange", "warning"
        return f":{color}[:material/{icon}:] {self.text}"


def form_part(
    loaded: Loaded,
    current_plan: CurrentPlan,
    report: SizeReport,
    option: WidthOption | None = None,
) -> ExportChoice:
    """Name, button, options, checks and command line of an export; the options' values."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        root = settings().export_root
        offered = _free_name(root, _default_name(loaded, current_plan))
        name = st.text_input(
            "Folder name",
            value=offered,
            key=f"export.name.{offered}",
            max_chars=100,
        )
        place = st.container(width="content")
    options, checks = st.container(), st.container()
    rare = st.expander("Options and command", key="export.rare")
    with options:
        choice = options_part(loaded, current_plan, report.bytes_after, rare, option)
    request = None
    commands = current_plan.commands(shown_model(loaded.model))
    try:
        out = export_path(root, name)
    except UserError as error:
        show_error(error, checks)
    else:
        export_request = _request(loaded, current_plan.plan, out, choice)
        with checks:
            is_ready = _check(loaded, current_plan, export_request, choice)
            is_ready = _is_meant(loaded.model, current_plan.plan, choice) and is_ready
        request = export_request if is_ready else None
        commands.append(shown_request(export_request).command((current_plan.file_name,)))
    with place:
        _start(request)
    if (job := active_job(loaded, "export")) is not None:
        with checks:
            progress_part(job)
    with rare:
        show_command(*commands)
    return choice


def _check(
    loaded: Loaded, current_plan: CurrentPlan, request: ExportRequest, choice: ExportChoice
) -> bool:
    """Show the verdict, all checks that need no write, and the compatibility.

    Returns whether the export can start. What holds without a warning is folded, but for the
    folder, and so is what does not speak against shipping.
    """
    plan = current_plan.plan
    sizes = _bytes_before(loaded.model, choice), choice.num_bytes
    by = readers(choice.verdicts(loaded.model, plan))
    verdict = verdict_of(loaded, current_plan, sizes, by)
    if verdict:
        verdict_part(verdict, red=True)
    place = _place_finding(request, loaded.model)
    findings = list(_findings(request, loaded.model, plan, choice))
    folded = [finding for finding in findings if finding.ok and not finding.warns]
    shown = [finding for finding in findings if finding not in folded]
    for finding in (place, *shown):
        st.markdown(finding.as_markdown())
    label = "What loads it, and how it is checked"
    part = st.expander(label, key="export.engines.part", on_change="rerun")
    with part:
        if verdict:
            verdict_part(verdict, red=False)
        for finding in folded:
            st.markdown(finding.as_markdown())
        if part.open:
            reasons_table(choice.verdicts(loaded.model, plan), "export.engines")
    return place.ok and all(finding.ok for finding in findings)


def _is_meant(model: MoEModel, plan: PruningPlan, choice: ExportChoice) -> bool:
    """Ask whether an export is to be written that is larger than the original, if it is.

    Not if bfloat16 of FP8 was asked for, which takes twice the bytes.
    """
    growth = growth_words(_bytes_before(model, choice), choice.num_bytes)
    if not growth or choice.refused:
        return True
    st.warning(f"The export is {growth}.", icon=":material/warning:")
    return choice.dequantise or st.checkbox(
        "Write it although it is larger", key=f"export.larger.{plan.digest}"
    )


def _bytes_before(model: MoEModel, choice: ExportChoice) -> int:
    """Bytes of the original's weights; in a width mode those of its files, headers included."""
    if choice.widths is None:
        return model.checkpoint.nbytes
    return sum(shard.size for shard in model.checkpoint.shards)


def _findings(
    request: ExportRequest, model: MoEModel, plan: PruningPlan, choice: ExportChoice
) -> Iterator[_Finding]:
    """Check the disk, the plan, the memory and the compatibility."""
    out = request.out
    existing = next(path for path in (out, *out.parents) if path.exists())
    free, needs = shutil.disk_usage(existing).free, int(choice.num_bytes * _SPACE_FACTOR)
    yield _Finding(free >= needs, f"Free disk {format_bytes(free)}, needs {format_bytes(needs)}")
    counts = {layer: len(ids) for layer, ids in plan.kept.items()}
    spare = min(counts[layer.index] - layer.top_k for layer in model.layers)
    picks = one_or_range([layer.top_k for layer in model.layers])
    stay = f"At least {min(counts.values())} experts stay, the router picks {picks}"
    yield _Finding(spare >= 0, stay)
    yield _Finding(True, f"The plan is for this model, identity {model.identity[:8]}")
    if choice.mtp is not None:
        words = {"keep": "stay as they are", "drop": "are left out", "prune": "are pruned too"}
        yield _Finding(True, f"Prediction heads (MTP) {words[choice.mtp]}")
    notes = [*map("Left out: {}".format, left_behind(model)), *missing_files(model)]
    yield from (_Finding(True, literal(note), warns=True) for note in notes)
    try:
        check_source(model, plan.kept, HeadChoice(choice.mtp) if choice.mtp else None)
    except ExportError as error:
        yield _Finding(False, literal(str(error)))
    if why := choice.refused or (choice.gguf and choice.why_no_gguf(model, plan)):
        yield _Finding(False, why)
    yield _memory_finding(request, model, plan)
    is_even = choice.padding is not None or len(set(counts.values())) == 1
    differs = "" if is_even else "Layers differ in size: check your serving engine.  "
    verdicts = choice.verdicts(model, plan)
    yield _Finding(
        True,
        f"{differs}Compatibility, {summary(verdicts)}",
        warns=not readers(verdicts).plain or plan.granularity == NEURON_GRANULARITY,
    )


def _memory_finding(request: ExportRequest, model: MoEModel, plan: PruningPlan) -> _Finding:
    """What verification needs, which alone loads the models: the export, then the source."""
    needs, free = logits_memory(model, plan), free_memory()
    words = f"Free memory {format_bytes(free)}, comparing logits takes {format_bytes(needs)}"
    if request.stream_layers:
        streamed = logits_memory(model, plan, by_layers=True)
        return _Finding(True, f"{words}; layer by layer, as here, {format_bytes(streamed)}")
    if needs > free:
        words += ": the export is written, and verified as far as memory allows"
    return _Finding(True, words, warns=needs > free)


def _by_layers(model: MoEModel, plan: PruningPlan) -> bool:
    """Whether logits can be compared one layer at a time only."""
    if model.inseparable:
        return False
    free = free_memory()
    return logits_memory(model, plan, by_layers=True) <= free < logits_memory(model, plan)


def _place_finding(request: ExportRequest, model: MoEModel) -> _Finding:
    """Whether the folder is new, or holds this export already."""
    out = request.out
    place = f"{settings().export_root.name}/{out.name}"
    exports = job_store().list(kinds=("export",))
    if any(job.request.get("out") == str(out) for job in exports if not job.is_finished):
        return _Finding(False, f"{place} is being written", icon=("blue", "hourglass_top"))
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return _Finding(True, f"{place} is new")
    try:
        is_finished = is_finished_export(request, model)
    except UserError:  # another export, or what is none
        is_finished = False
    state = "holds this export, finished" if is_finished else "is taken; choose another name"
    return _Finding(is_finished, f"{place} {state}")


def one_or_range(numbers: Collection[int]) -> str:
    """One number, or a range: 4 to 8."""
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"


def _request(loaded: Loaded, plan: PruningPlan, out: Path, choice: ExportChoice) -> ExportRequest:
    fields = {
        "model": str(loaded.model.checkpoint.path),
        "plan": plan.to_dict(),
        "out": out,
        "mtp": choice.mtp,
        "stats_dir": settings().stats_dir,
        "width_mode": choice.width,
        "width_multiple_of": choice.width_multiple,
        "keep_list": choice.keep_list,
        "pad": choice.padding is not None,
        "dequantise": choice.dequantise,
        "gguf": choice.gguf,
        "verify": True,
        "stream_layers": _by_layers(loaded.model, plan),
    }
    return validated(ExportRequest, fields)


def _start(request: ExportRequest | None) -> None:
    """The run button, disabled without a request that passed the checks."""
    icon, off = ":material/play_arrow:", request is None
    sent = st.button("Run export", type="primary", icon=icon, disabled=off, key="export.start")
    if not sent or request is None:
        return
    try:
        request.out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        show_error(error)
    else:
        queue(request, request.out.name, shown_request(request).command())


def form_place(*, is_written: bool) -> Any:
    """The container of the export form, folded if this plan is exported already."""
    if is_written:
        return st.expander("Export it again under another name")
    return st.container(border=True)
