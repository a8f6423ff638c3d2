"""What the palette offers, where it leads, and which keys there are."""

import json
import re
from pathlib import Path

import pytest
from page_texts import ALL_CORPORA, loaded_on

from app.components import expert_map, schedule_editor, token_text
from app.components import palette as component
from app.components.palette import KEYS
from app.widgets import palette
from pruning.records.quality import loss_of

PAGES = ["start", "explore", "compare", "plan", "evaluate", "export", "story", "expert"]
# As the scripts call a key that the list names.
NAMES = {"Up": "ArrowUp", "Down": "ArrowDown", "Left": "ArrowLeft", "Right": "ArrowRight"}
READ_BY = {
    "Expert map": expert_map,
    "Bars of the plan": schedule_editor,
    "Tokens of a text": token_text,
    "Everywhere": component,
}


def offered(test):
    [data] = [part.proto.json for part in test.get("bidi_component") if part.key == palette.KEY]
    return json.loads(data)


@pytest.mark.parametrize("where", READ_BY)
def test_the_list_names_keys_that_the_scripts_read(where):
    script = "".join(
        path.read_text() for path in Path(READ_BY[where].__file__).parent.rglob("*.js")
    )
    for keys in KEYS[where]:
        for key in re.split(r", |\+", keys):
            name = NAMES.get(key, "ArrowLeft" if key == "Arrow keys" else key.replace(" ", ""))
            name = {"Ctrl": "ctrlKey"}.get(name, name)
            is_read = name in script or f'"{name.lower()}"' in script
            assert is_read or (where == "Everywhere" and name == "Escape"), name  # the browser's


def test_the_palette_offers_what_there_is(open_page):
    data = offered(open_page("explore"))
    assert [name for name, _ in data["pages"]] == PAGES
    assert data["layers"] == [[layer, 32] for layer in range(6)]
    assert ["man", "MAN  (1, 0, 1)"] in data["criteria"]
    assert data["plans"] is None
    neurons = offered(open_page("explore", granularity="neuron"))
    assert ["camera-p", "CAMERA-P"] in neurons["criteria"]


def test_an_entry_leads_where_it_says(open_page, monkeypatch):
    loaded = loaded_on(open_page("explore", criterion="ean", corpora=ALL_CORPORA))
    pages, session = frozenset(PAGES), {}
    monkeypatch.setattr(palette.st, "session_state", session)

    def pick(kind, value):
        session.clear()
        session[palette.KEY] = {"pick": {"kind": kind, "value": value}}
        palette._go(loaded, pages)
        return {name: value for name, value in session.items() if name != palette.KEY}

    assert pick("page", "plan") == {"page.asked": "plan"}
    assert pick("expert", "3.7") == {"expert": "3.7", "page.asked": "expert"}
    assert pick("criterion", "msan") == {"criterion": "unified", "b": 1, "alpha": 0, "beta": 2}
    plans = palette._plans(loaded)
    # Any of them is shown as it was measured.
    for digest in list(plans)[:: len(plans) // 6]:
        controls = pick("plan", digest)
        loss = loss_of(loaded.study.losses, digest)
        assert plans[digest].endswith(f"loss {loss.mean:+z.2f}")
        assert controls["granularity"] == loss.facts.granularity
        assert controls["sparsity"] / 100 == pytest.approx(loss.facts.removed or 0, abs=0.26)
    # What was not offered leads nowhere.
    for kind, value in (("page", "../x"), ("expert", "9.9"), ("criterion", "<b>"), ("x", "plan")):
        assert pick(kind, value) == {}
