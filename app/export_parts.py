"""The parts of the Export page: the plan, the checks before writing, the start."""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import streamlit as st

from analysis.errors import ExportError, UserError
from app.charts import made_by, show_chart
from app.data import settings, shown_model, size_report_of
from app.job_queue import submit
from app.plots.explore import sizes_chart
from app.selection import Selection
from app.settings import shown_path
from app.state import View, criterion_badge
from app.task_requests import ExportRequest
from pruning.engines import Reads, contents_of, verdicts
from pruning.plan import PruningPlan
from pruning.sizes import format_bytes

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
# Room for headers, tokenizer and the copy of small files beside the weights.
_SPACE_FACTOR = 1.1


@dataclass(frozen=True, slots=True)
class Preflight:
    """Where the export would go, and whether it can."""

    out: Path
    ok: bool


def export_path(root: Path, name: str) -> Path:
    """The folder of this name below the export root.

    Raises:
        ExportError: a name that is not a plain one, or a link that leads elsewhere.
    """
    if not _NAME.fullmatch(name):
        raise ExportError(
            f"The folder name {name!r} is not usable: letters, digits, '.', '_' and '-' only, "
            "beginning with a letter or digit."
        )
    joined = root.resolve() / name
    if joined.resolve() != joined:
        raise ExportError(f"{name} is a link; choose another name.")
    return joined


def plan_part(view: View, selection: Selection, plan: PruningPlan) -> None:
    """What stays, and how large it is."""
    criterion = selection.criterion
    report = size_report_of(view.model, view.sparsity_percent)
    kept = sum(len(ids) for ids in plan.kept.values())
    st.markdown(f"**Plan**: {criterion.label}, {criterion_badge(criterion)}")
    first, second, third = st.columns([5, 4, 3])
    first.metric("Experts kept", f"{kept} of {view.model.num_experts}")
    second.metric("On disk", format_bytes(report.bytes_after))
    third.metric("Per layer", _per_layer(plan))
    show_chart(sizes_chart(report.table, made_by(view.about(), criterion.label)))
    before, after = report.loaded("bfloat16")
    st.markdown(
        f"Loaded in bfloat16: {format_bytes(before)}, then {format_bytes(after)}. Parameters that "
        f"one token uses: {report.active_before:,}, then {report.active_after:,}."
    )
    st.download_button(
        "Download plan.json",
        plan.to_json(),
        file_name="plan.json",
        mime="application/json",
        icon=":material/download:",
        on_click="ignore",
        key="export.plan",
    )
    with st.expander("Kept experts by layer"):
        st.dataframe(
            {
                "layer": list(plan.kept),
                "kept": [", ".join(map(str, ids)) for ids in plan.kept.values()],
            },
            hide_index=True,
        )


def _per_layer(plan: PruningPlan) -> str:
    counts = sorted({len(ids) for ids in plan.kept.values()})
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def _default_name(view: View, plan: PruningPlan) -> str:
    made = plan.provenance
    corpora = [Path(corpus).stem for corpus in made.corpora]
    words = (view.model.name, made.criterion.replace(",", ""), *corpora, str(view.sparsity_percent))
    return re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(words)).lstrip("._-")[:100]


def preflight_part(view: View, plan: PruningPlan) -> Preflight:
    """Check what can be checked before a byte is written."""
    st.markdown("**Before writing**")
    root = settings().export_root
    name = st.text_input(
        "Folder name",
        value=_default_name(view, plan),
        key=f"export.name.{_default_name(view, plan)}",
        help=f"A new folder below {root.name}/.",
        max_chars=100,
    )
    try:
        out = export_path(root, name)
    except UserError as error:
        st.error(str(error), icon=":material/error:")
        return Preflight(root, ok=False)
    needs = int(size_report_of(view.model, view.sparsity_percent).bytes_after * _SPACE_FACTOR)
    existing = next(path for path in (out, *out.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    is_new = not out.exists() or (out.is_dir() and not any(out.iterdir()))
    least = min(len(ids) for ids in plan.kept.values())
    checks = (
        (free >= needs, f"Free disk {format_bytes(free)}, needs {format_bytes(needs)}"),
        (is_new, f"{root.name}/{name} is {'new' if is_new else 'taken; choose another name'}"),
        (True, f"At least {least} experts stay, the router picks {view.model.layers[0].top_k}"),
        (True, f"Read by: {_readers(view, plan)}"),
    )
    for ok, text in checks:
        icon = ":material/check_circle:" if ok else ":material/cancel:"
        st.markdown(f":{'green' if ok else 'red'}[{icon}] {text}")
    _engines_part(view, plan)
    return Preflight(out, ok=all(ok for ok, _ in checks))


def _engines_part(view: View, plan: PruningPlan) -> None:
    """Every program, whether it reads the export, and why."""
    found = verdicts(contents_of(view.model, plan))
    with st.expander("Which programs read it, and why"):
        st.dataframe(
            {
                "program": [each.engine for each in found],
                "reads it": [str(each.reads) for each in found],
                "why": [each.reason for each in found],
            },
            hide_index=True,
            key="export.engines",
        )


def _readers(view: View, plan: PruningPlan) -> str:
    """The programs that are known to read the export, or expected to."""
    found = [each for each in verdicts(contents_of(view.model, plan)) if each.reads is not Reads.NO]
    return ", ".join(
        each.engine if each.reads is Reads.YES else f"{each.engine} ({each.reads})"
        for each in found
    )


def start_part(view: View, selection: Selection, ready: Preflight) -> None:
    """The button, and the same from the command line."""
    request = ExportRequest(
        model=str(view.model.checkpoint.path), plan=selection.plan().to_dict(), out=ready.out
    )
    shown = request.model_copy(
        update={"model": shown_model(view.model), "out": shown_path(ready.out)}
    )
    if st.button(
        "Start export",
        type="primary",
        icon=":material/play_arrow:",
        disabled=not ready.ok,
        key="export.start",
        width="stretch",
    ):
        _start(request, shown.command(), ready)
    st.markdown("**The same from the command line**")
    commands = [selection.request.command()]
    if ready.out != settings().export_root:  # a name that can be used
        commands.append(shown.command())
    st.code("\n".join(commands), language=None, wrap_lines=True)


def _start(request: ExportRequest, command: str, ready: Preflight) -> None:
    try:
        settings().export_root.mkdir(parents=True, exist_ok=True)
        submit(
            request,
            title=ready.out.name,
            command=command,
            partials=(str(ready.out.with_name(ready.out.name + ".partial")),),
        )
    except (UserError, OSError) as error:
        st.error(str(error), icon=":material/error:")
        return
    st.toast("Export queued", icon=":material/output:")
    st.rerun()
