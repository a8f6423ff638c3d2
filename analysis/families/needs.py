"""Which version of transformers a family or a measure needs, of those that are allowed at all."""

from importlib.metadata import version

from analysis.families.base import MoEFamily


def why_too_old(family: MoEFamily) -> str:
    """Why the installed transformers is too old for a family, without a full stop; empty if not."""
    return why_older_than(family.needs_transformers, family.label)


def why_older_than(needed: str, label: str) -> str:
    """Why the installed transformers is too old for what needs this version; empty if not."""
    installed = version("transformers")
    if not needed or _minor(installed) >= _minor(needed):
        return ""
    return (
        f"{label} needs transformers {needed} or newer, and {installed} is installed: "
        f"pip install 'transformers>={needed}'"
    )


def _minor(numbers: str) -> tuple[int, ...]:
    """The first two numbers of a version, also of a development version."""
    return tuple(int(number) for number in numbers.split(".")[:2])
