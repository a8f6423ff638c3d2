"""Trains the demo model in a work folder, unless it was trained on the same texts."""

import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from analysis.files.naming import digest_of
from tools.demo.build import Training
from tools.demo.work import ROOT, training_digest


def trained(folder: Path) -> Path:
    """The folder of the model; `tools.demo.build` puts it there when it is whole."""
    settings = {"training": asdict(Training()), "texts": training_digest()}
    model = folder.absolute() / f"model-{digest_of(settings)[:16]}"
    if not model.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "tools.demo.build", "--out", str(model)]
        subprocess.run(command, cwd=ROOT, check=True)  # noqa: S603 (this program itself)
    return model
