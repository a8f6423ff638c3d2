"""The wheel: built from the tree, installed on its own, and the demo started from it."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from servers import an_unused_port, served

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    # From a copy of what is tracked: a build leaves folders behind, and other runs would come in.
    tree = folder / "tree"
    files = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    for name in filter(None, files):
        target = tree / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, tree],
        check=True,
        capture_output=True,
    )
    (built,) = folder.glob("*.whl")
    return built


@pytest.mark.slow
def test_the_wheel_carries_the_demo_its_statistics_and_the_pages_files(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert "analysis/demo/checkpoint/model.safetensors" in names
    shipped = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("cached_stats/demo-*/*")}
    tracked = {name for name in names if name.startswith("cached_stats/")}
    assert len([name for name in tracked if name.endswith("manifest.json")]) == 4
    assert tracked <= shipped
    for name in ("config.toml", "static/favicon.png", "components/expert_map/expert_map.js"):
        assert f"app/{name}" in names
    assert not [name for name in names if name.startswith(("tests", "docs"))]


@pytest.mark.slow
def test_the_demo_starts_from_an_installed_wheel(wheel, tmp_path):
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", site, wheel]
    subprocess.run(pip, check=True)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "PYTHONPATH": str(site),
        "MOEPRUNE_STATE_DIR": str(tmp_path / "state"),
    }
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    where = [sys.executable, "-c", "import app, analysis; print(app.__file__, analysis.__file__)"]
    found = subprocess.run(
        where, env=environment, cwd=elsewhere, capture_output=True, text=True, check=True
    ).stdout
    assert found.count(str(site)) == 2
    listed = subprocess.run(
        [sys.executable, "-m", "app.cli", "runs", "list"],
        env=environment,
        cwd=elsewhere,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert listed.count("demo-") >= 4
    with served(
        ["demo", "--port", an_unused_port()],
        log=tmp_path / "server.log",
        environment=environment,
        cwd=elsewhere,
    ) as server:
        assert server.seconds < 30
