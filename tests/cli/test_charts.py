"""What every chart holds: its figure, numbers, sentence, command, and what it says without data.

A new chart adds a row to `CHARTED`: the columns of its numbers, the action whose results it draws,
and what its provenance names.
"""

import ast
import re
import shlex
from functools import cache
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import plotly.graph_objects as go
import pytest
from page_texts import parsed
from shipped import shipped_run

from analysis.errors import UserError
from analysis.files.shipped import SHIPPED_STATS, tool_version
from analysis.model.opening import load_model_index
from analysis.stats.store import StatsStore
from app.charts import theme
from app.charts.chart import Chart
from app.charts.listing import CHARTS, get_chart
from app.charts.published import PAPER_CHARTS
from app.pages.explore import PARTS
from app.requested import loaded_of
from app.tables.spreadsheets import csv_text
from pruning.actions.listing import SENTENCES
from pruning.requests.ranking import DrawRequest
from pruning.spec.base import validated

APP = Path(__file__).parents[2] / "app"
RUN = shipped_run("demo-code").name
RUNS = ", ".join(shipped_run(f"demo-{corpus}").name for corpus in ("code", "math", "stories"))
WEIGHTS = shipped_run("weights").name
LENS = "demo-lens-128221fd"
CURVES = "layer size removed share added cut added_at_cut"
FRONTIER = "series removed bytes predicted low high measured"
BINS = "bin removed saliency share loss_change low high pooled"


# Of experts, but a mark is of several.
SUMMED = {"neurons-beside-experts"}


class Row(NamedTuple):
    """What is a chart's own."""

    columns: str  # of its numbers
    lacks: str  # the action whose results it needs, as its refusal names it
    of: str  # what its provenance names besides the model


CHARTED = {
    "stratification": Row(
        "panel layer expert rank score value kept spread gap random_spread random_gap",
        "weights",
        WEIGHTS,
    ),
    "overlap-map": Row("criterion b alpha beta overlap chance", "calibrate", RUNS),
    "variant-losses": Row("b alpha beta plan mean worst worst_on", "sweep", RUNS),
    "overlap": Row(
        "criterion b alpha beta sparsity corpus_a corpus_b overlap chance",
        "calibrate",
        RUNS,
    ),
    "pair-map": Row("layer expert kept_by rank_a rank_b saliency_a saliency_b", "calibrate", RUNS),
    "pair-agreement": Row("layer agreement jaccard kendall_tau", "calibrate", RUNS),
    "component-effects": Row("component value overlap lowest highest variants", "calibrate", RUNS),
    "overlap-by-tokens": Row("corpus criterion tokens overlap chance", "calibrate", RUNS),
    "loss-by-tokens": Row(
        "corpus criterion tokens value low high parts",
        "subsets",
        "evaluations",
    ),
    "loss-by-size": Row(
        "plan criterion calibrated_on repaired_on repair_tokens schedule granularity bits "
        "removed bytes mean low high range worst worst_on is_measured on_front candidate kind "
        "is_shown",
        "evaluate",
        "64 documents",
    ),
    "damage-proxy": Row("layer expert num_tokens damage proxy fate", "calibrate", RUNS),
    "paths": Row(
        "corpus layer expert num_samples path_weight node_weight rank samples",
        "calibrate",
        RUNS,
    ),
    "coverage": Row("corpus share coverage equal", "calibrate", RUNS),
    "kept-by": Row("layer expert kept_by rank_a rank_b saliency_a saliency_b", "calibrate", RUN),
    "agreement": Row("layer agreement jaccard kendall_tau", "calibrate", RUN),
    "schedules": Row("schedule layer kept removed", "calibrate", RUN),
    "pareto": Row(
        "candidate removed bytes value low high is_full on_front",
        "evaluate",
        "64 documents",
    ),
    "layer-sensitivity": Row(CURVES, "calibrate", RUNS),
    "layer-sensitivity-map": Row(CURVES, "calibrate", RUNS),
    "predicted-frontier": Row(FRONTIER, "calibrate", RUNS),
    "search": Row("generation candidate fitness parent origin is_new", "search", "demo-reap"),
    "search-best": Row("layer experts kept removed density", "search", "demo-reap"),
    "evaluation-curves": Row(
        "evaluation model plan criterion calibrated_on repaired_on repair_tokens bits top_k "
        "schedule granularity sparsity removed bytes active_params expert_flops corpus "
        "measure mean pooled low high full num_samples num_documents num_tokens dtype "
        "created_at series way",
        "evaluate",
        "evaluations",
    ),
    "hidden-states": Row(
        "candidate layer variance full removed num_tokens",
        "variance",
        "4,096 tokens of demo-code",
    ),
    "token-experts": Row("layer expert share num_tokens removed", "ask", LENS),
    "text-tokens": Row("token text full_loss loss change gone", "ask", LENS),
    "text-experts": Row("layer expert role gate share removed", "ask", LENS),
    "text-plans": Row("name plan change is_shown", "ask", LENS),
    "own-capability": Row(
        "candidate demo-code-mc demo-math-exact demo-stories-exact",
        "benchmark",
        "lm-eval, float32",
    ),
    "neuron-layers": Row("series layer share", "calibrate", RUN),
    "neuron-flops": Row("series sparsity removed flops reduction", "calibrate", RUN),
    "neuron-sensitivity": Row(CURVES, "calibrate", RUNS),
    "neuron-sensitivity-map": Row(CURVES, "calibrate", RUNS),
    "neuron-frontier": Row(FRONTIER, "calibrate", RUNS),
    "neurons-kept": Row("layer expert neurons removed kept_share kept_saliency", "calibrate", RUN),
    "neuron-saliency": Row("layer low high kept pruned", "calibrate", RUN),
    "neurons-of-expert": Row("rank neuron saliency kept", "calibrate", RUN),
    "neuron-overlap": Row("corpus_a corpus_b overlap chance", "calibrate", RUN),
    "neurons-beside-experts": Row(
        "layer expert neurons removed kept_share saliency gone tenth",
        "calibrate",
        RUN,
    ),
    "neuron-loss-bins": Row(BINS, "bins", RUN),
    "same-bytes": Row(
        "corpus granularity candidate repaired_on removed bytes loss full change esap "
        "esap_low esap_high",
        "evaluate",
        "",
    ),
    "loss-bins": Row(BINS, "bins", RUN),
    "sizes": Row("part before after params_before params_after", "calibrate", RUNS),
}
every_chart = pytest.mark.parametrize("name", CHARTS)


def test_every_chart_has_a_row_here():
    assert set(CHARTED) == set(CHARTS)


def test_charts_are_those_of_the_folder_and_are_drawn_in_one_place():
    assert set(files_that_call("st.plotly_chart")) == {"widgets/charts.py"}
    assert {Path(file).parts[0] for file in files_that_call("Drawing")} == {"charts"}
    modules = [import_module(f"app.charts.{path.stem}") for path in (APP / "charts").glob("*.py")]
    values = [value for module in modules for value in vars(module).values()]
    assert {value for value in values if isinstance(value, Chart)} == set(CHARTS.values())


def files_that_call(name):
    """Files of `app/` that call something of this name."""
    for path in sorted(APP.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)) if f"{name}(" in source else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func) == name:
                yield path.relative_to(APP).as_posix()


def test_the_list_names_every_view_and_needs_no_model(works):
    output = works("plot", "--list")
    pages = {path.stem for path in (APP / "pages").iterdir()}
    assert {view.page for view in PAPER_CHARTS.values()} <= pages
    for view in (*CHARTS.values(), *PAPER_CHARTS.values()):
        assert view.name in output
        assert view.title in output


def loaded(model, granularity, stats):
    """What charts of a plan that halves a model are drawn from."""
    criterion = {"expert": "reap", "neuron": "heapr"}[granularity]
    corpora = ("demo-code",) if model == "demo" else ()
    values = {"model": model, "criterion": criterion, "corpora": corpora, "sparsity": "50%"}
    request = validated(DrawRequest, {**values, "stats_dir": None if model == "demo" else stats})
    return loaded_of(request, load_model_index(model), StatsStore(stats))


@cache
def of_demo(granularity):
    return loaded("demo", granularity, SHIPPED_STATS)


@cache
def drawn(name):
    return CHARTS[name].draw(of_demo(CHARTS[name].granularity))


@cache
def light(name):
    return drawn(name).figure()


@every_chart
class TestChart:
    def test_it_has_a_title_and_a_page_that_draws_it(self, name):
        chart = get_chart(name)
        assert chart.name == name
        assert re.fullmatch(r"[A-Z].*[^.]", chart.title)
        page = APP / "pages" / chart.page
        files = page.rglob("*.py") if page.is_dir() else [page.with_suffix(".py")]
        texts = [file.read_text(encoding="utf-8") for file in files]
        assert texts
        assert any(f'"{name}"' in text for text in texts) != (chart.at_end or bool(chart.part))
        assert not chart.part or chart.part in PARTS

    def test_its_sentence_is_one_line(self, name):
        assert re.fullmatch(r"\S.{20,}[.)]", drawn(name).alt)

    def test_its_figures_have_the_look_of_the_theme(self, name):
        drawing = drawn(name)
        pairs = [(light(name), drawing.figure(dark=True))]
        pairs += [(draw(dark=False), draw(dark=True)) for draw in drawing.panels.values()]
        for pair in pairs:
            assert pair[0].to_json() != pair[1].to_json()
            for figure, is_dark in zip(pair, (False, True), strict=True):
                assert figure.data
                assert figure.layout.font.color == theme.ink(is_dark)
                assert figure.layout.paper_bgcolor == "rgba(0,0,0,0)"
                assert figure.layout.height
                assert isinstance(figure, go.Figure)

    def test_its_numbers_have_the_columns_of_its_row(self, name):
        table = drawn(name).table
        assert " ".join(table.columns) == CHARTED[name].columns
        assert len(table)
        read = pd.read_csv(BytesIO(csv_text(table).encode()))
        assert read.shape == table.shape

    def test_a_chosen_expert_is_marked_where_each_expert_has_a_mark(self, name):
        table = drawn(name).table
        has_marks = {"layer", "expert"} <= set(table) and name not in SUMMED
        assert theme.pinned(False) not in light(name).to_json()
        if has_marks:
            layer, expert = map(int, table[["layer", "expert"]].iloc[len(table) // 2])
            chosen = of_demo(CHARTS[name].granularity).choosing(expert=(layer, expert))
            assert theme.pinned(False) in CHARTS[name].draw(chosen).figure().to_json()

    def test_its_file_names_the_model_the_statistics_and_the_program(self, name):
        drawing = drawn(name)
        assert drawing.about.startswith(f"demo {load_model_index('demo').identity[:8]} | ")
        assert CHARTED[name].of in drawing.about
        assert f"moe-prune-studio {tool_version()}" in drawing.about
        notes = drawing.exported().layout.annotations
        assert notes[-1].text.replace("<br>", " ") == drawing.about
        assert len(light(name).layout.annotations) < len(notes)

    def test_its_command_gives_the_same(self, name, works, here):
        drawing, chart = drawn(name), CHARTS[name]
        assert drawing.name == name
        parsed(drawing.command)
        _, *words, option, file = shlex.split(drawing.command)
        assert (words[:3], option, file) == (["plot", name, "demo"], "-o", f"{name}.svg")
        output = works(*words, option, "data.csv")
        assert output.startswith(f"{drawing.alt}\ndata.csv: {chart.title}\n")
        assert (here / "data.csv").read_text() == csv_text(drawing.table)
        assert [path.name for path in here.iterdir()] == ["data.csv"]

    def test_without_its_data_it_is_refused_in_one_line_that_names_what_gives_them(
        self, name, models, tmp_path
    ):
        lacks = CHARTED[name].lacks
        assert lacks in SENTENCES
        model, granularity = str(models / "tiny"), CHARTS[name].granularity
        with pytest.raises(UserError, match=rf"\b{lacks}\b") as refusal:
            CHARTS[name].draw(loaded(model, granularity, tmp_path))
        assert re.fullmatch(r"\S.*\.", str(refusal.value))
