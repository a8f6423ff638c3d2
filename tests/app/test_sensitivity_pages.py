"""Sensitivity on the pages: what it predicts of a plan, and the charts that explain a schedule."""

import numpy as np
import pandas as pd
import pytest
from page_texts import table_with, texts

from analysis.drain import drain
from app.session.data import settings
from pruning.requests.sensitivity import SensitivityRequest
from pruning.tasks.sensitivity import sensitivity_run

CORPORA = ("demo-code", "demo-math")
SAMPLES = 3


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A folder with the sensitivity of REAP's order on demo-prose, on two corpora."""
    folder = tmp_path_factory.mktemp("measured")
    asked = {"criterion": "reap", "calibrated_on": ("demo-prose",), "corpora": CORPORA}
    few = {"samples": SAMPLES, "levels": 4, "seq_len": 64, "stats_dir": folder}
    drain(sensitivity_run(SensitivityRequest(model="demo", **asked, **few)))
    return folder


@pytest.fixture
def open_measured(measured, open_page, monkeypatch):
    """Open a page beside these measurements; the controls are set to their order."""
    monkeypatch.setenv("MOEPRUNE_STATS_DIR", str(measured))
    settings.clear()
    return lambda page, **address: open_page(page, corpus="demo-prose", **address)


def added_losses(folder, layer_removed):
    """Corpus -> the sum over layers of what losing so many adds, read without the program."""
    found = {}
    for corpus in CORPORA:
        (path,) = (folder / "sensitivity").glob(f"*-{corpus}-*.parquet")
        table = pd.read_parquet(path)
        means = table.groupby(["base", "layer", "removed"])["nll"].mean()
        original = means[("", -1, 0)]
        found[corpus] = sum(
            np.interp(gone, [0, *curve.index], [0.0, *(curve - original)])
            for layer, gone in layer_removed.items()
            for curve in [means.loc[("", layer)]]
        )
    return found


def bar(test):
    (line,) = (text for text in texts(test.markdown) if ":material/arrow_right_alt:" in text)
    return line


def test_the_bar_predicts_what_was_not_measured(open_measured, go_to, measured):
    test = open_measured("explore", sparsity="40%")
    added = added_losses(measured, dict.fromkeys(range(6), 12))  # of 32, below 40%
    worst = max(added, key=added.get)
    said = f"predicted loss {np.mean(list(added.values())):+.2f} mean, {added[worst]:+.2f} worst"
    assert f"{said} ({worst}), from {SAMPLES} samples" in bar(test)
    assert test.button(key="plan.measure").label == "Measure"
    # Each layer loses its last in this order, however many.
    go_to(test, "plan")
    test.segmented_control(key="schedule").set_value("global").run()
    kept = table_with(test, "keeps").set_index("layer")["keeps"]
    added = added_losses(measured, (32 - kept).to_dict())
    assert f"predicted loss {np.mean(list(added.values())):+.2f} mean" in bar(test)
    # Another order, and neurons, were not measured.
    assert "loss not measured" in bar(open_measured("explore", b="0", sparsity="40%"))
    neurons = open_measured("explore", granularity="Neurons", sparsity="40%")
    assert "predicted" not in bar(neurons)


def test_where_both_are_known_plan_says_how_wrong_the_prediction_was(open_measured, measured):
    test = open_measured("plan", sparsity="50%")
    assert "predicted" not in bar(test)
    added = added_losses(measured, dict.fromkeys(range(6), 16))
    said = f"predict an added loss of {np.mean(list(added.values())):+.2f} on demo-code and demo-"
    (line,) = (text for text in texts(test.markdown) if said in text)
    assert "; measured: +" in line
