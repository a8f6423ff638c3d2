"""What the commands say about widths of experts: what each width mode of an export saves."""

from analysis.model import MoEModel
from app.commands.console import show_table
from pruning.plan import PruningPlan
from pruning.sizes import format_bytes
from pruning.surgery.width_sizes import WidthOption, width_options

_COLUMNS = ("width mode", "on disk", "loaded", "width", "read by", "note")


def show_width_options(model: MoEModel, plan: PruningPlan, multiple_of: int) -> None:
    """Print, for a plan that removes neurons, what each width mode saves; nothing is written."""
    options = width_options(model, plan, multiple_of)
    before = model.checkpoint.nbytes
    rows = [("as it is", format_bytes(before), format_bytes(before), "", "", "")]
    show_table("Width modes", _COLUMNS, rows + [_row(option) for option in options])


def _row(option: WidthOption) -> tuple[str, str, str, str, str, str]:
    if option.refused:
        return str(option.mode), "-", "-", "", "", option.refused
    least, most = option.widths
    note = f"{option.shared} shared experts" if option.shared is not None else ""
    return (
        str(option.mode),
        format_bytes(option.disk_bytes),
        format_bytes(option.loaded_bytes),
        str(most) if least == most else f"{least} to {most}",
        "every reader" if option.stock else "load_pruned",
        note,
    )
