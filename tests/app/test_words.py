"""One word for one thing on all pages and in the documentation: replaced words are gone."""

import json
import re
from pathlib import Path

import pytest
from google.protobuf.json_format import MessageToDict

# What no page of the dashboard or the documentation says any more -> the word that stands there.
REPLACED = {
    r"(?i:element) types?\b": "dtype",
    r"\b[Ss]hare removed\b|^[Rr]emoved$|\d% removed\b": "sparsity",
    r"\bat (some|every|each|this) share\b": "sparsity",
    r"\b[Ff]ull (model|one|loss)\b|\bThe full\b": "original model",
    r"\b([Aa]ll|[Ee]ach|[Bb]y) layers?\b.*\(HEAPr|^(All layers|Each layer|Each expert)$": "global",
    r"\bneurons (all|each|by) (layers?|experts?|global)\b|\beven over layers\b": "global",
    r"\b([Cc]alibration|[Hh]eld-out|across|[Bb]etween|each|every|no|two|some) texts?\b": "corpus",
    r"\b[Tt]exts?('s)? (depend|rank|agree|saliency|is|are)\b|^Texts?$": "corpus",
    r"^(Queue|Calibrate|Search|Take in|Start .*)$|\b(?i:take) \w+ in\b": "Run, Import",
    r"\btaken in\b|\bheld against\b": "imported, compared",
    r"\beven blend\b|\bdemo-code( \+ |\+)d": "blend of",
    r"\bgraphics cards?\b|\bprocessors?\b": "GPU, CPU",
    r"\b[Dd]ata sets?\b": "dataset",
    r"\bgo(es)? on (with|where|from|after)\b|\band goes on\b": "resumes",
    r"\b(made|is|are) again\b|\banew\b": "reproduced, rebuilt",
    r"\b[Uu]npruned\b": "original model",
    r"\bkept apart\b": "held out",
    r"\b(no|some)body\b|\bwho asks\b": "say who",
    r"\b[Ww]hat reads (it|the result)\b": "compatibility",
    r"\btoo near to tell\b|\b[Cc]ounts by hand\b": "too close to call, manual counts",
}
ROOT = Path(__file__).parents[2]
WRITTEN = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "docs/index.md")),
    *(page for part in ("guide", "concepts") for page in (ROOT / "docs" / part).glob("*.md")),
    *(
        ROOT / "docs" / "reference" / f"{name}.md"
        for name in ("files", "demo-model", "not-covered")
    ),
]
PAGES = (
    ("start", {}),
    ("start", {"model": "bare"}),
    *(
        ("explore", {"tab": tab, f"{tab.lower()}.view": view, "corpus": "(blend)"})
        for tab, views in {
            "Corpora": ("Overlap", "Pairs", "Sparsity", "Exponents", "Blend"),
            "Evidence": ("Tokens", "Damage", "Cut", "Score and loss"),
            "Expert": ("One expert", "Paths"),
            "Advice": ("Advice",),
        }.items()
        for view in views
    ),
    ("explore", {"model": "once"}),
    *(
        ("explore", {"granularity": "Neurons", "inside": part})
        for part in ("Saliency", "One expert", "Corpora", "Whole experts", "Same bytes")
    ),
    ("compare", {"corpus": "(blend)"}),
    ("plan", {"corpus": "(blend)"}),
    ("plan", {"granularity": "Neurons"}),
    *(
        ("evaluate", {"results": part})
        for part in ("This model", "Benchmarks", "Hidden states", "Ask both models", "The papers")
    ),
    ("export", {"corpus": "(blend)"}),
    ("export", {"granularity": "Neurons"}),
)
# Commands, answers of models, addresses and the contents of tables are no words.
SILENT = {"code", "html", "bidi_component", "text_area"}
SAID = {"alt", "body", "content", "help", "label", "options", "placeholder", "text", "title"}
OF_FIGURES = {"hovertemplate", "name", "ticktext", "y", "x"}
AS_JSON = {"columns", "spec"}


def words_of(test):
    """What a page says: labels, captions, help, titles of columns, and the words of figures."""
    waiting = [test._tree]
    while waiting:
        block = waiting.pop()
        waiting += getattr(block, "children", {}).values()
        if (proto := getattr(block, "proto", None)) is not None and block.type not in SILENT:
            said = MessageToDict(proto)
            yield from _strings({key: each for key, each in said.items() if key != "url"})
        if block.type in ("arrow_data_frame", "table", "arrow_table"):
            yield from map(str, block.value.columns)


def _strings(said, key=""):
    if isinstance(said, dict):
        for name, each in said.items():
            yield from _strings(each, name)
    elif isinstance(said, list):
        for each in said:
            yield from _strings(each, key)
    elif isinstance(said, str) and key in AS_JSON:
        yield from _strings(json.loads(said))
    elif isinstance(said, str) and key in SAID | OF_FIGURES:
        yield said


@pytest.mark.parametrize(("page", "address"), PAGES, ids=str)
def test_no_page_says_a_word_that_was_replaced(open_page, page, address):
    test = open_page(page, **address)
    assert not test.exception
    said = set(words_of(test))
    assert len(said) > 50
    found = {(word, text) for word in REPLACED for text in said if re.search(word, text)}
    assert not found, {REPLACED[word]: text for word, text in found}


@pytest.mark.parametrize("document", WRITTEN, ids=lambda path: path.stem)
def test_no_page_of_the_documentation_says_a_word_that_was_replaced(document):
    # Code, the targets of links and the names of controls are quoted.
    text = re.sub(r"^```.*?^```|`[^`]*`|\]\([^)]*\)", "", document.read_text(), flags=re.S | re.M)
    text = " ".join(text.split())
    found = {REPLACED[word]: [hit[0] for hit in re.finditer(word, text)] for word in REPLACED}
    assert {word: said for word, said in found.items() if said} == {}
