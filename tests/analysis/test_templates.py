"""Chat templates are rendered as transformers renders them, in a process with limits."""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import jinja2
import numpy as np
import pytest

from analysis.calibration.loading import load_tokenizer
from analysis.corpora.documents import Document
from analysis.corpora.encoding import TextReader, encode
from analysis.corpora.templates import Limits, render
from analysis.corpora.tokens import ChatFormat
from analysis.errors import CorpusError
from analysis.model.opening import load_model_index
from pruning.engine.answers import prompt_ids

TALK = (
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "How? \ud800 \u2028 caf\u00e9 \U0001f600", "name": None},
    {"role": "assistant", "content": "So.", "reasoning": "Hm."},
    {"role": "user", "content": [{"type": "text", "text": "And <|end|>?"}]},
    {"role": "assistant", "content": "Yes.", "score": 1.5, "at": datetime(2024, 1, 1, tzinfo=UTC)},
)
PLAIN = (*TALK[:1], {"role": "user", "content": "How? caf\u00e9 \U0001f600"}, TALK[2])
MARKED = (
    "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}"
    "{% generation %} {{ m.content }}{{ eos_token }}{% endgeneration %}"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
)
TEMPLATES = {
    "all": "{{ messages }} {{ bos_token }}{{ eos_token }} {{ tools }}{{ documents }}{{ thinking }}",
    "marked": MARKED,
    "filters": "{% for m in messages %}{{ m | tojson }}{{ m.thinking }}{% endfor %}",
    "namespace": "{% set n = namespace(k=0) %}{% for m in messages %}{% set n.k = n.k + 1 %}"
    "{% if n.k > 1 %}{% break %}{% endif %}{% endfor %}{{ n.k }}{{ dict(a=1) }}",
}


@pytest.fixture
def tokenizer():
    return load_tokenizer(load_model_index("demo"))


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("options", [{}, {"add_generation_prompt": True}, {"thinking": False}])
def test_text_is_that_of_transformers(tokenizer, name, options):
    options = {**options, "tools": [{"name": "look"}], "documents": [{"title": "a", "text": "b"}]}
    tokenizer.add_special_tokens({"bos_token": "<|user|>"})
    tokenizer.chat_template = TEMPLATES[name]
    expected = tokenizer.apply_chat_template(list(TALK), tokenize=False, **options)
    template, variables = tokenizer.get_chat_template(), tokenizer.special_tokens_map
    assert render(template, TALK, variables, **options).text == expected


def test_a_final_message_is_continued_as_by_transformers(tokenizer):
    expected = tokenizer.apply_chat_template(
        list(PLAIN[1:]), tokenize=False, continue_final_message=True
    )
    options = {"add_generation_prompt": False, "continue_final_message": True}
    assert TextReader(tokenizer, "a").format(PLAIN[1:], **options).text == expected


@pytest.mark.parametrize("name", ["marked", "all", "filters"])
def test_ids_and_answers_are_those_of_transformers(tokenizer, name):
    tokenizer.chat_template = TEMPLATES[name]
    encoding = tokenizer.apply_chat_template(list(PLAIN), return_dict=True)
    document = Document(messages=PLAIN)
    assert encode(document, tokenizer, ChatFormat(), "a").ids.tolist() == encoding["input_ids"]
    if name == "marked":
        encoding = tokenizer.apply_chat_template(
            list(PLAIN), return_dict=True, return_assistant_tokens_mask=True
        )
        tokens = encode(document, tokenizer, ChatFormat("response"), "a")
        assert tokens.ids.tolist() == encoding["input_ids"]
        assert tokens.counted.tolist() == np.array(encoding["assistant_masks"], bool).tolist()
        assert 0 < tokens.counted.sum() < len(tokens.ids)
    turn = [{"role": "user", "content": "How?"}]
    asked = tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=True)
    assert prompt_ids(tokenizer, "How?", as_chat=True) == asked["input_ids"]


LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
SHORT, SMALL = Limits(seconds=0.3, memory=1 << 32), Limits(seconds=60, memory=1 << 28)


@pytest.mark.parametrize(
    ("template", "limits", "reason"),
    [
        (LOOP, SHORT, r"runs for more than 0.3 s"),
        ("{{ 9 ** (9 ** 9) }}", SHORT, r"runs for more than 0.3 s"),  # one step of the interpreter
        ("{{ 'x' * 10**10 }}", SMALL, r"takes more than 256 MiB of memory"),
        ("{% set n = namespace(x='x') %}" + "{% set n.x = n.x + n.x %}" * 40, SMALL, "of memory"),
        ("{{ 'x' * 10**7 }}", Limits(answer=1 << 20), r"writes more than 1 MiB"),
        ("{{ raise_exception('x' * 10**8) }}", Limits(), "x{1000}$"),
    ],
    ids=["loop", "power", "allocation", "doubling", "output", "long message"],
)
def test_a_template_without_end_is_refused(template, limits, reason):
    with pytest.raises((RuntimeError, jinja2.TemplateError), match=reason):
        render(template, TALK, {}, limits=limits)
    assert render("{{ messages[0].content }}", TALK, {}).text == "Be short."
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    assert [pid for pid in children if ") Z " in Path(f"/proc/{pid}/stat").read_text()] == []


def test_the_refusal_is_one_line_that_says_what_works(tokenizer):
    tokenizer.chat_template = "{{ 'x' * 10**10 }}"
    with pytest.raises(CorpusError, match=r"memory\); give a corpus of text or of input_ids.$"):
        encode(Document(messages=TALK), tokenizer, ChatFormat(), "a.jsonl")
    with pytest.raises(CorpusError, match=r"takes more than 2,048 MiB.*; ask with --raw.$"):
        prompt_ids(tokenizer, "How?", as_chat=True)


def test_threads_get_their_own_answers():
    def rendered(number):
        return render("{{ n }}{{ messages[0].content }}", TALK, {"n": number}).text

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(rendered, range(200))) == [f"{n}Be short." for n in range(200)]


def test_a_forked_process_has_its_own_worker():
    assert render("a", TALK, {}).text == "a"
    receiver, sender = os.pipe()
    if (pid := os.fork()) == 0:
        os.write(sender, render("{{ messages | length }}", TALK, {}).text.encode())
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert os.read(receiver, 9) == b"5"
    assert render("b", TALK, {}).text == "b"


PROGRAM = f"""
import json, os, sys, threading
from pathlib import Path
from analysis.corpora.templates import Limits, render
render("a", [{{"role": "user"}}], {{}})
(child,) = Path(f"/proc/self/task/{{os.getpid()}}/children").read_text().split()
modules = Path(f"/proc/{{child}}/maps").read_text()
print(json.dumps([int(child), "torch" in modules]), flush=True)
if sys.argv[1] == "busy":
    threading.Timer(0.2, print, ["busy"], {{"flush": True}}).start()
    render({LOOP!r}, [{{"role": "user"}}], {{}}, limits=Limits(seconds=1))
sys.stdin.read()
"""


@pytest.mark.parametrize("state", ["idle", "busy"])
def test_the_worker_ends_with_a_killed_program(state):
    arguments = [sys.executable, "-c", PROGRAM, state]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        child, has_torch = json.loads(program.stdout.readline())
        assert not has_torch
        if state == "busy":
            program.stdout.readline()
        program.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 60
    while Path(f"/proc/{child}").exists() and ") Z " not in Path(f"/proc/{child}/stat").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_worker_that_was_killed_is_started_again():
    assert render("a", TALK, {}).text == "a"
    # Other tests of this process may have left children of theirs.
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    commands = {child: Path(f"/proc/{child}/cmdline").read_bytes() for child in children}
    workers = [int(child) for child, words in commands.items() if b"template_worker" in words]
    assert workers
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
        os.waitid(os.P_PID, worker, os.WEXITED | os.WNOWAIT)
    assert render("b", TALK, {}).text == "b"


def test_values_without_json_are_named_as_by_transformers(tokenizer):
    odd = [{"role": "user", "content": Decimal(1), "raw": b"a"}]
    tokenizer.chat_template = "{{ messages }}"
    expected = tokenizer.apply_chat_template(odd, tokenize=False)
    assert render(tokenizer.chat_template, odd, tokenizer.special_tokens_map).text == expected
