"""What a page of the dashboard shows in a test: texts, tables, command lines; and its buttons."""

import base64
import json
import shlex
import zlib
from typing import Any

import numpy as np
from streamlit.testing.v1 import AppTest
from streamlit.util import calc_hash

from app.cli import load
from app.pages.explore import MAP

# Criterion -> its scores, from the moments of the shipped files.
SCORES = {
    "reap": lambda t: (t["applied_g1_f1"] / t["num_tokens"]).fillna(0),
    "man": lambda t: (t["g0_f1"] / t["num_tokens"]).fillna(0),
    "frequency": lambda t: t["num_tokens"],
    "squared-gate-energy": lambda t: t["applied_g2_f2"],
}
# As the URL of a plan says an even blend of the demo's corpora.
ALL_CORPORA = ["demo-code", "demo-math", "demo-stories"]
# What the demo is measured on; nothing is calibrated on demo-recipes.
MEASURED_CORPORA = ["demo-code", "demo-math", "demo-recipes", "demo-stories"]


def by_hand(counts, layers=range(6)):
    """Counts as the URL of a plan says them, layers in order."""
    return [f"{layer}={count}" for layer, count in zip(layers, counts.split("."), strict=True)]


# Kind of plan -> its URL.
PLANS = {
    "unified": {
        **{"criterion": "squared-gate-energy", "gate": "renormalized", "sparsity": "25%"},
        "corpora": ["demo-code:80", "demo-stories:50"],
    },
    "rules": {
        "schedule": "frequency",
        "protect": "0",
        "multiple_of": "4",
        "corpora": "demo-stories",
    },
    "super experts": {"criterion": "aimer", "keep_super": "True", "corpora": "demo-math"},
    "shrunk": {"shrink": "40%", "criterion": "aimer", "schedule": "late", "top_k": "2"},
    "by hand": {"set": by_hand("20.20.20.12.12.12"), "locked": "0"},
    "by hand, locked": {
        **{"set": by_hand("6.5.5.7.5.20"), "locked": "0,5", "sparsity": "75%"},
        **{"criterion": "0,1,2", "corpora": "demo-stories"},
    },
    "measured": {
        **{"schedule": "measured", "sparsity": "40%", "criterion": "ean"},
        "corpora": ALL_CORPORA,
    },
    "searched": {"searched": "demo-frequency"},
    "neurons": {
        **{"granularity": "neuron", "criterion": "neuron-norms", "neuron_scope": "expert"},
        **{"params_share": "40%", "multiple_of": "8", "pin": ["3:5", "2:1-2"]},
    },
    "uneven neurons": {
        **{"granularity": "neuron", "neuron_scope": "global", "sparsity": "30%", "drop": "2:7"},
        "width_mode": "per-layer",
    },
    "measured neurons": {"granularity": "neuron", "schedule": "measured", "sparsity": "40%"},
}


def refusal_of_link(test):
    """Why the page does not show the plan of its URL; empty if it does."""
    said = [text for text in texts(test.warning) if text.startswith("The URL asks for what")]
    return "".join(said)


def open_at(test, page):
    """Run the page at this URL path; AppTest itself can only name pages that are files."""
    test._page_hash = calc_hash(page)
    return test.run()


def _controls():
    import streamlit

    from app.widgets.chosen_plan import chosen_plan

    streamlit.session_state["loaded"] = chosen_plan("plan")[0]


def loaded_on(test):
    """What the controls of every page make of the address of a test."""
    controls = AppTest.from_function(_controls, default_timeout=test.default_timeout)
    controls.query_params = dict(test.query_params)
    return controls.run().session_state["loaded"]


def texts(elements):
    return [element.value for element in elements]


def table_with(test, *columns):
    (table,) = (
        element.value for element in test.dataframe if {*columns} <= {*element.value.columns}
    )
    return table


def counts_on(test):
    """Layer -> the experts that it keeps."""
    return table_with(test, "keeps").set_index("layer")["keeps"].to_dict()


def metrics_of(test):
    return {metric.label: metric.value for metric in test.metric}


def deltas_of(test):
    """Label of a metric -> its value and what stands below it."""
    return {metric.label: (metric.value, metric.delta) for metric in test.metric}


def command_lines(test):
    # Not those of the sidebar, which are of the page's report.
    return [line for code in texts(test.main.code) for line in code.splitlines()]


def command(test, name, words=""):
    """The one command line of this name that the page shows; of several, with these words."""
    (line,) = {
        line
        for line in command_lines(test)
        if line.startswith(f"moeprune {name} ") and words in line
    }
    return line


def parsed(line):
    """What the program's own parser makes of a command line; it is not run."""
    program, name, *words = shlex.split(line)
    assert program == "moeprune"
    command = load(name)
    if hasattr(command, "commands"):
        name, *words = words
        command = command.commands[name]
    with command.make_context(name, words) as context:
        return context.params


def press(test, label="Run evaluation"):
    next(button for button in test.button if button.label == label).click().run()
    assert not test.exception


def upload(test, name, content):
    test.file_uploader[0].upload(name, content.encode(), "application/octet-stream").run()
    assert not test.exception
    return test


def opened(test, chart):
    """The page with the numbers behind a chart."""
    return unfolded(test, f"data.{chart}")


def unfolded(test, part):
    """The page with a folded part open, by the key of the part."""
    test.session_state[part] = True
    test.run()
    assert not test.exception
    return test


def report_on(test):
    """The commands of the report that a page offers."""
    lines = texts(unfolded(test, "report.part").code)
    return [line for line in lines if line.startswith("moeprune report")]


def recipe_on(test):
    (text,) = (text for text in texts(test.code) if text.startswith("schema_version"))
    return text


def decoded(values):
    """Numbers as plotly sends them: lists, or bytes in base64."""
    if isinstance(values, list):
        return values
    flat = np.frombuffer(base64.b64decode(values["bdata"]), values["dtype"])
    shape = [int(part) for part in values.get("shape", str(flat.size)).split(",")]
    return flat.reshape(shape).tolist()


def gone(table, score, percent):
    """(layer, expert) of the lowest scores of 32 a layer; of equal ones, the higher ids."""
    rows = table.assign(score=score).sort_values(
        ["layer", "score", "expert"], ascending=[True, True, False]
    )
    rows = rows.groupby("layer").head(32 * percent // 100)
    return set(zip(rows["layer"], rows["expert"], strict=True))


def sent_to_map(test: AppTest, key: str = MAP) -> Any:
    """What the expert map of a page was given; of its tables the order of each panel's experts."""
    [message] = [part.proto.bytes for part in test.get("bidi_component") if part.key == key]
    start = 4 + int.from_bytes(message[:4], "little")
    sent = json.loads(message[4:start])
    layers, width = len(sent["layers"]), sent["width"]
    for panel in sent["panels"]:
        tables = zlib.decompress(message[start : start + panel["size"]])
        start += panel["size"]
        # Before it stand two numbers of 4 bytes a layer.
        kind, cells = "<u2" if sent["wide"] else "u1", layers * width
        order = np.frombuffer(tables, kind, cells, offset=8 * layers).reshape(layers, width)
        panel["order"] = order.tolist()
    return sent


def bar_of(test):
    (bar,) = (text for text in texts(test.markdown) if ":material/circle:" in text)
    return bar


def sides(test):
    """Digest -> side of each pinned plan."""
    return dict(table_with(test, "verdict")[["digest", "side"]].itertuples(index=False))
