"""`moeprune sweep` on a small model: the table, resuming, the figure, bad input."""

import pandas as pd
import pytest

from analysis.drain import drain
from app.jobs.kinds import KINDS
from pruning.evaluate.record import TABLE_COLUMNS
from pruning.requests.base import validated
from pruning.requests.evaluation import SweepRequest


@pytest.fixture
def words(tiny, corpora, stats):
    return (
        *("sweep", tiny, "--criterion", "reap", "--criterion", "aimer"),
        *("--sparsity", "50%", "--sparsity", "17%", "--calibrated-on", corpora[0]),
        *("--corpus", corpora[1], "--seq-len", "9", "--measures", "esap,nll"),
        *("--stats-dir", stats),
    )


def test_every_criterion_at_every_sparsity_and_the_unpruned_model(works, words, here):
    printed = works(*words, "--plot", "fig.html")
    table = pd.read_csv(here / "sweep.csv", keep_default_na=False)
    assert tuple(table.columns) == TABLE_COLUMNS
    esap = table[table["measure"] == "esap"]
    assert list(zip(esap["criterion"], esap["sparsity"], strict=True)) == [
        ("", ""),
        *(("reap", each) for each in ("17%", "50%")),
        *(("aimer", each) for each in ("17%", "50%")),
    ]
    # 3 layers of 6 experts: 17% removes one of each, 50% three.
    assert esap["removed"].tolist() == pytest.approx([0, 1 / 6, 1 / 2, 1 / 6, 1 / 2])
    assert esap["mean"].tolist()[0] == 1
    assert (esap["mean"][1:] < 1).all()
    whole = esap["active_params"].iloc[0]
    # A token still uses two experts a layer; the router loses a row of 16 for each that goes.
    rows = [0, 3, 9, 3, 9]
    assert esap["active_params"].tolist() == [whole - 16 * gone for gone in rows]
    # An expert has three matrices of 16 x 24; everything is float32.
    per_expert = 4 * (3 * 16 * 24 + 16)
    sizes = [int(esap["bytes"].iloc[0]) - per_expert * gone for gone in rows]
    assert esap["bytes"].tolist() == sizes
    assert esap["calibrated_on"].tolist() == ["", "red.jsonl", "red.jsonl", "", ""]
    assert "unpruned" in printed
    assert (here / "fig.html").stat().st_size > 1000


def test_what_is_finished_is_kept_and_parquet_has_the_same(works, words, here, stats):
    works(*words)
    files = {path: path.stat().st_mtime_ns for path in (stats / "evaluations").iterdir()}
    works(*words, "-o", "sweep.parquet")
    again = {path: path.stat().st_mtime_ns for path in (stats / "evaluations").iterdir()}
    assert files == again
    whole = pd.read_parquet(here / "sweep.parquet")
    text = pd.read_csv(here / "sweep.csv", keep_default_na=False)
    assert whole["mean"].tolist() == pytest.approx(text["mean"].tolist())


def test_neurons_are_swept_too_and_save_flops(works, tiny, corpora, here):
    works(
        *("sweep", tiny, "--criterion", "neuron-norms", "--granularity", "atomic"),
        *("--sparsity", "25%", "--corpus", corpora[1], "--seq-len", "9", "--stats-dir", here),
    )
    table = pd.read_csv(here / "sweep.csv", keep_default_na=False)
    whole, cut = table[table["measure"] == "esap"].to_dict("records")
    assert (whole["granularity"], cut["granularity"]) == ("expert", "atomic")
    # 24 neurons an expert, of which 6 go: a quarter of the FLOPs and of the weights.
    assert cut["expert_flops"] == pytest.approx(0.75 * whole["expert_flops"])
    assert cut["removed"] == pytest.approx(0.25)
    assert cut["mean"] < 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (("--criterion", "reep"), "Did you mean 'reap'"),
        (("--sparsity", "150%"), "150%"),
        (("-o", "sweep.txt"), "no known ending; use .csv or .parquet"),
        (("--against", "byte"), "--against: Input should be 'removed', 'bytes'"),
        (("--criterion", "neuron-norms"), "add --granularity atomic"),
        (("--schedule", "file"), "cannot be swept"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(moeprune, words, here, changes, message):
    outcome = moeprune(*words, *changes)
    assert outcome.code == 1
    assert message in outcome.err
    assert list(here.iterdir()) == []


def test_the_shown_command_line_asks_the_same(tiny):
    request = validated(
        SweepRequest,
        {
            "model": str(tiny),
            "corpora": ("demo-math",),
            "criteria": ("reap", "1,1,1", "random"),
            "sparsities": ("50%", "0.25"),
            "calibrated_on": ("demo-code",),
        },
    )
    assert request.command() == (
        f"moeprune sweep {tiny} --corpus demo-math --criterion reap --criterion random "
        "--sparsity 0.25 --sparsity 50% --calibrated-on demo-code -o sweep.csv"
    )


def test_it_is_a_kind_of_job(tiny, corpora, here):
    raw = {
        "model": str(tiny),
        "corpora": [str(corpora[1])],
        "criteria": ["random"],
        "sparsities": ["50%"],
        "seq_len": 9,
        "stats_dir": str(here),
    }
    result = drain(KINDS["sweep"].run(raw))
    assert len(result["evaluations"]) == 2
