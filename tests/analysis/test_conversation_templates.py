"""Conversations of every usual form: each turn's words are in the sequences or a row is refused."""

from dataclasses import replace

import pytest
from letters import read_documents

from analysis.corpora.documents import Document
from analysis.corpora.encoding import encode
from analysis.corpora.template_needs import arguments_taken, content_taken, fitted
from analysis.corpora.templates import render
from analysis.corpora.tokens import ChatFormat
from analysis.errors import CorpusError
from builders.chat_templates import TEMPLATES
from builders.conversations import ASKED, CALL, FORMS, SAID, SEARCH, TOOL_WORDS, called, written

WITH_TOOLS = tuple(form for form, (_, words) in FORMS.items() if words is TOOL_WORDS)
# These formats have no tools; this one leaves out a system turn where no user speaks last.
REFUSED = {
    (name, form)
    for name in ("deepseek-r1", "mixtral", "phi", "olmoe", "ernie", "minimax")
    for form in WITH_TOOLS
} | {("mistral", "instruction")}


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
    ids = [encode(document, tokenizer, ChatFormat(), "a").ids.tolist() for document in documents]
    assert ids[0] == ids[1] == ids[2]
    # As transformers renders the row as it stands.
    expected = tokenizer.apply_chat_template(row["messages"], tools=row["tools"], return_dict=True)
    assert ids[0] == expected["input_ids"]
    without = tokenizer.apply_chat_template(row["messages"], return_dict=True)
    assert len(without["input_ids"]) < len(ids[0])


def text_of(tmp_path, tokenizer, row):
    (document,) = read_documents(str(written(tmp_path, "jsonl", row)))
    return tokenizer.decode(encode(document, tokenizer, ChatFormat(), "a").ids)


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
    assert 'weather{"city": "Paris"}' in text_of(tmp_path, tokenizer, row)


@pytest.mark.parametrize("given", [{}, {"arguments": None}, {"arguments": ""}], ids=str)
def test_a_call_without_arguments_has_an_empty_object(tmp_path, tokenizer, given):
    tokenizer.chat_template = TEMPLATES["qwen3"]
    row = called({})
    row["messages"][1]["tool_calls"][0]["function"] = {"name": "weather", **given}
    assert '"name": "weather", "arguments": {}}' in text_of(tmp_path, tokenizer, row)


@pytest.mark.parametrize("written_as", ["{{ m.content }}", "{{ m.content | string }}"])
def test_data_is_given_as_json_with_the_nulls_that_were_written(tmp_path, tokenizer, written_as):
    name = "{{ m.tool_calls[0].function if m.tool_calls }}"
    tokenizer.chat_template = f"{{% for m in messages %}}{name}{written_as}|{{% endfor %}}"
    row = {"messages": called({"city": "Paris"})["messages"]}
    row["messages"][2]["content"] = {"degrees": [5, "hazel", None]}
    assert '|{"degrees": [5, "hazel", null]}|' in text_of(tmp_path, tokenizer, row)
    tokenizer.chat_template = TEMPLATES["qwen2.5"]
    text = text_of(tmp_path, tokenizer, called({"city": "Paris", "days": None}))
    assert '{"city": "Paris", "days": null}' in text


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
    calls = [{**CALL, "id": id_} if id_ else CALL for id_ in ids]
    results = [
        {"role": "tool", "content": word} | ({"tool_call_id": id_} if id_ else {})
        for word, id_ in zip(("five", "six"), ids, strict=True)
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
    objects = {name for name, kind in wanted.items() if kind == "object"}
    assert objects == {"qwen2.5", "glm", "mistral", "llama3", "llama4", "gpt-oss", "granite"}
    assert {n for n, kind in wanted.items() if kind == "text"} == {"deepseek-v3", "hunyuan"}
    takes = {name: content_taken(template, known, "user") for name, template in TEMPLATES.items()}
    assert [name for name, take in takes.items() if take == "parts"] == ["minimax"]
    assert {n for n, take in takes.items() if take == "any"} == {"glm", "llama4", "kimi"}
