"""Every page at several addresses: its elements in order, as AppTest sees them."""

import hashlib
import json
import logging
import traceback
from collections.abc import Iterator
from typing import Any

from snapshot.masks import masked
from snapshot.running import ROOT, last_lines, places

ENTRY = "app/pages/main.py"
_SECONDS = 120
_NEURONS = {"granularity": "Neurons"}
_BLEND = {
    "corpus": "(blend)",
    "share.demo-code": "100",
    "share.demo-math": "50",
    "share.demo-prose": "0",
}
_OTHER = {"corpus": "demo-math", "sparsity": "25%", "b": "0", "alpha": "2", "beta": "2"}
# Parts of Explore and their views; Advice has one.
_VIEWS = {
    "Corpora": ("Overlap", "Pairs", "Sparsity", "Exponents", "Blend"),
    "Evidence": ("Tokens", "Damage", "Cut", "Score and loss"),
    "Expert": ("One expert", "Paths"),
    "Advice": ("Advice",),
}


def _view(part: str, view: str) -> dict[str, str]:
    return {"tab": part, f"{part.lower()}.view": view}


# Name of the file -> page, address.
ADDRESSES: dict[str, tuple[str, dict[str, str]]] = {
    "start": ("start", {}),
    "explore": ("explore", {}),
    **{
        f"explore-{view.lower().replace(' ', '-')}": ("explore", _view(part, view))
        for part, views in _VIEWS.items()
        for view in views
    },
    "explore-other": ("explore", {**_OTHER, "gate": "Renormalized", **_view("Evidence", "Cut")}),
    "explore-aimer": (
        "explore",
        {"criterion": "AIMER", "baseline": "Magnitude", **_view("Evidence", "Cut")},
    ),
    "explore-of-blend": ("explore", {**_BLEND, **_view("Corpora", "Blend")}),
    "explore-expert": ("explore", {"tab": "Expert", "expert": "3.7", "sparsity": "25%"}),
    "explore-neurons": ("explore", _NEURONS),
    "explore-neurons-camera-p": ("explore", {**_NEURONS, "neurons": "CAMERA-P"}),
    "explore-nonsense": ("explore", {"sparsity": "x", "b": "7", "corpus": "no", "model": "none"}),
    "compare": ("compare", {}),
    "compare-other": ("compare", {"a_criterion": "AIMER", "b_sparsity": "25%", "expert": "2.5"}),
    "plan": ("plan", {}),
    "plan-global": ("plan", {"schedule": "Global", "sparsity": "40%", "protect": "1"}),
    "plan-aimer-late": ("plan", {"criterion": "AIMER", "schedule": "Late"}),
    "plan-blend": ("plan", _BLEND),
    "plan-neurons": ("plan", {**_NEURONS, "scope": "Per layer"}),
    "plan-neurons-norms": (
        "plan",
        {**_NEURONS, "neurons": "Neuron norms", "scope": "Per expert", "neuron_multiple": "8"},
    ),
    "evaluate": ("evaluate", {}),
    "evaluate-papers": ("evaluate", {"results": "The papers"}),
    "evaluate-held-out": ("evaluate", {"held_out": "demo-code"}),
    "evaluate-hidden-states": ("evaluate", {"results": "Hidden states"}),
    "evaluate-answers": ("evaluate", {"results": "Ask both models"}),
    "evaluate-benchmarks": ("evaluate", {"results": "Benchmarks"}),
    "export": ("export", {}),
    "export-other": ("export", {**_OTHER, "gate": "Renormalized"}),
    "export-neurons": ("export", {**_NEURONS, "scope": "Per layer", "width": "per-layer"}),
}
# What an element says besides its value, where it says it.
_SAID = ("label", "help", "placeholder", "options", "disabled", "delta", "url", "icon")
_MOST_CHARACTERS = 4000


def texts() -> Iterator[tuple[str, str]]:
    """File and text of every page."""
    logging.disable(logging.CRITICAL)
    for name, (page, address) in ADDRESSES.items():
        yield f"{name}.txt", masked(_page(page, address), places())


def _page(page: str, address: dict[str, str]) -> str:
    said = f"{page} {json.dumps(address)}\n"
    try:
        test = _opened(page, address)
        parts = {"main": test.main, "sidebar": test.sidebar}
        body = "".join(
            f"== {name}\n" + "\n".join(_lines(part)) + "\n" for name, part in parts.items()
        )
        query = {key: test.query_params[key] for key in sorted(test.query_params)}
        return f"{said}{body}== address\n{json.dumps(query)}\n"
    except Exception:  # noqa: BLE001  (a failure is what is to be recorded)
        return said + last_lines(traceback.format_exc())


def _opened(page: str, address: dict[str, str]) -> Any:
    from streamlit import config
    from streamlit.testing.v1 import AppTest
    from streamlit.util import calc_hash

    config.set_option("server.address", "127.0.0.1")
    test = AppTest.from_file(str(ROOT / ENTRY), default_timeout=_SECONDS)
    for key, value in address.items():
        test.query_params[key] = value
    test._page_hash = calc_hash(page)  # AppTest itself can only name pages that are files
    return test.run()


def _lines(node: Any, depth: int = 0) -> Iterator[str]:
    """A container and what is in it, or an element."""
    pad = "  " * depth
    children = getattr(node, "children", None)
    if not isinstance(children, dict):
        yield from (pad + line for line in _element(node).splitlines())
        return
    label = _container_label(node)
    yield f"{pad}[{node.type}]{' ' + label if label else ''}"
    for place in sorted(children):
        yield from _lines(children[place], depth + 1)


def _container_label(node: Any) -> str:
    inner = getattr(node.proto, node.type, None) if node.proto is not None else None
    found = getattr(inner, "label", "") if inner is not None else ""
    return str(found or getattr(node.proto, "label", "") or "") + _key(node)


def _key(node: Any) -> str:
    return f" key={node.key}" if getattr(node, "key", None) else ""


def _element(node: Any) -> str:
    """One element: its type, what it says, its value."""
    try:
        if node.type == "plotly_chart":
            return f"plotly_chart{_key(node)}\n{_chart(json.loads(node.proto.spec))}"
        if node.type == "bidi_component":
            return f"component{_key(node)} {node.proto.component_name}\n{_component(node.proto)}"
        said = {name: _plain(getattr(node, name, None)) for name in _SAID}
        shown = [
            f"{name}={value}" for name, value in said.items() if value not in ("", "[]", "False")
        ]
        return f"{node.type}{_key(node)} {' | '.join(shown)}".rstrip() + f"\n{_value(node)}"
    except Exception:  # noqa: BLE001  (a failure is what is to be recorded)
        return f"{node.type} " + last_lines(traceback.format_exc())


def _plain(value: object) -> str:
    """Text of a value; nothing of what has no text."""
    if value is None or isinstance(value, str | int | float):
        return str(value if value is not None else "")
    try:
        return json.dumps([str(each) for each in value], ensure_ascii=False)  # type: ignore[attr-defined]
    except TypeError:
        return ""


def _value(node: Any) -> str:
    value = node.value
    if hasattr(value, "to_csv"):
        text = value.to_csv()
    elif hasattr(value, "data") and hasattr(value.data, "to_csv"):
        text = value.data.to_csv()
    elif hasattr(value, "DESCRIPTOR"):
        text = type(value).__name__
    else:
        text = str(value)
    if len(text) > _MOST_CHARACTERS:
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        text = f"{text[:_MOST_CHARACTERS]}\n... {len(text)} characters, sha256 {digest}"
    return "\n".join(f"  | {line}" for line in text.splitlines())


def _component(proto: Any) -> str:
    """What one of the program's own components is given, cut short, and its digest."""
    given = proto.json or "nothing"
    digest = hashlib.sha256(given.encode()).hexdigest()[:16]
    return f"  sha256: {digest}\n  | {given[:_MOST_CHARACTERS]}"


def _chart(figure: dict[str, Any]) -> str:
    """Titles, traces with their number of points, and a digest of all of it."""
    digest = hashlib.sha256(json.dumps(figure, sort_keys=True).encode()).hexdigest()[:16]
    lines = [f"  title: {_title(figure['layout'])}", f"  sha256: {digest}"]
    axes = sorted(key for key in figure["layout"] if key[1:5] == "axis")
    lines += [f"  {key}: {_title(figure['layout'][key])}" for key in axes]
    lines += [f"  {_trace(trace)}" for trace in figure["data"]]
    return "\n".join(lines)


def _title(holder: dict[str, Any]) -> str:
    title = holder.get("title", "")
    return str(title.get("text", "") if isinstance(title, dict) else title)


def _trace(trace: dict[str, Any]) -> str:
    sizes = {key: _length(trace[key]) for key in ("x", "y", "z", "r", "theta") if key in trace}
    counted = " ".join(f"{key}={size}" for key, size in sizes.items())
    return f"trace {trace.get('type', '')} {trace.get('name', '')!r} {counted}"


def _length(values: Any) -> str:
    """Number of points: of a list, or of what plotly packs as bytes."""
    if isinstance(values, dict):
        return str(values.get("shape") or len(values.get("bdata", "")))
    return str(len(values)) if isinstance(values, list) else "1"
