"""What the expert map sends and refuses."""

import dataclasses
import json
import re
import zlib
from importlib.resources import files

import numpy as np
import pytest

from app.components.expert_map import MapPanel, map_message, map_payload


def small_panel(**changes):
    """Two layers, the second with two experts of three."""
    panel = MapPanel(
        title="REAP",
        subtitle="",
        values=np.array([[0.0, 1.0, 0.25], [1.0, 0.0, np.nan]]),
        order=np.array([[1, 2, 0], [0, 1, -1]]),
        kept=np.array([2, 1]),
        scores=np.array([[3.0, 11.0, 5.0], [9.0, 8.5, np.nan]]),
    )
    return dataclasses.replace(panel, **changes)


def payload(*panels, layers=(3, 7), arrangement="rank", mode="values", selected=None):
    return map_payload(layers, panels, arrangement=arrangement, mode=mode, selected=selected)


def unpacked(sent, panel=0):
    """The tables of one panel, decoded independently of the browser's code."""
    packed = sent["panels"][panel]
    data = zlib.decompress(packed["packed"])
    num_layers, shape = len(sent["layers"]), (len(sent["layers"]), sent["width"])
    kinds = ["<f4", "<f4", "<u2" if sent["wide"] else "u1", "u1", "u1", "u1"]
    tables = []
    for kind, count in zip(kinds, [num_layers] * 2 + [shape[0] * shape[1]] * 4, strict=True):
        size = count * np.dtype(kind).itemsize
        tables.append(np.frombuffer(data[:size], kind))
        data = data[size:]
    assert data == b""
    lowest, span, order, levels, high, low = tables
    halves = (high.astype("<u2") * 256 + low).reshape(shape).cumsum(axis=1, dtype="<u2")
    return {
        "order": order.reshape(shape),
        "levels": levels.reshape(shape).cumsum(axis=1, dtype="u1"),
        "scores": lowest[:, None] + span[:, None] * (halves.view("<f2").astype(float) / 2**15),
    }


def test_two_panels_of_48_by_128_fit_64_kib(synthetic):
    panels = synthetic.magnitude_and_aimer(48, 128, 64)
    # Scripts and styles are fetched once; the rest of 64 KiB is for the rest of the page.
    assert len(map_message(payload(*panels, layers=range(48)))) <= 36 * 1024
    # Values and scores without any order by rank, which deflate cannot shrink.
    rng = np.random.default_rng(1)
    noise = {"values": rng.random((48, 128)), "scores": np.exp(rng.normal(size=(48, 128), scale=9))}
    kept = rng.integers(100, 128, size=48)
    panels = [dataclasses.replace(panel, **noise, kept=kept, title="T" * 40) for panel in panels]
    sent = payload(*panels, layers=range(48), selected=(21, 51))
    assert len(map_message(sent)) <= 56 * 1024


def test_a_message_has_its_json_and_the_tables_of_each_panel():
    sent = payload(small_panel(), small_panel(title="b\u03b1"))
    message = map_message(sent)
    end = 4 + int.from_bytes(message[:4], "little")
    plain, tables = json.loads(message[4:end]), message[end:]
    for panel, whole in zip(plain["panels"], sent["panels"], strict=True):
        assert whole == panel | {"packed": tables[: panel["size"]]}
        tables = tables[panel["size"] :]
    assert tables == b""
    assert {**sent, "panels": ()} == {**plain, "layers": sent["layers"], "panels": ()}


def test_scripts_set_no_html_and_import_only_each_other():
    folder = files("app.components.expert_map").joinpath("browser")
    scripts = {path.name: path.read_text("utf-8") for path in folder.iterdir()}
    assert "export default async function" in scripts["expert_map.js"]
    del scripts["expert_map.css"]
    for source in scripts.values():
        assert "innerHTML" not in source
        assert set(re.findall(r'from "\./(.*?)"', source)) <= set(scripts)
        assert "http" not in source


def test_values_are_rounded_to_256_levels_and_travel_by_rank():
    sent = payload(small_panel(values=np.array([[0.0, 1.0, 0.5], [1.0, 0.2, np.nan]])))
    assert unpacked(sent)["levels"].tolist() == [[255, 128, 0], [255, 51, 0]]
    assert unpacked(sent)["order"].tolist() == [[1, 2, 0], [0, 1, 0]]
    assert (sent["counts"], sent["width"], sent["layers"]) == ([3, 2], 3, [3, 7])
    assert sent["panels"][0]["kept"] == [2, 1]


def test_more_than_256_experts_need_two_bytes(synthetic):
    panel, _ = synthetic.magnitude_and_aimer(2, 300, 5)
    sent = payload(panel)
    assert sent["wide"]
    assert unpacked(sent)["order"].tolist() == panel.order.tolist()


def panel_of(scores):
    """One layer whose experts are all kept."""
    count = scores.shape[1]
    order = np.arange(count)[None]
    return MapPanel("Scores", "", np.zeros(scores.shape), order, np.array([count]), scores)


@pytest.mark.parametrize(
    ("scores", "tolerance"),
    [
        # 11 significant bits: half a unit in the last place is 2^-11 of the value at most.
        ([[1e5, 7.7, 0.0123, 1e-3]], {"rel": 2**-11}),
        # float32 holds the layer's smallest score to 6e-8 of itself.
        ([[0.79001, 0.79002, 0.79003]], {"abs": 1e-7}),
    ],
)
def test_scores_keep_three_digits_and_stay_apart(scores, tolerance):
    got = unpacked(payload(panel_of(np.array(scores)), layers=[1]))["scores"]
    assert got == pytest.approx(np.array(scores), **tolerance)


def test_constant_layer_is_sent_flat():
    flat = np.full((1, 3), 0.5)
    got = unpacked(payload(panel_of(flat), layers=[1]))
    assert got["scores"].tolist() == flat.tolist()
    assert got["levels"].tolist() == [[0, 0, 0]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"values": np.zeros(3)}, "values must be"),
        ({"order": np.array([[0, 1, 2]])}, "order has shape"),
        ({"scores": np.zeros((3, 2))}, "scores has shape"),
        ({"kept": np.array([1])}, "kept has shape"),
        ({"order": np.array([[1, 1, 0], [0, 1, -1]])}, "ids 0..n-1 once"),
        ({"order": np.array([[1, 2, 0], [0, -1, 1]])}, "ids 0..n-1 once"),
        ({"order": np.array([[1, 2, 0], [-1, -1, -1]])}, "without experts"),
        ({"values": np.full((2, 3), 1.5)}, "0..1"),
        ({"values": np.full((2, 3), np.nan)}, "0..1"),
        ({"scores": np.full((2, 3), np.inf)}, "finite"),
        ({"kept": np.array([4, 1])}, "kept must lie"),
        ({"kept": np.array([-1, 1])}, "kept must lie"),
    ],
)
def test_panel_refuses_tables_that_do_not_fit(changes, message):
    with pytest.raises(ValueError, match=message):
        small_panel(**changes)


def test_payload_refuses_panels_that_do_not_fit(synthetic):
    with pytest.raises(ValueError, match="for 1 layers"):
        payload(small_panel(), layers=(3,))
    with pytest.raises(ValueError, match="same number of experts"):
        payload(small_panel(), synthetic.magnitude_and_aimer(2, 3, 1)[0])
