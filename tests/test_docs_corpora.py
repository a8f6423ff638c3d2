"""The tables of presets say what the code does, and the specs shown can be parsed."""

import re
from pathlib import Path

from analysis.corpora import PRESETS, parse_corpus
from analysis.corpora.streams import SHUFFLE_BUFFER
from pruning.requests.calibration import CalibrateRequest
from pruning.requests.options import DEFAULT_SEQ_LEN, DEFAULT_TOKENS

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "corpora.md").read_text()


def cells(line):
    return [cell.strip().replace("`", "") for cell in line.strip("|\n").split("|")]


def test_the_table_of_presets_is_that_of_the_code():
    table = PAGE.partition("<!-- presets -->")[2].partition("<!-- /presets -->")[0]
    rows = [cells(line) for line in table.strip().splitlines()[2:]]
    shown = {}
    for name, repo, config, split, fields, tokens, length, seed, paper in rows:
        numbers = (int(tokens.replace(",", "")), int(length), int(seed))
        shown[name] = (repo, config or None, split, set(fields.split(", ")), *numbers, paper)
    coded = {}
    for name, preset in PRESETS.items():
        data = preset.dataset
        read = set(data.fields.named.values())
        # A data set with our own names is read by the one that it has.
        own = shown[name][3] if data.fields == type(data.fields)() else read
        assert own <= read
        numbers = (preset.tokens, preset.seq_len, preset.seed)
        coded[name] = (data.repo, data.config, data.split, own, *numbers, preset.reference)
    assert shown == coded


def test_the_reference_shows_each_way_to_calibrate_and_every_option_of_it_exists():
    page = (ROOT / "docs" / "reference" / "commands.md").read_text()
    lines = [line.partition("#")[0] for line in page.splitlines() if " calibrate MODEL " in line]
    used = {option for line in lines for option in re.findall(r" --([a-z-]+)", line)}
    ours = used - {"nproc-per-node", "dry-run"}
    assert {"groups", "stream-layers"} <= ours
    assert {option.replace("-", "_") for option in ours} <= set(CalibrateRequest.model_fields)
    assert any(line.startswith("torchrun ") for line in lines)
    assert "needs the whole model in its memory" not in page


def test_a_preset_brings_its_settings_and_what_is_given_wins():
    for name, preset in PRESETS.items():
        for corpus in (name, f"{name}=copy.parquet"):
            sampling = CalibrateRequest(model="demo", corpus=corpus).sampling()
            expected = (preset.tokens, preset.seq_len, preset.seed)
            assert (sampling.tokens, sampling.seq_len, sampling.seed) == expected
    given = CalibrateRequest(model="demo", corpus="wikitext2", tokens=640, seq_len=64, seed=3)
    sampling = given.sampling()
    assert (sampling.tokens, sampling.seq_len, sampling.seed) == (640, 64, 3)
    other = CalibrateRequest(model="demo", corpus="demo-math").sampling()
    assert (other.tokens, other.seq_len, other.seed) == (DEFAULT_TOKENS, DEFAULT_SEQ_LEN, 42)


def test_defaults_and_the_buffer_are_as_the_page_says():
    assert f"{DEFAULT_TOKENS:,} tokens\nin sequences of {DEFAULT_SEQ_LEN} with seed 42" in PAGE
    assert f"{SHUFFLE_BUFFER:,} documents" in PAGE


def test_every_corpus_shown_can_be_parsed():
    shown = re.findall(r"calibrate MODEL --corpus (\S+)", PAGE)
    assert len(shown) >= 3
    for corpus in shown:
        parse_corpus(corpus)


def test_the_command_shown_for_a_request_asks_for_the_same():
    request = CalibrateRequest(
        model="demo",
        corpus="hub:owner/name,text=content",
        packing="pack",
        count="response",
        select="kmeans",
        clusters=7,
    )
    assert request.command() == (
        "moeprune calibrate demo --corpus hub:owner/name,text=content --packing pack "
        "--count response --select kmeans --clusters 7"
    )
