"""A wheel built from the tree carries the demo, and runs from any folder."""

import os
import subprocess
import sys
import urllib.request
import zipfile
from pathlib import Path

import pytest
from servers import served

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
DATA = (
    "app/py.typed",
    "analysis/py.typed",
    "pruning/py.typed",
    "analysis/demo/checkpoint/model.safetensors",
    "analysis/demo/checkpoint/config.json",
    "analysis/demo/checkpoint/tokenizer.json",
    "analysis/demo/checkpoint/chat_template.jinja",
    "app/config.toml",
    "app/report/story.css",
    "app/report/story.html.jinja",
    "app/report/story.js",
    "app/static/favicon.png",
    "app/components/expert_map/browser/expert_map.js",
    "app/components/expert_map/browser/model.js",
    "app/components/expert_map/browser/paint.js",
    "app/components/expert_map/browser/expert_map.css",
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built without the network and without a trace in the tree."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "tree"
    # What git knows, and what it would: no caches, no builds, no statistics of one's own.
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    ).stdout.split("\0")
    for name in filter(None, listed):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((ROOT / name).read_bytes())
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder],
        cwd=copy,
        check=True,
        capture_output=True,
    )
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("installed")
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"),
            *("--no-compile", "--disable-pip-version-check", "--target", target, wheel),
        ],
        check=True,
        capture_output=True,
    )
    return target


def test_wheel_carries_code_demo_and_statistics(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert [name for name in DATA if name not in names] == []
    runs = {name.split("/")[1] for name in names if name.startswith("cached_stats/demo-")}
    shipped = {path.parent.name for path in ROOT.glob("cached_stats/demo-*/manifest.json")}
    assert runs == shipped
    assert len(shipped) >= 4
    for run in shipped:
        wanted = {path.name for path in (ROOT / "cached_stats" / run).iterdir()}
        assert {f"cached_stats/{run}/{name}" for name in wanted} <= names
    modules = {
        str(path.relative_to(ROOT))
        for package in ("app", "analysis", "pruning")
        for path in (ROOT / package).rglob("*.py")
    }
    assert modules - names == set()


def test_wheel_carries_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert [name for name in names if name.startswith(("tests/", "docs/", "static/"))] == []
    assert [name for name in names if ".partial" in name or "__pycache__" in name] == []
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {
        *("app", "analysis", "pruning", "cached_stats")
    }
    (licences,) = {name.rpartition("/")[0] for name in names if name.endswith("/NOTICE")}
    assert f"{licences}/LICENSE" in names
    # Of the demo: its checkpoint 8 MiB, statistics 5, measurements 3, two repairs 2.5.
    assert wheel.stat().st_size < 21 * 2**20


def test_installed_demo_starts_elsewhere(installed: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    environment = {
        **os.environ,
        "PYTHONPATH": str(installed),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "MOEPRUNE_STATE_DIR": str(tmp_path / "state"),
    }
    # Of the two copies, the installed one is found first.
    where = subprocess.run(
        [sys.executable, "-c", "import app, analysis; print(app.__file__, analysis.__file__)"],
        cwd=elsewhere,
        env=environment,
        capture_output=True,
        check=True,
        text=True,
    ).stdout.split()
    assert all(Path(file).is_relative_to(installed) for file in where)
    log = tmp_path / "server.log"
    with (
        served(["demo"], log=log, environment=environment, cwd=elsewhere) as server,
        urllib.request.urlopen(server.url) as page,  # noqa: S310  (our own server)
    ):
        assert page.status == 200
        assert page.headers["X-Frame-Options"] == "DENY"
    assert list(elsewhere.iterdir()) == []


def test_installed_commands_find_the_demo_and_its_statistics(
    installed: Path, tmp_path: Path
) -> None:
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "app.cli", "plan", "demo", "--criterion", "reap"),
            *("--calibrated-on", "demo-math", "--sparsity", "50%", "-o", "plan.json"),
        ],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(installed),
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
        },
        capture_output=True,
        check=False,
        text=True,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "\nplan.json: keeps 96 of 192 experts (16 of 32 per layer), " in f"\n{ended.stdout}"
