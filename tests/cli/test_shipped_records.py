"""What ships is only read: own runs displace nothing, and nothing is written among the program."""

import json
import shutil
from pathlib import Path

import pytest
from shipped import shipped_run

from analysis.files.shipped import DEMO_CHECKPOINT, SHIPPED_STATS
from analysis.stats.places import default_stats_dir
from analysis.stats.store import stats_store

ROOT = Path(__file__).parents[2]
CORPORA = ("demo-code", "demo-math", "demo-stories")
BLEND = [word for corpus in CORPORA for word in ("--calibrated-on", corpus)]
README_PLAN = ("plan", "demo", "--criterion", "ean", *BLEND, "--sparsity", "50%", "--force")


def files_of_the_program():
    """Each file that ships with its size and the time of its last change, but for bytecode."""
    return {
        path: (stat.st_size, stat.st_mtime_ns)
        for package in ("analysis", "app", "cached_stats", "pruning")
        for path in (ROOT / package).rglob("*")
        if path.name != "__pycache__" and path.suffix != ".pyc"
        for stat in (path.stat(),)
        if path.is_file()
    }


@pytest.fixture
def program_stays():
    """The files of the program are the same after the test."""
    before = files_of_the_program()
    yield
    assert files_of_the_program() == before


def own_run_of(corpus, shipped):
    """A run that passes for a larger and newer one of a corpus, with the sums of another."""
    folder = shutil.copytree(shipped_run(shipped), default_stats_dir() / f"demo-{corpus}-larger")
    raw = json.loads((folder / "manifest.json").read_text())
    raw["corpora"][0] |= {"name": corpus, "num_tokens": 10**6}
    raw["made"]["created_at"] = "2099-01-01T00:00:00.000+00:00"
    raw |= {"run_id": folder.name}
    (folder / "manifest.json").write_text(json.dumps(raw))
    return folder.name


def plan_by(works, *words):
    return json.loads(works(*words, "--json"))["result"]["digest"]


@pytest.mark.usefixtures("program_stays")
def test_own_runs_of_its_corpora_do_not_change_the_plan_of_the_readme(works, moeprune, here):
    before = plan_by(works, *README_PLAN)
    own = own_run_of("demo-code", "demo-math")
    made = works(
        *("calibrate", "demo", "--corpus", "demo-math", "--tokens", "2048", "--dtype", "float32")
    )
    (new,) = (run for run in stats_store().runs() if run.path.name in made.split(":")[0])
    assert not new.is_shipped
    assert f"--run {new.manifest.run_id}" in made  # by its corpus, the next plan would be another's
    assert plan_by(works, *README_PLAN) == before
    said = moeprune(*README_PLAN)
    note = f"demo-code has 2 runs; using {shipped_run('demo-code').name}, which ships"
    assert note in " ".join((said.out + said.err).split())
    # What is asked for by its id is taken.
    works("plan", "demo", "--criterion", "ean", "--run", own, "--sparsity", "50%", "-o", "own.json")
    assert json.loads(Path("own.json").read_text())["runs"] == [own]


@pytest.mark.usefixtures("program_stays")
def test_a_recipe_plans_by_the_runs_of_its_own_settings(works, here):
    before = plan_by(works, *README_PLAN)
    asked = {
        "model": "demo",
        "corpora": ["demo-math"],
        "tokens": 2048,
        "dtype": "float32",
        "criterion": "ean",
        "budget": {"sparsity": "50%"},
    }
    Path("recipe.yaml").write_text(json.dumps(asked))
    works("prune", "recipe.yaml")
    plan = json.loads(Path("recipe.plan.json").read_text())
    own = {run.manifest.run_id for run in stats_store().runs() if not run.is_shipped}
    assert set(plan["runs"]) == own
    assert plan_by(works, *README_PLAN) == before


@pytest.mark.usefixtures("program_stays")
def test_results_go_to_the_cache_of_the_user_and_nowhere_else(works, tiny, corpora, here):
    held_out = ("--corpus", corpora[1], "--samples", "2", "--seq-len", "9")
    works("calibrate", tiny, "--corpus", corpora[0], "--tokens", "64", "--seq-len", "16")
    budget = ("--criterion", "reap", "--sparsity", "50%")
    works("plan", tiny, *budget, "-o", "plan.json")
    repair = ("--corpus", corpora[0], "--tokens", "64", "--seq-len", "8", "-o", "repaired.json")
    works("repair", tiny, "--plan", "plan.json", *repair)
    works("evaluate", tiny, "--plan", "repaired.json", *held_out, "-o", "result.json")
    works("sensitivity", tiny, "--criterion", "reap", *held_out, "--levels", "2")
    works("variance", tiny, "--plan", "plan.json", "--corpus", corpora[1], "--seq-len", "9")
    works("bins", tiny, "--criterion", "reap", *held_out, "--bins", "2", "-o", "bins.csv")
    works("plan", "demo", *budget, "--calibrated-on", "demo-code", "-o", "demo.json")
    words = ("--text", "7 * 6 = 42.", "--dtype", "float32")
    works("ask", "demo", "--plan", "demo.json", *words)
    kinds = {path.name for path in default_stats_dir().glob("models/*/*")}
    assert {"repairs", "evaluations", "sensitivity", "variances", "bins", "lenses"} <= kinds
    named = {"bins.csv", "demo.json", "plan.json", "repaired.json", "result.json", "variance.csv"}
    assert {path.name for path in here.iterdir()} == named


SHIPPED = [SHIPPED_STATS, SHIPPED_STATS / "searches" / "new", DEMO_CHECKPOINT]


@pytest.mark.usefixtures("program_stays")
@pytest.mark.parametrize("folder", SHIPPED, ids=("records", "below", "checkpoint"))
def test_nothing_is_written_among_what_ships(works, refused, here, tiny, corpora, folder):
    (here / "link").symlink_to(SHIPPED_STATS)
    budget = ("--criterion", "random", "--sparsity", "50%")
    works("plan", tiny, *budget, "-o", "plan.json")
    recipe = (
        f"model: {tiny}\ncriterion: random\nbudget: {{sparsity: 50%}}\n"
        f"search: {{corpus: {corpora[1]}}}\nexport: {{out: {folder / 'export'}}}\n"
    )
    (here / "recipe.yaml").write_text(recipe)
    for words in (
        ("plan", tiny, *budget, "--force", "-o", folder / "plan.json"),
        ("plan", tiny, *budget, "-o", "link/plan.json"),
        ("evaluate", tiny, "--plan", "plan.json", "--corpus", corpora[1], "-o", folder / "r.json"),
        ("export", tiny, folder / "export", "--plan", "plan.json"),
        ("search", "recipe.yaml", "--out", folder / "search"),
        ("prune", "recipe.yaml"),
    ):
        said = refused(*words)
        assert "ships with the program" in said
        assert said.count("\n") == 1


def test_the_shipped_folder_is_refused_as_the_one_to_write_to(refused, moeprune, here):
    for words in (
        ("calibrate", "demo", "--corpus", "demo-math"),
        ("evaluate", "demo", "--corpus", "demo-math"),
        ("runs", "list"),
        ("app",),
    ):
        said = refused(*words, "--stats-dir", SHIPPED_STATS)
        assert "ships with the program" in said
        assert "name another folder" in said
    said = refused("runs", "remove", "demo-demo-math")
    run_id = shipped_run("demo-math").name
    assert said == f"error: {run_id} ships with the program and is not removed.\n"
