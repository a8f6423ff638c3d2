"""Optional libraries: what needs them, and the line that installs them."""

import re
from importlib.metadata import requires
from importlib.util import find_spec
from typing import Final

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
    marker = re.compile(rf"(.+?) *; *extra == ['\"]{extra}['\"]")
    found = filter(None, map(marker.fullmatch, requires("moe-prune-studio") or ()))
    return " ".join(["pip install", *(f"'{match[1]}'" for match in found)])
