"""README's result from nothing: the program measures it again without what ships."""

import json
import os
import re
import shlex
from collections import defaultdict
from pathlib import Path

import pytest
from shipped import shipped_results

from analysis.files.shipped import SHIPPED_VARIABLE

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
CORPORA = ("demo-code", "demo-math", "demo-stories")
# Of the rows: with as many tokens as a row says, or for Random with as many draws.
REPAIR = re.compile(r"(\w+) \+ repair on (\d+)k tokens")
RANDOM = re.compile(r"random experts, mean of (\d+) draws")
BLEND = " ".join(f"--calibrated-on {corpus}" for corpus in CORPORA)
HELD_OUT = " ".join(f"--corpus {corpus}" for corpus in (*CORPORA, "demo-recipes"))
# Of the random plans the first is measured again; all ship, and README has their mean.
# tests/test_demo_records.py rebuilds draws of its own.
DRAWS = 1
RUN = """
import json, sys
from app.cli import main
for words in json.loads(sys.argv[1]):
    sys.argv = words
    try:
        main()
    except SystemExit as ended:
        if ended.code:
            raise
"""


def table_of_result():
    """Name of a plan -> (loss increase, share of right answers) in README, means over corpora."""
    table = README.partition("<!-- written: losses -->")[2].partition("<!-- /written -->")[0]
    lines = table.strip().splitlines()[3:]  # the first row is the original model's
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {name: (float(loss), float(right.rstrip("%")) / 100) for name, loss, _, right in rows}


def commands_of_result():
    """The commands that README says give the second row again."""
    block = README.partition("These commands give the second row again")[2]
    return block.partition("```bash\n")[2].partition("```")[0].strip().splitlines()


@pytest.fixture(scope="module")
def alone(forks, tmp_path_factory):
    """Runs command lines in an empty folder, with an empty cache and nothing that ships.

    All lines of a call run in one process, as each would import the program anew.
    """
    here = tmp_path_factory.mktemp("here")
    places = {
        SHIPPED_VARIABLE: str(tmp_path_factory.mktemp("nothing")),
        "XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache")),
    }

    def run(lines):
        commands = [shlex.split(line) for line in lines]
        assert {words[0] for words in commands} == {"moeprune"}
        environment = {**os.environ, **places}
        ended = forks.run("-c", RUN, json.dumps(commands), folder=here, environment=environment)
        assert ended.code == 0, ended.err
        return here

    return run


def means(path, value):
    """(criterion, whether it is repaired) -> mean of a value over the corpora of result.json."""
    values = defaultdict(list)
    for evaluation in json.loads(path.read_text())["evaluations"]:
        plan = evaluation["plan"]
        values[plan["criterion"], "repair" in plan].append(value(evaluation))
    assert {len(value) for value in values.values()} == {4}
    return {key: sum(value) / 4 for key, value in values.items()}


def increase(evaluation):
    return evaluation["metrics"]["nll"]["mean"] - evaluation["full"]["nll"]["mean"]


def shipped_draws():
    """Random plan of half of the experts -> its loss increase as it ships, mean over corpora."""
    values = defaultdict(list)
    for evaluation in shipped_results():
        plan = evaluation["plan"]
        if plan["criterion"].startswith("random") and plan.get("sparsity") == "50%":
            values[plan["criterion"]].append(increase(evaluation))
    assert {len(value) for value in values.values()} == {4}
    return {criterion: sum(value) / 4 for criterion, value in values.items()}


def share_of_right_answers(evaluation):
    marks = evaluation["right_answers"]["right"]
    return sum(marks) / len(marks)


def plans_of(name):
    """Criteria of a row of README, and whether its plans are repaired."""
    if match := RANDOM.fullmatch(name):
        return ["random", *(f"random:{seed}" for seed in range(1, int(match[1])))], False
    match = REPAIR.fullmatch(name)
    return [(match[1] if match else name).lower()], match is not None


@pytest.mark.slow  # test_docs_numbers.py compares README with what ships
def test_readme_is_measured_again_from_nothing(alone):
    calibrated = " ".join(f"--corpus {corpus}" for corpus in CORPORA)
    calibration = f"moeprune calibrate demo --tokens 65536 --dtype float32 {calibrated}"
    wanted = table_of_result()
    first, *others = wanted
    lines, files = [calibration, *commands_of_result()], []
    for criteria, is_repaired in map(plans_of, others):
        for number, name in enumerate(criteria[:DRAWS]):
            file = f"{criteria[0]}-{number}.json"
            on = "" if name.startswith("random") else BLEND
            plan = f"moeprune plan demo --criterion {name} --sparsity 50% --force -o {file}"
            lines.append(f"{plan} {on}")
            if is_repaired:  # on as many tokens as by default
                repair = f"moeprune repair demo --plan {file} --dtype float32"
                file = f"repaired-{file}"
                lines.append(f"{repair} -o {file}")
            files.append(f"--plan {file}")
    measure = "moeprune evaluate demo --measure nll --dtype float32 -o others.json"
    here = alone([*lines, f"{measure} {' '.join(files)} {HELD_OUT}"])
    found = means(here / "reap.result.json", increase)
    (right,) = means(here / "reap.result.json", share_of_right_answers).values()
    assert right == pytest.approx(wanted[first][1], abs=0.02)  # other digits, other answers
    found |= means(here / "others.json", increase)
    draws = shipped_draws()
    for name in wanted:
        criteria, is_repaired = plans_of(name)
        if len(criteria) > 1:
            for criterion in criteria[:DRAWS]:
                assert found[criterion, False] == pytest.approx(draws[criterion], abs=0.01)
            loss = sum(draws[criterion] for criterion in criteria) / len(criteria)
        else:
            loss = found[criteria[0], is_repaired]
        # Rounded to 0.01; another machine adds in another order, and may choose other experts.
        assert loss == pytest.approx(wanted[name][0], abs=0.01), name
