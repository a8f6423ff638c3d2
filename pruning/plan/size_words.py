"""How an export's size compares with the original's, in words; for pages, files and commands."""

from pruning.plan.sizes import format_bytes


def growth_words(before: int, after: int) -> str:
    """`larger than the original by 512 KiB`; empty for an export that is not larger."""
    return f"larger than the original by {format_bytes(after - before)}" if after > before else ""


def change_words(before: int, after: int) -> str:
    """`39% smaller`, `as large as the original`, or how much larger, see `growth_words`."""
    if after < before:
        return f"{1 - after / before:.0%} smaller"
    return growth_words(before, after) or "as large as the original"


def less_in_words(before: int, after: int, target: str = "") -> str:
    """Bytes before and after, and what was asked for: 10.3 MiB -> 6.1 MiB (-40.7%)."""
    shares = ", ".join(filter(None, (f"{after / before - 1:+z.1%}", target)))
    return f"{format_bytes(before)} -> {format_bytes(after)} ({shares})"
