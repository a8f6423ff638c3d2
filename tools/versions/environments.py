"""The environments that the tests run in besides one's own: what is installed, and which tests."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from analysis.errors import UserError

ROOT: Final = Path(__file__).parents[2]
PLACE: Final = ROOT / "build" / "versions"
_WITHOUT_BROWSER: Final = ("-m", "not slow and not engines and not e2e")
# Chat templates get dates and missing values in another way from transformers before 5.23, which
# this test compares with.
_NOT_BEFORE_5_23: Final = ("--ignore=tests/analysis/test_templates.py",)
# What a release of transformers chooses for itself.
_ITS_OWN: Final = frozenset(("tokenizers", "huggingface-hub"))


class NoInterpreterError(UserError):
    """A Python is not installed here."""


class Versions(StrEnum):
    """Which versions an environment has."""

    TRIED = "those of constraints.txt"
    LOWEST = "the lower bounds of pyproject.toml"
    NEWEST = "the newest that pyproject.toml allows"


@dataclass(frozen=True)
class Environment:
    """One environment and its tests."""

    label: str  # what is tried, in words
    tests: tuple[str, ...]  # arguments of pytest
    python: str = ""  # its interpreter, such as 3.13; empty: that of this program
    versions: Versions = Versions.TRIED
    instead: Mapping[str, str] = field(default_factory=dict)  # package -> another version


ENVIRONMENTS: Final[Mapping[str, Environment]] = {
    "python-3.13": Environment("Python 3.13", (), python="3.13"),
    "lowest": Environment(
        "the lowest versions", (*_WITHOUT_BROWSER, *_NOT_BEFORE_5_23), versions=Versions.LOWEST
    ),
    "newest": Environment("the newest versions", _WITHOUT_BROWSER, versions=Versions.NEWEST),
    "transformers-newest": Environment(
        "the newest transformers", ("tests/families",), instead={"transformers": "5.24.0"}
    ),
}


def environment(name: str) -> Environment:
    """The environment of a name."""
    if name not in ENVIRONMENTS:
        raise UserError(f"There is no environment {name!r}; there are {', '.join(ENVIRONMENTS)}.")
    return ENVIRONMENTS[name]


def interpreter(minor: str) -> Path:
    """An interpreter of this minor version, such as 3.13: on PATH, of pyenv, or this one."""
    for path in _interpreters(minor):
        asked = [path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        said = subprocess.run(asked, capture_output=True, text=True, check=False)
        if said.returncode == 0 and said.stdout.strip() == minor:
            return path
    raise NoInterpreterError(f"There is no Python {minor} on PATH or under pyenv; install one.")


def _interpreters(minor: str) -> Iterator[Path]:
    if found := shutil.which(f"python{minor}"):  # that of pyenv fails unless it is switched on
        yield Path(found)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from sorted((pyenv / "versions").glob(f"{minor}.*/bin/python"), reverse=True)
    yield Path(sys.executable)
    yield from sorted(Path(sys.base_prefix).parent.glob(f"{minor}.*/bin/python"), reverse=True)


def pins(wanted: Environment) -> list[str]:
    """A requirement `name==version` for each package whose version is fixed."""
    tried = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines())
    tried = {_normal(name): version for name, version in tried.items()}
    if wanted.versions is Versions.NEWEST:
        return []
    if wanted.versions is Versions.LOWEST:
        tools = {_normal(_named(requirement)) for requirement in _declared()["dev"]}
        tried = {name: version for name, version in tried.items() if name in tools} | floors()
    if "transformers" in wanted.instead:
        tried = {name: version for name, version in tried.items() if name not in _ITS_OWN}
    return [f"{name}=={version}" for name, version in {**tried, **wanted.instead}.items()]


def floors() -> dict[str, str]:
    """Package -> the lower bound in pyproject.toml, of all but the developer's tools."""
    declared = _declared()
    needs = [need for part in ("", "plots", "eval", "slurm") for need in declared[part]]
    return {_normal(_named(need)): _bound(need) for need in needs}


def _declared() -> dict[str, list[str]]:
    """Requirements by extra; those of everybody under an empty name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {"": project["dependencies"], **project["optional-dependencies"]}


def _named(need: str) -> str:
    return re.split(r"[\[<>=~!; ]", need, maxsplit=1)[0]


def _normal(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def _bound(need: str) -> str:
    match = re.search(r">=([\w.]+)", need)
    if not match:
        raise ValueError(f"{need} has no lower bound.")
    return match[1]


def make(name: str) -> Path:
    """Make an environment anew, and give its interpreter."""
    wanted, place = environment(name), PLACE / name
    base = interpreter(wanted.python) if wanted.python else Path(sys.executable)
    place.parent.mkdir(parents=True, exist_ok=True)
    fixed = place.with_name(f"{name}.txt")
    fixed.write_text("\n".join(pins(wanted)) + "\n")
    uv("venv", "--quiet", "--clear", "--python", str(base), str(place))
    python = place / "bin" / "python"
    packages = ("--editable", f"{ROOT}[dev]")
    uv("pip", "install", "--quiet", "--python", str(python), "--constraint", str(fixed), *packages)
    return python


def uv(*arguments: str) -> None:
    """Run uv, which resolves and installs in seconds what takes pip minutes.

    It does not read pip's settings, so the folder of wheels that pip looks in is handed on.
    """
    settings = dict(os.environ)
    if (wheels := settings.get("PIP_FIND_LINKS")) and "UV_FIND_LINKS" not in settings:
        settings["UV_FIND_LINKS"] = wheels
    subprocess.run([sys.executable, "-m", "uv", *arguments], check=True, env=settings)


def run_tests(name: str, python: Path, more: tuple[str, ...] = ()) -> int:
    """Run the tests of an environment; pytest's exit status."""
    command = [python, "-m", "pytest", "-p", "no:cacheprovider", *environment(name).tests, *more]
    return subprocess.run(command, cwd=ROOT, check=False).returncode
