"""README's result from nothing: the program measures it again without what ships."""

import json
import os
import platform
import re
import shlex
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from shipped import shipped_lines

from analysis.stats.store import SHIPPED_VARIABLE

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
CORPORA = ("demo-code", "demo-math", "demo-prose")
# Of the rows: with as many tokens as a row says, or for Random with as many draws.
REPAIR = re.compile(r"(\w+) \+ repair on (\d+)k tokens")
RANDOM = re.compile(r"random experts, mean of (\d+) draws")
BLEND = [word for corpus in CORPORA for word in ("--calibrated-on", corpus)]
HELD_OUT = [word for corpus in CORPORA for word in ("--corpus", corpus)]


def table_of_losses():
    """Name of a plan -> its loss increase, mean over the corpora, in README."""
    table = README.partition("<!-- losses -->")[2].partition("<!-- /losses -->")[0]
    rows = [line.strip("| ").split(" | ") for line in table.strip().splitlines()[2:]]
    return {name.strip(): float(loss) for name, loss, _ in rows}


def commands_of_result():
    """The commands that README says give the first row again."""
    block = README.partition("These commands give the first row again")[2]
    return block.partition("```bash\n")[2].partition("```")[0].strip().splitlines()


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Runs command lines in an empty folder, with an empty cache and nothing that ships."""
    here = tmp_path_factory.mktemp("here")
    places = {
        SHIPPED_VARIABLE: str(tmp_path_factory.mktemp("nothing")),
        "XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache")),
    }

    def run(line, *more):
        words = [*shlex.split(line), *more]
        assert words.pop(0) == "moeprune"
        started = [sys.executable, "-c", "from app.cli import main; main()", *words]
        done = subprocess.run(
            started,
            cwd=here,
            env={**os.environ, **places},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return here

    return run


def increases(path):
    """Names of plans -> mean over corpora of what they add to the loss, from result.json."""
    added = defaultdict(list)
    for each in json.loads(path.read_text())["evaluations"]:
        plan = each["plan"]
        key = plan["criterion"], "repair" in plan
        added[key].append(each["metrics"]["nll"]["mean"] - each["full"]["nll"]["mean"])
    assert {len(values) for values in added.values()} == {3}
    return {key: sum(values) / 3 for key, values in added.items()}


def plans_of(name):
    """Criteria of a row of README, and whether its plans are repaired."""
    if match := RANDOM.fullmatch(name):
        return ["random", *(f"random:{seed}" for seed in range(1, int(match[1])))], False
    match = REPAIR.fullmatch(name)
    return [(match[1] if match else name).lower()], match is not None


@pytest.mark.slow  # test_docs_numbers.py compares README with what ships
def test_readme_is_measured_again_from_nothing(alone):
    lines = shipped_lines("evaluations").values()
    pythons = {json.loads(line)["made"]["versions"]["python"] for line in lines}
    if platform.python_version() not in pythons:
        pytest.skip(f"the demo's code and prose are Python's own files, measured with {pythons}")
    here = alone(
        "moeprune calibrate demo --tokens 65536 --dtype float32", *HELD_OUT
    )  # no statistics are there yet
    for line in commands_of_result():
        alone(line)
    wanted = table_of_losses()
    _, *others = wanted  # the first is that of the commands
    found = increases(here / "reap.result.json")
    files = []
    for criteria, is_repaired in map(plans_of, others):
        for number, name in enumerate(criteria):
            file = f"{criteria[0]}-{number}.json"
            on = () if name.startswith("random") else BLEND
            alone(f"moeprune plan demo --criterion {name} --sparsity 50% --force -o {file}", *on)
            if is_repaired:  # on as many tokens as by default
                alone(f"moeprune repair demo --plan {file} --dtype float32 -o repaired-{file}")
                file = f"repaired-{file}"
            files += ["--plan", file]
    words = "moeprune evaluate demo --measure nll --dtype float32 -o others.json"
    alone(words, *files, *HELD_OUT)
    found |= increases(here / "others.json")
    for name in wanted:
        criteria, is_repaired = plans_of(name)
        loss = sum(found[each, is_repaired] for each in criteria) / len(criteria)
        # Rounded to 0.01; another machine adds in another order, and may choose other experts.
        assert loss == pytest.approx(wanted[name], abs=0.01), name
