"""What the palette offers, where it leads, and which keys there are."""

import json
import re
from pathlib import Path

import pytest
from page_texts import ALL_CORPORA, loaded_on

from app.components import palette as component
from app.components.palette import KEYS
from app.pages.listing import PAGES
from app.widgets import palette
from pruning.records.quality import loss_of

PIN = "plan=d225968c&model=demo&criterion=reap&corpora=demo-code&sparsity=50%25"
PIN_OF_NEURONS = "plan=00000000&model=demo&granularity=neuron&sparsity=25%25"
NO_PIN = ("pinned plan", "plan:00000000")
# As the scripts call a key that the list names.
NAMES = {"Up": "ArrowUp", "Down": "ArrowDown", "Left": "ArrowLeft", "Right": "ArrowRight"}
READ_BY = {
    "Expert map": "expert_map",
    "Bars of the plan": "schedule_editor",
    "Tokens of a text": "token_text",
    "Everywhere": "palette",
    "Story": "focus",
}


def offered(test):
    [data] = [part.proto.json for part in test.get("bidi_component") if part.key == palette.KEY]
    return json.loads(data)


@pytest.mark.parametrize("where", READ_BY)
def test_the_list_names_keys_that_the_scripts_read(where):
    folder = Path(component.__file__).parents[1] / READ_BY[where]
    script = "".join(path.read_text() for path in folder.rglob("*.js"))
    for keys in KEYS[where]:
        for key in re.split(r", |\+", keys):
            name = NAMES.get(key, "ArrowLeft" if key == "Arrow keys" else key.replace(" ", ""))
            name = {"Ctrl": "ctrlKey"}.get(name, name)
            if (where, name) != ("Everywhere", "Escape"):  # the browser's
                assert is_read(name, script), name


def is_read(key, script):
    """Whether a script has a key in quotes, in either case, or as a name in a table."""
    if key == "ctrlKey":
        return "event.ctrlKey" in script
    if len(key) > 1 and re.search(rf"\b{key}:", script):
        return True
    return f'"{key}"' in script or f'"{key.lower()}"' in script


def test_a_key_that_no_script_reads_is_none():
    script = (Path(component.__file__).parent / "browser" / "palette.js").read_text()
    assert "L" in script  # but in words alone
    assert not is_read("L", script)
    assert not is_read("?", script.replace('event.key === "?"', "event.key"))


def test_the_palette_offers_what_there_is(open_page):
    data = offered(open_page("explore"))
    assert [name for name, _ in data["pages"]] == [*PAGES]
    assert data["layers"] == [[layer, 32] for layer in range(6)]
    assert ["man", "MAN  (1, 0, 1)"] in data["criteria"]
    assert data["plans"] is None
    assert data["pins"] == []
    pinned = offered(open_page("explore", criterion="ean", pinned=[PIN, PIN_OF_NEURONS]))
    names = [["plan:d225968c", "REAP, demo-code, 50% (pinned d225968c)"]]
    assert pinned["pins"][:1] == names
    assert [name for name, _ in pinned["pins"]] == ["plan:d225968c", "plan:00000000"]
    neurons = offered(open_page("explore", granularity="neuron"))
    assert ["camera-p", "CAMERA-P"] in neurons["criteria"]


def test_an_entry_leads_where_it_says(open_page, monkeypatch):
    loaded = loaded_on(open_page("explore", criterion="ean", corpora=ALL_CORPORA))
    pages, session = frozenset(PAGES), {}
    before = (palette.KEY, "pinned")
    monkeypatch.setattr(palette.st, "session_state", session)

    def pick(kind, value):
        session.clear()
        session.update({palette.KEY: {"pick": {"kind": kind, "value": value}}, "pinned": (PIN,)})
        palette._go(loaded, pages)
        return {name: value for name, value in session.items() if name not in before}

    assert pick("page", "plan") == {"page.asked": "plan"}
    assert pick("expert", "3.7") == {"expert": "3.7", "page.asked": "expert"}
    assert pick("criterion", "msan") == {"criterion": "unified", "b": 1, "alpha": 0, "beta": 2}
    opened = pick("pinned plan", "plan:d225968c")
    assert [opened[name] for name in ("b", "alpha", "beta")] == [1, 1, 1]  # REAP
    assert (opened["corpus"], opened["sparsity"]) == ("demo-code", 50)
    plans = palette._plans(loaded)
    # Any of them is shown as it was measured.
    for digest in list(plans)[:: len(plans) // 6]:
        controls = pick("plan", digest)
        loss = loss_of(loaded.study.losses, digest)
        assert plans[digest].endswith(f"loss {loss.mean:+z.2f}")
        assert controls["granularity"] == loss.facts.granularity
        assert controls["sparsity"] / 100 == pytest.approx(loss.facts.removed or 0, abs=0.26)
    # What was not offered leads nowhere.
    others = [("page", "../x"), ("expert", "9.9"), ("criterion", "<b>"), ("x", "plan"), NO_PIN]
    for kind, value in others:
        assert pick(kind, value) == {}
