"""Rows of conversations: the usual forms as turns, and bad rows refused, skipped and counted."""

import json
import re
from collections import Counter
from dataclasses import replace

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from letters import read_documents

from analysis.corpora.documents import Document
from analysis.corpora.encoding import encode
from analysis.corpora.files import open_documents
from analysis.corpora.sampling import tokenize
from analysis.corpora.settings import Sampling
from analysis.corpora.sources import from_file, peek
from analysis.corpora.spec import parse_corpus
from analysis.corpora.streams import open_corpus
from analysis.corpora.tokens import ChatFormat
from analysis.errors import CorpusError
from builders.chat_templates import TEMPLATES
from builders.conversations import (
    ASKED,
    CALL,
    FORMS,
    FUNCTION,
    SAID,
    SEARCH,
    called,
    in_parts,
    said,
    user,
    written,
)


@pytest.mark.parametrize("tools", [[SEARCH], json.dumps([SEARCH]), [json.dumps(SEARCH)]])
def test_tools_are_a_list_or_json(tmp_path, tools):
    row = called({"city": "Paris"}, tools=tools)
    (document,) = read_documents(str(written(tmp_path, "jsonl", row)))
    assert document.tools == (SEARCH,)
    named = {"asked": row["messages"], "mine": tools}
    path = written(tmp_path, "jsonl", named)
    (document,) = read_documents(f"{path},messages=asked,tools=mine")
    assert document.tools == (SEARCH,)


def test_a_named_field_may_have_from_and_value(tmp_path):
    row, _ = FORMS["from and value"]
    path = written(tmp_path, "jsonl", {**row, "messages": "other"})
    (document,) = read_documents(f"{path},messages=conversations")
    assert [turn["content"] for turn in document.messages] == ["alder", "birch"]


def test_streamed_rows_lose_the_nulls_of_arrow(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "SLEEP_TIME_ON_THREADS_SHUTDOWN", 0, raising=False)
    rows = [called({"city": "Paris"}), called({"days": 3})]
    path = tmp_path / "copy.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    drawn = open_corpus(f"tulu-math={path}").draw(0)
    got = [document.messages[1]["tool_calls"][0]["function"]["arguments"] for document in drawn]
    assert sorted(got, key=str) == [{"city": "Paris"}, {"days": 3}]


def calling(*calls):
    return {"role": "assistant", "tool_calls": list(calls)}


# Rows of other usual forms -> their turns.
USUAL = {
    "completion": ({"prompt": [ASKED], "completion": [SAID]}, (ASKED, SAID)),
    "chosen": ({"prompt": "a", "chosen": [ASKED, SAID], "rejected": []}, (ASKED, SAID)),
    "pair with system": (
        {"prompt": "a", "response": "b", "system": "s"},
        ({"role": "system", "content": "s"}, ASKED, SAID),
    ),
    "history": (
        {"instruction": "c", "output": "d", "history": [["a", "b"]]},
        (ASKED, SAID, user("c"), said("d")),
    ),
    "calls": (
        {"query": "a", "answers": json.dumps([FUNCTION]), "tools": json.dumps([{"name": "w"}])},
        (ASKED, calling(CALL)),
    ),
    "speakers of calls": (
        {
            "conversations": [
                {"from": "human", "value": "a"},
                {"from": "function_call", "value": json.dumps(FUNCTION)},
                {"from": "observation", "value": "5"},
            ]
        },
        (ASKED, calling(CALL), {"role": "tool", "content": "5"}),
    ),
    "functions themselves": (
        {"messages": [ASKED, calling(FUNCTION)], "tools": [{"name": "w"}]},
        (ASKED, calling(CALL)),
    ),
    "calls as Anthropic's": (
        {"messages": [ASKED, calling({"name": "weather", "input": {"city": "Paris"}})]},
        (ASKED, calling(CALL)),
    ),
    "a result of OpenAI's first form": (
        {"messages": [ASKED, {"role": "function", "name": "w", "content": "5"}]},
        (ASKED, {"role": "tool", "name": "w", "content": "5"}),
    ),
    "a call of OpenAI's first form": (
        {"messages": [ASKED, said(None, function_call=FUNCTION)]},
        (ASKED, calling(CALL)),
    ),
}


@pytest.mark.parametrize(("row", "turns"), USUAL.values(), ids=USUAL)
def test_usual_rows_are_what_they_are(tmp_path, row, turns):
    (document,) = read_documents(str(written(tmp_path, "jsonl", row)))
    assert document == Document(messages=turns, tools=document.tools)
    if "tools" in row:
        assert document.tools == ({"type": "function", "function": {"name": "w"}},)


BAD = {
    "no role": ({"messages": [{"content": "a"}]}, "turn 1 of messages has no role"),
    "no content": ({"messages": [ASKED, {"role": "assistant"}]}, "turn 2 of messages has a role"),
    "null content": ({"messages": [user(None)]}, "but no content"),
    "a number": ({"messages": [user(5)]}, "content that is no text, but 5"),
    "image": (
        {"messages": [user([{"type": "image_url", "image_url": "x"}])]},
        "turn 1 of messages has a part of the type image_url",
    ),
    "speaker": ({"conversations": [{"from": "narrator", "value": "a"}]}, "is from 'narrator'"),
    "tools": ({"messages": [ASKED], "tools": "search"}, "tools must be a list of tools"),
    "calls": ({"messages": [calling({"id": 1})]}, "tool_calls must be a list of calls"),
    "function": (
        {"messages": [said("a", function_call="weird")]},
        "tool_calls must be a list of calls",
    ),
    "no speaker": ({"conversations": [{"from": None, "value": "a"}]}, "has no role"),
    "answers": ({"query": "a", "answers": "none"}, "answers must be a list of calls"),
    "history": ({"instruction": "a", "output": "b", "history": ["c"]}, "history must be a list"),
    "no text": ({"prompt": [user(" ")], "response": ""}, "has text or calls"),
    "system": ({"messages": [ASKED], "system": ["a"]}, 'system must be a text, not ["a"]'),
    "nameless part": (
        {"messages": [user([{"image": "a.png"}])]},
        "turn 1 of messages has a part of the type image;",
    ),
}


@pytest.mark.parametrize(("row", "message"), BAD.values(), ids=BAD)
def test_a_row_that_is_no_conversation_is_refused_by_line(tmp_path, row, message):
    path = written(tmp_path, "jsonl", row)
    with pytest.raises(CorpusError, match=rf"^rows\.jsonl, line 1: .*{re.escape(message)}"):
        read_documents(str(path))


ROWS = [{"text": "a"}, {"text": "b"}]


def test_rows_of_a_json_file(tmp_path):
    path, in_object = tmp_path / "rows.json", {"version": 1, "data": ROWS}
    forms = [json.dumps(rows, indent=indent) for rows in (ROWS, in_object) for indent in (None, 1)]
    for text in (*forms, '{"text": "a"}\n\n{"text": "b"}\n'):
        path.write_text(text)
        assert read_documents(str(path)) == [Document(text="a"), Document(text="b")], text
    path.write_text(json.dumps({"messages": [ASKED, SAID]}, indent=1))  # a row alone
    assert read_documents(str(path)) == [Document(messages=(ASKED, SAID))]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "row 1 is not a JSON object"),
        ('[{"text": "a"}', "rows.json is not JSON"),
        ('{"a": [{"text": "b"}], "c": [{"text": "d"}]}', "neither an array of rows nor"),
        ("[]", "is empty"),
        ("", "is not JSON: it is empty"),
    ],
)
def test_json_files_that_are_refused(tmp_path, text, message):
    path = tmp_path / "rows.json"
    path.write_text(text)
    with pytest.raises(CorpusError, match=message):
        read_documents(str(path))


def skipping(path, skips):
    spec = parse_corpus(str(path))
    return replace(from_file(open_documents(spec.path, spec.fields)), skips=skips)


def test_bad_rows_are_skipped_and_counted_up_to_a_number(tmp_path, tokenizer):
    tokenizer.chat_template = TEMPLATES["olmoe"]
    good = json.dumps({"messages": [ASKED, SAID]})
    # A row that is no JSON, one without a role, and one that the template refuses.
    bad = ["{broken", '{"messages": [{"content": "a"}]}', json.dumps(called({"city": "x"}))]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join([*bad, *[good] * 9]))

    def tokenized(skips):
        sampling = Sampling(10**6, 8, packing="pad")
        return tokenize(skipping(path, skips), tokenizer, sampling, corpus="rows")

    sequences = tokenized(3)
    assert sequences.num_documents == 9
    assert sequences.prepared["skipped_rows"] == 3
    for skips, message in (
        (2, r"rows.jsonl, line \d.* Before it, 2 bad rows were skip"),
        (1, r"Before it, 1 bad row was skipped"),
        (0, r"^rows.jsonl, line \d"),
    ):
        with pytest.raises(CorpusError, match=message):
            tokenized(skips)
    path.write_text("\n".join([good] * 9))
    assert tokenized(3).digest == sequences.digest
    assert "skipped_rows" not in tokenized(3).prepared
    path.write_text("\n".join(bad))
    with pytest.raises(CorpusError, match=r"No row can be used; 3 were skipped"):
        tokenized(9)


def test_conversations_with_tools_are_counted(tmp_path, tokenizer):
    tokenizer.chat_template = TEMPLATES["qwen3"]
    rows = [called({"city": "x"}), {"messages": [ASKED, SAID]}, called({"city": "y"})]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    sampling = Sampling(10**6, 64, packing="pad")
    sequences = tokenize(skipping(path, 0), tokenizer, sampling, corpus="rows")
    assert sequences.prepared["tools"] == 2


def test_peeking_passes_over_bad_rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("{}\n" * 3 + '{"text": "a"}\n')
    first, again = peek(skipping(path, 3), 0)
    assert first == Document(text="a")
    assert len(list(again.draw(0))) == 4
    with pytest.raises(CorpusError, match="has the fields none"):
        peek(skipping(path, 0), 0)


# A row of each part, as its dataset has them; the second has tools and calls as JSON.
_BASH = {"function": {"name": "bash", "arguments": '{"command": "aspen"}'}}
_TRAJECTORY = [
    {"role": "system", "content": "maple", "agent": "a"},
    *(user(in_parts("hazel")), said("rowan", tool_calls=[_BASH])),
    {"role": "tool", "content": in_parts("willow")},
]
_TOOLS = [{"name": "weather", "description": "d", "parameters": {}}]
PARTS = {
    "evol-codealpaca-v1": {"instruction": "alder", "output": "birch"},
    "xlam-function-calling-60k": {
        "query": "cedar",
        "answers": json.dumps([FUNCTION]),
        "tools": json.dumps(_TOOLS),
    },
    "SWE-smith-trajectories": {"messages": json.dumps(_TRAJECTORY), "resolved": True},
}


def test_the_blend_for_tool_calls_has_its_shares(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(datasets.config, "SLEEP_TIME_ON_THREADS_SHUTDOWN", 0, raising=False)
    for name, row in PARTS.items():
        (tmp_path / name).mkdir()
        pq.write_table(pa.Table.from_pylist([row] * 800), tmp_path / name / "rows.parquet")
    source = open_corpus(f"tool-calls={tmp_path}")
    drawn = list(source.draw(1))
    first = [document.where.partition(",")[0] for document in drawn]
    assert Counter(first) == dict(zip(PARTS, (700, 330, 330), strict=True))
    # Mixed: of the first 136, a tenth, about 70, 33 and 33 (within four deviations).
    early = Counter(first[:136])
    assert abs(early["evol-codealpaca-v1"] - 70) < 4 * 5.6
    assert first != [document.where.partition(",")[0] for document in source.draw(2)]
    assert [part["conversations"] for part in source.facts["source"]["blend"]] == [700, 330, 330]
    tokenizer.chat_template = TEMPLATES["qwen2.5"]
    text = "".join(
        tokenizer.decode(encode(drawn[first.index(name)], tokenizer, ChatFormat(), "a").ids)
        for name in PARTS
    )
    words = ("alder birch", "cedar weather Paris", "maple hazel rowan bash aspen willow")
    assert [word for word in " ".join(words).split() if word not in text] == []
    (tmp_path / "SWE-smith-trajectories").rename(tmp_path / "other")
    with pytest.raises(CorpusError, match=r"no files or folders named SWE-smith-traj.*one copy of"):
        open_corpus(f"tool-calls={tmp_path}")
