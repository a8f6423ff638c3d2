"""The one-page report for people who decide: its numbers by hand, its words, the ways to it."""

import json
import re
from dataclasses import replace
from statistics import fmean

import pytest
from page_texts import unfolded
from shipped import shipped_loss

from analysis.files.shipped import SHIPPED_STATS
from analysis.foreign_text import in_markdown
from analysis.model.opening import load_model_index
from app.loaded import CurrentPlan
from app.report.decision import (
    AnswerPair,
    answer_pair,
    decision_html,
    decision_of,
    row_of,
)
from pruning.measures.right_answers import RightAnswers
from pruning.plan.heads import HeadPlan
from pruning.plan.plan import Repair, fit_plan, keep_all
from pruning.plan.plan_file import plan_from_dict
from pruning.plan.sizes import format_bytes, size_report
from pruning.records.cost import cost_of
from pruning.records.kept_answers import AnswerStore
from pruning.records.plan_facts import PlanFacts
from pruning.records.quality import PlanLoss
from pruning.records.verdict import Light, Reason, ShipVerdict
from pruning.surgery.card import model_card


@pytest.fixture(scope="module")
def model():
    return load_model_index("demo")


@pytest.fixture(scope="module")
def shown(model):
    kept = {str(layer): list(range(16)) for layer in range(6)}
    return CurrentPlan(plan_from_dict({**keep_all(model).to_dict(), "kept": kept}), file="a.json")


def loss(plan, criterion, change, corpora=("a", "b"), **repair):
    kind = {"schedule": "uniform", "granularity": "expert"}
    facts = PlanFacts(criterion=criterion, removed=0.5, **kind, **repair)
    full = {"a": 2.0, "b": 1.0}
    samples = {name: {"num_documents": 4} for name in "ab"}
    return PlanLoss(change, plan, facts, "", corpora, full, {}, samples, 8, "2026-01-02T03:04:05")


DRAWS = [
    loss("draw 1", "random", {"a": 1.0, "b": 1.0}),
    loss("draw 2", "random:2", {"a": 2.0, "b": 0.0}),
]


def test_a_repaired_plan_says_so_beside_random_without_a_repair(model, shown):
    repair = Repair("r", "d", ("a", "b"), 4096)
    fitted = replace(shown, plan=replace(shown.plan, repair=repair))
    page = decided(model, fitted, {"a": 0.25, "b": 0.75}, repair="r", repaired_on=("a", "b"))
    assert page.name == "a.json (repaired on 4,096 tokens)"
    assert page.facts["Repair"] == "fitted on 4,096 tokens of a, b"
    assert page.facts["Random"] == "2 draws, mean, without repair"
    assert "less than Random pruning without repair at this sparsity" in page.verdict
    html = decision_html(page)
    assert "benchmarks of your own tasks decide. Speed was not measured." in html
    assert "fitted on 4,096 tokens of a, b" in html
    # The loss of the plan without its repair is another plan's.
    assert not decided(model, shown, {"a": 1.0, "b": 1.0}).facts.get("Repair")


def test_report_and_card_say_how_many_documents_the_loss_is_of(model, shown):
    page = decided(model, shown, {"a": 0.25, "b": 0.75})
    assert page.facts["Measured"].startswith("at least 8 samples of 4 documents of each held-out")
    plan = fit_plan(shown.plan, model)
    losses = [loss(plan.digest, "reap", {"a": 0.25, "b": 0.75}), *DRAWS]
    card = model_card(model, plan, HeadPlan(), cost=cost_of(plan, losses)).decode()
    assert "on 8 samples of 4 documents or more of each corpus" in " ".join(card.split())


def test_report_and_card_say_how_many_answers_are_right(model, shown):
    plan = fit_plan(shown.plan, model)

    def answered(right, of):
        facts = {"check": "number", "answer_tokens": 8, "stops": (), "digest": "d", "left_out": 0}
        facts |= {"full_right": (1, 1, 1, 0), "unfinished": 0, "full_unfinished": 0}
        return replace(of, right={"<a>": RightAnswers(right=right, **facts)})

    own = answered((1, 0, 1, 0), loss(plan.digest, "reap", {"a": 0.25, "b": 0.75}))
    draws = [answered((0, 0, 0, 0), DRAWS[0]), answered((1, 0, 0, 0), DRAWS[1])]
    # Wilson, z^2 / 4 = 0.96: (0.5 + 0.48 -+ sqrt(0.96 (0.25 + 0.24))) / 1.96, and so of 0.75.
    words = r"50% \[15, 85\] of 4 questions, original 75% \[30, 95\], Random 12% \(2 draws\)"
    page = decision_of(model, shown, 1, [own, *draws], "moeprune plan")
    html = " ".join(decision_html(page).split())
    assert re.search(rf"<h2>Right answers</h2> <ul> <li>&lt;a&gt;: {words}</li> </ul>", html)
    lines = (
        model_card(model, plan, HeadPlan(), cost=cost_of(plan, [own, *draws])).decode().splitlines()
    )
    assert f"- {in_markdown(f'<a>: {page.right[0].words}')}" in lines
    unasked = decision_of(model, shown, 1, [loss(plan.digest, "reap", {"a": 0.25}), *DRAWS], "")
    assert "Right answers" not in decision_html(unasked)


@pytest.mark.parametrize(
    ("before", "words"),
    [
        # Means 0.5 and 1: a half came back; b is worse by 0.05.
        ({"a": 1.3, "b": 0.7}, "The repair gave back 50% of +1.00; on b it does harm."),
        ({"a": 0.3, "b": 0.8}, "The repair gave back 9% of +0.55."),
        (
            {"a": 0.0, "b": 0.8},
            "it was +0.40 without; on a it does harm.",
        ),
        ({"a": 0.3}, ""),  # not measured on b: no comparison
    ],
)
def test_a_repair_is_judged_by_the_same_plan_without_it(model, shown, before, words):
    repair = Repair("r", "d", ("a", "b"), 4096)
    fitted = replace(shown, plan=replace(shown.plan, repair=repair))
    draws = [*DRAWS, loss(shown.plan.digest, "reap", before)]
    change = {"a": 0.25, "b": 0.75}
    verdict = decided(model, fitted, change, draws, repair="r", repaired_on=("a", "b")).verdict
    assert ("The repair" in verdict) == bool(words)
    assert words in verdict


def decided(model, shown, change, draws=DRAWS, **said):
    losses = [loss(shown.plan.digest, "reap", change, **said), *draws]
    return decision_of(model, shown, model.checkpoint.nbytes // 2, losses, "moeprune plan")


def test_the_numbers_are_those_of_hand_arithmetic(model, shown):
    # Random: 1.5 on a, 0.5 on b; means 1 and 1. Its worst is that of the rows, a.
    page = decided(model, shown, {"a": 0.25, "b": 0.75})
    rows = {row.name: (row.full, row.plan, row.random) for row in page.rows}
    assert rows == {
        "b": (1.0, 0.75, 0.5),
        "a": (2.0, 0.25, 1.5),
        "mean": (None, 0.5, 1.0),
        "worst": (None, 0.75, 1.5),
    }
    assert page.change == "-50%"
    assert page.verdict == (
        "It adds +0.50 nats per token on average over 2 corpora, most on b (+0.75). That is less "
        "than Random pruning at this sparsity (+1.00, 2 draws); on b it loses more than Random."
    )


@pytest.mark.parametrize(
    ("change", "draws", "said", "words"),
    [
        ({"a": 2.0, "b": 2.0}, DRAWS, {}, "more than Random pruning"),
        # The draws' means are 1 and 2, 0.71 apart from 1.5.
        (
            {"a": 1.5, "b": 1.0},
            [DRAWS[0], loss("draw 2", "random:2", {"a": 2.0, "b": 2.0})],
            {},
            "indistinguishable from Random",
        ),
        ({"a": 1.0, "b": 1.0}, [], {}, "Random pruning at this sparsity was not measured"),
        ({"a": 1.0}, DRAWS, {}, "not measured on b"),
    ],
)
def test_the_verdict_says_what_is_known(model, shown, change, draws, said, words):
    assert words in decided(model, shown, change, draws, **said).verdict


def test_the_page_has_the_verdict_with_every_reason(model, shown):
    page = decided(model, shown, {"a": 0.2, "b": 0.2})
    assert "ship" not in decision_html(page).partition("<main>")[2]
    reasons = (Reason("Size", Light.GREEN, "a < b"), Reason("Quality", Light.RED, "bad", "worse"))
    html = decision_html(replace(page, ship=ShipVerdict(reasons)))
    assert '<div class="ship red"><strong>Do not ship: worse</strong>' in html
    assert '<li class="green">Size (green): a &lt; b</li>' in html
    assert '<li class="red">Quality (red): bad</li>' in html


def test_a_page_of_a_plan_that_grows_the_model_says_by_how_much(model, shown):
    size = model.checkpoint.nbytes
    page = decision_of(model, shown, size + 2048, DRAWS, "moeprune plan")
    assert "(larger than the original by 2 KiB)" in decision_html(page)


def test_a_plan_that_was_not_measured_says_so(model, shown):
    page = decision_of(model, shown, 1, DRAWS, "moeprune plan")
    assert page.rows == ()
    assert "has not been measured" in page.verdict


def test_the_page_runs_and_fetches_nothing_and_names_are_text(model, shown):
    answers = AnswerPair("<b>2 + 2?</b>", "4", "five " * 200)
    page = replace(decided(model, shown, {"a": 0.25, "b": 0.75}), answers=answers)
    written = decision_html(page)
    assert "&lt;b&gt;2 + 2?&lt;/b&gt;" in written
    assert "default-src 'none'" in written
    assert "A nat is the unit of loss" in written
    assert not re.search(r"<script|src=|href=", written)
    assert "five " * 200 not in written


def test_the_answers_are_the_newest_of_this_plan(shown):
    (known, *_) = AnswerStore([SHIPPED_STATS]).records(load_model_index("demo").identity)

    def told(digest, text, at):
        answers = [
            answer.model_copy(update={"text": word})
            for answer, word in zip(known.answers, ("4", text), strict=True)
        ]
        made = known.made | {"created_at": at}
        update = {"plan_digest": digest, "prompt": "2 + 2?", "answers": answers, "made": made}
        return known.model_copy(update=update)

    digest = shown.plan.digest
    records = [
        told(digest, "five", "2026-02-01"),
        told(digest, "four", "2026-01-01"),
        told("x", "six", "2026-03-01"),
    ]
    assert answer_pair(records, digest) == AnswerPair("2 + 2?", "4", "five")
    assert answer_pair(records, "other") is None


def test_a_page_with_a_plan_offers_it(open_page, go_to):
    test = open_page("evaluate", criterion="")
    unfolded(test, "report.part")
    assert "report.decision" not in [button.key for button in test.get("download_button")]
    test.segmented_control(key="beta").set_value(1).run()
    for page in ("evaluate", "start"):
        keys = [button.key for button in go_to(test, page).get("download_button")]
        assert "report.decision" in keys


def test_the_command_writes_it(run, tmp_path):
    run("moeprune plan demo --criterion reap --calibrated-on demo-code --sparsity 50% -o plan.json")
    printed = run("moeprune report demo --plan plan.json -o decision.html")
    mean = fmean(shipped_loss("reap", "demo-code").values())
    assert f"10.3 MiB -> 6.3 MiB (-39.1%). It adds {mean:+.2f} nats per token" in printed
    written = (tmp_path / "decision.html").read_text()
    assert "REAP, demo-code, 50%" in written
    assert str(tmp_path) not in written


def test_the_page_of_two_plans_has_the_numbers_of_both(model, tmp_path, run):
    """Of files, by the command: sizes from the plans, losses from the shipped records."""
    run("moeprune plan demo --criterion reap --calibrated-on demo-code --sparsity 50% -o a.json")
    run("moeprune plan demo --criterion man --calibrated-on demo-math --sparsity 25% -o b.json")
    run("moeprune report demo --plan a.json -o alone.html")
    assert "This plan and another" not in (tmp_path / "alone.html").read_text()
    run("moeprune report demo --plan a.json --with-plan b.json -o both.html")
    page = (tmp_path / "both.html").read_text()
    table = page.partition("This plan and another")[2].partition("</table>")[0]
    a, b = re.findall(r"<tr><td.*?</tr>", table, flags=re.S)
    added = shipped_loss("reap", "demo-code")
    assert f"<td>{fmean(added.values()):+.2f}</td>" in a
    worst = max(added, key=added.get)
    assert f"<td>{added[worst]:+.2f}, {worst}</td>" in a
    for row, file in ((a, "a.json"), (b, "b.json")):
        plan = fit_plan(plan_from_dict(json.loads((tmp_path / file).read_text())), model)
        assert plan.digest[:8] in row
        assert f"<td>{format_bytes(size_report(model, plan).bytes_after)} (-" in row
    # The verdict of the first is the one above, in its words.
    above = re.search(r'<div class="ship \w+"><strong>(.*?)</strong>', page)[1]
    assert f'<td class="words">{above}</td>' in a


def test_a_plan_that_was_not_measured_says_so_beside_the_other(model, shown):
    page = decided(model, shown, {"a": 0.25, "b": 0.75})
    losses = [loss(fit_plan(shown.plan, model).digest, "reap", {"a": 0.25, "b": 0.75}), *DRAWS]
    other = CurrentPlan(keep_all(model), file="<b>.json")
    rows = tuple(
        row_of(model, plan, size, losses, None)
        for plan, size in ((shown, page.after), (other, page.before))
    )
    table = decision_html(replace(page, plans=rows)).partition("This plan and another")[2]
    assert "+0.50" in table
    assert "&lt;b&gt;.json" in table
    assert '<td colspan="2">not measured</td>' in table
    # In another way, and not on all corpora: both are said, or the one that holds.
    way, missing = {"way": "in 4 bits"}, {"corpora": ("a", "b", "c", "d")}
    in_way, without = "in another way than most plans: in 4 bits", "without c, d"
    for more, words in (
        (way, f" {in_way}<"),
        (missing, f" {without}<"),
        (way | missing, f" {in_way}, and {without}<"),
    ):
        first = replace(rows[0], loss=replace(rows[0].loss, **more))
        html = decision_html(replace(page, plans=(first, rows[1])))
        assert f"{rows[0].digest} was measured{words}" in html
