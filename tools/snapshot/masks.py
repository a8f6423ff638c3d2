"""Texts without what differs from run to run: places, times, versions, ids of the moment."""

import re
from collections.abc import Mapping
from pathlib import Path

# Pattern -> what stands for it.
_PATTERNS: tuple[tuple[str, str], ...] = (
    (r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?(Z|[+-]\d\d:?\d\d)?( UTC)?", "<time>"),
    (r"\b\d{4}-\d\d-\d\d\b", "<date>"),
    (r"\b[\d,.]+ ?(tokens|tok|samples|sequences)/s\b", r"<number> \1/s"),
    (r'("(?:created_at|pid|started|ended|peak_memory_bytes)"): [^,}\n]+', r"\1: <masked>"),
    (r'("(?:seconds|tokens_per_second)"): [^,}\n]+', r"\1: <masked>"),
    (r"\b\d+(\.\d+)? ?(s|ms|seconds|minutes|min)\b(?! of)", r"<number> \2"),
    (r"\bpid \d+", "pid <number>"),
    (r"0x[0-9a-f]{6,}", "<address>"),
    # What the machine has free just now.
    (r"\b[\d.]+ [KMG]iB (free|available|are available|are free)\b", r"<number> \1"),
    (r"\b(memory free +|Free (?:disk|memory) )[\d.]+ [KMG]iB", r"\1<number>"),
    # Seconds, tokens in a second and peak memory in the table of runs.
    (r"│ +[\d.,]+ +│ [\d.,]+ +│ [\d.,]+ +│ (?=routed)", "│ <seconds, tokens/s, MiB> │ "),
    (r"(│ weights +│ [^│]+│ -[^│]*│) +[\d.]+ │", r"\1 <seconds> │"),
    # Versions of libraries, in what is written about how something was made.
    (
        r'("(?:python|torch|transformers|numpy|safetensors|moeprune|tokenizers)"): "[^"]*"',
        r"\1: <v>",
    ),
    (r'("(?:system|device_name|tool_version|platform|machine)"): "[^"]*"', r"\1: <masked>"),
)
_MASKS = tuple((re.compile(pattern), instead) for pattern, instead in _PATTERNS)


def masked(text: str, places: Mapping[str, Path]) -> str:
    """The text, with names for the places, and masks for what no two runs share."""
    for name, place in places.items():
        for known in dict.fromkeys((str(place.resolve()), str(place))):
            text = text.replace(known, f"<{name}>")
    for pattern, instead in _MASKS:
        text = pattern.sub(instead, text)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
