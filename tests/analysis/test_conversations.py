"""Conversations of every usual form: each turn's words are in the sequences or a row is refused."""

import json
import re
from collections import Counter
from dataclasses import replace

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from letters import read_documents

from analysis.calibration.loading import load_tokenizer
from analysis.corpora import Document, Sampling, parse_corpus, peek, tokenize
from analysis.corpora.encoding import ChatFormat, encode
from analysis.corpora.files import open_documents
from analysis.corpora.sources import from_file
from analysis.corpora.streams import open_corpus
from analysis.corpora.template_needs import arguments_taken, content_taken, fitted
from analysis.corpora.templates import render
from analysis.errors import CorpusError
from analysis.model import load_model_index
from builders.chat_templates import TEMPLATES


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(load_model_index("demo"))


SEARCH = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def called(arguments, **more):
    call = {"id": "call00001", "type": "function"}
    call["function"] = {"name": "weather", "arguments": arguments}
    result = {"role": "tool", "tool_call_id": "call00001", "content": 'hazel "<5>"'}
    return {
        "messages": [
            {"role": "user", "content": "alder"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            result,
            {"role": "assistant", "content": "birch"},
        ],
        "tools": [SEARCH],
        **more,
    }


TOOL_WORDS = ("alder", "weather", "Paris", "hazel", "birch")
# A row in each form -> the words of its turns.
FORMS = {
    "messages": (
        {
            "messages": [
                {"role": "user", "content": "alder"},
                {"role": "assistant", "content": " birch\n"},
            ]
        },
        ("alder", "birch"),
    ),
    "from and value": (
        {
            "conversations": [
                {"from": "human", "value": "alder"},
                {"from": "gpt", "value": "birch"},
            ]
        },
        ("alder", "birch"),
    ),
    "instruction": (
        {"instruction": "alder", "input": "cedar", "output": "birch", "system": "maple"},
        ("maple", "alder", "cedar", "birch"),
    ),
    "parts": (
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "alder"},
                        {"type": "text", "text": "cedar"},
                    ],
                },
                {"role": "assistant", "content": [{"type": "text", "text": "birch"}]},
            ]
        },
        ("alder", "cedar", "birch"),
    ),
    "arguments as an object": (called({"city": "Paris"}), TOOL_WORDS),
    "arguments as text": (called('{"city": "Paris"}'), TOOL_WORDS),
    "messages as JSON": (
        {key: json.dumps(value) for key, value in called('{"city": "Paris"}').items()},
        TOOL_WORDS,
    ),
}
WITH_TOOLS = tuple(form for form, (_, words) in FORMS.items() if words is TOOL_WORDS)
# These formats have no tools; this one leaves out a system turn where no user speaks last.
REFUSED = {
    (name, form)
    for name in ("deepseek-r1", "mixtral", "phi", "olmoe", "ernie", "minimax")
    for form in WITH_TOOLS
} | {("mistral", "instruction")}


def written(folder, kind, row):
    path = folder / f"rows.{kind}"
    if kind == "parquet":
        # Arrow fills the keys of each row with those of the others.
        other = called({"ticker": "X", "days": 3}, other="a") if "tools" in row else row
        same_kind = isinstance(row.get("tools"), list)
        text = same_kind and isinstance(
            row["messages"][1]["tool_calls"][0]["function"]["arguments"], str
        )
        other = called('{"days": 3}') if text else other if same_kind else row
        pq.write_table(pa.Table.from_pylist([row, other]), path)
    else:
        path.write_text(json.dumps([row]) if kind == "json" else json.dumps(row) + "\n")
    return path


@pytest.mark.parametrize("kind", ["jsonl", "json", "parquet"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_every_word_is_in_the_sequences_or_the_row_is_refused(tmp_path, tokenizer, name, kind):
    tokenizer.chat_template = TEMPLATES[name]
    for form, (row, words) in FORMS.items():
        document = read_documents(str(written(tmp_path, kind, row)))[0]
        if (name, form) in REFUSED:
            with pytest.raises(CorpusError, match=rf"^rows.{kind}, (line|row) 1: the model's "):
                encode(document, tokenizer, ChatFormat(), "rows")
            continue
        text = tokenizer.decode(encode(document, tokenizer, ChatFormat(), "rows").ids)
        places = [text.find(word) for word in words]
        assert -1 not in places, (form, text)
        assert "'type'" not in text
        assert '\\"city' not in text
        assert "null" not in text
        assert "ticker" not in text


def test_the_same_row_gives_the_same_tokens_from_every_file(tmp_path, tokenizer):
    tokenizer.chat_template = TEMPLATES["qwen2.5"]
    row = called({"city": "Paris"})
    kinds = ("jsonl", "json", "parquet")
    documents = [read_documents(str(written(tmp_path, kind, row)))[0] for kind in kinds]
    ids = [encode(each, tokenizer, ChatFormat(), "a").ids.tolist() for each in documents]
    assert ids[0] == ids[1] == ids[2]
    # As transformers renders the row as it stands.
    expected = tokenizer.apply_chat_template(row["messages"], tools=row["tools"], return_dict=True)
    assert ids[0] == expected["input_ids"]
    without = tokenizer.apply_chat_template(row["messages"], return_dict=True)
    assert len(without["input_ids"]) < len(ids[0])


def test_a_null_that_was_written_stays(tmp_path, tokenizer):
    tokenizer.chat_template = TEMPLATES["qwen2.5"]
    row = called({"city": "Paris", "days": None})
    (document,) = read_documents(str(written(tmp_path, "jsonl", row)))
    text = tokenizer.decode(encode(document, tokenizer, ChatFormat(), "a").ids)
    assert '{"city": "Paris", "days": null}' in text


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
    monkeypatch.setattr(datasets.config, "SLEEP_TIME_ON_THREADS_SHUTDOWN", 0)
    rows = [called({"city": "Paris"}), called({"days": 3})]
    path = tmp_path / "copy.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    drawn = open_corpus(f"tulu-math={path}").draw(0)
    got = [each.messages[1]["tool_calls"][0]["function"]["arguments"] for each in drawn]
    assert sorted(got, key=str) == [{"city": "Paris"}, {"days": 3}]


FUNCTION = {"name": "weather", "arguments": {"city": "Paris"}}
CALL = {"type": "function", "function": FUNCTION}
ASKED, SAID = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
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
        (ASKED, SAID, {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}),
    ),
    "calls": (
        {"query": "a", "answers": json.dumps([FUNCTION]), "tools": json.dumps([{"name": "w"}])},
        (ASKED, {"role": "assistant", "tool_calls": [CALL]}),
    ),
    "speakers of calls": (
        {
            "conversations": [
                {"from": "human", "value": "a"},
                {"from": "function_call", "value": json.dumps(FUNCTION)},
                {"from": "observation", "value": "5"},
            ]
        },
        (
            ASKED,
            {"role": "assistant", "tool_calls": [CALL]},
            {"role": "tool", "content": "5"},
        ),
    ),
    "functions themselves": (
        {
            "messages": [ASKED, {"role": "assistant", "tool_calls": [FUNCTION]}],
            "tools": [{"name": "w"}],
        },
        (ASKED, {"role": "assistant", "tool_calls": [CALL]}),
    ),
    "calls as Anthropic's": (
        {
            "messages": [
                ASKED,
                {
                    "role": "assistant",
                    "tool_calls": [{"name": "weather", "input": {"city": "Paris"}}],
                },
            ]
        },
        (ASKED, {"role": "assistant", "tool_calls": [CALL]}),
    ),
    "a result of OpenAI's first form": (
        {"messages": [ASKED, {"role": "function", "name": "w", "content": "5"}]},
        (ASKED, {"role": "tool", "name": "w", "content": "5"}),
    ),
    "a call of OpenAI's first form": (
        {"messages": [ASKED, {"role": "assistant", "content": None, "function_call": FUNCTION}]},
        (ASKED, {"role": "assistant", "tool_calls": [CALL]}),
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
    "null content": ({"messages": [{"role": "user", "content": None}]}, "but no content"),
    "a number": ({"messages": [{"role": "user", "content": 5}]}, "content that is no text, but 5"),
    "image": (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]},
        "turn 1 of messages has a part of the type image_url",
    ),
    "speaker": ({"conversations": [{"from": "narrator", "value": "a"}]}, "is from 'narrator'"),
    "tools": ({"messages": [ASKED], "tools": "search"}, "tools must be a list of tools"),
    "calls": (
        {"messages": [{"role": "assistant", "tool_calls": [{"id": 1}]}]},
        "tool_calls must be a list of calls",
    ),
    "function": (
        {"messages": [{"role": "assistant", "content": "a", "function_call": "weird"}]},
        "tool_calls must be a list of calls",
    ),
    "no speaker": ({"conversations": [{"from": None, "value": "a"}]}, "has no role"),
    "answers": ({"query": "a", "answers": "none"}, "answers must be a list of calls"),
    "history": ({"instruction": "a", "output": "b", "history": ["c"]}, "history must be a list"),
    "no text": (
        {"prompt": [{"role": "user", "content": " "}], "response": ""},
        "has text or calls",
    ),
    "system": ({"messages": [ASKED], "system": ["a"]}, 'system must be a text, not ["a"]'),
    "nameless part": (
        {"messages": [{"role": "user", "content": [{"image": "a.png"}]}]},
        "turn 1 of messages has a part of the type image;",
    ),
}


@pytest.mark.parametrize(("row", "message"), BAD.values(), ids=BAD)
def test_a_row_that_is_no_conversation_is_refused_by_line(tmp_path, row, message):
    path = written(tmp_path, "jsonl", row)
    with pytest.raises(CorpusError, match=rf"^rows\.jsonl, line 1: .*{re.escape(message)}"):
        read_documents(str(path))


def test_arguments_nested_too_deeply_are_refused(tokenizer):
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    deep = "x"
    for _ in range(5000):
        deep = {"a": deep}
    document = Document(messages=tuple(called(deep)["messages"]), where="a.jsonl, line 1")
    with pytest.raises(CorpusError, match=r"^a\.jsonl, line 1"):
        encode(document, tokenizer, ChatFormat(), "a")


def test_arguments_that_are_no_object_are_refused(tmp_path, tokenizer):
    tokenizer.chat_template = TEMPLATES["qwen2.5"]
    (document,) = read_documents(str(written(tmp_path, "jsonl", called("Paris!"))))
    with pytest.raises(CorpusError, match=r"line 1: .*Turn 2 calls weather .*no JSON object"):
        encode(document, tokenizer, ChatFormat(), "a")


LOSES = {  # template -> the words of a turn that it leaves out
    "markers alone": ("{% for m in messages %}[gMASK]<sop>{{ m.value }}{% endfor %}", "turn 1 "),
    "first turn": ("{{ messages[0].content }}", "turn 2 "),
    "by chance": ("birch alder", "turn 2 "),  # both words, but not in this order
    "no tools": ("{% for m in messages %}{{ m.content }}{% endfor %}", "the tool 'weather'"),
}


@pytest.mark.parametrize(("template", "what"), LOSES.values(), ids=LOSES)
def test_a_rendering_that_lacks_a_text_is_refused(tokenizer, template, what):
    tokenizer.chat_template = template
    turns = FORMS["messages"][0]["messages"]
    document = Document(messages=tuple(turns), tools=(SEARCH,), where="a.jsonl, line 7")
    with pytest.raises(CorpusError, match=rf"^a.jsonl, line 7: the model's .*leaves out .*{what}"):
        encode(document, tokenizer, ChatFormat(), "a")


# Templates that take an empty content beside calls in one form: no key, "", or null.
CONTENTS = {
    "absent": "{% if m.content is defined %}{{ m.content }}{% else %}CALL{% endif %}",
    "text": "{{ m['content'] + '.' }}{% if m.tool_calls %}CALL{% endif %}",
    "null": "{% if m['content'] is none %}CALL{% else %}{{ m['content'] + '.' }}{% endif %}",
}


@pytest.mark.parametrize("content", [{}, {"content": ""}, {"content": None}], ids=str)
@pytest.mark.parametrize("form", CONTENTS)
def test_calls_are_shown_whatever_their_empty_content(tmp_path, tokenizer, form, content):
    call = "{{ m.tool_calls[0].function.name + m.tool_calls[0].function.arguments }}"
    shown = CONTENTS[form].replace("CALL", call)
    tokenizer.chat_template = f"{{% for m in messages %}}{shown}{{% endfor %}}"
    row = {key: value for key, value in called({"city": "Paris"}).items() if key != "tools"}
    calling = {key: value for key, value in row["messages"][1].items() if key != "content"}
    row["messages"][1] = {**calling, **content}
    (document,) = read_documents(str(written(tmp_path, "jsonl", row)))
    ids = encode(document, tokenizer, ChatFormat(), "a").ids
    assert 'weather{"city": "Paris"}' in tokenizer.decode(ids)


@pytest.mark.parametrize("given", [{}, {"arguments": None}, {"arguments": ""}], ids=str)
def test_a_call_without_arguments_has_an_empty_object(tmp_path, tokenizer, given):
    tokenizer.chat_template = TEMPLATES["qwen3"]
    row = called({})
    row["messages"][1]["tool_calls"][0]["function"] = {"name": "weather", **given}
    (document,) = read_documents(str(written(tmp_path, "jsonl", row)))
    ids = encode(document, tokenizer, ChatFormat(), "a").ids
    assert '"name": "weather", "arguments": {}}' in tokenizer.decode(ids)


@pytest.mark.parametrize("written_as", ["{{ m.content }}", "{{ m.content | string }}"])
def test_a_result_that_is_data_is_given_as_json(tmp_path, tokenizer, written_as):
    name = "{{ m.tool_calls[0].function if m.tool_calls }}"
    tokenizer.chat_template = f"{{% for m in messages %}}{name}{written_as}|{{% endfor %}}"
    row = {"messages": called({"city": "Paris"})["messages"]}
    row["messages"][2]["content"] = {"degrees": [5, "hazel"]}
    (document,) = read_documents(str(written(tmp_path, "jsonl", row)))
    ids = encode(document, tokenizer, ChatFormat(), "a").ids
    assert '|{"degrees": [5, "hazel"]}|' in tokenizer.decode(ids)


def test_tools_that_a_template_leaves_out_are_missed_though_they_are_called(tokenizer):
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.content }}{{ m.tool_calls[0] if m.tool_calls }}{% endfor %}"
    )
    row = called({"city": "Paris"})
    document = Document(messages=tuple(row["messages"]), tools=(SEARCH,), where="a.jsonl, line 7")
    with pytest.raises(CorpusError, match=r"^a\.jsonl, line 7: .*leaves out the tools"):
        encode(document, tokenizer, ChatFormat(), "a")
    encode(replace(document, tools=()), tokenizer, ChatFormat(), "a")


SWITCHING = "{% for m in messages %}{{ m.content.replace('/no_think', '') }}{% endfor %}"
WHOLE = {  # content that templates cut or escape on purpose
    "reasoning": ("qwen3", [ASKED, {"role": "assistant", "content": "<think>x y</think>\nbirch"}]),
    "reasoning by key": ("qwen3", [ASKED, {**SAID, "reasoning_content": "never"}, ASKED, SAID]),
    "answer": ("hunyuan", [ASKED, {"role": "assistant", "content": "<answer>b</answer>"}]),
    "switch": ("switching", [{"role": "user", "content": "a /no_think b"}, SAID]),
    "trimmed": ("llama3", [{"role": "user", "content": "  a\n\n b \t"}, SAID]),
    "escaped": ("llama3", called({"city": 'a "quoted"\n<é>'})["messages"]),
    "same words": ("olmoe", [ASKED, SAID, ASKED, SAID]),
}


@pytest.mark.parametrize(("name", "turns"), WHOLE.values(), ids=WHOLE)
def test_what_a_template_cuts_on_purpose_is_not_missed(tokenizer, name, turns):
    template = TEMPLATES.get(name, SWITCHING)
    tokenizer.chat_template = template
    expected = render(template, turns, tokenizer.special_tokens_map).text
    ids = encode(Document(messages=tuple(turns)), tokenizer, ChatFormat(), "a").ids
    assert tokenizer.decode(ids) == expected


def two_calls(*ids):
    """Two calls at once with these ids, and their results in the other order if they have ids."""
    calls = [{**CALL, "id": each} if each else CALL for each in ids]
    results = [
        {"role": "tool", "content": word} | ({"tool_call_id": each} if each else {})
        for word, each in zip(("five", "six"), ids, strict=True)
    ]
    ordered = results[::-1] if all(ids) else results
    return [ASKED, {"role": "assistant", "content": "", "tool_calls": calls}, *ordered, SAID]


# Ids in the rows -> those that a template gets, in calls and then in results.
IDS = {
    ("qwen3", "call_1x", "call_2x"): None,  # left alone
    ("mistral", "call_1x", "call_2x"): (["000000000", "000000001"], ["000000001", "000000000"]),
    ("mistral", None, None): (["000000000", "000000001"], ["000000000", "000000001"]),
    ("mistral", "abcdefgh1", "abcdefgh2"): None,
    ("kimi", "call_1x", "call_2x"): (
        ["functions.weather:0", "functions.weather:1"],
        ["functions.weather:1", "functions.weather:0"],
    ),
}


@pytest.mark.parametrize("case", IDS, ids=lambda case: f"{case[0]} {case[1]}")
def test_ids_of_calls_and_results_fit_the_template(tokenizer, case):
    name, *ids = case
    turns = two_calls(*ids)
    fitting = fitted(turns, TEMPLATES[name], tokenizer.special_tokens_map)
    found = [call.get("id") for call in fitting[1]["tool_calls"]]
    answered = [turn.get("tool_call_id") for turn in fitting[2:4]]
    assert (found, answered) == (IDS[case] or (ids, ids[::-1]))
    tokenizer.chat_template = TEMPLATES[name]
    text = tokenizer.decode(
        encode(Document(messages=tuple(turns)), tokenizer, ChatFormat(), "a").ids
    )
    assert text.count("weather") == 2
    assert "five" in text
    assert "six" in text


@pytest.mark.parametrize("name", ["granite", "glm", "qwen2.5"])
def test_answers_with_calls_are_counted(tokenizer, name):
    tokenizer.chat_template = TEMPLATES[name]
    row = called({"city": "Paris"})
    document = Document(messages=tuple(row["messages"]), tools=(SEARCH,))
    tokens = encode(document, tokenizer, ChatFormat("response"), "a")
    answers = tokenizer.decode(tokens.ids[tokens.counted])
    assert [word for word in TOOL_WORDS if word in answers] == ["weather", "Paris", "birch"]


def test_a_template_is_asked_what_it_takes_by_its_renderings():
    known = b'{"bos_token": "<s>", "eos_token": "</s>"}'
    wanted = {name: arguments_taken(template, known) for name, template in TEMPLATES.items()}
    objects = {name for name, each in wanted.items() if each == "object"}
    assert objects == {"qwen2.5", "glm", "mistral", "llama3", "llama4", "gpt-oss", "granite"}
    assert {n for n, each in wanted.items() if each == "text"} == {"deepseek-v3", "hunyuan"}
    takes = {name: content_taken(each, known, "user") for name, each in TEMPLATES.items()}
    assert [name for name, each in takes.items() if each == "parts"] == ["minimax"]
    assert {n for n, each in takes.items() if each == "any"} == {"glm", "llama4", "kimi"}


JSON_FILES = {
    "an array": [{"text": "a"}, {"text": "b"}],
    "an object with one": {"version": 1, "data": [{"text": "a"}, {"text": "b"}]},
}


@pytest.mark.parametrize("value", JSON_FILES.values(), ids=JSON_FILES)
def test_rows_of_a_json_file(tmp_path, value):
    path = tmp_path / "rows.json"
    for text in (json.dumps(value), json.dumps(value, indent=1)):
        path.write_text(text)
        assert read_documents(str(path)) == [Document(text="a"), Document(text="b")]


def test_json_lines_and_a_row_alone_under_the_name_json(tmp_path):
    path = tmp_path / "rows.json"
    path.write_text('{"text": "a"}\n\n{"text": "b"}\n')
    assert read_documents(str(path)) == [Document(text="a"), Document(text="b")]
    path.write_text(json.dumps({"messages": [ASKED, SAID]}, indent=1))
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
    sampling = Sampling(10**6, 8, packing="pad")
    sequences = tokenize(skipping(path, 3), tokenizer, sampling, corpus="rows")
    assert sequences.num_documents == 9
    assert sequences.prepared["skipped_rows"] == 3
    path.write_text("\n".join([good] * 9))
    plain = tokenize(skipping(path, 3), tokenizer, sampling, corpus="rows")
    assert plain.digest == sequences.digest
    assert "skipped_rows" not in plain.prepared
    path.write_text("\n".join([*bad, *[good] * 9]))
    with pytest.raises(CorpusError, match=r"rows.jsonl, line \d.* Before it, 2 bad rows were skip"):
        tokenize(skipping(path, 2), tokenizer, sampling, corpus="rows")
    with pytest.raises(CorpusError, match=r"Before it, 1 bad row was skipped"):
        tokenize(skipping(path, 1), tokenizer, sampling, corpus="rows")
    with pytest.raises(CorpusError, match=r"^rows.jsonl, line \d"):
        tokenize(skipping(path, 0), tokenizer, sampling, corpus="rows")
    path.write_text("\n".join(bad))
    with pytest.raises(CorpusError, match=r"No row can be used; 3 were skipped"):
        tokenize(skipping(path, 9), tokenizer, sampling, corpus="rows")


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
PARTS = {
    "evol-codealpaca-v1": {"instruction": "alder", "output": "birch"},
    "xlam-function-calling-60k": {
        "query": "cedar",
        "answers": json.dumps([FUNCTION]),
        "tools": json.dumps([{"name": "weather", "description": "d", "parameters": {}}]),
    },
    "SWE-smith-trajectories": {
        "messages": json.dumps(
            [
                {"role": "system", "content": "maple", "agent": "a"},
                {"role": "user", "content": [{"type": "text", "text": "hazel"}]},
                {
                    "role": "assistant",
                    "content": "rowan",
                    "tool_calls": [
                        {"function": {"name": "bash", "arguments": '{"command": "aspen"}'}}
                    ],
                },
                {"role": "tool", "content": [{"type": "text", "text": "willow"}]},
            ]
        ),
        "resolved": True,
    },
}


def test_the_blend_for_tool_calls_has_its_shares(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(datasets.config, "SLEEP_TIME_ON_THREADS_SHUTDOWN", 0)
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
    assert [each["conversations"] for each in source.facts["source"]["blend"]] == [700, 330, 330]
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
