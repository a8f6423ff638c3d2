"""Numbers and tables of the documentation are those of the code and of the shipped demo."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from published_models import DEEPSEEK, ERNIE, MIXTRAL, OLMOE, QWEN3
from shipped import shipped_lines, shipped_results

from analysis.calibration.config_outline import outline_model
from analysis.calibration.loading import CalibrationSettings, Placement
from analysis.calibration.memory import active_params, memory_needs
from analysis.calibration.streamed import hidden_bytes
from analysis.corpora.presets import PRESETS
from analysis.corpora.sequences import TokenSequences
from analysis.corpora.spec import CorpusWeight, parse_corpus
from analysis.corpora.streams import SHUFFLE_BUFFER
from analysis.criteria import RANKABLE, get_criterion, unified
from analysis.demo.listing import DEMO_CORPORA
from analysis.files.shipped import SHIPPED_STATS
from analysis.model.opening import load_model_index
from analysis.ranking.choose import choose_stats
from analysis.ranking.experts import rank_experts
from analysis.stats.store import StatsStore
from pruning.plan.budget import parse_gib
from pruning.plan.plan import PruningPlan, model_ref
from pruning.plan.selection import select_experts
from pruning.plan.sizes import size_report
from pruning.planning.front_words import describe
from pruning.planning.make import budget_of, experts_of
from pruning.records.evaluation import EvaluationStore
from pruning.records.front import stored_front
from pruning.records.quality import candidates_at, losses_at, plan_losses, stored_losses
from pruning.records.quality_by_sample import difference, halves
from pruning.requests.calibration import CalibrateRequest
from pruning.requests.recipe_file import recipe_from_yaml
from pruning.schedules import Evidence, allocate, uniform
from pruning.serving.engine_results import ENGINES, results
from pruning.spec.options import DEFAULT_SEQ_LEN, DEFAULT_TOKENS

DOCS = Path(__file__).parent.parent / "docs"
DEMO_PAGE = (DOCS / "guide" / "demo-for-stakeholders.md").read_text()
TEXTS = ("demo-code", "demo-stories", "demo-math")
MIB = 2**20


@pytest.fixture(scope="module")
def model():
    return load_model_index("demo")


@pytest.fixture(scope="module")
def pruned(model):
    """(criterion, corpora) -> pairs of layer and expert that go at 50%, from the ranks alone."""

    def of(name, *corpora):
        criterion = get_criterion(name)
        store = StatsStore(SHIPPED_STATS)
        weights = [CorpusWeight(corpus) for corpus in corpora]
        ranking = rank_experts(
            criterion, choose_stats(criterion, store, model, weights).stats, "applied"
        )
        last = ranking[ranking["rank"] >= 16]
        return set(zip(last["layer"], last["expert"], strict=True))

    return of


@pytest.fixture(scope="module")
def losses(model):
    """Of the evaluations without the grid, which has every other plan."""
    records = EvaluationStore((SHIPPED_STATS,)).records()
    own = shipped_lines("evaluations")
    return plan_losses([record for record in records if record.record_id in own])


@pytest.fixture(scope="module")
def half(losses):
    """(criterion, corpora, schedule) -> row of the shipped evaluations at 50% of whole experts."""
    rows = candidates_at(losses, 0.5, "expert").to_dict("records")
    return {
        (row["criterion"], row["calibrated_on"], row["schedule"]): row
        for row in rows
        if not row["repaired_on"]
    }


def shared(first, second):
    """Share of the pruned experts that two choices have in common; layers lose 16 each."""
    assert len(first) == len(second) == 6 * 16
    return len(first & second) / len(first)


def across_texts(pruned, name):
    code, prose, maths = (pruned(name, text) for text in TEXTS)
    return (shared(code, prose) + shared(code, maths) + shared(prose, maths)) / 3


def test_what_is_said_of_explore(pruned):
    apart = len(pruned("frequency", *TEXTS) - pruned("ean", *TEXTS))
    assert f"it keeps **{apart}** that Frequency drops" in DEMO_PAGE
    agree = f"For EAN two corpora agree on **{across_texts(pruned, 'ean'):.0%}** of the pruned"
    assert agree in DEMO_PAGE
    shares = {
        name: across_texts(pruned, name)
        for name in (unified(*variant).name for variant in RANKABLE)
    }
    least, most = max(shares, key=shares.get), min(shares, key=shares.get)
    assert (least, most) == ("frequency", "reap")
    words = f"by Frequency depend least on the corpus (**{shares[least]:.0%}**), those by REAP most"
    assert f"{words} (**{shares[most]:.0%}**)" in DEMO_PAGE
    never = [_never_routed(text) for text in TEXTS]
    assert "only one or two are never used" in DEMO_PAGE
    assert set(never) == {1, 2}


def _never_routed(text):
    store = StatsStore(SHIPPED_STATS)
    chosen = choose_stats(
        get_criterion("frequency"), store, load_model_index("demo"), [CorpusWeight(text)]
    )
    return int((chosen.stats.table["num_tokens"] == 0).sum())


def test_what_is_said_of_compare(pruned):
    differing = len(pruned("ean", *TEXTS) ^ pruned("frequency", *TEXTS))
    said = f"**{1 - differing / 192:.0%}** of 192 decisions are equal, **{differing}** are not"
    assert said in DEMO_PAGE


def test_what_is_said_of_sizes(model):
    store = StatsStore(SHIPPED_STATS)
    criterion = get_criterion("ean")
    chosen = choose_stats(criterion, store, model, [CorpusWeight(text) for text in TEXTS])
    ranking = rank_experts(criterion, chosen.stats, "applied")
    plan = select_experts(ranking, uniform(model.layers, "50%"), model=model_ref(model))
    report = size_report(model, plan)
    sizes = (report.bytes_before / MIB, report.bytes_after / MIB)
    assert "**{:.1f} MiB become {:.1f}**".format(*sizes) in DEMO_PAGE
    assert f"about **{report.active_after / 1e6:.2f} million**" in DEMO_PAGE


BITS_PAGE = (DOCS / "concepts" / "bits.md").read_text()


def test_the_error_of_the_sum_is_that_of_the_shipped_evaluations(model):
    front = stored_front(EvaluationStore((SHIPPED_STATS,)), model)
    errors = f"{front.most_error:.3f} in {front.compared} cells, {front.mean_error:.3f} on average"
    assert errors in " ".join(BITS_PAGE.split())


def test_from_which_size_on_pruning_pays_is_what_fit_says(model):
    """README, the page of bits and the guide quote four bits alone, and the size below."""
    front = stored_front(EvaluationStore((SHIPPED_STATS,)), model)
    words = describe(front)
    four, below = (
        re.search(r"4 bits alone give ([\d.]+ MiB) at (\S+);", words),
        "pruning pays below ",
    )
    size, loss = four.groups()
    smaller = words.partition(below)[2].partition(":")[0]
    readme = (DOCS.parent / "README.md").read_text()
    assert f"four bits alone give {size} at {loss}." in readme
    assert f"Prune as well only for a target below {smaller} (" in readme
    assert f"Four bits cost {loss[1:]} and leave {size};" in BITS_PAGE
    assert f"below {smaller} here" in BITS_PAGE
    assert f"they cost {loss} and leave {size}." in DEMO_PAGE
    # The command that README gives is for such a target.
    (target,) = re.findall(r"`moeprune fit demo --target-size (\S+)`", readme)
    assert parse_gib(target) * GIB < parse_gib(smaller) * GIB


def test_what_is_said_of_losses(half):
    blend = "demo-code+demo-math+demo-stories"
    even = half["ean", blend, "uniform"]
    (chance,) = (row for (name, *_), row in half.items() if name == "random")
    assert f"grows by **{even['mean']:+.2f}** on average" in DEMO_PAGE
    assert f"and by **{even['worst']:+.2f}** on the worst one" in DEMO_PAGE
    assert f"at random by **{chance['mean']:+.2f}**" in DEMO_PAGE
    beside = half["frequency", blend, "uniform"]
    said = f"EAN adds **{even['mean']:+.2f}** on average, Frequency **{beside['mean']:+.2f}**"
    assert said in DEMO_PAGE
    global_, measured = half["ean", blend, "global"], loss_of_ean("measured")
    said = f"Uniform adds **{even['mean']:+.2f}**, Global **{global_['mean']:+.2f}**"
    assert f"{said}, Measured **{measured:+.2f}**" in DEMO_PAGE


def loss_of_ean(schedule):
    """Mean loss increase of EAN on the blend at 50% with a schedule of the grid."""
    stored = stored_losses(EvaluationStore((SHIPPED_STATS,)), load_model_index("demo").identity)
    (loss,) = (
        loss
        for loss in losses_at(stored, 0.5)
        if (loss.facts.criterion, loss.facts.schedule, len(loss.facts.corpora))
        == ("ean", schedule, 3)
        and loss.facts.granularity == "expert"
    )
    return loss.mean


def test_what_is_said_of_right_answers():
    records = list(shipped_results())
    records = [
        record for record in records if "right_answers" in record and "bits" not in record["plan"]
    ]

    def share(criterion, corpora, marks="right", *, repaired=False):
        shares = [
            np.mean(record["right_answers"][marks])
            for record in records
            if record["plan"]["criterion"].partition(":")[0] == criterion
            and (record["plan"]["sparsity"], record["plan"]["schedule"]) == ("50%", "uniform")
            and sorted(record["plan"]["corpora"]) == corpora
            and ("repair" in record["plan"]) == repaired
        ]
        assert len(shares) == (80 if criterion == "random" else 4)
        return np.mean(shares)

    blend = sorted(TEXTS)
    ean, full, chance = share("ean", blend), share("ean", blend, "full_right"), share("random", [])
    assert (
        f"**{ean:.0%}** of the questions are answered right instead of **{full:.0%}**" in DEMO_PAGE
    )
    assert f"with experts removed at random **{chance:.0%}**, mean of 20 draws" in DEMO_PAGE
    repaired = share("ean", blend, repaired=True)
    assert f"raises right answers to **{repaired:.0%}**" in DEMO_PAGE
    readme = " ".join((DOCS.parent / "README.md").read_text().split())
    reap, after = share("reap", blend), share("reap", blend, repaired=True)
    said = f"answers {reap:.0%} of the questions right, {after:.0%} after repair"
    assert f"{said}, where all its experts answer {full:.0%}" in readme
    assert f"On the demo EAN is better: {ean:.0%} right answers, {repaired:.0%} after" in readme


def test_what_is_said_of_one_corpus():
    records = list(shipped_results())
    added = {
        (record["plan"]["criterion"], record["corpus"]["name"]): record["metrics"]["nll"]["mean"]
        - record["full"]["nll"]["mean"]
        for record in records
        if record["plan"]["corpora"] == ["demo-code"]
        and (record["plan"]["sparsity"], record["plan"]["schedule"]) == ("50%", "uniform")
    }
    code, maths = (added["reap", text] for text in ("demo-code", "demo-math"))
    assert f"REAP adds **{code:+.2f}** on code and **{maths:+.2f}** on math" in DEMO_PAGE
    code, maths = (added["frequency", text] for text in ("demo-code", "demo-math"))
    assert f"Frequency **{code:+.2f}** and **{maths:+.2f}**" in DEMO_PAGE


def test_half_of_the_documents_choose_the_plan_that_the_page_names(losses):
    """One half of the documents chooses among plans that none chose, the other judges it."""
    plans = [
        loss
        for loss in losses_at(losses, 0.5)
        if loss.facts.granularity == "expert"
        and loss.facts.schedule not in ("search", "measured")
        and not (loss.is_random or loss.facts.repair)
    ]
    chosen, second = sorted(plans, key=lambda loss: halves(loss)[0].mean)[:2]
    made = (chosen.facts.criterion, len(chosen.facts.corpora), chosen.facts.schedule)
    assert made == ("ean", 3, "uniform")
    one, other = halves(chosen)
    lead = difference(second, chosen)
    page = " ".join((DOCS / "reference" / "demo-model.md").read_text().split())
    assert f"({one.mean:+.2f} there); on the other half it has {other.mean:+.2f}" in page
    assert f"at worst {other.worst:+.2f} ({other.worst_on.removeprefix('demo-')})" in page
    assert f"is {lead.mean:.3f} [{lead.low:.3f}, {lead.high:.3f}] by documents" in page


def test_the_page_on_repair_has_what_ships_with_intervals_by_documents(model):
    losses = stored_losses(EvaluationStore((SHIPPED_STATS,)), model.identity)
    page = " ".join((DOCS / "concepts" / "repair.md").read_text().split())
    blend = {
        (loss.facts.criterion, loss.is_repaired): loss
        for loss in losses_at(losses, 0.5)
        if not (loss.way or loss.is_random)
        and (loss.facts.granularity, loss.facts.schedule) == ("expert", "uniform")
        and len(loss.facts.corpora) == 3
    }
    assert {sample.num_documents for sample in blend["reap", False].samples.values()} == {64}
    assert "The 64 samples of each corpus are of 64 documents" in page
    usual = [name for name, corpus in DEMO_CORPORA.items() if corpus.is_usual]
    for name in ("reap", "ean"):
        before, after = (
            np.mean([blend[name, is_repaired].change[corpus] for corpus in usual])
            for is_repaired in (False, True)
        )
        assert f"{name.upper()} from {before:.3f} to {after:.3f}" in page


def test_the_readme_counts_engines_as_the_results_do():
    page = " ".join((DOCS.parent / "README.md").read_text().split())
    for engine, name in ENGINES.items():
        rows = [row for row in results() if row.engine == engine and row.cut == "experts"]
        able = {row.model_type for row in rows if row.works}
        assert f"{name} for {len(able)} of {len({row.model_type for row in rows})}" in page


CORPORA_PAGE = (DOCS / "guide" / "corpora.md").read_text()


def cells(line):
    return [cell.strip().replace("`", "") for cell in line.strip("|\n").split("|")]


def test_the_table_of_presets_is_that_of_the_code():
    table = CORPORA_PAGE.partition("<!-- presets -->")[2].partition("<!-- /presets -->")[0]
    rows = [cells(line) for line in table.strip().splitlines()[2:]]
    shown = {}
    for name, repo, config, split, fields, tokens, length, seed, paper in rows:
        numbers = (int(tokens.replace(",", "")), int(length), int(seed))
        shown[name] = (repo, config or None, split, set(fields.split(", ")), *numbers, paper)
    coded = {}
    for name, preset in PRESETS.items():
        if (data := preset.dataset) is None:  # a blend, see below
            continue
        read = set(data.fields.by_form.values())
        # A data set with our own names is read by the one that it has.
        own = shown[name][3] if data.fields == type(data.fields)() else read
        assert own <= read
        numbers = (preset.tokens, preset.seq_len, preset.seed)
        coded[name] = (data.repo, data.config, data.split, own, *numbers, preset.reference)
    assert shown == coded


def test_the_parts_of_the_blend_are_those_of_the_code():
    preset = PRESETS["tool-calls"]
    for part in preset.blend:
        assert f"{part.conversations} of `{part.dataset.repo}`" in CORPORA_PAGE
    assert f"`--tokens {preset.tokens}`" in CORPORA_PAGE


def test_a_preset_brings_its_settings_and_what_is_given_wins():
    for name, preset in PRESETS.items():
        for corpus in (name, f"{name}=copy.parquet"):
            sampling = CalibrateRequest(model="demo", corpus=corpus).sampling()
            expected = (preset.tokens, preset.seq_len, preset.seed)
            assert (sampling.tokens, sampling.seq_len, sampling.seed) == expected
    given = CalibrateRequest(model="demo", corpus="wikitext2", tokens=640, seq_len=64, seed=3)
    sampling = given.sampling()
    assert (sampling.tokens, sampling.seq_len, sampling.seed) == (640, 64, 3)
    other = CalibrateRequest(model="demo", corpus="demo-math").sampling()
    assert (other.tokens, other.seq_len, other.seed) == (DEFAULT_TOKENS, DEFAULT_SEQ_LEN, 42)


def test_defaults_and_the_buffer_are_as_the_page_says():
    assert (
        f"{DEFAULT_TOKENS:,} tokens\nin sequences of {DEFAULT_SEQ_LEN} with seed 42" in CORPORA_PAGE
    )
    assert f"{SHUFFLE_BUFFER:,} documents" in CORPORA_PAGE


def test_every_corpus_shown_can_be_parsed():
    shown = re.findall(r"calibrate MODEL --corpus (\S+)", CORPORA_PAGE)
    assert len(shown) >= 3
    for corpus in shown:
        parse_corpus(corpus)


def test_the_command_shown_for_a_request_asks_for_the_same():
    request = CalibrateRequest(
        model="demo",
        corpus="hub:owner/name,text=content",
        packing="pack",
        count="response",
        select="kmeans",
        clusters=7,
    )
    assert request.command() == (
        "moeprune calibrate demo --corpus hub:owner/name,text=content --packing pack "
        "--count response --select kmeans --clusters 7"
    )


MODELS_PAGE = (DOCS / "guide" / "prune-your-own-model.md").read_text()
GIB = 2**30
CONFIGS = {
    "allenai/OLMoE-1B-7B-0125-Instruct": OLMOE,
    "deepseek-ai/DeepSeek-V2-Lite-Chat": DEEPSEEK,
    "baidu/ERNIE-4.5-21B-A3B-PT": ERNIE,
    "Qwen/Qwen3-30B-A3B-Instruct-2507": QWEN3,
    "mistralai/Mixtral-8x7B-Instruct-v0.1": MIXTRAL,
}


def shown():
    """Model -> numbers of its row, in the units of the page."""
    table = MODELS_PAGE.partition("<!-- sizes -->")[2].partition("<!-- /sizes -->")[0]
    rows = [line.split("|")[1:-1] for line in table.strip().splitlines()[2:]]
    return {
        name.strip(" `"): [float(re.match(r" *([\d.]+)", cell)[1]) for cell in cells]
        for name, *cells in rows
    }


def first_half(model):
    """The plan that keeps the first half of each layer's experts."""
    keep = uniform(model.layers, "50%").keep
    kept = {layer.index: tuple(range(n)) for layer, n in zip(model.layers, keep, strict=True)}
    return PruningPlan(model_ref(model), kept)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_sizes_of_the_page_are_those_of_the_configuration(tmp_path, name):
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[name]))
    model = outline_model(str(tmp_path))
    preset = PRESETS["c4"]
    row = np.zeros(preset.seq_len, dtype=np.int32)
    text = TokenSequences("c4", (row,) * (preset.tokens // preset.seq_len), 1, 0)
    placement = Placement(stream_layers=True, hidden_states_dir=tmp_path)
    settings = CalibrationSettings(preset.seq_len, device="cpu", placement=placement)

    report, needs = size_report(model, first_half(model)), memory_needs(model, text, settings)
    work = 2 * active_params(model) * text.num_tokens
    sizes = (report.bytes_before, report.bytes_after, needs.whole_model, needs.streamed)
    gib = [size / GIB for size in (*sizes, hidden_bytes(model, text, settings))]
    assert f"{text.num_tokens:,} tokens in sequences of {preset.seq_len:,}" in MODELS_PAGE
    # As many digits as the page shows; seconds on a GPU, hours on a CPU.
    times = [pytest.approx(work / 50e12, rel=0.03), pytest.approx(work / 0.5e12 / 3600, abs=0.051)]
    rounded = [pytest.approx(number, abs=0.051) for number in gib]
    params = pytest.approx(report.params_before / 1e9, abs=0.005)
    assert shown()[name] == [params, *rounded, *times]
    assert all(speed in MODELS_PAGE for speed in (" 50 TFLOP/s ", " 0.5 TFLOP/s "))


def test_the_recipe_of_the_page_leaves_equal_layers(tmp_path):
    (text,) = re.findall(r"```yaml\n(schema_version.*?)```", MODELS_PAGE, flags=re.S)
    recipe = recipe_from_yaml(text)
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[recipe.model]))
    model = outline_model(str(tmp_path))
    units = experts_of(recipe.plan, model)
    budget = budget_of(recipe.plan, units, model, Evidence())
    (keep,) = set(allocate("uniform", units, budget).keep)
    assert keep % 8 == 0
    left = []
    for count in (keep, keep + 8):
        kept = {layer.index: tuple(range(count)) for layer in model.layers}
        sizes = size_report(model, PruningPlan(model_ref(model), kept))
        left.append(sizes.bytes_after / sizes.bytes_before)
    assert "shrink: 40%" in text
    assert left[0] <= 0.6 < left[1]
