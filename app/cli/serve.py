"""Commands that open the dashboard: app, demo.

Their options are in typer's own words: those of a request need libraries that the first page can
wait for, and the server not.
"""

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from analysis.errors import CheckpointError, UserError
from analysis.stats.places import FOLDER_HELP, own_stats_dir
from app.cli.help import EMPTY_PATH, HAS_EMPTY_WORD
from app.imports import importing, without
from app.settings import Settings

Port = Annotated[
    int | None,
    typer.Option(
        help="Port; default: 8501, or the next free one.", metavar="PORT", min=1, max=65535
    ),
]


def app(
    ctx: typer.Context,
    *,
    stats_dir: Annotated[
        Path | None, typer.Option(help=FOLDER_HELP, metavar="FOLDER", file_okay=False)
    ] = None,
    models_root: Annotated[
        Path | None, typer.Option(help="Folder whose checkpoints are offered.", metavar="FOLDER")
    ] = None,
    export_root: Annotated[
        Path | None, typer.Option(help="Folder below which exports are written.", metavar="FOLDER")
    ] = None,
    address: Annotated[
        str,
        typer.Option(
            help="Numeric address to listen on; others than 127.0.0.1 need a login.",
            metavar="ADDRESS",
        ),
    ] = "127.0.0.1",
    slurm: Annotated[
        str | None,
        typer.Option(
            help="Run jobs on a SLURM cluster, with options as partition=gpu,gpus_per_node=1,"
            "mem_gb=64,time=240 (minutes); '' for SLURM's own.",
            metavar="SETTINGS",
        ),
    ] = None,
    port: Port = None,
) -> None:
    """Open the dashboard.

    Example: moeprune app --models-root checkpoints
    """
    given = {"--stats-dir": stats_dir, "--models-root": models_root, "--export-root": export_root}
    empty = [name for name, folder in given.items() if folder == Path()]
    if empty and ctx.meta.get(HAS_EMPTY_WORD):  # of which typer made "."
        raise UserError(f"{empty[0]}: {EMPTY_PATH}.")
    if slurm is not None:
        from app.jobs.slurm import check_slurm, parse_options

        parse_options(slurm)
        check_slurm()
    settings = _settings(stats_dir, models_root, export_root)
    named = "--models-root" if models_root else "MOEPRUNE_MODELS_ROOT"
    for name, folder in (("--stats-dir", stats_dir), (named, models_root or settings.models_root)):
        if folder is not None and not folder.is_dir():
            raise UserError(f"{name}: {folder} is not a directory; make it, or name another.")
    if settings.export_root.is_file():
        raise UserError(f"--export-root: {settings.export_root} is a file; name a folder.")
    _serve(settings if slurm is None else replace(settings, slurm=slurm), port, address)


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
    base = Settings.checked()
    return replace(
        base,
        stats_dir=own_stats_dir(stats_dir).absolute(),
        models_root=models_root.absolute() if models_root else base.models_root,
        export_root=(export_root or base.export_root).absolute(),
    )


def _serve(settings: Settings, port: int | None, address: str = "127.0.0.1") -> None:
    # With plotly, which it can do without, Streamlit would make a theme that no chart here has.
    with importing(), without("plotly"):
        from app.server import run_server

    # Pages read their settings from the environment.
    os.environ.update(settings.to_environment())
    run_server(port, address)
