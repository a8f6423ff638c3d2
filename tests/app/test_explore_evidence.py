"""Explore, what stands behind a choice: tokens, damage, needs and maps; against plain Python."""

import json
import shlex
import shutil

import pandas as pd
import pytest
from page_texts import SCORES, gone, opened, texts

from analysis.files.shipped import SHIPPED_STATS

DAMAGE = {"tab": "Evidence", "evidence.view": "Damage"}
EXPONENTS = {"tab": "Corpora", "corpora.view": "Exponents"}


@pytest.fixture(scope="session")
def demo_shards(demo_moments):
    tables = {}
    for corpus in demo_moments:
        (path,) = SHIPPED_STATS.glob(f"demo-{corpus}-*/shards.parquet")
        tables[corpus] = pd.read_parquet(path)
    return tables


def written_by(test, run, tmp_path):
    """The table that the page's own command writes."""
    (command,) = (text for text in texts(test.code) if text.startswith("moeprune overlap"))
    run(command)
    return pd.read_csv(tmp_path / "overlap.csv")


def test_parts_of_the_tokens_against_all(open_page, demo_moments, demo_shards, run, tmp_path):
    test = open_page("explore", tab="Evidence", sparsity="25%")
    table = opened(test, "overlap-by-tokens").dataframe[-1].value
    assert set(table["criterion"]) == {"REAP", "Frequency", "MAN"}
    for corpus, shards in demo_shards.items():
        whole = demo_moments[corpus]
        all_gone = gone(whole, SCORES["reap"](whole), 25)
        rows = table[(table["criterion"] == "REAP") & (table["corpus"] == corpus)]
        assert rows["tokens"].tolist() == [8192, 16384, 32768, 65536]
        for parts, overlap in zip((1, 2, 4, 8), rows["overlap"], strict=True):
            some = shards[shards["shard"] < parts]
            sums = some.groupby(["layer", "expert"], as_index=False).sum()
            part_gone = gone(sums, SCORES["reap"](sums), 25)
            # Every layer prunes equally many, so the mean over layers is the share of all.
            assert overlap == pytest.approx(len(part_gone & all_gone) / len(all_gone))
    assert table["chance"].unique().tolist() == [0.25]
    reap = table.query("criterion == 'REAP'")["overlap"].tolist()
    assert written_by(test, run, tmp_path)["overlap"].tolist() == pytest.approx(reap)


def test_several_criteria_at_once_are_in_the_address(open_page):
    test = open_page("explore", tab="Evidence", criterion="0,2,1")
    test.pills(key="beside").set_value(["seer", "ean"]).run()
    table = opened(test, "overlap-by-tokens").dataframe[-1].value
    assert list(dict.fromkeys(table["criterion"])) == ["S(0,2,1)", "SEER", "EAN"]
    test.pills(key="beside").set_value([]).run()
    assert set(test.dataframe[-1].value["criterion"]) == {"S(0,2,1)"}
    test.pills(key="beside").set_value(["seer"]).run()
    test.selectbox(key="criterion").set_value("mone").run()
    assert any("MoNE cannot rank on a part" in text for text in texts(test.text))
    charts = {chart.key for chart in test.get("plotly_chart")}
    assert charts >= {"chart.overlap-by-tokens", "chart.loss-by-tokens"}


def test_damage_against_its_proxy(open_page, demo_moments, run, tmp_path):
    test = open_page("explore", **DAMAGE, sparsity="25%", corpora="demo-math")
    table = demo_moments["demo-math"]
    by_damage = gone(table, table["damage"], 25)
    by_reap = gone(table, SCORES["reap"](table), 25)
    points = opened(test, "damage-proxy").dataframe[0].value
    fates = points.groupby("fate").size().to_dict()
    assert fates["both prune"] == len(by_damage & by_reap)
    assert fates["only the damage prunes"] == len(by_damage - by_reap)
    quality = test.dataframe[-1].value.set_index("criterion")
    overlap = len(by_damage & by_reap) / len(by_damage)
    assert quality.loc["REAP", "overlap at 25%"] == pytest.approx(overlap, abs=5e-4)
    assert len(quality) == 17
    written = written_by(test, run, tmp_path)
    own = written[written["corpus"] == "demo-math"].set_index("sparsity")["overlap"]
    ean = quality.loc["Gate-weighted EAN"]
    assert ean["overlap at 25%"] == pytest.approx(own[0.25], abs=5e-4)
    assert ean["overlap at 50%"] == pytest.approx(own[0.5], abs=5e-4)
    # Where no variant is chosen, the proxy of the paper is shown.
    test.selectbox(key="criterion").set_value("aimer").run()
    (chart,) = (chart for chart in test.get("plotly_chart") if chart.key == "chart.damage-proxy")
    title = json.loads(chart.proto.spec)["layout"]["xaxis"]["title"]["text"]
    assert title.startswith("saliency by Gate-weighted EAN")


class TestWithoutDamage:
    @pytest.fixture
    def stats_dir(self, folders, tmp_path):
        return shutil.copytree(folders[1], tmp_path / "stats")

    def test_the_page_says_so_with_the_command_that_measures_it(self, open_page, run, models_root):
        test = open_page("explore", "once", **DAMAGE)
        assert any("lack the exact damage" in text for text in texts(test.info))
        assert not test.get("plotly_chart")
        command = next(code.value for code in test.code if "calibrate" in code.value)
        # The file behind the statistics was found by its name.
        assert str(models_root / "rows.jsonl") in shlex.split(command)
        run(command)
        test.run()
        assert len(test.get("plotly_chart")) == 1


def test_needs_and_costs_of_the_demo(open_page):
    test = open_page("explore", tab="Advice", corpora="demo-math")
    table = next(f.value for f in test.dataframe if "gate weights" in f.value)
    table = table.set_index("criterion")
    (path,) = SHIPPED_STATS.glob("demo-demo-math-*/manifest.json")
    made = json.loads(path.read_text())["made"]
    assert table.loc["REAP", "seconds"] == made["seconds"]
    assert table.loc["REAP", "peak MiB"] == round(made["peak_memory_bytes"] / 2**20)
    assert table.loc["REAP", ["calibration corpus", "gate weights"]].tolist() == ["yes", "yes"]
    assert table.loc["AIMER", ["calibration corpus", "expert weights"]].tolist() == ["", "yes"]
    (path,) = SHIPPED_STATS.glob("demo-weights-*/manifest.json")
    assert table.loc["AIMER", "seconds"] == json.loads(path.read_text())["made"]["seconds"]
    assert table.loc["AIMER", "seconds"] < made["seconds"] / 10
    assert table.loc["Random", "seconds"] == 0


class TestSeveralModels:
    """A second model with texts of its own, whose overlaps are all 1."""

    @pytest.fixture
    def stats_dir(self, folders, tmp_path):
        stats = shutil.copytree(folders[1], tmp_path / "stats")
        (source,) = SHIPPED_STATS.glob("demo-demo-math-*")
        for corpus in ("one", "two"):
            run = shutil.copytree(source, stats / f"other-{corpus}")
            manifest = json.loads((run / "manifest.json").read_text())
            manifest["run_id"] = run.name
            manifest["digest"] = (corpus[0] * 64).replace("o", "a").replace("t", "b")
            manifest["model"] |= {"name": "other", "identity": "f" * 64}
            manifest["corpora"][0]["name"] = corpus
            (run / "manifest.json").write_text(json.dumps(manifest))
        return stats

    def test_effects_over_all_of_them(self, open_page):
        test = open_page("explore", **EXPONENTS)
        assert test.segmented_control(key="models").options == [
            "Only demo",
            "All 2 calibrated models",
        ]
        own = opened(test, "component-effects").dataframe[-1].value
        test.segmented_control(key="models").set_value("all").run()
        both = test.dataframe[-1].value
        # The same statistics twice agree on everything.
        assert both["overlap"].tolist() == pytest.approx(((own["overlap"] + 1) / 2).tolist())
        assert both["highest"].tolist() == [1] * len(both)
