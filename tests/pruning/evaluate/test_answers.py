"""Answers of masked models against greedy decoding of physically pruned ones."""

from types import MappingProxyType

import pytest
import torch
from nonuniform_cases import NAMED, keeps_of, plan_of
from oracles import greedy

from analysis.drain import drain
from analysis.errors import CorpusError
from analysis.families.listing import FAMILIES
from analysis.model.moe_model import ModelRef
from families.physical import logits_of, physically_pruned
from families.tiny_models import tiny_model
from pruning.engine.answers import Question, has_chat_format, prompt_ids, run_answers

CASE = NAMED["mixtral"]
PLAN = plan_of(ModelRef("tiny", "00" * 32), CASE, keeps_of(CASE))
PROMPT = [5, 17, 40, 3]


class Words:
    eos_token_id = None
    special_tokens_map = MappingProxyType({"bos_token": "1"})

    def encode(self, text, *, add_special_tokens):
        return [int(word) for word in text.split()]

    def get_chat_template(self):
        return "{{ bos_token }} {{ messages[0].content }}{{ ' 2' if add_generation_prompt }}"

    def decode(self, token_ids, *, skip_special_tokens):
        return " ".join(map(str, token_ids))


class Plain(Words):
    def __init__(self, error):
        self.error = error

    def get_chat_template(self):
        raise self.error("no template")


def test_each_model_continues_greedily():
    model = tiny_model(CASE)
    model.generation_config.eos_token_id = None
    before = logits_of(model)
    plans = [None, PLAN, None]
    family = FAMILIES[CASE.model_type]
    question = Question(PROMPT, Words(), max_new_tokens=8)
    full, pruned, again = drain(run_answers(model, family, plans, question))
    assert list(full.ids) == greedy(model, PROMPT, 8)
    assert list(pruned.ids) == greedy(physically_pruned(model, CASE, PLAN.kept), PROMPT, 8)
    same = [a == b for a, b in zip(full.ids, pruned.ids, strict=True)]
    assert pruned.agreed == same.index(False)
    assert (full.agreed, again.agreed, again.ids) == (8, 8, full.ids)
    assert full.text == " ".join(map(str, full.ids))
    assert torch.equal(logits_of(model), before)


def test_an_answer_may_end_early():
    model = tiny_model(CASE)
    first = greedy(model, PROMPT, 1)[0]
    model.generation_config.eos_token_id = [first, 2]
    family, question = FAMILIES[CASE.model_type], Question(PROMPT, Words(), 20)
    (answer,) = drain(run_answers(model, family, [None], question))
    assert answer.ids == (first,)


def test_a_prompt_is_a_turn_where_there_is_a_format():
    assert has_chat_format(Words())
    assert not has_chat_format(Plain(ValueError))
    assert not has_chat_format(Plain(NotImplementedError))
    assert prompt_ids(Words(), "7 8", as_chat=True) == [1, 7, 8, 2]
    assert prompt_ids(Words(), "7 8", as_chat=False) == [7, 8]
    with pytest.raises(CorpusError, match="prompt is empty"):
        prompt_ids(Words(), "", as_chat=False)
