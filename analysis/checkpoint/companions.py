"""Files of a checkpoint besides weights, configuration and index, and code among them.

One list says what is fetched from the hub and what an export copies.
"""

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from analysis.files.content import read_whole
from analysis.files.json_text import object_of

# Files with the settings of a quantisation, of checkpoints that have them outside config.json.
SETTINGS_FILES = ("quantize_config.json", "quant_config.json", "hf_quant_config.json")
# What makes the tokenizer; code may be part of it.
TOKENIZER_FILES = (
    "tokenizer*",
    "tekken.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab*",
    "*.vocab",
    "merges.txt",
    "*.bpe",
    "*.model",
    "*.spm",
    "*.tiktoken",
    "chat_template*",
    "additional_chat_templates/*",
    "*.py",
)
COMPANION_FILES = (
    *TOKENIZER_FILES,
    "SYSTEM_PROMPT*",
    "generation_config.json",
    "*processor_config.json",
    *SETTINGS_FILES,
    "*LICEN[CS]E*",
    "[Ll]icen[cs]e*",
    "COPYING*",
    "N[Oo][Tt][Ii][Cc][Ee]*",
    "USE_POLICY*",
    "THIRD[_-]PARTY*",
)
TOKENIZER = "tokenizer.json"
_CONFIG, _TOKENIZER_SETTINGS = "config.json", "tokenizer_config.json"
# Files of which transformers runs code that their auto_map names.
_WITH_CODE = (_CONFIG, _TOKENIZER_SETTINGS, "*processor_config.json")
_IMPORT = re.compile(r"^[ \t]*(?:from[ \t]+\.(\w+)[\w.]*[ \t]+import\b|import[ \t]+\.(\w+))", re.M)


def companions_of(folder: Path, patterns: Iterable[str] = COMPANION_FILES) -> list[str]:
    """Names of the companions in a checkpoint's folder, relative to it, in order."""
    files = {path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}
    return sorted(path.relative_to(folder).as_posix() for path in files)


def code_of(folder: Path) -> dict[str, str]:
    """Python files that transformers would run -> the file that names each, here or not.

    Those of another repository (`owner/name--file.Class`) are none of this folder's.
    """
    referrers: dict[str, str] = {}
    for file in sorted({path for pattern in _WITH_CODE for path in folder.glob(pattern)}):
        for reference in _references(object_of(file).get("auto_map")):
            referrers.setdefault(reference, file.name)
    return _with_imports(folder, referrers)


def missing_code(folder: Path, written: Collection[str] = ()) -> list[str]:
    """What a checkpoint's code lacks, a phrase each, without files that are `written` anew."""
    return [
        f"{file}, which {by} names,"
        for file, by in code_of(folder).items()
        if file not in written and not (folder / file).is_file()
    ]


def tokenizer_code(folder: Path) -> dict[str, str]:
    """The same as `code_of` for the tokenizer alone; empty if transformers has its class."""
    referrers: dict[str, str] = {}
    settings = object_of(folder / _TOKENIZER_SETTINGS).get("auto_map")
    if isinstance(settings, Mapping):
        settings = settings.get("AutoTokenizer")
    for reference in _references(settings):
        referrers.setdefault(reference, _TOKENIZER_SETTINGS)
    return _with_imports(folder, referrers)


def missing_vocabulary(folder: Path) -> list[str]:
    """Files that the tokenizer's code reads by its own VOCAB_FILES_NAMES, and that are not here."""
    names: list[str] = []
    for file in tokenizer_code(folder):
        for node in ast.walk(_syntax(folder / file)):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
                targets = {getattr(target, "id", "").lower() for target in node.targets}
                values = node.value.values if "vocab_files_names" in targets else []
                constants = [value.value for value in values if isinstance(value, ast.Constant)]
                names += [constant for constant in constants if isinstance(constant, str)]
    file_names = [name for name in dict.fromkeys(names) if Path(name).name == name]
    return [name for name in file_names if not (folder / name).is_file()]


def _references(raw: Any) -> Iterator[str]:
    """Python files that an auto_map names: `file.Class`, or a list of these with gaps."""
    if isinstance(raw, str):
        module = raw.rpartition(".")[0]
        if module and "--" not in raw and module.isidentifier():
            yield f"{module}.py"
        return
    values = raw.values() if isinstance(raw, Mapping) else raw if isinstance(raw, list) else ()
    for value in values:
        yield from _references(value)


def _with_imports(folder: Path, referrers: Mapping[str, str]) -> dict[str, str]:
    """The files that are named, and those that they import from beside them."""
    files, waiting = dict(referrers), list(referrers)
    while waiting:
        file = waiting.pop()
        for match in _IMPORT.finditer(_text(folder / file)):
            other = f"{match[1] or match[2]}.py"
            if other not in files and not (folder / other.removesuffix(".py")).is_dir():
                files[other] = file
                waiting.append(other)
    return files


def _text(file: Path) -> str:
    try:
        return read_whole(file).decode(errors="replace")
    except (OSError, ValueError):
        return ""


def _syntax(file: Path) -> ast.AST:
    try:
        return ast.parse(_text(file))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])
