"""What the commands say about widths of experts: what each width mode of an export saves."""

from collections.abc import Sequence
from typing import Any

from analysis.model import MoEModel
from analysis.stats.choose import parse_corpus_weight, routed_runs
from analysis.stats.store import StatsStore
from app.console import out, show_table
from pruning.active import Routing
from pruning.atoms.sizes import atom_sizes
from pruning.measured_routing import blended_routing, ranked_by
from pruning.plan import PruningPlan
from pruning.sizes import format_bytes, size_report
from pruning.surgery.width_sizes import WidthOption, width_options

_COLUMNS = (
    *("width mode", "parameters", "on disk", "loaded", "active", "expert FLOPs", "width"),
    *("read by", "note"),
)


def show_width_options(
    model: MoEModel, plan: PruningPlan, multiple_of: int, routing: Routing | None = None
) -> None:
    """Print, for a plan that removes neurons, what each width mode saves; nothing is written.

    Args:
        model: the source.
        plan: removes neurons.
        multiple_of: widths are rounded up to a multiple of this.
        routing: how often each expert is chosen; without it, all equally often.
    """
    table = atom_sizes(model, plan, multiple_of, routing)
    sizes = {row.mode: row for row in table.itertuples()}
    report, whole = size_report(model, plan, routing), model.checkpoint
    # With headers, as the modes' rows below: nobody should read a saving or a loss from those.
    on_disk = format_bytes(sum(shard.size for shard in whole.shards))
    sizes_before = (report.params_before, on_disk, format_bytes(whole.nbytes))
    before = (*sizes_before, report.active_before, report.expert_flops)
    rows: list[tuple[object, ...]] = [("as it is", *before, "", "", "")]
    for option in width_options(model, plan, multiple_of):
        found = sizes[str(option.mode)]
        rows.append(_row(option, (found.params, found.active, found.expert_flops)))
    show_table("Width modes", _COLUMNS, rows)
    how = "by the routing of the runs" if report.is_measured else "if each is chosen equally often"
    out.print(
        f"Without zeros that fill experts up a token uses {report.active_after:,} parameters and "
        f"{report.expert_flops_after:,} FLOPs of experts "
        f"({1 - report.expert_flops_after / report.expert_flops:.2%} fewer), {how}.",
        markup=False,
    )


def plan_routing(
    plan: PruningPlan,
    model: MoEModel,
    store: StatsStore,
    corpora: Sequence[str] = (),
    runs: Sequence[str] = (),
) -> Routing | None:
    """How often experts were chosen in the runs that are named, or in the blend that ranked.

    None where nothing is named and no run that ranked is in the store: then all equally often.
    """
    if not corpora and not runs:
        parts = ranked_by(plan, store)
        return blended_routing(parts) if parts else None
    wanted = [parse_corpus_weight(text) for text in corpora]
    return blended_routing(routed_runs(store, model, wanted, runs))


def _row(option: WidthOption, numbers: tuple[Any, ...]) -> tuple[object, ...]:
    if option.refused:
        return (str(option.mode), *["-"] * 5, "", "", option.refused)
    least, most = option.widths
    params, active, flops = map(int, numbers)
    return (
        str(option.mode),
        params,
        format_bytes(option.disk_bytes),
        format_bytes(option.loaded_bytes),
        active,
        flops,
        str(most) if least == most else f"{least} to {most}",
        "every reader" if option.stock else "load_pruned, trust_remote_code",
        f"{option.shared} shared experts" if option.shared is not None else "",
    )
