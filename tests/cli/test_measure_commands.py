"""inspect, calibrate, weights."""

import re

import pandas as pd


def files_below(folder):
    return sorted(path.relative_to(folder) for path in folder.rglob("*")) if folder.exists() else []


def test_calibrate_makes_one_run_for_each_corpus(works, tiny, corpora, here):
    red, blue = corpora
    common = ("--tokens", 64, "--seq-len", 16, "--stats-dir", "kept")
    said = works("calibrate", tiny, "--corpus", red, "--corpus", blue, *common)
    # Six rows of 9, 8, 7, 9, 8, 7 ids.
    assert said.count(": 48 tokens of ") == 2
    listed = works("runs", "list", "--stats-dir", "kept")
    assert {"tiny-red", "tiny-blue"} <= set(re.findall(r"tiny-\w+(?=-[0-9a-f]{8} )", listed))
    for run in (path for path in (here / "kept").iterdir() if path.is_dir()):
        assert {path.name for path in run.iterdir()} == {
            "manifest.json",
            "experts.parquet",
            "shards.parquet",
            "vectors.parquet",
        }
        # 48 tokens pick 2 experts each, in three layers.
        assert pd.read_parquet(run / "experts.parquet")["num_tokens"].sum() == 48 * 2 * 3


def test_calibrate_again_finds_the_run_in_the_cache(moeprune, tiny, corpora, stats):
    words = ("calibrate", tiny, "--corpus", corpora[0], "--tokens", 64, "--seq-len", 16)
    before = files_below(stats)
    outcome = moeprune(*words, "--stats-dir", stats)
    assert outcome.code == 0
    assert outcome.err.endswith("is in the cache\n")
    assert files_below(stats) == before


def test_dry_run_says_tokens_memory_and_time_and_writes_nothing(works, tiny, corpora, tmp_path):
    before = files_below(tmp_path)
    said = works("calibrate", tiny, "--corpus", corpora[0], "--seq-len", 16, "--dry-run")
    assert "Nothing was run." in said
    for column in ("sequences", "tokens", "padded", "memory", "time"):
        assert column in said
    # The first batch holds all six rows, padded to 9: 6 * 9 - 48.
    facts = dict(re.findall(r"^(\w+) {2,}(.+?) *$", said, flags=re.M))
    assert facts["corpus"] == "red.jsonl"
    assert (facts["sequences"], facts["tokens"], facts["padded"]) == ("6", "48", "6")
    assert re.fullmatch(r"[\d.]+ [KM]iB", facts["memory"])
    assert re.fullmatch(r"about \d+ s", facts["time"])
    assert files_below(tmp_path) == before


def test_weights_are_measured_once(moeprune, works, tiny, here):
    said = works("weights", tiny, "--stats-dir", "kept")
    assert re.match(r"tiny-weights-[0-9a-f]{8}: [\d.]+ s\n", said)
    outcome = moeprune("weights", tiny, "--stats-dir", "kept")
    assert (outcome.code, outcome.err.strip().endswith("is in the cache")) == (0, True)
    (run,) = (path for path in (here / "kept").iterdir() if path.is_dir())
    assert {path.name for path in run.iterdir()} == {"manifest.json", "weights.parquet"}


def test_statistics_go_to_the_user_cache_where_there_is_no_cached_stats_folder(
    works, tiny, here, tmp_path
):
    works("weights", tiny)
    assert files_below(here) == []
    assert len(list((tmp_path / "home").rglob("weights.parquet"))) == 1


def test_statistics_go_to_cached_stats_of_the_working_directory_if_there_is_one(works, tiny, here):
    (here / "cached_stats").mkdir()
    works("weights", tiny)
    assert len(list((here / "cached_stats").rglob("weights.parquet"))) == 1
