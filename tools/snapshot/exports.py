"""Exports of the demo: what the command says, manifest, configuration, hashes of all files."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from snapshot.masks import masked
from snapshot.running import places, run_line

_CODE = "--corpus demo-code"
_NEURONS = f"--granularity neuron --criterion heapr {_CODE} --sparsity 50% --neuron-scope layer"
# Name -> plan, options of the export.
_EXPORTS = {
    "uniform": (f"--criterion reap {_CODE} --sparsity 50%", "--keep-list --hash-source"),
    "non-uniform": (f"--criterion reap {_CODE} --sparsity 40% --schedule global", ""),
    "resharded": ("--criterion aimer --sparsity 25%", "--max-shard-size 2MB --verify"),
    "neurons-uniform": (_NEURONS.replace("layer", "expert"), ""),
    "neurons-per-layer": (_NEURONS, "--width-mode per-layer"),
    "neurons-ragged": (_NEURONS, "--width-mode ragged --width-multiple-of 4"),
}
_SHOWN = ("moeprune_manifest.json", "config.json", "README.md", "kept_experts.json")
_MASKED = ("moeprune_manifest.json", "README.md")


def texts() -> Iterator[tuple[str, str]]:
    """File and text of every export."""
    for name, (plan, options) in _EXPORTS.items():
        run_line(f"plan demo {plan} -o {name}.json")
        export = run_line(f"export demo {name} --plan {name}.json {options}".strip()).text
        yield f"{name}.txt", f"# plan demo {plan}\n{export.rsplit('--- files', 1)[0]}"
        yield f"{name}-verify.txt", run_line(f"verify {name} --source demo").text
        yield f"{name}-files.txt", _hashes(Path(name))
        for file in _SHOWN:
            path = Path(name) / file
            if path.exists():
                yield f"{name}-{file}", _text(path)


def _text(path: Path) -> str:
    """A file as text; JSON with sorted keys, without the hashes of files that say versions."""
    text = path.read_text("utf-8")
    if path.name == "moeprune_manifest.json":
        text = json.dumps(_without_dated(json.loads(text)), indent=1)
    return masked(text, places())


def _without_dated(manifest: dict[str, object]) -> dict[str, object]:
    """The manifest, without hash and size of texts that hold a date or versions."""
    files = manifest.get("files")
    if isinstance(files, dict) and "README.md" in files:
        return {**manifest, "files": {**files, "README.md": "<masked>"}}
    return manifest


def _hashes(folder: Path) -> str:
    if not folder.is_dir():
        return "FAILED: no export\n"
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return "".join(f"{path.relative_to(folder)} {_hash(path)}\n" for path in paths)


def _hash(path: Path) -> str:
    """Of texts after masking, for some say when and by which versions they were written."""
    content = _text(path).encode() if path.name in _MASKED else path.read_bytes()
    return hashlib.sha256(content).hexdigest()
