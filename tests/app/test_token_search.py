"""Explore, by token: the experts that read a token, counted by hand from the scored texts."""

from collections import defaultdict

import pytest
from page_texts import ALL_CORPORA, loaded_on, sent_to_map, texts

from analysis.files.shipped import SHIPPED_STATS
from app.charts.listing import CHARTS
from app.charts.token_experts import frequent_tokens, searched_form
from app.choices import TokenChoice
from app.literal import literal
from app.widgets.expert import most_read, read_tokens
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
    assert sent_to_map(unknown)["lit"] is None


@pytest.mark.parametrize("place", [(0, 0), (5, 31)])
def test_an_expert_reads_tokens_as_they_are_searched_for(place):
    # Every second token without its blanks: " def" and "def" are one.
    records = [
        record.model_copy(
            update={
                "tokens": tuple(
                    token.strip(" ") if at % 2 else token for at, token in enumerate(record.tokens)
                )
            }
        )
        for record in LensStore([SHIPPED_STATS]).records()
    ]
    sums, numbers, raw = defaultdict(float), defaultdict(int), set()
    for record in records:
        [layer] = [layer for layer in record.layers if layer.layer == place[0]]
        for at, expert in enumerate(layer.experts):
            if expert == place[1]:
                token = record.tokens[at // layer.top_k]
                raw.add(token)
                sums[searched_form(token)] += layer.gates[at]
                numbers[searched_form(token)] += 1
    table = read_tokens(records, place)
    assert dict(zip(table["token"], table["num_tokens"], strict=True)) == dict(numbers)
    assert dict(zip(table["token"], table["gate"], strict=True)) == pytest.approx(dict(sums))
    assert len(table) < len(raw)
    first = max(sums, key=sums.__getitem__)
    assert most_read(records, place).startswith(literal(f"\u201c{first}\u201d"))


def test_a_token_is_searched_where_the_second_criterion_lacks_statistics(open_page):
    address = {"show": "By token", "reads": "def", "baseline": "Magnitude"}
    test = open_page("explore", "once", criterion="reap", **address)
    assert test.selectbox(key="baseline").value == "magnitude"
    assert [panel["title"] for panel in sent_to_map(test)["panels"]] == ["REAP"]
    said = texts(test.info)
    assert [text.split(" reads the weights")[0] for text in said[:1]] == ["Magnitude"]
    assert any("no text that was scored" in text for text in said)  # goes on below
