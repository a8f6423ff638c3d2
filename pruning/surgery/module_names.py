"""Names of experts in the settings of a quantisation, for the experts that stay.

`quantization_config` lists modules that were left out or quantised in another way: by their whole
names (AWQ, compressed-tensors, auto-round), as they are called in any layer
(`modules_in_block_to_quantize` of GPTQ), or by patterns. An export numbers experts anew, so a list
that names some has to follow, or readers expect packed tensors where there are none.
"""

import json
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice
from math import prod
from typing import Any

import regex  # type: ignore[import-untyped]

from analysis.errors import ExportError
from pruning.surgery.config import json_file
from pruning.surgery.shards import PlannedShard

# Keys of config.json with such settings.
_KEYS = ("quantization_config", "compression_config")
_TENSOR = re.compile(r"(?P<stack>(?:.*\.)?experts\.)(?P<expert>\d+)\.(?P<part>.+)\.\w+")
# A name, whole or from some module on, perhaps with the marks of a pattern around it.
_NAME = re.compile(
    r"(?P<before>(?:(?:re|[+-]):)?\^?(?:\.?\*)?(?:\\?\.)?)"
    r"(?P<stack>(?:(?:[\w.]|\\\.)*\\?\.)?experts\\?\.)(?P<expert>\d+)"
    r"(?P<after>(?:[\w.]|\\\.)*(?:\.?\*)?\$?)"
)
_MARK = re.compile(r"(?:re|[+-]):")
_SPECIAL = re.compile(r"[\\\[\](){}|*+?^$]")
# Patterns of words alone, in which a number is met by `.*` or `.+` if at all: any number is.
_OF_WORDS = re.compile(r"(?:[A-Za-z_()|^$:]|\\\.|\.[*+](?![.*+])|(?<=[A-Za-z_])\.(?=[A-Za-z_(]))*")
_FROM_LAYERS = re.compile(r"(?:^|\.)(\w+\.\d+\..*)")
# A pattern can be written so that a search takes longer than a life, and what makes it so (nested
# repetitions, alternatives that overlap) cannot be told from it with certainty. So patterns of a
# checkpoint run in `regex`, which transformers needs too and which unlike `re` can be stopped.
_MOST_SECONDS = 60.0  # for all patterns of an export; thousands of real ones take two
_MOST_LETTERS = 2000
# Others take gigabytes before a search begins, or in it: counts, which multiply where they are
# nested; groups in groups; and groups that call themselves.
_MOST_REPEATS = 1000
_MOST_NESTED = 20
_COUNTS = re.compile(r"\{[^{}]*\}")
_CALL = re.compile(r"\(\?(?:R|[+-]?\d|&|P>)")
_LITERAL = re.compile(r"\\.|\[\^?\]?[^\]]*\]")  # where brackets open and close no group
_ABSENT = object()  # what is said of an expert that is not named
ExpertSettings = Mapping[int, Any]  # expert -> what the settings say of it


@dataclass(frozen=True, eq=False)
class KeptExperts:
    """The experts of an export, by the prefix of their modules (`model.layers.0.mlp.experts.`)."""

    # Prefix -> number in the export -> number in the source. An expert of zeros has that of the one
    # whose tensors it resembles.
    origin: Mapping[str, Mapping[int, int]]
    parts: frozenset[str]  # names of the modules of an expert
    # When the search for patterns is given up, on the monotonic clock.
    until: float = field(default_factory=lambda: time.monotonic() + _MOST_SECONDS)

    def stacks(self, name: str) -> Sequence[str]:
        """The prefixes that a name's own stands for: that of one layer, or those of all."""
        stacks = [stack for stack in self.origin if f".{stack}".endswith(f".{name}")]
        if not stacks and (inside := _FROM_LAYERS.search(name)):  # its trunk is called otherwise
            stacks = [stack for stack in self.origin if f".{stack}".endswith(f".{inside[1]}")]
        return stacks


def experts_in_shards(shards: Iterable[PlannedShard]) -> KeptExperts:
    """The experts that have tensors of their own in these shards."""
    origin: defaultdict[str, dict[int, int]] = defaultdict(dict)
    parts = set()
    for tensor in (tensor for shard in shards for tensor in shard.tensors):
        before, after = map(_TENSOR.fullmatch, (tensor.source.name, tensor.name))
        if before and after:
            origin[after["stack"]][int(after["expert"])] = int(before["expert"])
            parts.add(after["part"])
    return KeptExperts(origin, frozenset(parts))


def renumbered_file(raw: bytes, kept: KeptExperts, *, is_config: bool = False) -> bytes:
    """A JSON file whose settings name the experts of an export; the same bytes if none changes.

    In `config.json` settings lie under keys of their own.
    """
    source = json.loads(raw)
    target = _renumber_config(source, kept) if is_config else _renumber(source, kept, "")
    return raw if target == source else json_file(target)


def _renumber_config(config: Mapping[str, Any], kept: KeptExperts) -> dict[str, Any]:
    def edit(key: str, value: Any) -> Any:
        if key in _KEYS:
            return _renumber(value, kept, key)
        return _renumber_config(value, kept) if isinstance(value, dict) else value

    return {key: edit(key, value) for key, value in config.items()}


def _renumber(value: Any, kept: KeptExperts, path: str) -> Any:
    """Settings with other names of experts: words of lists, keys of objects."""
    if isinstance(value, list):
        if value and all(isinstance(entry, str) for entry in value):
            once = dict.fromkeys(value)
            names = _rename(once, kept, path)
            return value if list(names) == list(once) else list(names)
        return [_renumber(entry, kept, path) for entry in value]
    if isinstance(value, dict):
        inner = {key: _renumber(entry, kept, f"{path}.{key}") for key, entry in value.items()}
        return _rename(inner, kept, path)
    return value


def _rename(settings: Mapping[str, Any], kept: KeptExperts, path: str) -> dict[str, Any]:
    """The same with names of experts in the export, each where the source has one like it."""
    alike: defaultdict[tuple[str, str, str], dict[int, Any]] = defaultdict(dict)
    if long := next((name for name in settings if len(name) > _MOST_LETTERS), ""):
        raise _refusal(path, f"{long[:40]}...", f"which has {len(long)} letters")
    matches = {name: _NAME.fullmatch(name) for name in settings}
    for name, value in settings.items():
        if match := matches[name]:
            alike[match["before"], match["stack"], match["after"]][int(match["expert"])] = value
        else:
            _check_pattern(name, kept, path)
    after = {}
    for words, of_experts in alike.items():
        stacks = kept.stacks(words[1].replace("\\", ""))
        merged = _merge((kept.origin[stack] for stack in stacks), of_experts)
        if merged is None:
            example = f"{''.join(words[:2])}{min(of_experts)}{words[2]}"
            raise _refusal(path, example, "which are others in each layer of the export")
        # Names of no expert that is here are left alone, and the order of those that stay.
        stays = not stacks or merged == of_experts
        after[words] = iter((of_experts if stays else merged).items())
    target: dict[str, Any] = {}
    remaining = {words: len(of_experts) for words, of_experts in alike.items()}
    for name, value in settings.items():
        match = matches[name]
        if match is None:
            target[name] = value
            continue
        words = (match["before"], match["stack"], match["after"])
        remaining[words] -= 1
        # At the last of the old names come all new ones that are left.
        for number, new in islice(after[words], 1 if remaining[words] else None):
            target[f"{words[0]}{words[1]}{number}{words[2]}"] = new
    return target


def _merge(origins: Iterable[Mapping[int, int]], settings: ExpertSettings) -> dict[int, Any] | None:
    """What is said of each expert of the export; None if that depends on the layer."""
    merged: dict[int, Any] = {}
    for origin in origins:
        for new, old in origin.items():
            value = settings.get(old, _ABSENT)
            if merged.setdefault(new, value) != value:
                return None
    return {new: merged[new] for new in sorted(merged) if merged[new] is not _ABSENT}


def _check_pattern(name: str, kept: KeptExperts, path: str) -> None:
    """Refuse a pattern that matches an expert by its number, and another one by the new number."""
    words = _MARK.sub("", name, count=1)
    if not _SPECIAL.search(words) or _OF_WORDS.fullmatch(words):
        return
    try:
        why = _too_large(words) or _tells_apart(regex.compile(words), kept)
    except regex.error:  # such as `*gate*`, in which no number is
        return
    except TimeoutError:
        why = f"which takes longer than {_MOST_SECONDS:g} s to search for"
    except (MemoryError, RecursionError):
        why = "which takes too much memory"
    if why:
        raise _refusal(path, name, why)


def _tells_apart(pattern: Any, kept: KeptExperts) -> str:
    """Names of the same expert, before and after, of which a pattern meets one; empty if none."""
    for stack, origin in kept.origin.items():
        for new, old in origin.items():
            for part in sorted(kept.parts) if new != old else ():
                before, after = (f"{stack}{number}.{part}" for number in (old, new))
                outcomes = {
                    bool(pattern.search(name, timeout=max(0.0, kept.until - time.monotonic())))
                    for name in (before, after)
                }
                if len(outcomes) > 1:
                    return f"which tells {before} from {after}"
    return ""


def _too_large(pattern: str) -> str:
    """Why a pattern is not even compiled; empty if it is."""
    repeats = prod(
        max([1, *map(int, re.findall(r"[0-9]+", count))]) for count in _COUNTS.findall(pattern)
    )
    if repeats > _MOST_REPEATS:
        return f"whose counts repeat parts more than {_MOST_REPEATS} times"
    if _CALL.search(pattern):
        return "in which a group is called"
    brackets = re.findall(r"[()]", _LITERAL.sub("", pattern))
    depth = max(accumulate(1 if bracket == "(" else -1 for bracket in brackets), default=0)
    return f"whose groups are nested {depth} deep" if depth > _MOST_NESTED else ""


def _refusal(path: str, name: str, why: str) -> ExportError:
    return ExportError(
        f"The quantisation's settings ({path.strip('.') or 'a file of their own'}) say {name!r}, "
        f"{why}, so they cannot be renumbered; prune the model before it is quantised."
    )
