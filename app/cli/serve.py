"""Commands that open the dashboard: app, demo."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from analysis.errors import CheckpointError, UserError
from app.cli.derive import command
from app.jobs.slurm import check_slurm, parse_options
from app.settings import Settings
from pruning.spec.base import Option
from pruning.spec.options import StatsDir

Port = Annotated[
    int | None,
    typer.Option(
        help="Port; default: 8501, or the next free one.", metavar="PORT", min=1, max=65535
    ),
]


@command()
def app(
    *,
    stats_dir: StatsDir | None = None,
    models_root: Annotated[
        Path | None, Option("Folder whose checkpoints are offered.", takes="FOLDER")
    ] = None,
    export_root: Annotated[
        Path | None, Option("Folder below which exports are written.", takes="FOLDER")
    ] = None,
    port: Port = None,
    address: Annotated[
        str, Option("Numeric address to listen on; others than 127.0.0.1 need a login.")
    ] = "127.0.0.1",
    slurm: Annotated[
        str | None,
        Option(
            "Run jobs on a SLURM cluster, with options as partition=gpu,gpus_per_node=1,"
            "mem_gb=64,time=240 (minutes); '' for SLURM's own.",
            takes="SETTINGS",
        ),
    ] = None,
) -> None:
    """Open the dashboard.

    Example: moeprune app --models-root checkpoints
    """
    if slurm is not None:
        parse_options(slurm)
        check_slurm()
    settings = _settings(stats_dir, models_root, export_root)
    named = "--models-root" if models_root else "MOEPRUNE_MODELS_ROOT"
    folders = (("--stats-dir", stats_dir), (named, models_root or settings.models_root))
    for name, folder in folders:
        if folder is not None and not folder.is_dir():
            raise UserError(f"{name}: {folder} is not a directory; make it, or name another.")
    if settings.export_root.is_file():
        raise UserError(f"--export-root: {settings.export_root} is a file; name a folder.")
    _serve(settings if slurm is None else replace(settings, slurm=slurm), port, address)


@command()
def demo(*, port: Port = None) -> None:
    """Open the dashboard on the shipped demo model and its statistics; works offline.

    Example: moeprune demo
    """
    from analysis.files.shipped import DEMO_CHECKPOINT

    if not DEMO_CHECKPOINT.is_dir():
        raise CheckpointError(
            "The demo checkpoint is not installed; build it with `python -m tools.demo.build`."
        )
    _serve(_settings(), port)


def _settings(
    stats_dir: Path | None = None, models_root: Path | None = None, export_root: Path | None = None
) -> Settings:
    """Settings from the environment; folders that are given replace its own."""
    from analysis.stats.store import stats_store

    base = Settings.checked()
    return replace(
        base,
        stats_dir=stats_store(stats_dir).target.absolute(),
        models_root=models_root.absolute() if models_root else base.models_root,
        export_root=(export_root or base.export_root).absolute(),
    )


def _serve(settings: Settings, port: int | None, address: str = "127.0.0.1") -> None:
    from app.server import run_server

    # Pages read their settings from the environment.
    os.environ.update(settings.to_environment())
    run_server(port, address)
