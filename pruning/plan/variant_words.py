"""What plans are called that are repaired, in fewer bits, or select fewer experts per token."""

from pruning.plan.bits import bits_words
from pruning.plan.experts_per_token import top_k_words

_THOUSANDS = 10_000  # tokens from which names count thousands


def tokens_words(tokens: int) -> str:
    """How many tokens a repair was fitted on, for names: 32k of 32,256."""
    return f"{tokens // 1000}k tokens" if tokens >= _THOUSANDS else f"{tokens:,} tokens"


def repaired_name(name: str, tokens: int = 0) -> str:
    """What a plan of this name is called once it is repaired on so many tokens, if known."""
    return f"{name} + repair{f' on {tokens_words(tokens)}' if tokens else ''}"


def variant_words(
    repaired_on: str, calibrated_on: str, bits: str = "", top_k: str = "", tokens: int = 0
) -> str:
    """What follows the name of a plan that is repaired, in fewer bits, or selects fewer; or empty.

    Corpora are joined by +, as in tables. Those that the repair was fitted on are named unless they
    ranked the plan, with any weights; how many `tokens` they have is said if it is known.
    """
    repair = _repair_words(repaired_on, calibrated_on, tokens)
    return repair + bits_words(bits) + top_k_words(top_k)


def _repair_words(repaired_on: str, calibrated_on: str, tokens: int) -> str:
    if not repaired_on:
        return ""
    names = repaired_on.split("+")
    ranked_on = {name.rpartition(":")[0] or name for name in calibrated_on.split("+")}
    where = repaired_on if len(names) < 3 else f"{len(names)} corpora"
    of = "" if set(names) == ranked_on else where
    if not tokens:
        return f" + repair on {of}" if of else " + repair"
    return f" + repair on {tokens_words(tokens)}{f' of {of}' if of else ''}"
