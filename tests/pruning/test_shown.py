"""What the objects of the Python interface say of themselves, in a console and a notebook."""

from dataclasses import replace
from html.parser import HTMLParser

import pytest

from analysis.files.shipped import SHIPPED_STATS
from analysis.model.moe_model import ModelRef
from pruning import Model
from pruning.records.evaluation import EvaluationStore
from pruning.surgery.checks import Check
from pruning.surgery.verify import Level, VerifyReport

HOSTILE = "<script>alert(1)</script>\n\x1b[2J"


@pytest.fixture(scope="module")
def model():
    return Model("demo")


@pytest.fixture(scope="module")
def plan(model):
    return model.plan("reap", "demo-math", sparsity="50%")


@pytest.fixture(scope="module")
def evaluation():
    records = EvaluationStore((SHIPPED_STATS,)).records()
    return next(record for record in records if record.record_id.startswith("demo-reap-"))


class Tags(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.names, self.texts = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.names.append(tag)

    def handle_data(self, data):
        self.texts.append(data)


def test_each_says_what_it_is(model, plan, evaluation):
    assert repr(model) == (
        "Model(name='demo', sparse_layers=6, experts_per_layer='32', experts_per_token='4', "
        "size='10.3 MiB')"
    )
    assert repr(plan).startswith("PruningPlan(model='demo', criterion='reap', corpora='demo-math'")
    assert "experts_kept='96 in 6 layers'" in repr(plan)
    assert plan.digest[:8] in repr(plan)
    increase = evaluation.metrics["nll"].mean - evaluation.full["nll"].mean
    assert f"loss_increase='{increase:+.4f}'" in repr(evaluation)
    assert f"corpus={evaluation.corpus['name']!r}" in repr(evaluation)
    for subject in (model, plan, evaluation):
        assert str(subject) == repr(subject)


def test_a_notebook_shows_the_same_facts_as_a_table(model, plan, evaluation):
    for subject in (model, plan, evaluation, model.rank("reap", "demo-math")):
        page = Tags(subject._repr_html_())
        assert set(page.names) == {"table", "caption", "tbody", "tr", "th", "td"}
        assert page.texts[0] == repr(subject).partition("(")[0]
        assert "demo" in page.texts


def test_names_of_files_are_text(plan, evaluation):
    odd = replace(plan, model=ModelRef(HOSTILE, plan.model.identity))
    elsewhere = evaluation.model_copy(update={"corpus": {**evaluation.corpus, "name": HOSTILE}})
    for subject in (odd, elsewhere):
        assert not {"\n", "\x1b"} & set(repr(subject))
        page = Tags(subject._repr_html_())
        assert "script" not in page.names
        assert HOSTILE in page.texts


def test_a_verification_names_what_failed():
    checks = (Check("sizes", ok=True, detail="7 bytes"), Check("load", ok=False, detail=HOSTILE))
    failed = VerifyReport(Level.LOAD, "", checks)
    assert repr(failed).startswith("VerifyReport(ok=False, level='load', checks=2, failed='load: ")
    page = Tags(failed._repr_html_())
    assert page.texts[1:5] == ["ok", "no", "level", "load"]
    assert "script" not in page.names
    assert "failed='none'" in repr(replace(failed, checks=checks[:1]))
