"""Explore, by token: the experts that read a token, counted by hand from the scored texts."""

import json
from collections import defaultdict

import pytest
from page_texts import ALL_CORPORA, loaded_on, texts

from analysis.files.shipped import SHIPPED_STATS
from app.charts.listing import CHARTS
from app.charts.token_experts import frequent_tokens, searched_form
from app.choices import TokenChoice
from app.pages.explore import MAP
from pruning.records.lens import LensStore

PLAN = {"criterion": "ean", "corpora": ALL_CORPORA}


def counted_by_hand(token):
    """(layer, expert) -> the sum of its gate weights and how many of these tokens chose it."""
    gates, numbers = defaultdict(float), defaultdict(int)
    for record in LensStore([SHIPPED_STATS]).records():
        for place, text in enumerate(record.tokens):
            if text.strip(" ") != token:
                continue
            for layer in record.layers:
                for choice in range(layer.top_k):
                    expert = layer.experts[place * layer.top_k + choice]
                    gates[layer.layer, expert] += layer.gates[place * layer.top_k + choice]
                    numbers[layer.layer, expert] += 1
    return gates, numbers


def sent_to_map(test):
    [data] = [part.proto.json for part in test.get("bidi_component") if part.key == MAP]
    return json.loads(data)


@pytest.mark.parametrize("token", ["def", "the", "1"])
def test_the_experts_of_a_token_are_those_of_a_count(open_page, token):
    test = open_page("explore", show="By token", reads=token, **PLAN)
    gates, numbers = counted_by_hand(token)
    assert sum(numbers.values()) > 12
    shown = loaded_on(test).choosing(token=TokenChoice(token))
    table = CHARTS["token-experts"].draw(shown).table
    totals = defaultdict(float)
    for (layer, _), gate in gates.items():
        totals[layer] += gate
    rows = {(row.layer, row.expert): row for row in table.itertuples()}
    assert {place: row.num_tokens for place, row in rows.items()} == dict(numbers)
    for (layer, expert), row in rows.items():
        assert row.share == pytest.approx(gates[layer, expert] / totals[layer])
        assert row.removed == (expert not in shown.shown.plan.kept[layer])
    # The map lights these experts, and no other.
    data = sent_to_map(test)
    lit = {(cell // data["width"], cell % data["width"]): share for cell, share in data["lit"]}
    assert lit == {place: round(float(row.share), 3) for place, row in rows.items()}


def test_blanks_are_seen_and_an_unknown_token_is_said(open_page):
    tokens = frequent_tokens(LensStore([SHIPPED_STATS]).records())
    assert "" not in tokens
    assert not [token for token in tokens if token != token.strip()]
    assert [searched_form(text) for text in ("  ", "\n", " def", "\t")] == ["␣␣", "↵", "def", "⇥"]
    blank = open_page("explore", show="By token", reads="␣", **PLAN)
    assert [text for text in texts(blank.markdown) if text.startswith("“␣” stands ")]
    unknown = open_page("explore", show="By token", reads="**x**", **PLAN)
    [said] = [text for text in texts(unknown.info) if "No scored text has the token" in text]
    assert "**x**" not in said
    data = [
        json.loads(part.proto.json) for part in unknown.get("bidi_component") if part.key == MAP
    ]
    assert data[0]["lit"] is None
