"""`python -m tools.gpu_check`: calibration, placements and exports on this machine's GPU."""

import gc
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import torch
import transformers
import typer
from rich.console import Console
from rich.table import Table

from analysis.calibration.loading import resolve_device
from analysis.errors import UserError, first_line, unknown_name
from analysis.files.naming import now
from tools.gpu_check.parts import PARTS, NotRun
from tools.gpu_check.shapes import SHAPES, World, make_world

_SLACK = 1.2  # of the estimated time of a part
_COLOURS = {"PASS": "green", "FAIL": "bold red", "not run": "yellow"}


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the report."""

    shape: str
    part: str
    outcome: str  # PASS, FAIL or not run
    seconds: float = 0.0
    why: str = ""  # it failed or did not run
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def detail(self) -> str:
        """The figures, or why there are none."""
        shown = (
            f"{name} {value:,.4g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in self.figures.items()
        )
        return self.why or ", ".join(shown)


def _outcome(part: str, world: World, needed: float, left: float) -> dict[str, Any]:
    """Fields of the row of one part, which takes about `needed` of the `left` seconds."""
    if needed > left:
        why = f"takes about {needed:.0f} s, {left:.0f} s are left; raise --minutes"
        return {"outcome": "not run", "why": why}
    gc.collect()  # models hold reference cycles
    if world.device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(world.device)
    try:
        ok, figures = PARTS[part][0](world)
    except NotRun as why:
        return {"outcome": "not run", "why": str(why)}
    except (torch.OutOfMemoryError, MemoryError) as error:
        return {"outcome": "not run", "why": f"out of memory: {first_line(error)}"}
    except (UserError, RuntimeError, OSError, TypeError, ValueError, LookupError) as error:
        return {"outcome": "FAIL", "why": f"{type(error).__name__}: {first_line(error)}"}
    return {"outcome": "PASS" if ok else "FAIL", "figures": figures}


def check(name: str, device: torch.device, folder: Path, seconds: float) -> Iterator[Row]:
    """All parts on one shape, as far as the time reaches."""
    started = time.monotonic()
    stop = started + seconds
    try:
        world = make_world(SHAPES[name], device, folder, seconds)
    except UserError as error:
        yield Row(name, "model", "not run", time.monotonic() - started, str(error))
        return
    yield Row(name, "model", "PASS", time.monotonic() - started, figures=world.figures)
    slowest = world.seconds  # seconds of a pass over the model
    for part, (_, passes) in PARTS.items():
        started = time.monotonic()
        outcome = _outcome(part, world, passes * slowest * _SLACK, max(stop - started, 0))
        taken = time.monotonic() - started
        slowest = max(slowest, taken / passes)
        yield Row(name, part, seconds=taken, **outcome)


def _machine(device: torch.device) -> dict[str, Any]:
    gpu = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    return {
        "device": gpu.name if gpu else "CPU",
        "memory_bytes": gpu.total_memory if gpu else None,
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


app = typer.Typer(add_completion=False)


@app.command()
def main(
    device: Annotated[str, typer.Option(help="cuda, cuda:1, cpu; auto: a GPU if any.")] = "auto",
    shape: Annotated[
        list[str] | None,
        typer.Option(help=f"Of {', '.join(SHAPES)}; default: the two large, on a CPU tiny."),
    ] = None,
    minutes: Annotated[float, typer.Option(min=0.1, help="For all shapes together.")] = 10.0,
    folder: Annotated[Path | None, typer.Option(help="For the models; emptied after.")] = None,
    output: Annotated[Path | None, typer.Option("-o", help="Write the report as JSON.")] = None,
) -> None:
    """Run calibration, placements, export, verification and load on random models made here.

    Exits with 1 if a part fails.
    """
    try:
        place = resolve_device(device)
    except UserError as error:
        raise typer.BadParameter(str(error)) from error
    names = shape or (["olmoe-7b", "qwen3-30b"] if place.type == "cuda" else ["tiny"])
    for name in names:
        if name not in SHAPES:
            raise typer.BadParameter(unknown_name("shape", name, list(SHAPES)))
    transformers.logging.disable_progress_bar()
    machine, rows, stop = _machine(place), list[Row](), time.monotonic() + 60 * minutes
    table = Table("Shape", "Part", "Outcome", "Seconds", "Detail", title=machine["device"])
    for number, name in enumerate(names):
        # What one shape leaves of its time is the next one's.
        seconds = max(stop - time.monotonic(), 0) / (len(names) - number)
        with TemporaryDirectory(dir=folder, prefix="moeprune-gpu-check-") as scratch:
            for row in check(name, place, Path(scratch), seconds):
                rows.append(row)
                typer.echo(f"{row.shape}, {row.part}: {row.outcome}", err=True)
                outcome = f"[{_COLOURS[row.outcome]}]{row.outcome}[/]"
                table.add_row(row.shape, row.part, outcome, f"{row.seconds:.1f}", row.detail)
    Console().print(table)
    if output:
        report = {"created_at": now(), "machine": machine, "rows": [asdict(row) for row in rows]}
        output.write_text(json.dumps(report, indent=1) + "\n")
    if any(row.outcome == "FAIL" for row in rows):
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
