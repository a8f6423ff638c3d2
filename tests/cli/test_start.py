"""What starts at once imports nothing heavy: help, usage errors, refused values, lists."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import app
from app.cli import COMMANDS, find

ROOT = str(Path(app.__path__[0]).parent)
NEVER = {"torch", "transformers", "numba", "scipy", "sklearn", "plotly", "streamlit", "datasets"}
TABLES = NEVER | {"pandas", "pyarrow"}
ARRAYS = TABLES | {"numpy"}
RUN = (
    "import sys\nfrom app.cli import main\nsys.argv = ['moeprune', *sys.argv[1:]]\n"
    "try:\n    main()\nexcept SystemExit:\n    pass\n"
    "print('modules', *(name for name in sys.modules if '.' not in name))"
)
STARTS = {
    "--help": ARRAYS,
    "--version": ARRAYS,
    "nothing": ARRAYS,
    "jobs list": ARRAYS,
    "calibrate demo": TABLES,
    "calibrate demo --corpus demo-math --dtype int8": TABLES,
    "plan demo --criterion reap --sparsity 150%": TABLES,
    "export demo out --plan absent.json": TABLES,
    "inspect absent": TABLES,
    "inspect demo": NEVER,
    "runs list": NEVER,
    "score demo --criterion reap --corpus demo-math": NEVER,
    "plan demo --criterion reap --corpus demo-math --sparsity 50%": NEVER,
}


@pytest.mark.parametrize(("words", "heavy"), STARTS.items(), ids=STARTS)
def test_nothing_heavy_is_imported_before_it_is_needed(here, words, heavy):
    done = subprocess.run(
        [sys.executable, "-c", RUN, *words.split()],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": ROOT},
    )
    loaded = set(done.stdout.rsplit("modules", 1)[1].split())
    assert loaded & heavy == set()


def test_the_list_of_commands_says_what_each_says_of_itself():
    for name, (_, listed) in COMMANDS.items():
        found = find(name)
        said = getattr(found, "info", None)
        assert listed == (said.help if said else found.__doc__.split("\n\n")[0]), name
