"""Whether programs that people use beside this one can be installed in one environment with it."""

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tools.versions.environments import ROOT, uv

# Each resolves together with us on these; nothing is downloaded but metadata.
PYTHONS: Final = ("3.11", "3.12", "3.13")
BESIDE: Final[Mapping[str, str]] = {
    "llm-compressor": "llmcompressor==0.14.0",
    "vLLM": "vllm==0.33.0",
}
_SAID: Final = ("transformers", "torch", "numba", "datasets", "huggingface-hub")


@dataclass(frozen=True)
class Resolution:
    """What would be installed; empty if nothing fits."""

    program: str
    python: str
    versions: Mapping[str, str]  # package -> version

    def line(self) -> str:
        """One line on it."""
        if not self.versions:
            return f"{self.program} on Python {self.python}: cannot be installed together with us"
        named = ", ".join(f"{name} {self.versions[name]}" for name in _SAID)
        return f"{self.program} on Python {self.python}: {named}"


def resolve(program: str, python: str) -> Resolution:
    """Resolve one program together with this one."""
    with TemporaryDirectory() as folder:
        asked, found = Path(folder) / "asked.in", Path(folder) / "found.txt"
        asked.write_text(f"{BESIDE[program]}\nmoe-prune-studio @ {ROOT.as_uri()}\n")
        options = ("--quiet", "--no-header", "--no-annotate", "--python-version", python)
        try:
            uv("pip", "compile", *options, str(asked), "--output-file", str(found))
        except subprocess.CalledProcessError:  # uv has said why
            return Resolution(program, python, {})
        pairs = [line.split("==") for line in found.read_text().splitlines() if "==" in line]
        return Resolution(program, python, {name: number.split(" ")[0] for name, number in pairs})
