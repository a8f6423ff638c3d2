"""The form of an export: name, options, checks, run button."""

import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import psutil
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from analysis.errors import ExportError, UserError
from analysis.heads import prediction_heads
from analysis.model import MoEModel
from app.literal import literal
from app.loaded import Loaded
from app.session.data import settings, shown_model
from app.session.job_queue import job_store, queue, shown_request
from app.session.state import one_of
from app.widgets.charts import reasons_table
from app.widgets.notes import show_command
from pruning.engines import (
    Verdict,
    contents_of,
    summary,
    verdicts,
)
from pruning.heads import (
    WEIGHT_CRITERION,
    HeadChoice,
    head_ranking,
    heads_depend_on,
    ranked_in_words,
)
from pruning.neurons.widths import WidthChoice, WidthPlan, plan_widths
from pruning.plan import NEURON_GRANULARITY, PruningPlan, fit_plan
from pruning.planning.choice import corpora_words
from pruning.planning.make import CurrentPlan
from pruning.requests.base import validated
from pruning.requests.model import ExportRequest
from pruning.requests.options import ModeName
from pruning.sizes import SizeReport, format_bytes, heads_bytes
from pruning.surgery.heads import why_not_pruned
from pruning.surgery.padding import Padding, plan_padding
from pruning.surgery.verify import logits_memory
from pruning.surgery.width_sizes import WidthOption
from pruning.tasks.export import is_finished_export

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
# Room for headers, the tokenizer and small files besides the weights.
_SPACE_FACTOR = 1.1
_MOST_NUMBERED = 1000  # numbered names to try before giving up
Mtp = Literal["keep", "drop", "prune"]
MTP_WORDS: Final[Mapping[Mtp, str]] = {
    "drop": "Leave out",
    "prune": "Prune their experts",
    "keep": "Keep as they are",
}


@dataclass(frozen=True, eq=False)
class ExportChoice:
    """The options besides the plan."""

    # How prediction heads are treated; None for the default, or without heads.
    mtp: Mtp | None
    width: ModeName | None  # width mode of narrowed experts; None if no width changes
    widths: WidthPlan | None  # resulting widths; None if no width changes
    refused: str  # why this cannot be written; empty if it can
    num_bytes: int  # of the shards
    keep_list: bool  # also write kept_experts.json
    padding: Padding | None  # of layers that keep fewer experts; None for no padding
    width_multiple: int  # what loaded widths are rounded up to

    def verdicts(self, model: MoEModel, plan: PruningPlan) -> tuple[Verdict, ...]:
        """Compatibility of each program."""
        padded, heads = self.padding is not None, self.mtp in ("keep", "prune")
        contents = contents_of(model, plan, self.widths, padded=padded, keeps_heads=heads)
        return verdicts(contents)


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
    elif current_plan.selection and current_plan.selection.spec.limits.set:
        parts.append("hand")
    elif provenance.schedule != "uniform":
        parts.append(provenance.schedule)
    parts += ["repaired"] if current_plan.repaired_by else []
    words = "-".join(filter(None, (loaded.model.name, *parts)))
    return re.sub(r"[^A-Za-z0-9._-]+", "-", words).lstrip("._-")[:100]


def _free_name(root: Path, name: str) -> str:
    """The name, numbered if the folder exists."""
    names = (name, *(f"{name[:95]}-{number}" for number in range(2, _MOST_NUMBERED)))
    return next((each for each in names if not (root / each).exists()), name)


@dataclass(frozen=True, slots=True)
class _Finding:
    """One preflight check: whether it blocks the export, and its text."""

    ok: bool
    text: str
    warns: bool = False

    def as_markdown(self) -> str:
        """Markdown of the check."""
        color, icon = ("green", "check_circle") if self.ok else ("red", "cancel")
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
            help=f"A new folder below {root.name}/.",
            max_chars=100,
        )
        place = st.container(width="content")
    options, checks = st.container(), st.container()
    rare = st.expander("Options and command line", key="export.rare")
    with options:
        choice = options_part(loaded, current_plan, report.bytes_after, rare, option)
    request = None
    commands = current_plan.commands(shown_model(loaded.model))
    try:
        out = export_path(root, name)
    except UserError as error:
        checks.error(literal(error), icon=":material/error:")
    else:
        export_request = _request(loaded, current_plan.plan, out, choice)
        with checks:
            is_ready = _check(loaded, current_plan.plan, export_request, choice)
        request = export_request if is_ready else None
        commands.append(shown_request(export_request).command((current_plan.file_name,)))
    with place:
        _start(request)
    with rare:
        show_command(*commands)
    return choice


def _check(loaded: Loaded, plan: PruningPlan, request: ExportRequest, choice: ExportChoice) -> bool:
    """Show all checks that need no write, and the compatibility; whether the export can start.

    What holds without a warning is folded, but for the folder.
    """
    place = _place_finding(request, loaded.model)
    findings = list(_findings(request, loaded.model, plan, choice))
    folded = [finding for finding in findings if finding.ok and not finding.warns]
    for finding in (place, *(each for each in findings if each not in folded)):
        st.markdown(finding.as_markdown())
    label = "Compatibility, and the checks that hold"
    part = st.expander(label, key="export.engines.part", on_change="rerun")
    with part:
        for finding in folded:
            st.markdown(finding.as_markdown())
        if part.open:
            reasons_table(choice.verdicts(loaded.model, plan), "export.engines")
    return place.ok and all(finding.ok for finding in findings)


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
    if choice.refused:
        yield _Finding(False, choice.refused)
    # Only verification loads the models: the source, then the export.
    needs, free = logits_memory(model, plan), psutil.virtual_memory().available
    memory = f"Free memory {format_bytes(free)}, comparing logits takes {format_bytes(needs)}"
    if needs > free:
        memory += ": the export is written, and verified as far as memory allows"
    yield _Finding(True, memory, warns=needs > free)
    is_even = choice.padding is not None or len(set(counts.values())) == 1
    differs = "" if is_even else "Layers differ in size: check your serving engine.  "
    yield _Finding(
        True,
        f"{differs}Compatibility, {summary(choice.verdicts(model, plan))}",
        warns=not is_even or plan.granularity == NEURON_GRANULARITY,
    )


def _place_finding(request: ExportRequest, model: MoEModel) -> _Finding:
    """Whether the folder is new, or holds this export already."""
    out = request.out
    place = f"{settings().export_root.name}/{out.name}"
    exports = job_store().list(kinds=("export",))
    if any(job.request.get("out") == str(out) for job in exports if not job.is_finished):
        return _Finding(False, f"{place} is being written, see Jobs")
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
        "verify": True,
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
        st.error(literal(error), icon=":material/error:")
    else:
        queue(request, request.out.name, shown_request(request).command())


def options_part(
    loaded: Loaded,
    current_plan: CurrentPlan,
    num_bytes: int,
    rare: DeltaGenerator,
    option: WidthOption | None = None,
) -> ExportChoice:
    """Draw the options of this plan, the rare ones in `rare`; return their values.

    `num_bytes` is for unchanged widths; `option` is the result of the chosen width mode,
    for a plan of neurons.
    """
    mtp, budget = _heads_choice(loaded.model, current_plan.plan), loaded.choices.spec.budget
    widths, refused = None, option.refused if option else ""
    if option and not refused:
        num_bytes, choice = option.disk_bytes, WidthChoice(option.mode, budget.width_multiple_of)
        widths = plan_widths(loaded.model, fit_plan(current_plan.plan, loaded.model), choice)
    if padding := _padding_choice(loaded.model, current_plan.plan):
        num_bytes += padding.nbytes
    heads = HeadChoice(mtp) if mtp else None
    num_bytes += heads_bytes(loaded.model, fit_plan(current_plan.plan, loaded.model), heads)
    keep_list = rare.toggle(
        "Also write kept_experts.json",
        key="keep_list",
        help="A separate file with the ids of the kept experts per layer.",
    )
    width, multiple = budget.width_mode if option else None, budget.width_multiple_of
    return ExportChoice(mtp, width, widths, refused, num_bytes, keep_list, padding, multiple)


def _padding_choice(model: MoEModel, plan: PruningPlan) -> Padding | None:
    """Offer padding for layers of different counts, or say why it is impossible."""
    fitted = fit_plan(plan, model)
    is_even = len(set(map(len, fitted.kept.values()))) == 1
    if is_even or fitted.granularity == NEURON_GRANULARITY:
        return None
    try:
        padding = plan_padding(model, fitted)
    except ExportError as error:
        st.caption(literal(error))
        return None
    is_chosen = st.toggle(
        "Pad layers for engines",
        key="pad",
        help="Engines read one number of experts for all layers. Layers that keep fewer experts "
        "are padded with all-zero experts, which the router never chooses.",
    )
    st.caption(f"Padding adds {padding.in_words}, on disk and in memory.")
    return padding if is_chosen else None


def _heads_choice(model: MoEModel, plan: PruningPlan) -> Mtp | None:
    heads = prediction_heads(model)
    if not heads:
        return None
    depend = heads_depend_on(model, plan)
    # Heads kept whole with a pruned trunk would have a wrong expert count.
    options: list[Mtp] = ["drop", "prune"] if depend else ["keep", "drop"]
    ranking = head_ranking(model, plan, settings().store) if depend else None
    if depend and why_not_pruned(model, ranking):
        options = ["drop"]
    if st.session_state.get("mtp", options[0]) not in options:
        st.session_state["mtp"] = options[0]
    chosen = st.segmented_control(
        f"Prediction heads (MTP): {', '.join(head.name for head in heads)}",
        options,
        default=options[0],
        key="mtp",
        bind="query-params",
        required=True,
        format_func=lambda name: MTP_WORDS[name],
        help="config.json has one expert count for heads and layers, so heads cannot stay whole "
        "when layers are pruned."
        if depend
        else "Expert counts do not change, so the heads can stay.",
    )
    if chosen == "prune":
        name, runs = (ranking.criterion.name, ranking.runs) if ranking else (WEIGHT_CRITERION, ())
        more = heads_bytes(model, fit_plan(plan, model), HeadChoice.PRUNE)
        by = f"Ranked by {ranked_in_words(name, runs)}; they add {format_bytes(more)} to the plan."
        how = "" if ranking else " Calibrate with --group heads to rank them by what they do."
        st.caption(literal(by + how))
    return one_of(chosen, options)


def form_place(*, is_written: bool) -> Any:
    """The container of the export form, folded if this plan is exported already."""
    if is_written:
        return st.expander("Export it again under another name")
    return st.container(border=True)
