"""Commands that commands print as the next ones: each works as it is printed."""

import re
import shlex
import shutil

import pytest
from exports import export, keeping

from analysis.model import load_model_index

BEGIN = {
    "calibrate": "calibrate {tiny} --corpus {red} --tokens 64 --seq-len 16 --stats-dir stats",
    "weights": "weights {tiny} --stats-dir stats",
    "gate": "score {tiny} --criterion reap --calibrated-on {red} --gate renormalized "
    "--stats-dir {stats}",
    "run": "score {tiny} --criterion reap --run {run} --stats-dir {stats}",
    "overlap": "overlap {tiny} --sparsity 50% --gate renormalized --stats-dir {stats}",
    "evaluate": "evaluate {tiny} --corpus {red} --samples 2 --stats-dir stats",
    "sensitivity": "sensitivity {tiny} --criterion reap --corpus {red} --calibrated-on {blue} "
    "--samples 2 --levels 2 --gate renormalized --stats-dir {stats}",
    "bins": "bins {tiny} --criterion reap --corpus {red} --calibrated-on {blue} --bins 2 "
    "--gate renormalized --stats-dir {stats}",
    "counts": "plan {tiny}/config.json --config-only --shrink 30%",
    "little can go": "weights half --stats-dir stats",
}
# They read a benchmark of the hub, or take a while and are tested elsewhere.
LEFT_OUT = ("benchmark", "report")


@pytest.fixture(scope="module")
def half(models, tmp_path_factory):
    """A plan, and the export by it."""
    folder = tmp_path_factory.mktemp("half")
    model = load_model_index(str(models / "tiny"))
    keeping(model, (0, 2, 5)).save(folder / "plan.json")
    export(model, (0, 2, 5), folder / "half")
    return folder


@pytest.fixture(scope="module")
def ran():
    """Lines that were run: where another chain leads to one, it is not followed again."""
    return set()


@pytest.mark.parametrize("name", BEGIN)
def test_every_next_command_works_where_its_files_are_taken(
    name, works, tiny, corpora, stats, run_ids, here, half, ran
):
    shutil.copytree(half, here, dirs_exist_ok=True)
    for taken in ("tiny-pruned", "half-pruned"):
        (here / taken).mkdir()
        (here / taken / "file").touch()
    red, blue = corpora
    (here / "stats").mkdir()
    places = {"tiny": tiny, "red": red, "blue": blue, "run": run_ids["tiny", "red"]}
    if "{stats}" in BEGIN[name]:
        shutil.copytree(stats, here / "stats", dirs_exist_ok=True)
    left = [BEGIN[name].format(**places, stats="stats")]
    asked = set(left)
    while left:
        line = left.pop().replace("CORPUS", str(red))
        if line in ran:
            continue
        ran.add(line)
        printed = works(*shlex.split(line))
        following = re.findall(r"next: moeprune (.+)", printed)
        left += [each for each in following if each not in asked and not each.startswith(LEFT_OUT)]
        asked |= set(following)
        if line.startswith("plan"):
            assert " --gate renormalized" in line or "renormalized" not in BEGIN[name]
    assert len(asked) > 1
