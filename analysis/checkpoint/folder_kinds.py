"""What a folder is that is no checkpoint of safetensors, and what to give in its place."""

from collections.abc import Callable, Iterable
from pathlib import Path

from analysis.files.json_text import object_of

_CONFIG = "config.json"
_PICKLED_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pdparams")
WEIGHT_SUFFIXES = (".gguf", *_PICKLED_SUFFIXES)  # of files that no checkpoint is read from
_SHOWN = 3


def other_kind(path: Path) -> str:
    """What a folder is, and what would work, as the end of a sentence; empty if nothing is known.

    For folders without a config.json, or without safetensors.
    """
    return next(filter(None, (kind(path.absolute()) for kind in _KINDS)), "")


def _cache(path: Path) -> str:
    """A folder of the hub's cache, above the snapshots."""
    roots = [path] if path.name == "snapshots" else [path / "snapshots"]
    for models in ("models--*", "hub/models--*"):  # the second in HF_HOME
        roots += sorted(path.glob(f"{models}/snapshots"))
    snapshots = [folder for root in roots for folder in _folders(root)]
    if not snapshots:
        return ""
    return f"is a folder of the hub's cache; give a snapshot in it: {_named(snapshots)}."


def _gguf(path: Path) -> str:
    below = _folders(path)  # one per quantisation
    if any((folder / _CONFIG).is_file() for folder in (path, *below)):
        below = []
    if file := next(filter(None, (_first(folder, (".gguf",)) for folder in (path, *below))), ""):
        return (
            f"holds GGUF files ({file}), a format that exports are converted to; give the "
            "checkpoint in safetensors that they were made from."
        )
    return ""


def _adapter(path: Path) -> str:
    if not (path / "adapter_config.json").is_file():
        return ""
    base = object_of(path / "adapter_config.json").get("base_model_name_or_path")
    of = f" of {base}" if isinstance(base, str) and base.isprintable() else ""
    return (
        f"holds an adapter{of}, and no model; merge it into its model (peft's merge_and_unload), "
        "save that, and give its folder."
    )


def _pipeline(path: Path) -> str:
    if (path / "model_index.json").is_file():
        return (
            "is a diffusers pipeline; only language models are pruned, in the layout of "
            "transformers."
        )
    return ""


def _pickled(path: Path) -> str:
    if file := _first(path, _PICKLED_SUFFIXES):
        return (
            f"has only pickled weights ({file}), which are not read because loading them can run "
            "code; convert them to safetensors first."
        )
    return ""


def _original(path: Path) -> str:
    if (path / _CONFIG).is_file() or not (path / "params.json").is_file():
        return ""
    return (
        "holds a model in its publisher's own layout (params.json); give the one published for "
        f"transformers, with a {_CONFIG}."
    )


def _above(path: Path) -> str:
    """A folder whose folders are checkpoints."""
    below = [folder for folder in _folders(path) if (folder / _CONFIG).is_file()]
    has_own = (path / _CONFIG).is_file()
    return (
        "" if has_own or not below else f"has no {_CONFIG}; give a folder in it: {_named(below)}."
    )


_KINDS: tuple[Callable[[Path], str], ...] = (
    _cache,
    _gguf,
    _adapter,
    _pipeline,
    _original,
    _pickled,
    _above,
)


def _folders(path: Path) -> list[Path]:
    return sorted(child for child in path.iterdir() if child.is_dir()) if path.is_dir() else []


def _named(folders: Iterable[Path]) -> str:
    names = [str(folder) for folder in folders]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return " or ".join(names[:_SHOWN]) + more


def _first(path: Path, suffixes: tuple[str, ...]) -> str:
    names = sorted(child.name for child in path.iterdir() if child.suffix.lower() in suffixes)
    return next(iter(names), "")
