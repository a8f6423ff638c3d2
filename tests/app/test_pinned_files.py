"""Pinned plans of files: kept by their content, opened by the URL alone, compared, refused."""

import os
import stat
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from page_texts import bar_of, sides, table_with, texts, upload

from analysis.errors import PlanError
from analysis.model.opening import load_model_index
from app.session import plan_files
from app.session.data import settings
from app.session.pins import parse_pin
from app.session.plan_files import content_of, keep_plan, kept_plan
from pruning.plan.plan import Provenance, keep_all, with_top_k
from pruning.planning.comparing import order_asked_of

REAP = "plan=d225968c&model=demo&criterion=reap&corpora=demo-code&sparsity=50%25"


def taus(test):
    """Kendall's tau of both orders, and its range over the layers."""
    return [(card.value, card.delta) for card in test.metric if card.label == "Kendall tau"]


@pytest.fixture
def file_plan(session):
    """A plan that no controls make, as `moeprune plan` writes it: two experts changed places."""
    made = session(criterion="ean", corpora="demo-code", sparsity="25%")
    plan = made.session_state["loaded"].shown.plan
    gone, last = next(n for n in range(32) if n not in plan.kept[2]), plan.kept[2][-1]
    kept = tuple(sorted({*plan.kept[2]} - {last} | {gone}))
    return replace(plan, kept={**plan.kept, 2: kept})


def test_a_plan_of_a_file_is_pinned_with_its_file_and_opens_where_the_url_alone_is(
    open_page, file_plan
):
    own = open_page("compare", criterion="reap", corpora="demo-code")
    upload(own, "mine.json", file_plan.to_json())
    assert file_plan.digest[:8] in bar_of(own)
    own.button(key="plan.pin").click().run()
    assert not own.exception
    assert own.button(key="plan.pin").label == "Unpin"
    (text,) = own.session_state["pinned"]
    (kept,) = (settings().state_dir / "plans").iterdir()
    assert kept.read_text() == file_plan.to_json()
    assert parse_pin(text).content == kept.stem == sha256(kept.read_bytes()).hexdigest()
    other = open_page("compare", criterion="magnitude", sparsity="10%", pinned=text)
    linked = open_page("compare", file="mine.json", pinned=text)
    assert any(
        "mine.json, which is pinned: open it on Compare" in it for it in texts(linked.warning)
    )
    row = table_with(other, "verdict").iloc[0]
    assert (row["plan"], row["digest"]) == ("mine.json", file_plan.digest[:8])
    assert f"**{row['size']:.1f} MiB**" in bar_of(own)
    # As the second plan, in the words of the command that takes the file.
    other.selectbox(key="baseline").set_value(parse_pin(text).name).run()
    assert not other.exception
    assert sides(other) == {file_plan.digest[:8]: "B"}
    assert any("--with-plan mine.json" in code for code in texts(other.code))
    (tau,) = taus(other)
    # Swapped, it is on screen whole, and what was there is pinned in its place.
    other.button(key="swap").click().run()
    assert not other.exception
    # Each is in its own order, by EAN and by Magnitude, on whichever side it is.
    assert taus(other) == [tau]
    assert float(tau[0]) < 0.9
    # `compare` takes no file as its first plan.
    assert not any("moeprune compare" in code for code in texts(other.code))
    assert f"**mine.json** `{file_plan.digest[:8]}`" in bar_of(other)
    assert sorted(sides(other).values()) == ["A", "B"]
    assert sides(other)[file_plan.digest[:8]] == "A"
    other.button(key="swap").click().run()
    assert sides(other)[file_plan.digest[:8]] == "B"


def test_a_pinned_file_that_is_gone_or_changed_is_one_line(open_page, file_plan):
    keep_plan(file_plan)
    content = content_of(file_plan)
    (kept,) = (settings().state_dir / "plans").iterdir()
    pin = f"plan={file_plan.digest[:8]}&model=demo&criterion=reap&file=a*b.json&content={content}"
    assert list(table_with(open_page("compare", pinned=pin), "verdict")["plan"]) == ["a*b.json"]
    for damage in (lambda: kept.write_text(file_plan.to_json() + " "), kept.unlink):
        damage()
        test = open_page("compare", pinned=pin)
        (line,) = (text for text in texts(test.warning) if "cannot be made" in text)
        assert "does not keep its file any more, or never had it" in line


@pytest.mark.parametrize(
    "named",
    [
        "file=a.json",
        "content=" + "0" * 64,
        "file=a.json&content=..%2F..%2Fjobs",
        "file=a.json&content=" + "0" * 63 + "%0A",
        "file=a.json&content=" + "A" * 64,
        "file=%01&content=" + "0" * 64,  # nothing of the name is printed
    ],
)
def test_a_pin_opens_no_path(named, environment, monkeypatch):
    model = load_model_index("demo")
    monkeypatch.setattr(Path, "read_bytes", lambda path: pytest.fail(f"{path} was read"))
    with pytest.raises(PlanError, match="SHA-256"):
        parse_pin(f"{REAP}&{named}")
    content = parse_qs(named).get("content", [""])[0]
    if content != "0" * 64:  # what a pin can name is looked up
        with pytest.raises(PlanError, match="never had it"):
            kept_plan(content, model)


def test_files_that_were_not_used_for_longest_go_when_all_are_too_large(environment, monkeypatch):
    model = load_model_index("demo")
    plans = [with_top_k(keep_all(model), model, top_k) for top_k in (1, 2, 3)]
    sizes = [len(plan.to_json().encode()) for plan in plans]
    monkeypatch.setattr(plan_files, "MOST_BYTES", sizes[0] + sizes[2])
    folder = settings().state_dir / "plans"
    for age, plan in enumerate(plans[:2]):
        keep_plan(plan)
        os.utime(folder / f"{content_of(plan)}.json", (age, age))
    draft = folder / f".{content_of(plans[1])}.json.0123abcd.partial"  # its writer was killed
    draft.write_bytes(b"{")
    os.utime(draft, (2, 2))
    # As if another session deleted it after the folder was listed.
    (folder / ("0" * 64 + ".json")).symlink_to("nowhere")
    (folder / "mine.txt").write_text("not of this program")
    assert kept_plan(content_of(plans[0]), model) == plans[0]  # used: the other one goes first
    keep_plan(plans[2])
    assert kept_plan(content_of(plans[0]), model) == plans[0]
    assert kept_plan(content_of(plans[2]), model) == plans[2]
    with pytest.raises(PlanError, match="any more"):
        kept_plan(content_of(plans[1]), model)
    assert not draft.exists()
    assert (folder / "mine.txt").exists()


def test_nobody_else_on_the_machine_reads_a_kept_file(environment):
    plan = keep_all(load_model_index("demo"))
    before = os.umask(0)
    try:
        keep_plan(plan)
    finally:
        os.umask(before)
    folder = settings().state_dir / "plans"
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.iterdir())}
    assert modes == {folder: 0o700, folder / f"{content_of(plan)}.json": 0o600}


def test_a_kept_file_is_read_once_until_it_changes(environment):
    model = load_model_index("demo")
    plan = with_top_k(keep_all(model), model, 1)
    keep_plan(plan)
    first = kept_plan(content_of(plan), model)
    assert kept_plan(content_of(plan), model) is first
    path = settings().state_dir / "plans" / f"{content_of(plan)}.json"
    path.write_text("{}")
    with pytest.raises(PlanError, match="any more"):
        kept_plan(content_of(plan), model)


def test_a_pinned_file_with_a_digest_of_another_says_that_the_link_was_edited(open_page, file_plan):
    keep_plan(file_plan)
    named = f"model=demo&criterion=reap&file=a.json&content={content_of(file_plan)}"
    test = open_page("compare", pinned=f"plan=01234567&{named}")
    (line,) = (text for text in texts(test.warning) if "makes plan" in text)
    assert line.startswith(f"`01234567` makes plan `{file_plan.digest[:8]}` now: its file")
    assert "the link was edited" in line
    assert "statistics" not in line


def test_a_state_folder_that_cannot_be_written_pins_nothing(open_page, file_plan):
    test = open_page("compare", criterion="reap", corpora="demo-code")
    upload(test, "mine.json", file_plan.to_json())
    settings().state_dir.mkdir(exist_ok=True)
    (settings().state_dir / "plans").write_text("no folder")
    test.button(key="plan.pin").click().run()
    (toast,) = test.toast
    assert toast.value.startswith("The state folder of this server cannot keep the file: ")
    assert "pinned" not in test.session_state


def test_a_plan_of_a_file_without_a_criterion_cannot_be_the_second(open_page):
    model = load_model_index("demo")
    kept = {layer.index: tuple(range(8)) for layer in model.layers}
    test = open_page("compare", criterion="ean", pinned=REAP)
    test.selectbox(key="baseline").set_value(parse_pin(REAP).name).run()
    assert not test.button(key="swap").disabled
    upload(test, "mine.json", replace(keep_all(model), kept=kept).to_json())
    assert test.button(key="swap").disabled
    assert "mine.json" in bar_of(test)
    test.button(key="plan.pin").click().run()
    test.selectbox(key="baseline").set_value(parse_pin(test.session_state["pinned"][1]).name).run()
    assert not test.exception
    assert any("does not say which criterion ordered" in text for text in texts(test.warning))


@pytest.mark.parametrize("ranking", ["x", None, ["reap"], {}, {"criterion": ["reap"]}])
def test_a_file_whose_spec_was_written_by_hand_is_no_second_plan_and_breaks_no_page(
    open_page, environment, ranking
):
    model = load_model_index("demo")
    kept = {layer.index: tuple(range(8)) for layer in model.layers}
    strange = Provenance(criterion="reap", spec={"ranking": ranking})
    plan = replace(keep_all(model), kept=kept, provenance=strange)
    with pytest.raises(PlanError):
        order_asked_of(plan, model)
    if ranking != "x":
        return
    test = open_page("compare", criterion="ean", pinned=REAP)
    upload(test, "mine.json", plan.to_json())
    test.button(key="plan.pin").click().run()
    test.selectbox(key="baseline").set_value(parse_pin(test.session_state["pinned"][1]).name).run()
    assert not test.exception
    assert any("second plan cannot be made" in text for text in texts(test.warning))
