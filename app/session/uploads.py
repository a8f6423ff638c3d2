"""Uploads: text from a browser, checked before parsing."""

from itertools import accumulate

from analysis.errors import PlanError

MEGABYTES = 20
# Plans and recipes nest four or five deep. The parsers recurse, and the YAML parser takes quadratic
# time in the depth.
_DEEPEST = 64


def uploaded_text(name: str, content: bytes) -> str:
    """The text of an uploaded plan, schedule or recipe; refuses what is too deeply nested, too."""
    text = plain_text(name, content, "no plan, schedule or recipe is")
    # Depth of open brackets; those in strings count too.
    steps = (1 if letter in "[{" else -1 for letter in text if letter in "[{]}")
    if max(accumulate(steps), default=0) > _DEEPEST:
        raise PlanError(f"{name} is nested more than {_DEEPEST} deep; plans and recipes are not.")
    return text


def plain_text(name: str, content: bytes, instead: str) -> str:
    """The text of an uploaded file; refuses what is binary, or too large, with `instead`."""
    if len(content) > MEGABYTES * 2**20:
        raise PlanError(f"{name} is larger than {MEGABYTES} MB; {instead}.")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PlanError(f"{name} cannot be read: it is not UTF-8 text.") from error
    if "\0" in text:
        raise PlanError(f"{name} cannot be read: it holds null bytes, so it is not text.")
    return text
