"""Files of traffic: damaged, of other kinds, that claim much, and what was counted of them."""

import base64
import io
import json
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

from analysis.drain import drain
from analysis.errors import StatsError
from analysis.families.base import MoELayer
from analysis.stats.store import StatsStore
from analysis.traffic.counting import Tally
from analysis.traffic.formats import RoutedTokens
from analysis.traffic.importing import TrafficImport, import_traffic, usual_name
from analysis.traffic.layout import Layout
from analysis.traffic.reading import TrafficReader
from builders.traffic import npy, npy_header, random_rows

TOKENS = 14


@pytest.fixture
def rows(tiny):
    return random_rows(TOKENS, tiny.layers)


@pytest.fixture
def imported(tiny, tmp_path):
    def run(path):
        asked = TrafficImport((path,), "monday")
        return drain(import_traffic(tiny, asked, StatsStore(tmp_path / "stats")))

    return run


@pytest.fixture
def refused(imported, tmp_path):
    """The message with which a file is refused; nothing is stored."""

    def run(path):
        with pytest.raises(StatsError) as error:
            imported(path)
        assert not (tmp_path / "stats").exists()
        assert "\n" not in str(error.value)
        return str(error.value)

    return run


def packed(data, method=zipfile.ZIP_DEFLATED, name="routed_experts.npy"):
    """An .npz file with these bytes."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        archive.writestr(name, data)
    return file.getvalue()


def written(path, content):
    path.write_bytes(content)
    return path


def test_damaged_arrays_are_refused(refused, imported, rows, tmp_path):
    path = tmp_path / "b.npz"
    array = base64.b64decode(npy(rows))
    whole = packed(array)
    assert "damaged or cut short" in refused(written(path, whole[: len(whole) // 2]))
    np.savez(path, experts=rows)
    assert "no array routed_experts (tokens x layers x top-k); it has experts" in refused(path)
    np.savez(path, routed_experts=rows.astype(object))
    assert "object, not whole numbers" in refused(path)
    start = 30 + len("routed_experts.npy")  # of the data
    for method in (zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2):
        whole = packed(array, method)
        spoilt = whole[:start] + b"\xff" * 30 + whole[start + 30 :]
        assert refused(written(path, spoilt)).startswith("b.npz is damaged or cut short: ")
    locked = bytearray(packed(array))
    locked[6] |= 1
    locked[locked.index(b"PK\x01\x02") + 8] |= 1
    assert "b.npz cannot be read: " in (said := refused(written(path, locked)))
    assert "encrypted" in said
    for text in (b"{", b"{'shape': (" + b"9" * 5000 + b",)}", b"{[]: 1}", b"(" * 900):
        odd = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
        assert "no .npy file of numbers" in refused(written(path, packed(odd)))
    # A member without numpy's ending is an array too.
    assert imported(written(path, packed(array, name="routed_experts"))).manifest.num_tokens


def test_files_of_other_kinds_are_named(refused, tmp_path):
    for start, advice in ((b"\x1f\x8b\x08", "unpack it"), (b"\x93NUMPY\x01", "save it as .npz")):
        assert advice in refused(written(tmp_path / "a.jsonl", start + bytes(9)))


def test_packed_arrays_that_claim_much_take_no_memory(refused, tmp_path):
    zeros = bytes(32 << 20)
    long_header = b"\x93NUMPY\x02\x00" + (1 << 30).to_bytes(4, "little")
    for head, problem in {
        npy_header((2, 1 << 24, 1)): "16777216 layers a token",
        npy_header((2, 4, 1 << 22)): "4194304 experts a token",
        npy_header((-1, 4, 2)): "the shape (-1, 4, 2), which no array has",
        npy_header((2, -4, -2)): "the shape (2, -4, -2), which no array has",
        npy_header((1 << 17, 4, 2)): "no token to count",
        long_header: "no .npy file of numbers",
    }.items():
        path = written(tmp_path / "a.npz", packed(head + zeros))
        tracemalloc.start()
        said = refused(path)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert problem in said
        assert peak < 32 << 20, said  # the table of beginnings alone has 16 MiB


class Appended(TrafficImport):
    """Files that a server appends to after their digest was taken."""

    def digest(self):
        digest = super().digest()
        with self.paths[0].open("a") as file:
            file.write(self.paths[0].read_text())
        return digest


def test_a_file_that_grows_after_its_digest_is_refused(tiny, rows, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"choices": [{"routed_experts": npy(rows)}]}) + "\n")
    asked, store = Appended((path,), "monday"), StatsStore(tmp_path / "stats")
    with pytest.raises(StatsError, match=r"a\.jsonl changed while it was read"):
        drain(import_traffic(tiny, asked, store))
    assert not store.target.exists()


@pytest.fixture
def tally(tiny):
    return Tally(Layout(tiny.name, tiny.layers, tiny.depth), "all")


def counted(tally, rows):
    """Counts (layers, experts) of rows, by a loop."""
    counts = np.zeros_like(tally.counts)
    for position, layer in enumerate(tally.layout.layers):
        for expert in rows[:, layer.index].reshape(-1):
            counts[position, expert] += 1
    return counts


def test_only_rows_that_were_here_are_repeated(tally, rows):
    """The last six of 14 rows, of which ten are a prompt's; then all; then the prompt again."""
    tokens = np.arange(20, 20 + TOKENS)
    tally.add([RoutedTokens(rows[8:], 2, tokens, is_from_first=False)])
    tally.add([RoutedTokens(rows, 10, tokens)])
    np.testing.assert_array_equal(tally.counts, counted(tally, rows) + counted(tally, rows[10:]))
    assert (tally.num_repeated, tally.num_counted) == (2, 18)
    tally.add([RoutedTokens(rows[:10], 10, tokens[:10])])
    assert (tally.num_repeated, tally.num_counted) == (12, 18)


def test_answers_of_one_token_to_nothing_count_nothing(tally):
    reader = TrafficReader(tally.layout, tally)
    usage = {"prompt_token_ids": [], "choices": [{"token_ids": [5], "routed_experts": []}]}
    empty = {"prompt_tokens": 0, "completion_tokens": 1, "routed_experts": ""}
    lines = [json.dumps(answer).encode() for answer in (usage, {"meta_info": empty})]
    for record in reader.of_lines(lines, "a.jsonl"):
        record.read()
    assert (reader.source.num_requests, tally.num_tokens) == (2, 0)


@pytest.mark.parametrize(("depth", "num_blank"), [(8, 3), (2, 0)])
def test_zeros_of_many_layers_are_no_choice_of_one_expert(depth, num_blank):
    """Of two layers zeros may be expert 0."""
    layers = tuple(MoELayer(index, 4, 1) for index in range(depth))
    tally = Tally(Layout("one", layers, depth), "all")
    rows = random_rows(40, layers)
    rows[:, 0] = 1  # no token has zeros everywhere, but for these
    rows[5:8] = 0
    tally.add([RoutedTokens(rows, None)])
    assert (tally.num_unrecorded, tally.num_counted) == (num_blank, 40 - num_blank)


def test_ids_without_a_shape_need_the_depth(tiny):
    """Twelve rows of 8 tokens have the size of six layers each."""
    rows = random_rows(12, tiny.layers).astype("<i4")
    unknown = Layout(tiny.name, tiny.layers)
    assert unknown.shaped(rows[:8].reshape(-1), 8).shape == (8, 4, 2)
    with pytest.raises(ValueError, match="name the checkpoint with --model"):
        unknown.shaped(rows.reshape(-1), 8)


def test_what_a_server_says_of_itself_is_bounded(tally, rows):
    reader = TrafficReader(tally.layout, tally)
    lines = [
        json.dumps(
            {
                "choices": [{"routed_experts": npy(rows)}],
                "model": f"{number}" * 500,
                "system_fingerprint": f"vllm-{number}{'9' * 500}",
            }
        ).encode()
        for number in range(100, 140)
    ]
    for record in reader.of_lines(lines, "a.jsonl"):
        record.read()
    assert reader.source.num_requests == 40
    for names in (reader.source.models, reader.source.versions):
        assert len(names) == 16
        assert max(map(len, names)) == 100


def test_names_of_days_stay_apart(imported, tmp_path):
    days = [usual_name([Path(f"traffic.2026-11-{day}.jsonl")]) for day in (28, 29)]
    assert days == ["traffic-2026-11-28", "traffic-2026-11-29"]
    assert usual_name([Path("monday.npz")]) == "monday"


def many_lines(model, tokens, per_line=4096, kinds=16):
    """Lines of random answers, which come again but count: they are no prompts."""
    rows = random_rows(per_line, model.layers)
    usage = {"prompt_tokens": 1, "completion_tokens": per_line}
    lines = [
        json.dumps({"choices": [{"routed_experts": npy(np.roll(rows, n, 0))}], "usage": usage})
        for n in range(kinds)
    ]
    for number in range(tokens // per_line):
        yield f"{lines[number % kinds]}\n".encode()


def peak_of(model, tokens):
    """Bytes that counting so many tokens takes at most, and how many it counted."""
    layout = Layout(model.name, model.layers, model.depth)
    tally = Tally(layout, "all")
    reader = TrafficReader(layout, tally)
    next(lines := many_lines(model, tokens))  # what makes them is not measured
    tracemalloc.start()
    for record in reader.of_lines(lines, "generated"):
        record.read()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak, tally.num_counted


@pytest.mark.parametrize("tokens", [1 << 18, pytest.param(10_000_000, marks=pytest.mark.slow)])
def test_memory_is_flat(tokens, tiny):
    little, _ = peak_of(tiny, 1 << 16)
    much, counted = peak_of(tiny, tokens)
    assert counted > 0.99 * tokens - 2 * 4096
    assert max(little, much) < 8 << 20  # the ids alone of ten million tokens have 80 MB
