"""Optional libraries: what needs them, and the line that installs them."""

from importlib.util import find_spec
from typing import Final

from analysis.files.shipped import needs_of

# Extra of pyproject.toml -> the module that tells whether it is installed.
EXTRAS: Final = {
    "eval": "lm_eval",
    "login": "authlib",
    "plots": "kaleido",
    "slurm": "submitit",
}


def has_extra(extra: str) -> bool:
    """Whether the libraries of an extra are installed."""
    return find_spec(EXTRAS[extra]) is not None


def install_line(extra: str) -> str:
    """The command that installs an extra, from any folder: it names the libraries themselves."""
    return " ".join(["pip install", *(f"'{need}'" for need in needs_of(extra))])
