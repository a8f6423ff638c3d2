"""plot and report: numbers of views by hand, and what cannot be drawn; see test_charts.py."""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
from shipped import shipped_results

from analysis.files.shipped import SHIPPED_STATS
from app.charts.listing import CHARTS
from app.charts.published import PAPER_CHARTS
from builders.measured import sums
from pruning.measurements.table import PlanSums
from pruning.records.bins import BinsRecord, BinsStore

ROOT = Path(__file__).parents[2]
RECIPES = ("--criterion", "reap", "--calibrated-on", "demo-code", "--sparsity", "50%")
NEURONS = ("--criterion", "heapr", *RECIPES[2:])


@pytest.mark.parametrize(
    ("view", "plan"),
    [
        ("sizes", (*RECIPES, "--schedule", "global", "--protect", "1")),
        ("layer-sensitivity", (*RECIPES, "--schedule", "late")),
        ("schedules", ("--criterion", "aimer", "--sparsity", "25%", "--multiple-of", "4")),
        ("neurons-kept", (*NEURONS, "--granularity", "neuron", "--schedule", "measured")),
        ("neuron-sensitivity", (*NEURONS, "--granularity", "neuron", "--protect", "2")),
    ],
)
def test_a_plan_of_a_file_is_drawn_as_the_plan_of_its_options(works, here, view, plan):
    works("plan", "demo", *plan)
    works("plot", view, "demo", *plan, "-o", "options.csv")
    works("plot", view, "demo", "--plan", "plan.json", "-o", "file.csv")
    assert (here / "file.csv").read_bytes() == (here / "options.csv").read_bytes()


def test_a_plan_of_a_file_ordered_by_another_criterion_keeps_its_name(works, moeprune, here):
    works("plan", "demo", *RECIPES)
    drawn = moeprune("plot", "kept-by", "demo", "--plan", "plan.json", "--criterion", "man")
    assert drawn.code == 0, drawn.err  # from the plan's own corpora
    assert "only A (plan.json) keeps" in drawn.out
    assert "plan.json was ranked by reap; here man orders its experts" in drawn.out


def test_the_counts_of_a_search_are_drawn_from_its_plan_and_neurons_have_no_schedules(
    works, refused, here
):
    file = ("--schedule-file", str(SHIPPED_STATS / "searches" / "demo-reap.json"))
    works("plan", "demo", "--criterion", "reap", "--calibrated-on", "demo-code", *file)
    works("plot", "schedules", "demo", "--plan", "plan.json", "-o", "all.csv")
    counts = pd.read_csv(here / "all.csv")
    assert "search:demo-reap" in set(counts["schedule"])
    neurons = ("--granularity", "neuron", *NEURONS, "-o", "some.csv")
    assert "of a plan of neurons draw neuron-layers" in refused(
        "plot", "schedules", "demo", *neurons
    )


OF_THE_PLAN = ("kept-by", "agreement", "sizes", "text-tokens", "text-experts", "text-plans")
NEURON_PLANS = {
    "heapr": ("--criterion", "heapr"),
    "heapr on code": NEURONS,
    "camera-p": ("--criterion", "camera-p", *RECIPES[2:4], "--top-k", "2"),
    "weights": ("--criterion", "neuron-norms", "--shrink", "20%"),
}


@pytest.mark.parametrize("plan", NEURON_PLANS)
def test_every_view_of_a_plan_of_neurons_is_drawn_or_refused_in_one_line(moeprune, here, plan):
    views = {name for name in CHARTS if CHARTS[name].granularity == "expert"}
    views = views if plan == "heapr on code" else OF_THE_PLAN
    drawn, words = set(), ("--granularity", "neuron", *NEURON_PLANS[plan])
    for view in views:
        outcome = moeprune("plot", view, "demo", *words, "-o", f"{view}.csv")
        if outcome.code == 0:
            drawn.add(view)
            assert len(pd.read_csv(here / f"{view}.csv")), view
        else:
            assert outcome.err.startswith("error: "), view
            assert outcome.err.count("\n") == 1, view
    assert ("sizes" in drawn) == (plan != "heapr")  # no corpus is named, and there are three
    assert not drawn & {"kept-by", "agreement"}


def test_sizes_of_a_plan_of_neurons_are_counted_by_hand(works, refused, here):
    plan = (*NEURONS, "--granularity", "neuron")
    works("plot", "sizes", "demo", *plan, "-o", "sizes.csv")
    parts = pd.read_csv(here / "sizes.csv").set_index("part")
    # Half of 32 experts' 64 neurons in each of 6 layers; a neuron has
    # three rows of 128 numbers in bfloat16.
    assert parts.loc["routed experts", "before"] == 6 * 32 * 64 * 3 * 128 * 2
    assert parts.loc["routed experts", "after"] == 6 * 32 * 32 * 3 * 128 * 2
    assert "which --with-plan names" in refused("plot", "kept-by", "demo", *plan, "-o", "k.csv")


def test_the_numbers_of_the_papers(works, here):
    for view in PAPER_CHARTS:
        works("plot", view, "unified-table-5", "-o", f"{view}.csv")
    assert {path.stem for path in here.iterdir()} == set(PAPER_CHARTS)
    block = "ERNIE-4.5-21B-A3B-PT 50%"
    works("plot", "capability", "evoesap-table-1", "--block", block, "-o", "one.csv")
    made = pd.read_csv(here / "one.csv")
    assert made["candidate"].iloc[0] == "Original model"
    facts = pd.read_csv(ROOT / "cached_stats" / "published" / "evoesap-table-1.csv")
    reap = facts.query("criterion == 'reap' and sparsity == 0.5 and schedule == 'uniform'")
    reap = reap[reap["model"].str.startswith("ERNIE")].set_index("benchmark")["score"]
    drawn = made.set_index("candidate").loc["REAP"]
    shared = [name for name in reap.index if name in drawn]
    assert len(shared) > 3
    assert drawn[shared].tolist() == pytest.approx(reap[shared].tolist())


def test_numbers_equal_those_of_the_commands(works, here):
    works("plot", "overlap", "demo", *RECIPES, "-o", "plotted.csv")
    works("overlap", "demo", "--criterion", "reap", "--sparsity", "50%", "-o", "overlap.csv")
    plotted, computed = pd.read_csv(here / "plotted.csv"), pd.read_csv(here / "overlap.csv")
    pd.testing.assert_frame_equal(plotted, computed)
    works("plot", "kept-by", "demo", *RECIPES, "--with-criterion", "man", "-o", "kept.csv")
    works("compare", "demo", *RECIPES, "--with-criterion", "man", "-o", "comparison.csv")
    kept, compared = pd.read_csv(here / "kept.csv"), pd.read_csv(here / "comparison.csv")
    pd.testing.assert_frame_equal(kept, compared)


@pytest.mark.parametrize("budget", ["--shrink 40%", "--remove 102"])
def test_recipes_are_compared_at_the_share_that_any_budget_takes(works, here, budget):
    works("plot", "kept-by", "demo", *RECIPES[:4], *budget.split(), "-o", "kept.csv")
    # 17 of the 32 experts of each layer.
    asked = [*RECIPES[:4], "--sparsity", "53.125%", "--with-criterion", "frequency"]
    works("compare", "demo", *asked, "-o", "comparison.csv")
    kept, compared = pd.read_csv(here / "kept.csv"), pd.read_csv(here / "comparison.csv")
    pd.testing.assert_frame_equal(kept, compared)


def test_the_numbers_of_a_search_are_those_of_its_file(works, here):
    raw = json.loads((ROOT / "cached_stats" / "searches" / "demo-reap.json").read_text())
    for view in ("search", "search-best", "schedules"):
        works("plot", view, "demo", *RECIPES, "-o", f"{view}.csv")
    history, best, all_of_them = (  # pandas 2 reads the last digit otherwise
        pd.read_csv(here / f"{view}.csv", converters={"fitness": float})
        for view in ("search", "search-best", "schedules")
    )
    assert history["generation"].value_counts().to_dict() == {
        number: len(members) for number, members in enumerate(raw["generations"])
    }
    fitness = {row[0]: row[4] for row in raw["candidates"]}
    assert history["fitness"].tolist() == history["candidate"].map(fitness).tolist()
    kept = {int(layer): count for layer, count in raw["best"]["kept"].items()}
    assert best.set_index("layer")["kept"].to_dict() == kept
    # Of all schedules side by side only the search on the order of the recipe is one.
    last = all_of_them[all_of_them["schedule"].str.startswith("search:")].set_index("layer")
    assert set(last["schedule"]) == {"search:demo-reap"}
    assert last["kept"].to_dict() == kept


def test_the_neuron_frontier_has_what_was_evaluated(works, here):
    works("plot", "neuron-frontier", "demo", *NEURONS, "-o", "frontier.csv")
    made = pd.read_csv(here / "frontier.csv")
    known = made[made["measured"].notna()]
    added = {}
    for raw in (*shipped_results(), *shipped_results(stem="demo-grid")):
        facts = raw["plan"]
        is_heapr = (facts["criterion"], facts["granularity"]) == ("heapr", "neuron")
        # The curves are of neurons that compete within a layer or the model.
        is_of_curves = is_heapr and facts["schedule"] != "neurons by expert"
        if is_of_curves and facts["corpora"] == ["demo-code"] and not facts.get("repair"):
            series = "uniform" if facts["schedule"] == "neurons by layer" else "other"
            if facts["schedule"] == "measured":  # one of them may be the plan that the chart draws
                series = "measured or other"
            change = raw["metrics"]["nll"]["mean"] - raw["full"]["nll"]["mean"]
            plan = (series, round(facts["removed"] * 12_288), raw["plan_digest"])
            added.setdefault(plan, []).append(change)
    means = {
        (removed, round(sum(losses) / len(losses), 6)): series
        for (series, removed, _), losses in added.items()
    }
    drawn = {
        (removed, round(measured, 6)): series
        for series, removed, measured in known[["series", "removed", "measured"]].to_numpy()
    }
    assert drawn.keys() == means.keys()
    assert [plan for plan, series in drawn.items() if series not in means[plan]] == []
    assert {len(losses) for losses in added.values()} == {4}
    assert {removed for removed, _ in drawn} == {3072, 4928, 6144, 9216}
    # A neuron has 384 weights of two bytes. Any cut also writes the tied head: 2,048 x 128 weights.
    bare = made.loc[made["removed"] == 0, "bytes"].iloc[0]
    head = 524_288 * (made["removed"] > 0)
    assert (bare + head - made["bytes"]).tolist() == (768 * made["removed"]).tolist()


def test_stratification_ranks_as_score_does(works, here):
    panels = ("--panel", "reap", "--panel", "magnitude")
    said = works("plot", "stratification", "demo", *RECIPES, *panels, "-o", "map.csv")
    assert "Magnitude separates experts by 29%, random weights by 2%" in said
    works("score", "demo", *RECIPES[:4], "-o", "scores.csv")
    drawn = pd.read_csv(here / "map.csv").query("panel == 'REAP'")
    scored = pd.read_csv(here / "scores.csv")
    both = drawn.merge(scored, on=["layer", "expert"], suffixes=("", "_scored"))
    assert len(both) == len(scored) == 192
    assert (both["rank"] == both["rank_scored"]).all()
    # Of 32 experts, 16 stay.
    assert (both["kept"] == (both["rank"] < 16)).all()
    # Rescaled within the layer: 1 for the first, 0 for the last, and falling between.
    for _, rows in both.sort_values("rank").groupby("layer"):
        assert (rows["value"].iloc[0], rows["value"].iloc[-1]) == (1.0, 0.0)
        assert (rows["value"].diff().dropna() <= 0).all()


def test_stratification_is_drawn_in_three_scales(works, here):
    for scale in ("relative", "raw"):
        works("plot", "stratification", "demo", "--scale", scale, "-o", f"{scale}.csv")
    raw, relative = (pd.read_csv(here / f"{scale}.csv") for scale in ("raw", "relative"))
    assert list(dict.fromkeys(raw["panel"])) == ["AIMER", "Magnitude"]
    assert (raw["value"] == raw["score"]).all()
    mean = raw.groupby(["panel", "layer"])["score"].transform("mean")
    sign = raw["panel"].map({"AIMER": -1, "Magnitude": 1})
    expected = sign * (raw["score"] - mean) / mean
    assert relative["value"].tolist() == pytest.approx(expected.tolist())


def test_html_holds_the_figure_and_its_provenance(works, here):
    works("plot", "agreement", "demo", *RECIPES)
    page = (here / "agreement.html").read_text()
    for word in ("demo-demo-code-", "demo-code, 50%", "moe-prune-studio"):
        assert word in page
    assert "Plotly.newPlot" in page
    assert "<script src=" not in page


def test_a_name_is_text_in_the_figure(works, here, models, corpora, tmp_path, stats):
    hostile = tmp_path / "<img src=x>"
    shutil.copytree(models / "tiny", hostile)
    options = ("--criterion", "reap", "--calibrated-on", "red.jsonl", "--stats-dir", stats)
    works("plot", "agreement", hostile, *options, "-o", "fig.html")
    page = (here / "fig.html").read_text()
    assert "<img src=x" not in page
    # Plotly reads tags in text, so the name is escaped there, and once more in the script.
    assert r"&lt;img src=x&gt;" in page or r"\u003cimg" not in page


def test_scores_against_the_loss_draw_without_options(works, moeprune, here):
    # HEAPr where neurons are ranked, since REAP ranks none.
    assert works("plot", "neuron-loss-bins", "demo", "-o", "n.csv").startswith("HEAPr ")
    assert works("plot", "loss-bins", "demo", "-o", "e.csv").startswith("REAP ")
    outcome = moeprune("plot", "neuron-loss-bins", "demo", "--criterion", "reap")
    assert outcome.code == 1
    known = "camera-p, heapr, neuron-norms, random"
    assert f"--criterion takes those that were: {known}." in outcome.err


def test_a_quick_look_does_not_replace_a_careful_measurement(works, here):
    careful = next(
        record
        for record in BinsStore([SHIPPED_STATS]).records()
        if record.record_id.startswith("demo-reap-expert-demo-code-")
    )
    name, store = "demo-reap-expert-demo-code-ffffffff", BinsStore([here / "own"])
    made = careful.made | {"created_at": "2999-01-01T00:00:00.000+00:00"}

    def save(samples):
        """Bins that cost nothing, on so many samples."""
        flat = PlanSums((32,) * 6, tuple(map(str, range(samples))), {"nll": sums((1.0,) * samples)})
        corpus = {**careful.corpus, "digest": str(samples)}
        update = {"record_id": name, "digest": "f" * 64, "corpus": corpus, "made": made}
        quick = BinsRecord.from_json(careful.to_line(), "a line").model_copy(update=update)
        store.save(quick.with_numbers(dict.fromkeys(quick.plans, flat)))

    save(8)
    said = works("plot", "loss-bins", "demo", *RECIPES, "--stats-dir", "own", "-o", "bins.csv")
    drawn = pd.read_csv(here / "bins.csv")["loss_change"]
    assert drawn.tolist() == pytest.approx([row.loss_change for row in careful.rows])
    assert "over 10 bins, on 64 samples" in said
    # Of more samples it would be the one that counts.
    save(128)
    works("plot", "loss-bins", "demo", *RECIPES, "--stats-dir", "own", "-o", "bins.csv", "--force")
    assert not pd.read_csv(here / "bins.csv")["loss_change"].any()


@pytest.mark.slow  # half a minute; each view alone is drawn above
def test_a_report_of_all_views(works, here):
    output = works("report", "demo", "--calibrated-on", "demo-code", "-o", "report.html")
    assert "left out" not in output
    page = (here / "report.html").read_text()
    assert "moeprune report demo --criterion reap --calibrated-on demo-code --sparsity 50%" in page
    assert [path.name for path in here.iterdir()] == ["report.html"]


def test_what_is_left_out_is_said(works, here):
    views = ("--view", "kept-by", "--view", "overlap", "--view", "overlap-by-tokens")
    recipes = ("--criterion", "aimer", "--with-criterion", "magnitude")
    output = works("report", "demo", *recipes, *views)
    (line,) = (line for line in output.splitlines() if "What two corpora agree on" in line)
    assert "; How many tokens a choice needs" in line  # left out for the same reason
    assert ": AIMER reads no corpus" in line
    assert (here / "report.html").is_file()


def test_a_report_does_not_say_where_the_statistics_lie(works, here):
    words = ("--calibrated-on", "demo-code", "--view", "stratification")
    works("report", "demo", *words, "--stats-dir", here / "private" / "kept")
    page = (here / "report.html").read_text()
    assert "--stats-dir kept" in page
    assert str(here) not in page


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="images need Chromium")
def test_images(works, here):
    for ending, start in (("svg", b"<svg"), ("png", b"\x89PNG"), ("pdf", b"%PDF")):
        works("plot", "agreement", "demo", *RECIPES, "-o", f"fig.{ending}")
        assert (here / f"fig.{ending}").read_bytes().startswith(start)


def test_weights_are_measured_where_a_recipe_reads_them(works, here, tiny):
    options = ("--criterion", "aimer", "--with-criterion", "magnitude")
    works("plot", "kept-by", tiny, *options, "--stats-dir", "stats", "-o", "kept.csv")
    # Sparse layers of 6 experts: three.
    assert len(pd.read_csv(here / "kept.csv")) == 18


def test_neurons_are_drawn_of_the_plans_that_the_command_makes(works, here):
    works("plot", "neuron-layers", "demo", *NEURONS, "-o", "layers.csv")
    drawn = pd.read_csv(here / "layers.csv").query("series == 'Global'")
    plan = ("--granularity", "neuron", "--neuron-scope", "global", "-o", "plan.json")
    works("plan", "demo", *NEURONS, *plan)
    kept = json.loads((here / "plan.json").read_text())["kept_neurons"]
    # 32 experts of 64 neurons a layer; those that are not named keep all of theirs.
    removed = [sum(64 - len(ids) for ids in kept[str(layer)].values()) for layer in range(6)]
    assert drawn["share"].tolist() == pytest.approx([gone / 2048 for gone in removed])
    works("plot", "neuron-flops", "demo", *NEURONS, "-o", "flops.csv")
    flops = pd.read_csv(here / "flops.csv").query("series == 'Global' and sparsity == '50%'")
    said = works("plans", "show", "plan.json", "--calibrated-on", "demo-code")
    assert f"({flops['reduction'].item():.2%} fewer), by the routing" in said
