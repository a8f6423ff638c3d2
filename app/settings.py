"""Locations of statistics, models, exports and jobs. Recipes define the work."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs

from analysis.errors import UserError
from analysis.stats.places import APP_NAME, STATS_VARIABLE, usual_stats_dir

if TYPE_CHECKING:
    from analysis.stats.store import StatsStore


def shown_path(path: Path) -> Path:
    """The path as typed in the working directory."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


@dataclass(frozen=True, slots=True)
class Settings:
    """Folders of one installation or server, and its job runner."""

    stats_dir: Path  # folder that takes new records; those that ship are always read too
    # Folder of the dashboard's checkpoints; None offers the demo only.
    models_root: Path | None
    export_root: Path  # folder below which the dashboard exports
    state_dir: Path  # job table and logs
    # SLURM options if jobs run on a cluster: see
    # `app.jobs.slurm.parse_options`; None runs them locally.
    slurm: str | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "Settings":
        """Settings of a server process, from its launcher's environment variables."""
        root = environment.get("MOEPRUNE_MODELS_ROOT")
        return cls(
            stats_dir=Path(environment.get(STATS_VARIABLE) or usual_stats_dir()),
            models_root=Path(root) if root else None,
            export_root=Path(environment.get("MOEPRUNE_EXPORT_ROOT") or Path.cwd() / "exports"),
            state_dir=Path(
                environment.get("MOEPRUNE_STATE_DIR") or platformdirs.user_state_path(APP_NAME)
            ),
            slurm=environment.get("MOEPRUNE_SLURM"),
        )

    @classmethod
    def checked(cls, environment: Mapping[str, str] = os.environ) -> "Settings":
        """As `from_environment`; a UserError names a variable that is set to a file."""
        for name in ("STATS_DIR", "STATE_DIR", "EXPORT_ROOT", "MODELS_ROOT"):
            folder = Path(environment.get(f"MOEPRUNE_{name}") or Path.cwd())
            there = next(
                parent for parent in (folder, *folder.absolute().parents) if parent.exists()
            )
            if not there.is_dir():
                raise UserError(
                    f"MOEPRUNE_{name}: {there} is a file; name a folder, or unset the variable."
                )
        return cls.from_environment(environment)

    def to_environment(self) -> dict[str, str]:
        """Inverse of `from_environment`."""
        return {
            STATS_VARIABLE: str(self.stats_dir),
            "MOEPRUNE_MODELS_ROOT": str(self.models_root or ""),
            "MOEPRUNE_EXPORT_ROOT": str(self.export_root),
            "MOEPRUNE_STATE_DIR": str(self.state_dir),
            **({} if self.slurm is None else {"MOEPRUNE_SLURM": self.slurm}),
        }

    @property
    def store(self) -> "StatsStore":
        """Runs in the folder of this server, and those that ship."""
        from analysis.stats.store import stats_store

        return stats_store(self.stats_dir)

    @property
    def jobs_db(self) -> Path:
        """The job table."""
        return self.state_dir / "jobs.sqlite"
