"""search RECIPE: its files, its resumption, several processes, and the export of what it found."""

import json
import os
import shutil
import signal
from pathlib import Path
from threading import Timer

import pytest

from analysis.drain import drain
from analysis.files.locking import locked
from analysis.model.opening import load_model_index
from app.console import follow
from app.jobs.model import JobState
from app.jobs.store import JobStore
from app.jobs.worker import CancelSwitch, run_task
from pruning.measurements.block import Block
from pruning.measurements.table import Measurements
from pruning.measures.points import WHOLE
from pruning.plan.plan_file import load_plan
from pruning.records.sensitivity import SensitivityStore
from pruning.requests.recipe_steps import SearchRequest
from pruning.search.store import load_search
from pruning.tasks.search import search_run

ROOT = Path(__file__).parents[2]
COMMANDS = Path(__file__).parent / "commands_in_turn.py"
FILES = {"plan.json", "recipe.yaml", "search.json"}
UNFINISHED = FILES - {"plan.json"} | {"unfinished.plan.json"}


@pytest.fixture
def recipe(recipe, corpora):
    asked = {"corpus": str(corpora[1]), "samples": 5, "population": 6, "elites": 2}
    return lambda search=None, **changes: recipe(
        search={**asked, "generations": 3, **(search or {})}, **changes
    )


def essence(folder):
    """The result without what depends on the machine and on interruptions."""
    raw = json.loads((folder / "search.json").read_text())
    return {key: value for key, value in raw.items() if key not in ("cost", "sha256")}


def stats_of(out):
    """A statistics folder for each search, or one would take over what another measured."""
    return out.with_name(f"{out.name}-stats")


def request(path, out, **more):
    values = {"stats_dir": stats_of(out), "batch_size": 2, **more}
    return SearchRequest(recipe=path.read_text(), out=out, **values)


def measured_plans(out):
    """Digests of the plans in the table, one for each time that it was measured."""
    lines = [path.read_bytes().splitlines(True) for path in Measurements([stats_of(out)]).shards]
    return [Block.from_line(line).plan for shard in lines for line in shard]


def test_a_search_leaves_plan_result_and_scores(recipe, works, tiny, here):
    output = works("search", recipe(), "--stats-dir", "stats", "--batch-size", "2")
    assert {path.name for path in (here / "r.search").iterdir()} == FILES
    result = load_search(here / "r.search" / "search.json")
    plan = load_plan(here / "r.search" / "plan.json", model=load_model_index(str(tiny)))
    kept = dict(zip(result.schedule()["layer"], result.schedule()["kept"], strict=True))
    assert {layer: len(ids) for layer, ids in plan.kept.items()} == kept
    assert sum(kept.values()) == 9
    assert (plan.provenance.schedule, plan.provenance.criterion) == ("search", "frequency")
    assert plan.provenance.schedule_parameters["generations"] == 3
    assert result.is_finished
    assert "keeps 9 of 18 experts" in output
    assert "uniform" in output
    best = result.best_entry.fitness
    assert best == max(entry.fitness for entry in result.entries)


def test_the_order_within_layers_is_the_criterion_s(recipe, works, tiny, here):
    works("search", recipe(), "--stats-dir", "stats")
    words = ("--criterion", "frequency", "--schedule-file", "r.search/search.json")
    works("plan", tiny, *words, "--stats-dir", "stats", "-o", "by-file.json")
    by_file, found = (
        json.loads(Path(name).read_text())["kept"]
        for name in ("by-file.json", "r.search/plan.json")
    )
    assert by_file == found


@pytest.mark.parametrize("budget", [{"sparsity": "40%"}, {"shrink": "30%"}])
def test_a_search_starts_from_refined_plans(recipe, works, tiny, here, corpora, budget):
    """`refine` beside `search` measures whole plans of what the search removes."""
    refined = {}
    for rounds in (0, 2):
        asked = {"corpus": str(corpora[1]), "samples": 3, "levels": 2, "refine": rounds}
        path = recipe({"start": "measured", "generations": 1}, sensitivity=asked, budget=budget)
        works("search", path, "--stats-dir", f"stats{rounds}", "--out", f"search{rounds}")
        entries = load_search(here / f"search{rounds}" / "search.json").entries
        store = SensitivityStore([here / f"stats{rounds}"])
        (record,) = store.records(load_model_index(str(tiny)).identity)
        points = store.points(record)
        (total,) = {sum(entry.removed) for entry in entries}
        whole = [point for point in points.on_all(points.samples()) if point.position == WHOLE]
        refined[rounds] = [point for point in whole if point.level == total]
        starts = [entry.removed for entry in entries if entry.origin.startswith("measured")]
        assert {point.base for point in refined[rounds]} <= {entry.removed for entry in entries}
        assert starts
    assert refined[0] == []
    assert len(refined[2]) >= 1


def test_a_population_without_room_for_measured_plans_is_refused(recipe, moeprune, here, corpora):
    asked = {"corpus": str(corpora[1]), "samples": 3, "levels": 2}
    path = recipe({"start": "measured", "population": 4}, sensitivity=asked)
    for command in ("search", "prune"):
        outcome = moeprune(command, path, "--stats-dir", "stats")
        assert outcome.code == 1
        assert "a population of 4 has no room for measured among the 5 " in outcome.err
        assert "give population: 5 or more" in outcome.err
    assert not (here / "r.search").exists()
    assert not (here / "stats").exists()  # nothing was calibrated or measured before


def test_starts_without_room_are_named(recipe, moeprune, here):
    path = recipe({"population": 2, "elites": 1, "generations": 1})
    outcome = moeprune("search", path, "--stats-dir", "stats", "--out", "found")
    assert outcome.code == 0, outcome.err
    entries = load_search(here / "found" / "search.json").entries
    assert [entry.origin for entry in entries if entry.generation == 0] == ["uniform", "early"]
    told = "a population of 2 does not start from middle, late; 4 would"
    assert told in outcome.err


def test_more_generations_go_on_where_fewer_ended(recipe, here):
    drain(search_run(request(recipe({"generations": 1}), here / "kept")))
    first = measured_plans(here / "kept")
    drain(search_run(request(recipe(), here / "kept")))
    plans = measured_plans(here / "kept")
    assert plans[: len(first)] == first
    assert len(plans) == len(set(plans)) > len(first)
    drain(search_run(request(recipe(), here / "whole")))
    assert essence(here / "kept") == essence(here / "whole")


def interrupted(task, note):
    """The task's steps, with a Ctrl-C during the one that says this."""
    try:
        for step in task:
            if step.note.startswith(note):
                signal.raise_signal(signal.SIGINT)
            yield step
    finally:
        task.close()


def test_ctrl_c_keeps_the_best_and_the_same_command_goes_on(recipe, tiny, here):
    path = recipe()
    whole = drain(search_run(request(path, here / "whole")))
    with pytest.raises(SystemExit):
        follow(interrupted(search_run(request(path, here / "kept")), "generation 0"))
    so_far = load_search(here / "kept" / "search.json")
    assert not so_far.is_finished
    assert 0 < len(so_far.entries) < len(whole.entries)
    assert not (here / "kept" / "plan.json").exists()
    unfinished = here / "kept" / "unfinished.plan.json"
    plan = load_plan(unfinished, model=load_model_index(str(tiny)))
    assert sum(len(ids) for ids in plan.kept.values()) == 9
    drain(search_run(request(path, here / "kept")))
    assert not unfinished.exists()
    assert essence(here / "kept") == essence(here / "whole")


# A signal may come between the opening of a file and its `with`: then the collector closes it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("after", [0, 0.01])
def test_a_job_that_is_stopped_keeps_the_best_and_goes_on(recipe, tiny, here, after):
    path = recipe({"generations": 6})
    whole = drain(search_run(request(path, here / "whole")))
    values = request(path, here / "kept").model_dump(mode="json")
    job = JobStore(here / "jobs.sqlite").submit("search", values, "t", "c", "ann")
    switch, tries = CancelSwitch(), []

    def stop(step):
        # At a step, or so many seconds later: wherever the task is by then.
        if step.note.startswith("generation 1") and not tries:
            tries.append(Timer(after, os.kill, (os.getpid(), signal.SIGTERM)))
            tries[0].start()
            if not after:
                tries[0].join()

    before = signal.signal(signal.SIGTERM, switch.handle)
    try:
        outcome = run_task(job, "app.jobs.kinds", switch, stop)
        tries[0].join()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert outcome.state is JobState.CANCELED
    so_far = load_search(here / "kept" / "search.json")
    assert {path.name for path in (here / "kept").iterdir()} == UNFINISHED
    assert 0 < len(so_far.entries) < len(whole.entries)
    assert not (here / "kept" / "plan.json").exists()
    unfinished = here / "kept" / "unfinished.plan.json"
    plan = load_plan(unfinished, model=load_model_index(str(tiny)))
    kept = dict(zip(so_far.schedule()["layer"], so_far.schedule()["kept"], strict=True))
    assert {layer: len(ids) for layer, ids in plan.kept.items()} == kept
    drain(search_run(request(path, here / "kept")))
    assert not unfinished.exists()
    assert essence(here / "kept") == essence(here / "whole")
    assert (here / "kept/plan.json").read_bytes() == (here / "whole/plan.json").read_bytes()


def evaluations(folder):
    """Records of evaluations, without how they were made."""
    found = [json.loads(path.read_text()) for path in folder.rglob("evaluations/*.json")]
    return [record | {"made": {}, "sha256": ""} for record in found]


def measured(folder):
    """Allocation and sample -> what curves measured."""
    store = SensitivityStore([folder])
    (record,) = store.records()
    points = store.points(record)
    samples = sorted(points.samples())
    values = {
        point.removed: points.values(point.removed, samples).tolist()
        for point in points.on_all(samples)
    }
    return samples, values


@pytest.mark.slow  # tests/analysis/test_distributed.py has two processes that calibrate
def test_two_processes_find_what_one_finds(forks, recipe, works, tiny, corpora, here):
    """Searches, evaluations and curves, whole and streamed, in one launch, which takes longest."""
    drain(search_run(request(recipe(), here / "alone")))
    works("plan", tiny, "--criterion", "random", "--sparsity", "50%", "-o", "plan.json")
    # Three batches: in the last turn the second process has none.
    ours = ("evaluate", tiny, "--plan", "plan.json", "--corpus", corpora[1], "--samples", "5")
    ours += ("--seq-len", "9", "--batch-size", "2")
    search = ("search", "r.yaml", "--batch-size", "2")
    curves = ("sensitivity", tiny, "--criterion", "random", *ours[4:], "--sparsity", "50%")
    curves += ("--refine", "1", "--levels", "3")
    commands = []
    for way, more, own in (
        ("whole", (), ("--measure", "esap", "--measure", "nll", "--measure", "spec-dec")),
        ("streamed", ("--stream-layers",), ()),
    ):
        works(*ours, *more, *own, "--force", "--stats-dir", f"alone-{way}")
        commands.append((*ours, *more, *own, "--force", "--stats-dir", f"together-{way}"))
        # The calibration of the other, and none of its scores.
        stats, without = stats_of(here / f"search-{way}"), shutil.ignore_patterns("measurements")
        shutil.copytree(stats_of(here / "alone"), stats, ignore=without)
        commands.append((*search, *more, "--out", f"search-{way}", "--stats-dir", stats))
        works(*curves, *more, "--stats-dir", f"alone-{way}")
        commands.append((*curves, *more, "--stats-dir", f"together-{way}"))
    (here / "commands.json").write_text(json.dumps(commands, default=str))
    printed = "".join(rank.out for rank in forks.ranks(COMMANDS, "commands.json", folder=here))
    assert printed.count("result.json: ") == 2  # one process speaks for both
    plan = (here / "alone" / "plan.json").read_bytes()
    for way in ("whole", "streamed"):
        assert evaluations(here / f"together-{way}") == evaluations(here / f"alone-{way}")
        assert essence(here / f"search-{way}") == essence(here / "alone")
        plans = measured_plans(here / f"search-{way}")
        assert sorted(plans) == sorted(measured_plans(here / "alone"))
        assert measured(here / f"together-{way}") == measured(here / f"alone-{way}")
        assert (here / f"search-{way}" / "plan.json").read_bytes() == plan


def test_streamed_layers_find_the_same(recipe, works, here):
    path = recipe()
    drain(search_run(request(path, here / "whole")))
    works("search", path, "--stats-dir", "stats", "--batch-size", "2", "--stream-layers")
    assert {path.name for path in (here / "r.search").iterdir()} == FILES
    assert essence(here / "r.search") == essence(here / "whole")


def test_a_search_of_other_settings_does_not_go_on_in_the_same_folder(recipe, moeprune, works):
    works("search", recipe(), "--stats-dir", "stats")
    outcome = moeprune("search", recipe({"seed": 1}), "--stats-dir", "stats")
    assert outcome.code == 1
    assert "another search (it differs in settings); choose another --out" in outcome.err


def test_two_searches_are_not_in_one_folder(recipe, moeprune, here):
    with locked(here / "r.search" / "search.json"):
        outcome = moeprune("search", recipe(), "--stats-dir", "stats")
    assert outcome.code == 1
    assert f"Another process is searching in {here / 'r.search'}; wait for it." in outcome.err


def test_a_search_in_another_folder_measures_nothing_again(recipe, here):
    for name in ("first", "again"):
        drain(search_run(request(recipe(), here / name, stats_dir=here / "first-stats")))
    plans = measured_plans(here / "first")
    assert len(plans) == len(set(plans)) == len(load_search(here / "again/search.json").entries)
    assert essence(here / "again") == essence(here / "first")


def test_a_damaged_line_is_named_and_its_plan_measured_again(recipe, moeprune, works, here):
    words = ("search", recipe(), "--stats-dir", "stats", "--batch-size", "2")
    works(*words)
    (shard,) = (here / "stats").rglob("measurements/*")
    damaged = shard.read_bytes().replace(b'"esap"', b'"kl"', 1)
    shard.write_bytes(damaged)
    whole = essence(here / "r.search")
    (here / "r.search" / "search.json").unlink()
    outcome = moeprune(*words)
    assert f"Line 1 of the measurements {shard.name} cannot be read" in outcome.err
    assert essence(here / "r.search") == whole
    assert shard.read_bytes().startswith(damaged)
    assert shard.read_bytes().count(b"\n") == damaged.count(b"\n") + 1


def test_run_searches_where_the_recipe_asks_and_exports_what_it_found(recipe, works, here):
    path = recipe(export={"out": "pruned", "verify": True})
    output = works("prune", path, "--stats-dir", "stats")
    assert (here / "r.plan.json").read_bytes() == (here / "r.search/plan.json").read_bytes()
    exported = load_model_index(str(here / "pruned"))
    kept = load_search(here / "r.search" / "search.json").schedule()["kept"]
    assert [layer.num_experts for layer in exported.layers] == kept.tolist()
    again = works("prune", path, "--stats-dir", "stats")
    assert "r.plan.json is the same, skipped" in again
    assert "is finished, skipped" in again
    assert "fewer layers" in output
