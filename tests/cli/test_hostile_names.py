"""Foreign text is text in every medium: terminal, JSON, model card, tables, pages in HTML."""

import io
import json
import os
import re
import shutil
from html.parser import HTMLParser

import pandas as pd
import pytest
from hostile_names import FILES, FOREIGN, renamed_run
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt

from analysis.foreign_text import in_html, in_markdown
from analysis.stats.store import read_run
from app.tables.spreadsheets import csv_text
from builders import edit_json

NAMES = (*FILES, *FOREIGN)
HARMFUL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@pytest.fixture
def hostile_stats(stats, tiny, tmp_path):
    """Statistics of `tiny` under every one of the names."""
    folder = shutil.copytree(stats, tmp_path / "hostile")
    runs = [path for path in sorted(folder.iterdir()) if (path / "manifest.json").is_file()]
    run = next(path for path in runs if read_run(path).manifest.corpora and "tiny" in path.name)
    for number, name in enumerate(NAMES):
        renamed_run(run, name, number)
    return folder


@pytest.mark.parametrize("name", FILES)
def test_a_corpus_of_any_name_is_calibrated_and_named_afterwards(works, here, tiny, corpora, name):
    (here / name).write_bytes(corpora[0].read_bytes())
    shared = ("--stats-dir", "stats")
    works("calibrate", tiny, "--corpus", f"./{name}", "--tokens", 64, "--seq-len", 16, *shared)
    budget = ("--criterion", "reap", "--sparsity", "0.5", *shared)
    for number, corpus in enumerate((name, f"{name}:2")):
        works("plan", tiny, "--calibrated-on", corpus, *budget, "-o", f"{number}.json")
        assert name in json.loads((here / f"{number}.json").read_text())["corpora"][0]


@pytest.mark.parametrize("name", ["s3:x", "con:w", "file:x", os.fsdecode(b"\xff")], ids=ascii)
def test_a_folder_may_have_a_name_that_pyarrow_or_safetensors_take_for_another(
    works, here, tiny, corpora, name
):
    # An address, or bytes that are no UTF-8. Names are relative: a slash before them would help.
    shared = ("--seq-len", 16, "--stats-dir", name)
    documents = pd.DataFrame({"input_ids": [[*range(5, 30)]] * 20})
    (here / f"{name}.parquet").write_bytes(documents.to_parquet())
    corpus = f"./{name}.parquet" if name.isascii() else corpora[0]  # which must be text
    works("calibrate", tiny, "--corpus", corpus, "--tokens", 64, *shared)
    works("score", tiny, "--criterion", "reap", *shared[2:], "-o", f"{name}/scores.parquet")
    works("weights", tiny, *shared[2:])
    ranked = ("--criterion", "aimer", "--bins", 2, "--samples", 2)
    works("bins", tiny, *ranked, "--corpus", corpora[0], "--hidden-states-dir", name, *shared)
    assert (here / name / "scores.parquet").stat().st_size
    assert list((here / name).rglob("*bins*"))


def test_a_long_word_is_cut_in_an_error(moeprune, tiny, here):
    said = moeprune("score", tiny, "--criterion", "x" * 100_000).err
    assert said.startswith("error: ")
    assert len(said) < 5000


def test_a_terminal_obeys_no_name(moeprune, hostile_stats, tiny, here):
    shared = ("--stats-dir", hostile_stats)
    plan = ("plan", tiny, "--criterion", "reap", "--sparsity", "0.5", *shared)
    run = next(path.name for path in hostile_stats.iterdir() if path.name.endswith("-23"))
    for words in (
        ("runs", "list", *shared),
        ("runs", "list", *shared, "--json"),
        ("overlap", tiny, "--criterion", "reap", "--sparsity", "0.5", *shared),
        plan,  # lists what was calibrated
        (*plan, "--run", run, "-o", here / "plan.json"),
        ("plans", "show", here / "plan.json"),
        ("plans", "show", here / "plan.json", "--json"),
    ):
        outcome = moeprune(*words)
        assert not HARMFUL.search(outcome.out + outcome.err), words
        assert "Traceback" not in outcome.err
        if "--json" in words:
            json.loads(outcome.out)


def test_a_model_card_has_no_markup_of_a_plan(works, tiny, stats, here):
    works("plan", tiny, "--criterion", "aimer", "--sparsity", "0.5", "--stats-dir", stats)
    edit_json(
        here / "plan.json",
        corpora=NAMES,
        schedule_parameters={"x": FOREIGN[-1], "`": "```\n# License"},
    )
    works("export", tiny, "out", "--plan", "plan.json")
    card = ModelCard((here / "out" / "README.md").read_text())
    tokens = MarkdownIt().enable("table").parse(card.text)
    openings = [n for n, token in enumerate(tokens) if token.type == "heading_open"]
    headings = [tokens[n + 1].content for n in openings]
    parts = ["What was removed", "May it be shipped", "How to load it", "How to serve it"]
    assert headings == ["tiny, pruned", *parts]
    kinds = {child.type for token in tokens for child in token.children or [token]}
    assert not kinds & {"html_block", "html_inline", "image", "link_open"}
    assert not HARMFUL.search(card.text)
    assert set(card.data.to_dict()) <= {"library_name", "pipeline_tag", "tags", "base_model"}


@pytest.mark.parametrize("name", NAMES)
def test_each_medium_gives_the_name_back(name):
    shown = " ".join(
        "".join(c if not HARMFUL.match(c) and c != "\n" else " " for c in name).split()
    )
    (paragraph,) = (token for token in MarkdownIt().parse(in_markdown(name)) if token.children)
    assert [child.type for child in paragraph.children or []] in (["text"], ["text"] * 2)
    text = "".join(child.content for child in paragraph.children or [])
    assert text.replace("\u2060", "") == shown
    read: list[str] = []
    parser = HTMLParser()
    parser.handle_data, parser.handle_starttag = read.append, pytest.fail  # type: ignore[assignment]
    parser.feed(in_html(name))
    parser.close()
    assert "".join(read) == name
    table = pd.read_csv(io.StringIO(csv_text(pd.DataFrame({"corpus": [name], "x": [1]}))))
    assert table["corpus"][0].removeprefix("'") == name.replace("\r", " ")
    assert not table["corpus"][0].startswith(("=", "+", "-", "@"))
