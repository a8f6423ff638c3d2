"""The row of a layout in docs/dev/layouts.md: what is published, what the program counts."""

from pathlib import Path

from analysis.model.heads import beside_text
from analysis.model.moe_model import MoEModel
from layouts.published import Layout
from pruning.plan.sizes import size_report

PAGE = Path(__file__).parents[2] / "docs" / "dev" / "layouts.md"
_STORED = {"": "bfloat16", "fp8": "FP8", "mxfp4": "MXFP4", "int4": "packed int4"}
_STORED |= {"gptq": "GPTQ int4", "awq": "AWQ int4", "fp8-channel": "FP8 by channel"}
_STORED |= {"nvfp4": "NVFP4", "nf4": "bitsandbytes nf4"}


def row_of(layout: Layout, model: MoEModel) -> str:
    """One line of the table."""
    report = size_report(model)
    aside = sum(model.num_weights(model.checkpoint.tensors[n]) for n in beside_text(model))
    trunk = (report.params_before - aside) / 1e9
    experts = f"{len(layout.sparse)} x {layout.experts}, top-{layout.top_k}"
    experts += f", {layout.groups} groups" if layout.groups > 1 else ""
    cells = (
        str(layout),
        experts,
        _STORED[layout.stored] + (", heads" if layout.heads in ("mtp", "beyond") else ""),
        layout.total,
        f"{trunk:,.2f}" + (f" + {aside / 1e9:.2f}" if aside else ""),
        layout.active or "-",
        f"{report.active_before / 1e9:.2f}",
        f"{report.bytes_before:,}",
        "equal" if layout.nbytes else "not known",
    )
    return f"| {' | '.join(cells)} |"
