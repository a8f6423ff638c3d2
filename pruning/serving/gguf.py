"""Exports as GGUF files, by llama.cpp's own converter where it is at hand."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from analysis.errors import ExportError
from analysis.files.durable import write_durably
from analysis.files.json_text import parse_json_once
from analysis.progress import Progress, bytes_progress, changed
from pruning.serving.commands import CONVERTER, LLAMA_CPP
from pruning.serving.engines import Contents, Reads, verdicts

FOLDER_VARIABLE: Final = "LLAMA_CPP"
_LAUNCHER: Final = Path(__file__).with_name("gguf_launcher.py")
# Type of the file -> its size, beside that of weights in bf16.
_SIZES: Final = {"q8_0": 17 / 32, "f32": 2.0}
_POLL_SECONDS: Final = 0.2
_MOST_SAID: Final = 300  # characters of the converter's error


@dataclass(frozen=True, slots=True)
class Converter:
    """llama.cpp's converter, and the interpreter that has what it imports."""

    folder: Path
    python: Path

    @property
    def version(self) -> str:
        """The commit of its source, else the beginning of the SHA-256 of its script."""
        asked = ("git", "-C", str(self.folder), "rev-parse", "HEAD")
        if (self.folder / ".git").exists() and shutil.which("git"):
            answer = subprocess.run(  # noqa: S603  (a list, no shell)
                asked, capture_output=True, text=True, check=False
            )
            if answer.returncode == 0:
                return f"commit {answer.stdout.strip()}"
        script = (self.folder / CONVERTER).read_bytes()
        return f"sha256 {hashlib.sha256(script).hexdigest()[:16]}"


def find_converter(folder: Path | None) -> Converter:
    """The converter in this folder, else in $LLAMA_CPP, else on the PATH.

    Its interpreter is that of a virtual environment in the folder, `.venv` or `venv`, or around it,
    else the one that runs this program.
    """
    named = folder or (
        Path(os.environ[FOLDER_VARIABLE]) if os.environ.get(FOLDER_VARIABLE) else None
    )
    on_path = shutil.which(CONVERTER)
    place = named or (Path(on_path).resolve().parent if on_path else None)
    if place is None or not (place / CONVERTER).is_file():
        where = f"{place} has no {CONVERTER}" if place else f"There is no {CONVERTER}"
        raise ExportError(
            f"{where}, llama.cpp's converter: give the folder of llama.cpp's source (--llama-cpp, "
            f"${FOLDER_VARIABLE} or the PATH), or export without --gguf and convert with `python "
            f"{CONVERTER} OUT --outfile model.gguf --outtype q8_0`."
        )
    place = place.resolve()
    environments = (place / ".venv", place / "venv", place.parent)
    pythons = (
        environment / "bin" / "python"
        for environment in environments
        if (environment / "pyvenv.cfg").is_file()
    )
    return Converter(place, next(pythons, Path(sys.executable)))


def converter_options(contents: Contents) -> list[str]:
    """What the converter is told of a checkpoint; an ExportError if llama.cpp cannot run it."""
    verdict = next(verdict for verdict in verdicts(contents) if verdict.engine == LLAMA_CPP)
    if verdict.reads in (Reads.FAILS, Reads.WRONG):
        raise ExportError(f"No GGUF file: {LLAMA_CPP}, {verdict.reads}: {verdict.reason}.")
    return verdict.options.split()


def pre_tokenizer_of(checkpoint: Path) -> str:
    """llama.cpp's name of what splits texts before BPE; empty where tokenizer.json is no help.

    Plain byte-level splitting is GPT-2's, whatever the vocabulary; StarCoder's splits off each
    digit before.
    """
    file = checkpoint / "tokenizer.json"
    tokenizer = parse_json_once(file.read_bytes()) if file.is_file() else {}
    match tokenizer.get("pre_tokenizer") if isinstance(tokenizer, dict) else None:
        case {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, split],
        }:
            name = "starcoder"
        case split:
            name = "gpt-2"
    split = split if isinstance(split, dict) else {}
    is_plain = split.get("type") == "ByteLevel" and split.get("use_regex", True)
    is_bare = is_plain and not (split.get("add_prefix_space") or tokenizer.get("normalizer"))
    return name if is_bare else ""


def gguf_path(out: Path, kind: str) -> Path:
    """The GGUF file of an export, beside its folder."""
    return out.with_name(f"{out.name}-{kind}.gguf")


def write_gguf(
    out: Path, kind: str, converter: Converter, contents: Contents, plan_digest: str
) -> Generator[Progress, None, dict[str, Any]]:
    """Convert a finished export; returns the record, which is written beside the file as JSON.

    A file of the same export in the same type stays; another of this name is refused.
    """
    target = gguf_path(out, kind)
    place = target.with_name(f"{target.name}.json")
    if target.exists():
        record = parse_json_once(place.read_bytes()) if place.is_file() else {}
        if not isinstance(record, dict) or record.get("plan_digest") != plan_digest:
            raise ExportError(f"{target} is there already, of another plan; remove it.")
        return record
    options = converter_options(contents)
    pre_tokenizer = pre_tokenizer_of(out)
    draft = target.with_name(f"{target.name}.partial")
    words = [str(out), "--outfile", str(draft), "--outtype", kind, *options]
    try:
        weights = sum(file.stat().st_size for file in out.glob("*.safetensors"))
        running = _run(converter, [pre_tokenizer, *words])
        yield from _written(running, draft, round(weights * _SIZES.get(kind, 1.0)))
        with draft.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        record = {
            "gguf": target.name,
            "type": kind,
            "bytes": draft.stat().st_size,
            "sha256": sha256,
            "plan_digest": plan_digest,
            "converter": converter.version,
            "options": options,
            "pre_tokenizer_if_unknown": pre_tokenizer,
        }
        write_durably(place, (json.dumps(record, indent=2) + "\n").encode())
        draft.rename(target)
    finally:
        draft.unlink(missing_ok=True)
    return record


def _written(
    running: Generator[Progress, None, None], draft: Path, total: int
) -> Generator[Progress, None, None]:
    """The steps of the converter, which does not say how far it is; its file grows."""

    def change(step: Progress) -> Progress:
        done = draft.stat().st_size if draft.exists() else 0
        grown = bytes_progress(step.phase, min(done, total), total, "write")
        return replace(grown, note=step.note, at=step.at)

    return changed(running, change)


def _run(converter: Converter, words: list[str]) -> Generator[Progress, None, None]:
    """Run the converter; an ExportError has the last line of what it said."""
    # Nothing is looked up on the hub: all files lie in the folder.
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    environment.pop("PYTHONPATH", None)
    line = [str(converter.python), str(_LAUNCHER), str(converter.folder), *words]
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(  # noqa: S603  (a list, no shell; the folder is the user's)
            line, stdout=said, stderr=said, env=environment
        )
        try:
            while process.poll() is None:
                yield Progress("converting to GGUF", 0, 0)
                time.sleep(_POLL_SECONDS)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        said.seek(0)
        lines = said.read().decode(errors="replace").strip().splitlines()
    if process.returncode:
        reason = lines[-1][:_MOST_SAID] if lines else f"exit code {process.returncode}"
        raise ExportError(f"llama.cpp's converter ({converter.version}) stopped: {reason}")
