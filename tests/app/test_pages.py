"""Every page in every state: no error, plain words, commands that the program reads."""

import json
import re
import shutil
from itertools import product
from pathlib import Path

import pytest
from google.protobuf.json_format import MessageToDict
from page_texts import ALL_CORPORA, loaded_on, parsed, texts

from app.charts.listing import CHARTS
from app.pages.explore import PARTS, views_of

CHART_PAGES = ("start", "explore", "compare", "export")
MODELS = ("bare", "weighed", "once")
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
OTHERS = (
    {"criterion": "camera-p", "neuron_scope": "expert"},
    {"criterion": "neuron-norms"},
    {"criterion": "random", "corpora": ALL_CORPORA},
    {"sparsity": "0%"},
)
STATES = (
    *(("start", {}), ("compare", {}), ("plan", {}), ("export", {})),
    *product(("start", "explore", "compare", "plan", "export", "evaluate"), MODELS),
    *(
        ("explore", {"tab": PARTS[part][0], f"{part}.view": view, **rest})
        for rest in ({"corpora": ALL_CORPORA}, {"model": "once"})
        for part in PARTS
        for view, _ in views_of(part).values()
    ),
    *product(
        ("explore",),
        (
            *({"show": "Stratification", "model": model} for model in MODELS),
            {"show": "Stratification", "corpora": ALL_CORPORA, "scale": "Raw"},
            {"show": "Stratification", "strata.left": "Random", "strata.right": "REAP  (1, 1, 1)"},
        ),
    ),
    *(
        ("explore", {"tab": "Corpora", "corpora.view": "Blend", "model": model})
        for model in ("bare", "weighed")
    ),
    *product(
        ("explore",),
        (
            *(
                {"criterion": criterion, "tab": "Evidence", "evidence.view": view}
                for criterion, view in product(("aimer", "mone"), ("Damage", "Score and loss"))
            ),
            {"criterion": "aimer", "tab": "Corpora"},
            {"criterion": "random", "tab": "Expert", "expert": "2.1"},
        ),
    ),
    *(
        ("explore", {"granularity": "neuron", "neuron_scope": "global", **rest})
        for rest in (
            *({"inside": part} for part in ("Saliency", "One expert", "Corpora", "Whole experts")),
            *({"inside": part} for part in ("Same bytes", "Score and loss")),
            *OTHERS,
            *({"inside": "Corpora", **other} for other in OTHERS[:2]),
            *({"inside": "Whole experts", **other} for other in OTHERS[2:]),
        )
    ),
    *((page, {"corpora": ALL_CORPORA}) for page in ("compare", "plan", "export")),
    *((page, {"granularity": "neuron"}) for page in ("plan", "export")),
    *(
        ("evaluate", {"results": part})
        for part in (
            *("This model", "Text lens", "Benchmarks", "Hidden states", "Ask both models"),
            "The papers",
        )
    ),
    *(("expert", rest) for rest in ({}, {"expert": "3.18"}, {"expert": "2.1", "model": "once"})),
)
# Charts that a page draws as its command does; others mark what was clicked or chosen on the page.
AS_THE_COMMAND = {
    *("schedules", "sizes", "kept-by", "agreement", "neuron-layers", "neuron-flops"),
    *("overlap", "component-effects", "coverage", "overlap-by-tokens", "loss-by-tokens"),
    *("damage-proxy", "loss-bins", "paths", "pareto", "own-capability", "hidden-states"),
    *("text-experts", "text-plans", "neuron-saliency", "neurons-of-expert", "neuron-overlap"),
    *("neurons-beside-experts", "same-bytes", "neuron-loss-bins"),
}
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
            yield from _strings({key: value for key, value in said.items() if key != "url"})
        if block.type in ("arrow_data_frame", "table", "arrow_table"):
            yield from map(str, block.value.columns)


def _strings(said, key=""):
    if isinstance(said, dict):
        for name, value in said.items():
            yield from _strings(value, name)
    elif isinstance(said, list):
        for value in said:
            yield from _strings(value, key)
    elif isinstance(said, str) and key in AS_JSON:
        yield from _strings(json.loads(said))
    elif isinstance(said, str) and key in SAID | OF_FIGURES:
        yield said


@pytest.mark.parametrize(("view", "address"), STATES, ids=str)
def test_every_page_in_every_state(open_page, tmp_path, monkeypatch, view, address):
    monkeypatch.chdir(tmp_path)
    Path("results.json").touch()  # of another tool, which a person has
    address = {"model": address} if isinstance(address, str) else address
    test = open_page(view, **address)
    if (view, address) == ("plan", {}):
        test.session_state["search.form"] = True
        test.run()
    assert not test.exception
    assert texts(test.error) == []
    assert len(test.title) == 1
    assert test.selectbox(key="model").value == address.get("model", "demo")
    assert test.metric or test.dataframe or test.get("plotly_chart") or test.info or test.text_area
    lines = (line for code in texts(test.code) for line in code.splitlines())
    commands = [line for line in lines if line.startswith("moeprune ")]
    by_neuron = any("--granularity neuron" in line for line in commands)
    assert by_neuron == (address.get("granularity") == "neuron") or view == "evaluate"
    for line in commands:
        parsed(line)
    said = set(words_of(test))
    assert len(said) > 30
    found = {(word, text) for word in REPLACED for text in said if re.search(word, text)}
    assert not found, {REPLACED[word]: text for word, text in found}
    specs = {
        chart.key.removeprefix("chart."): chart.proto.spec for chart in test.get("plotly_chart")
    }
    assert CHARTS.keys() >= AS_THE_COMMAND
    if drawn := AS_THE_COMMAND & specs.keys():
        loaded = loaded_on(test)
        for name in drawn:
            figure = CHARTS[name].draw(loaded).figure(dark=False)
            assert json.loads(figure.to_json()) == json.loads(specs[name]), name


def set_exponents(test, exponents):
    for key, value in zip(("b", "alpha", "beta"), exponents, strict=True):
        test.segmented_control(key=key).set_value(value)
    return test.run()


def has_numbers(test):
    """Whether a page compares the two criteria, or has cards."""
    words = (" keeps ", " keep the same")
    return bool(test.metric) or any(word in text for text in texts(test.markdown) for word in words)


@pytest.mark.parametrize("view", ["explore", "export"])
def test_only_the_constant_variant_leaves_a_page_without_numbers(open_page, view):
    test = open_page(view)
    for percent, exponents in product((75, 0), ((0, 0, 0), (1, 0, 0), (1, 1, 2))):
        test.select_slider(key="sparsity").set_value(percent)
        set_exponents(test, exponents)
        assert not test.exception, exponents
        assert texts(test.error) == []
        assert has_numbers(test) == (exponents != (1, 0, 0))
        if exponents != (1, 0, 0):
            continue
        note, *others = texts(test.info)
        assert "(1, 0, 0)" in note
        assert "the same score" in note
        # The map of the variants has nothing to show either where no expert goes.
        assert all("removes no expert" in other and not percent for other in others)
        assert not [button for button in test.button if button.label == "Run export"]
    # The palette leads on from such a page all the same.
    test = open_page(view, criterion="")
    assert "palette" in [component.key for component in test.get("bidi_component")]


@pytest.mark.parametrize("model", [None, "once"])
def test_every_other_criterion(open_page, model):
    test = open_page("explore", model)
    for criterion in ("aimer", "mone", "hoyer", "random"):
        test.selectbox(key="criterion").set_value(criterion).run()
        assert not test.exception, criterion
        # The weights of `once` were not measured.
        assert has_numbers(test) == (model is None or criterion in ("mone", "random"))


@pytest.mark.parametrize("view", ["explore", "export"])
def test_missing_statistics_are_named_with_the_page_that_collects_them(open_page, view):
    test = open_page(view, "bare")
    (note,) = texts(test.info)
    assert "bare has no calibration yet" in note
    assert "Start" in note
    test.selectbox(key="criterion").set_value("aimer").run()
    (note,) = texts(test.info)
    assert "reads the weights of bare" in note
    assert "Start" in note


def test_measured_weights_are_enough_for_the_criteria_that_read_them(open_page):
    test = open_page("explore", "weighed")
    test.selectbox(key="criterion").set_value("aimer").run()
    test.selectbox(key="baseline").set_value("magnitude").run()
    assert not test.exception
    assert any(" experts that Magnitude drops" in text.value for text in test.markdown)
    assert open_page("export", "weighed", criterion="aimer").metric[0].value == "9 of 18"


def test_one_text_is_not_enough_for_overlap_and_the_page_says_so(open_page):
    test = open_page("explore", "once")
    assert not any("Two corpora agree" in text.value for text in test.markdown)
    assert all("Calibrate on another" in note for note in texts(test.info))
    assert test.info


@pytest.mark.parametrize("percent", [0, 20, 65])
def test_small_models_where_a_sparsity_removes_no_expert(open_page, go_to, percent):
    """Of six experts, 5 to 15 percent are none, so these are not offered."""
    test = open_page("explore", "once")
    steps = test.select_slider(key="sparsity").options
    assert steps == [f"{index}%" for index in (0, *range(20, 70, 5))]
    test.select_slider(key="sparsity").set_value(percent).run()
    assert not test.exception
    removed = 6 * percent // 100
    if not removed:
        assert any("(as large as the original)" in text for text in texts(test.markdown))
    go_to(test, "export")
    assert test.metric[0].value == f"{18 - 3 * removed} of 18"


def test_start_offers_what_is_missing(open_page):
    labels = {
        model: {b.label for b in open_page("start", model).button} for model in (None, *MODELS)
    }
    assert "Measure weights" in labels["bare"] & labels["once"]
    assert "Measure weights" not in labels["weighed"] | labels[None]
    assert all("Run calibration" in found for found in labels.values())


def test_start_lists_the_runs_with_their_cost_and_the_model_they_fit(open_page, demo_moments):
    test = open_page("start", "once")
    table = test.dataframe[0].value
    own = table["fits"] == "this model"
    assert own.equals(table["model"] == "once")
    assert own.iloc[0]
    assert set(table.loc[~own, "fits"]) == {"another model"}
    routed = table[table["statistics"].isin(list(demo_moments))]
    assert set(routed["statistics"]) == set(demo_moments)
    speeds = (routed["tokens"] / routed["seconds"]).tolist()
    assert speeds == pytest.approx(routed["tokens/s"].tolist(), rel=0.01)
    assert (routed["peak MiB"] > 100).all()
    test.selectbox(key="model").set_value("demo").run()
    shown = [badge for badge in texts(test.markdown) if "routed on" in badge]
    for corpus, table in demo_moments.items():
        never = int((table["num_tokens"] == 0).sum())
        (badge,) = (text for text in shown if text.rstrip("]").endswith(corpus))
        word = "expert" if never == 1 else "experts"
        expected = f"{never} {word} never routed" if never else "every expert routed"
        assert expected in badge


class TestDamage:
    """What cannot be read is named, and costs nothing else."""

    @pytest.fixture
    def models_root(self, folders, tmp_path):
        return shutil.copytree(folders[0], tmp_path / "models")

    @pytest.fixture
    def stats_dir(self, folders, tmp_path):
        return shutil.copytree(folders[1], tmp_path / "stats")

    def test_damaged_run(self, open_page, stats_dir):
        (broken,) = stats_dir.glob("once-*")
        (broken / "manifest.json").write_text("{")
        test = open_page("start", "once")
        (warning,) = texts(test.warning)
        assert broken.name in warning
        assert not test.error
        assert has_numbers(open_page("explore"))

    def test_damaged_table(self, open_page, stats_dir):
        (broken,) = stats_dir.glob("once-*")
        (broken / "experts.parquet").write_bytes(b"PAR1")
        for view in CHART_PAGES:
            test = open_page(view, "once")
            (message,) = texts(test.error)
            assert "moeprune runs remove" in message

    def test_damaged_model(self, open_page, models_root):
        sorted((models_root / "bare").glob("*.safetensors"))[0].write_bytes(b"cut")
        test = open_page("start", "bare")
        (message,) = texts(test.error)
        assert "truncated" in message
        # The other models can still be chosen.
        test.selectbox(key="model").set_value("demo").run()
        assert test.title
        assert not test.error


@pytest.mark.parametrize("document", WRITTEN, ids=lambda path: path.stem)
def test_no_page_of_the_documentation_says_a_word_that_was_replaced(document):
    # Code, the targets of links and the names of controls are quoted.
    text = re.sub(r"^```.*?^```|`[^`]*`|\]\([^)]*\)", "", document.read_text(), flags=re.S | re.M)
    text = " ".join(text.split())
    found = {REPLACED[word]: [hit[0] for hit in re.finditer(word, text)] for word in REPLACED}
    assert {word: said for word, said in found.items() if said} == {}


def test_the_sidebar_says_when_the_criterion_reads_no_corpus(open_page):
    assert "AIMER reads no corpus." in texts(open_page("plan", criterion="aimer").caption)
    assert not any("reads no corpus" in text for text in texts(open_page("plan").caption))


def test_the_measured_schedule_does_not_read_as_a_measured_loss(open_page):
    test = open_page("plan", schedule="measured", criterion="ean", corpora=ALL_CORPORA)
    assert any(", measured layers, " in text for text in texts(test.markdown))
