"""Traffic: what servers return of routed experts, against a plain forward and against calibrate."""

import base64
import json
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from calibrations import calibrated
from transformers import AutoModelForCausalLM

from analysis.corpora.sequences import TokenSequences
from analysis.corpora.spec import parse_corpus_weight
from analysis.criteria import get_criterion
from analysis.drain import drain
from analysis.errors import StatsError
from analysis.numbers.sparsity import parse_sparsity
from analysis.ranking.choose import choose_stats, routed_runs
from analysis.ranking.coverage import Blender
from analysis.stats.blend import Mixture
from analysis.stats.merging import merge_runs
from analysis.stats.reading import load_expert_stats, verify_run
from analysis.stats.store import StatsStore
from analysis.traffic.importing import TrafficImport, import_traffic, traffic_words
from builders import SPARSE_LAYERS, TOP_K, VOCAB
from builders.traffic import npy, npy_header, random_rows

SPARSE, DEPTH, EXPERTS = SPARSE_LAYERS["qwen3_moe"], 4, 6


@dataclass(frozen=True)
class Spoken:
    """A request: the tokens of a prompt, those of its answer, and the experts of all but the last.

    `rows` (tokens, decoder layers, top-k) are zeros in dense layers, as servers have them.
    """

    prompt: list
    answer: list
    rows: np.ndarray

    @property
    def both(self):
        return [*self.prompt, *self.answer]

    @property
    def usage(self):
        return {"prompt_tokens": len(self.prompt), "completion_tokens": len(self.answer)}


@pytest.fixture(scope="module")
def spoken(tiny):
    """Requests whose experts are the top-k of the routers' logits in transformers' own forward."""
    rng = np.random.default_rng(3)
    model = AutoModelForCausalLM.from_pretrained(tiny.checkpoint.path, dtype=torch.float32).eval()
    requests = []
    for number, (asked, said) in enumerate(((5, 9), (1, 12), (8, 1), (11, 6))):
        # Each begins with a token of its own, so that no prompt repeats another.
        prompt = [3 + number, *rng.integers(9, VOCAB, asked - 1).tolist()]
        answer = rng.integers(9, VOCAB, said).tolist()
        read = torch.tensor([[*prompt, *answer][:-1]])
        with torch.no_grad():
            logits = model(read, output_router_logits=True).router_logits
        rows = np.zeros((read.shape[1], DEPTH, TOP_K), dtype=np.int64)
        for layer, of_layer in zip(SPARSE, logits, strict=True):
            rows[:, layer] = torch.topk(torch.softmax(of_layer, dim=-1), TOP_K).indices.numpy()
        requests.append(Spoken(prompt, answer, rows))
    return requests


def int32(rows):
    return base64.b64encode(rows.astype("<i4").tobytes()).decode()


def vllm(request, rows=None, **more):
    """As vLLM from 0.22 on answers."""
    rows = request.rows if rows is None else rows
    choice = {"index": 0, "message": {"content": "..."}, "routed_experts": npy(rows)}
    said = {"choices": [choice], "usage": request.usage, "model": "served"}
    made = {"created": 1_793_000_000, "system_fingerprint": "vllm-0.30.0-ab12"}
    return {"object": "chat.completion", **said, **made, **more}


def vllm_lists(request):
    """As vLLM 0.20 and 0.21 do: the prompt's apart."""
    asked = len(request.prompt)
    choice = {"index": 0, "routed_experts": request.rows[asked:].tolist()}
    prompt = {"prompt_routed_experts": request.rows[:asked].tolist()}
    return {"choices": [choice], "usage": request.usage, "object": "text_completion", **prompt}


def sglang(request, rows=None):
    """As SGLang's /generate does."""
    rows = request.rows if rows is None else rows
    return {"text": "...", "meta_info": {"routed_experts": int32(rows), **request.usage}}


def sglang_openai(request):
    choice = {"index": 0, "message": {"content": "..."}}
    added = {"sglext": {"routed_experts": int32(request.rows)}}
    return {"choices": [choice], "usage": request.usage, **added}


def sglang_parts(request):
    """As SGLang's newer fields: a row belongs to the token that it predicts."""
    asked = len(request.prompt) - 1
    parts = {"input": request.rows[:asked], "output": request.rows[asked:]}
    schema = {"num_layers": DEPTH, "top_k": TOP_K, "dtype": "int32"}
    ids = {f"{part}_expert_ids": int32(rows) for part, rows in parts.items()}
    return {"meta_info": {**ids, "expert_ids_schema": schema, **request.usage}}


def sparse_alone(request):
    """Without dense layers."""
    return vllm(request, request.rows[:, list(SPARSE)])


def of_batch(request):
    return {"custom_id": "1", "response": {"status_code": 200, "body": vllm(request)}}


LINES = (vllm, vllm_lists, sglang, sglang_openai, sglang_parts, sparse_alone, of_batch)


def write(path, answers):
    path.write_text("".join(json.dumps(answer) + "\n" for answer in answers))
    return path


def write_npz(path, requests, save=np.savez):
    """Prompts and answers of all requests, end to end."""
    asked = np.concatenate([request.rows[: len(request.prompt)] for request in requests])
    said = np.concatenate([request.rows[len(request.prompt) :] for request in requests])
    save(path, routed_experts=said.astype("u1"), prompt_routed_experts=asked.astype("i4"))
    return path


def imported(model, folder, *paths, count="all", name="monday", skips=0):
    asked = TrafficImport(paths, name, count, skips)
    return drain(import_traffic(model, asked, StatsStore(folder)))


def counts_of(run):
    return load_expert_stats(run).table["num_tokens"].to_numpy()


@pytest.fixture(scope="module")
def by_calibrate(tiny, spoken, tmp_path_factory):
    """Counts that calibrate has of the same tokens, by what counts."""
    folder = tmp_path_factory.mktemp("calibrated")
    rows = tuple(np.array(request.both[:-1], dtype=np.int32) for request in spoken)
    is_answer = tuple(
        np.arange(len(row)) >= len(request.prompt)
        for row, request in zip(rows, spoken, strict=True)
    )
    how = {"dtype": "float32", "batch_size": 1, "seq_len": 32}
    counts = {}
    for count, counted in (("all", None), ("response", is_answer)):
        sequences = TokenSequences(f"{count}.jsonl", rows, len(rows), 0, counted=counted)
        counts[count] = counts_of(calibrated(tiny, folder, sequences, **how))
    return counts


@pytest.mark.parametrize("count", ["all", "response"])
@pytest.mark.parametrize("answer", LINES)
def test_counts_of_each_format_are_those_of_calibrate(
    answer, count, tiny, spoken, by_calibrate, tmp_path
):
    traces = write(tmp_path / "monday.jsonl", map(answer, spoken))
    run = imported(tiny, tmp_path / "stats", traces, count=count)
    assert by_calibrate[count].any()
    np.testing.assert_array_equal(counts_of(run), by_calibrate[count])
    (corpus,) = run.manifest.corpora
    said = sum(len(request.answer) - 1 for request in spoken)
    every = said + sum(len(request.prompt) for request in spoken)
    assert corpus.num_counted == {"all": every, "response": said}[count]
    assert (corpus.num_tokens, corpus.num_documents, corpus.num_dropped) == (every, 4, 0)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("count", ["all", "response"])
def test_counts_of_arrays_are_those_of_calibrate(count, save, tiny, spoken, by_calibrate, tmp_path):
    traces = write_npz(tmp_path / "monday.npz", spoken, save)
    run = imported(tiny, tmp_path / "stats", traces, count=count)
    np.testing.assert_array_equal(counts_of(run), by_calibrate[count])


def test_a_run_says_that_it_is_traffic_of_when_and_from_what(tiny, spoken, tmp_path):
    answers = [vllm(spoken[0]), vllm(spoken[1], created=1_793_200_000)]
    run = imported(tiny, tmp_path / "stats", write(tmp_path / "monday.jsonl", answers))
    manifest = StatsStore(tmp_path / "stats").get(run.manifest.run_id).manifest
    assert (manifest.kind, manifest.groups, manifest.corpus) == ("traffic", (), "monday")
    facts = manifest.corpora[0].prepared["traffic"]
    assert facts["programs"] == ["vLLM"]
    assert facts["versions"] == ["0.30.0"]
    assert facts["models"] == ["served"]
    assert facts["first"] == "2026-10-26T07:33:20+00:00"
    assert facts["last"] == "2026-10-28T15:06:40+00:00"
    assert traffic_words(manifest.corpora[0]) == (
        "traffic of 2026-10-26 to 2026-10-28, 2 requests, 25 tokens counted, from vLLM 0.30.0"
    )
    verify_run(run)
    again = imported(tiny, tmp_path / "stats", tmp_path / "monday.jsonl")
    assert again.manifest == run.manifest  # not read twice


def test_a_history_counts_once(tiny, tmp_path):
    """The second turn holds the first; only the answer's last token gets experts by it."""
    rows = random_rows(13, tiny.layers)
    first = Spoken(list(range(10, 14)), list(range(20, 24)), rows[:7])
    second = Spoken([*first.both, 30, 31], [40, 41, 42, 43], rows)
    branch = Spoken(
        [*first.prompt, 50], [51, 52], np.concatenate([rows[:4], random_rows(2, tiny.layers, 1)])
    )
    expected = np.concatenate([rows, branch.rows[4:]])[:, list(SPARSE)]
    wanted = [np.bincount(expected[:, n].reshape(-1), minlength=EXPERTS) for n in range(3)]
    turns = (first, second, branch, first)
    with_ids = [
        vllm(turn, prompt_token_ids=turn.prompt)
        | {"choices": [{"routed_experts": npy(turn.rows), "token_ids": turn.answer}]}
        for turn in turns
    ]
    # Without ids of tokens, the experts of a beginning tell it.
    for answers in (with_ids, list(map(vllm, turns)), list(map(sglang, turns))):
        run = imported(tiny, tmp_path / "stats", write(tmp_path / "a.jsonl", answers))
        (corpus,) = run.manifest.corpora
        assert corpus.prepared["traffic"]["repeated"] == 7 + 4 + 4
        # The fourth answer is written again: what was generated counts.
        again = rows[4:7][:, list(SPARSE)]
        more = [np.bincount(again[:, n].reshape(-1), minlength=EXPERTS) for n in range(3)]
        np.testing.assert_array_equal(counts_of(run), np.add(wanted, more).reshape(-1))


def test_drafts_that_were_not_accepted_and_tokens_without_experts_stay_out(
    tiny, spoken, by_calibrate, tmp_path
):
    """Rows beyond the tokens of an answer are drafts; zeros in all layers are no choice."""
    # Four rows more than 8 tokens are also as many ids as of top-3.
    drafts = [np.concatenate([request.rows, request.rows[:4]]) for request in spoken]
    padded = [
        np.concatenate([request.rows, np.zeros((1, DEPTH, TOP_K), int)]) for request in spoken
    ]
    cases = ((vllm, drafts, 4), (sglang, drafts, 4), (vllm, padded, 1), (sglang, padded, 1))
    for number, (answer, rows, surplus) in enumerate(cases):
        answers = [answer(request, more) for request, more in zip(spoken, rows, strict=True)]
        traces = write(tmp_path / f"{number}.jsonl", answers)
        run = imported(tiny, tmp_path / "stats", traces, name=f"t{number}", count="response")
        np.testing.assert_array_equal(counts_of(run), by_calibrate["response"])
        assert run.manifest.corpora[0].prepared["traffic"]["surplus"] == 4 * surplus
    blank = spoken[0].rows.copy()
    blank[6] = 0
    run = imported(tiny, tmp_path / "stats", write(tmp_path / "b.jsonl", [vllm(spoken[0], blank)]))
    (corpus,) = run.manifest.corpora
    assert (corpus.num_counted, corpus.prepared["traffic"]["unrecorded"]) == (12, 1)


def test_first_rows_that_were_not_asked_for_are_not_missed(tiny, spoken, tmp_path):
    request = spoken[3]
    run = imported(
        tiny, tmp_path / "stats", write(tmp_path / "a.jsonl", [sglang(request, request.rows[4:])])
    )
    (corpus,) = run.manifest.corpora
    assert corpus.num_counted == 11 + 5 - 4


def changed(rows, where, value):
    rows = rows.copy()
    rows[where] = value
    return rows


def cut(text):
    return text[: len(text) // 2]


def top_four(tokens):
    rows = np.zeros((tokens, DEPTH, 4), dtype=np.int64)
    rows[:, list(SPARSE)] = np.arange(1, 5)
    return rows


ONE = np.s_[2, 3]
REFUSED = {
    "cut short: the file ends within it": lambda r: cut(json.dumps(vllm(r))),
    "line 1: it is not JSON": lambda r: "{'a': 1}\n",
    "no routed experts; start the server": lambda r: {"choices": [{"message": {}}]},
    "no answer of vLLM or SGLang": lambda r: {"text": "hello"},
    "an answer of 99": lambda r: vllm(r, usage={"prompt_tokens": 5, "completion_tokens": 99}),
    "a prompt of 99": lambda r: vllm(r, usage={"prompt_tokens": 99}),
    "3 experts a token in each layer, and tiny chooses 2": lambda r: vllm(
        r, np.concatenate([r.rows, 5 + 0 * r.rows[..., :1]], axis=2)
    ),
    "it has 4 experts a token": lambda r: sglang(r, top_four(len(r.rows))),
    "5 layers a token; tiny has experts in 3 of 4": lambda r: vllm(
        r, np.concatenate([r.rows, r.rows[:, :1]], axis=1)
    ),
    "names expert 6 of layer 3, which has 6 in tiny": lambda r: vllm(
        r, changed(r.rows, ONE, (0, 6))
    ),
    "layer 3 chooses an expert twice": lambda r: vllm(r, changed(r.rows, ONE, (4, 4))),
    "names experts in layer 1, which has none": lambda r: vllm(r, changed(r.rows, np.s_[2, 1], 3)),
    "are float64, not whole numbers": lambda r: {
        "choices": [{"routed_experts": npy(r.rows, "f8")}]
    },
    "no base64": lambda r: {"choices": [{"routed_experts": "?"}]},
    "no .npy file": lambda r: {"choices": [{"routed_experts": int32(r.rows)}]},
    "cut short: (13, 4, 2)": lambda r: {
        "choices": [{"routed_experts": npy(r.rows)[:-4].ljust(len(npy(r.rows)) - 4, "A")}]
    },
    "differ in length": lambda r: {"choices": [{"routed_experts": [[[0, 1]], [[0]]]}]},
    "the shape (-1, 4, 2), which no array has": lambda r: {
        "choices": [{"routed_experts": base64.b64encode(npy_header((-1, 4, 2))).decode()}]
    },
    "a token id of more than 64 bits": lambda r: (
        vllm(r, prompt_token_ids=[1 << 63] * 5)
        | {"choices": [{"routed_experts": npy(r.rows), "token_ids": r.answer}]}
    ),
    "it is not JSON: it holds a number of thousands of digits": lambda r: "1" * 6001 + "\n",
    "no answer of vLLM or SGLang; a line holds one": lambda r: [vllm(r), {"text": "hello"}],
    "the shape (2, 2)": lambda r: {"choices": [{"routed_experts": [[0, 1], [2, 3]]}]},
    "no 2 experts in each of the 4 layers": lambda r: {
        "meta_info": {"routed_experts": int32(r.rows[0, 0])}
    },
    "no 32-bit numbers": lambda r: {"meta_info": {"routed_experts": "AAAA"}},
    "does not say which tokens are the prompt's": lambda r: vllm(r, usage=None),
}


@pytest.mark.parametrize("problem", REFUSED)
def test_what_cannot_be_counted_is_refused_by_its_line_and_nothing_is_stored(
    problem, tiny, spoken, by_calibrate, tmp_path
):
    bad = REFUSED[problem](spoken[0])
    text = bad if isinstance(bad, str) else json.dumps(bad) + "\n"
    path = tmp_path / "monday.jsonl"
    path.write_text(text)
    with pytest.raises(StatsError) as refused:
        imported(tiny, tmp_path / "stats", path, count="response")
    assert str(refused.value).startswith("monday.jsonl, line 1: ")
    assert problem in str(refused.value)
    assert not (tmp_path / "stats").exists()
    good = "".join(json.dumps(vllm(request)) + "\n" for request in spoken)
    path.write_text(good + text)
    run = imported(tiny, tmp_path / "stats", path, count="response", skips=1)
    np.testing.assert_array_equal(counts_of(run), by_calibrate["response"])
    assert run.manifest.corpora[0].prepared["skipped_rows"] == 1


def answers_of_a_pruned_model(tokens, num_kept=4):
    """The first experts of 6 alone, evenly, as a model with so many of them chooses."""
    rows = np.zeros((tokens, DEPTH, TOP_K), dtype=np.int64)
    firsts = np.arange(tokens) % num_kept
    rows[:, list(SPARSE)] = np.column_stack([firsts, (firsts + 1) % num_kept])[:, None]
    return Spoken([5], [6] * tokens, rows)


def test_answers_of_a_pruned_model_are_not_taken_for_the_originals(tiny, tmp_path):
    """An expert that a whole model never chose in a thousand tokens is no sign of it."""
    for number, (tokens, num_kept) in enumerate(((900, 4), (1900, 5))):
        few = write(tmp_path / "few.jsonl", [vllm(answers_of_a_pruned_model(tokens, num_kept))])
        run = imported(tiny, tmp_path / "stats", few, name=f"t{number}")
        assert counts_of(run).sum() == tokens * TOP_K * len(SPARSE)
    for tokens, num_kept, last in ((1100, 4, "the last 2 experts"), (2100, 5, "its last expert")):
        much = write(tmp_path / "much.jsonl", [vllm(answers_of_a_pruned_model(tokens, num_kept))])
        with pytest.raises(StatsError, match=rf"no layer chose {last}: .*If so, name that model"):
            imported(tiny, tmp_path / "stats", much)


def test_names_of_corpora_are_not_given_to_traffic(tiny, spoken, tmp_path):
    traces = write(tmp_path / "a.jsonl", [vllm(spoken[0])])
    sequences = TokenSequences("mine", (np.arange(3, 9, dtype=np.int32),), 1, 0)
    calibrated(tiny, tmp_path / "stats", sequences)
    for name in ("mine", "c4", "demo-code", "rows.jsonl"):
        with pytest.raises(StatsError, match=f"{name} is the name of a corpus"):
            imported(tiny, tmp_path / "stats", traces, name=name)
    with pytest.raises(StatsError, match="no name for traffic"):
        imported(tiny, tmp_path / "stats", traces, name="a:2")


@pytest.fixture
def both(tiny, spoken, tmp_path):
    """A store with traffic `monday` and a calibration `mine`, and their runs."""
    traffic = imported(tiny, tmp_path / "stats", write(tmp_path / "a.jsonl", map(vllm, spoken)))
    rng = np.random.default_rng(9)
    rows = tuple(rng.integers(3, VOCAB, 9).astype(np.int32) for _ in range(6))
    calibration = calibrated(tiny, tmp_path / "stats", TokenSequences("mine", rows, 6, 0))
    return StatsStore(tmp_path / "stats"), traffic, calibration


def test_frequency_ranks_by_traffic_and_all_else_is_refused_by_name(tiny, both):
    store, traffic, calibration = both
    frequency, reap = get_criterion("frequency"), get_criterion("reap")
    monday, mine = parse_corpus_weight("monday"), parse_corpus_weight("mine")
    chosen = choose_stats(frequency, store, tiny, (monday,))
    assert chosen.runs == (traffic,)
    np.testing.assert_array_equal(chosen.stats.table["num_tokens"], counts_of(traffic))
    # What is not named is not taken: REAP has one corpus, and ranks by that.
    assert choose_stats(reap, store, tiny).runs == (calibration,)
    for criterion in ("reap", "ean", "mone", "damage", "seer"):
        for named in ({"corpora": (monday,)}, {"run_ids": (traffic.manifest.run_id,)}):
            with pytest.raises(StatsError, match="monday is traffic, of which a run has counts"):
                choose_stats(get_criterion(criterion), store, tiny, **named)
    blend = choose_stats(frequency, store, tiny, (parse_corpus_weight("monday:2"), mine))
    shares = [counts_of(run) / counts_of(run).sum() for run in (traffic, calibration)]
    mixed = blend.stats.table["num_tokens"] / blend.stats.table["num_tokens"].sum()
    np.testing.assert_allclose(mixed, (2 * shares[0] + shares[1]) / 3)
    with pytest.raises(StatsError, match="monday is traffic"):
        routed_runs(store, tiny, [mine, monday], (), reap)


def test_a_blend_covers_traffic_and_calibrations(both):
    _, traffic, calibration = both
    runs = [traffic, calibration]
    blender = Blender(Mixture(runs), get_criterion("frequency"), "applied", parse_sparsity("50%"))
    for weights in ([1, 0], [0, 1], [1, 1]):
        kept = blender.kept(weights)
        for run, covered in zip(runs, blender.coverage(weights), strict=True):
            counts = counts_of(run).reshape(len(SPARSE), EXPERTS)
            shares = np.where(kept, counts, 0).sum(axis=1) / counts.sum(axis=1)
            assert covered == pytest.approx(shares.mean())


def test_a_bare_name_is_a_calibrations_before_it_is_that_of_traffic(tiny, spoken, tmp_path):
    """Traffic `mine`, and afterwards a calibration of a file of that stem."""
    store, name = StatsStore(tmp_path / "stats"), "mine@01234567"
    traces = write(tmp_path / "a.jsonl", map(vllm, spoken))
    traffic = imported(tiny, store.target, traces, name="mine")
    rows = tuple(np.arange(3, 9 + n, dtype=np.int32) for n in range(3))
    calibration = calibrated(tiny, store.target, TokenSequences(name, rows, 3, 0))
    mine = parse_corpus_weight("mine:2")
    for criterion in map(get_criterion, ("reap", "frequency")):
        (part,) = routed_runs(store, tiny, (mine,), (), criterion)
        assert (part.run, part.weight) == (calibration, 2)
    frequency = get_criterion("frequency")
    assert choose_stats(frequency, store, tiny, (), (traffic.manifest.run_id,)).runs == (traffic,)
    with pytest.raises(StatsError, match="mine is the name of a corpus"):
        imported(tiny, store.target, write(tmp_path / "b.jsonl", [vllm(spoken[0])]), name="mine")


def test_traffic_merges_with_traffic_alone(tiny, spoken, both, tmp_path):
    store, traffic, calibration = both
    again = write(tmp_path / "b.jsonl", [sglang(answers_of_a_pruned_model(20))])
    tuesday = imported(tiny, store.target, again, name="tuesday")
    merged = merge_runs([traffic, tuesday], store.target)
    np.testing.assert_array_equal(counts_of(merged), counts_of(traffic) + counts_of(tuesday))
    assert merged.manifest.kind == "traffic"
    with pytest.raises(StatsError, match="merges with traffic"):
        merge_runs([traffic, calibration], store.target)
