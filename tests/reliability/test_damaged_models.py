"""What fuzzing found of checkpoints that are run and of unfinished calibrations, one case each."""

import json
import re
import shutil

import pytest
from calibrations import describe, make_sequences, make_settings
from tokenizers import Tokenizer
from tokenizers.models import WordPiece

from analysis.calibration import partial
from analysis.calibration.feed import check_model_packs
from analysis.calibration.loading import Placement, load_tokenizer
from analysis.calibration.run import calibrate
from analysis.calibration.sums import sums_of
from analysis.corpora.apart import task_documents
from analysis.corpora.documents import Document
from analysis.corpora.encoding import encode
from analysis.corpora.spec import parse_corpus
from analysis.corpora.tokens import ChatFormat
from analysis.criteria import get_criterion
from analysis.drain import drain
from analysis.errors import CheckpointError, CorpusError, StatsError, UserError
from analysis.files.shipped import DEMO_CHECKPOINT
from analysis.model.opening import load_model_index
from analysis.ranking.published import PUBLISHED, read_published
from analysis.stats.store import StatsStore
from builders import edit_json
from families.configs import CASES
from families.tiny_models import tiny_model
from pruning.engine.answers import prompt_ids
from pruning.plan.layer_words import parse_counts, parse_experts

STREAMED = Placement(stream_layers=True)


def run(model, stats, **changes):
    return drain(calibrate(model, make_sequences(), make_settings(**changes), StatsStore(stats)))


@pytest.mark.parametrize("placement", [Placement(), STREAMED], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_act": "unheard of"}, "transformers cannot load model: KeyError 'unheard of'"),
        ({"pad_token_id": 999}, "transformers cannot load model: AssertionError Padding_idx must"),
        ({"num_attention_heads": 0}, "ZeroDivisionError"),
        (
            {"norm_topk_prob": 1},
            r"model: config\.json: Field 'norm_topk_prob' expected bool, got int",
        ),
        (
            {"layer_types": ["x"]},
            r"model: config\.json: The `layer_types` entries must be in .*'x'",
        ),
        (
            {"intermediate_size": 32},
            r"model holds .*down_proj.* 24\), and its config\.json .* 32\)",
        ),
        *(
            ({"hidden_size": size}, "statistics of model do not fit into memory: 3 layers whose")
            for size in (10**13, 10**18, 10**25)  # more than there is, than bytes, than int64
        ),
    ],
)
def test_values_of_a_configuration_that_nobody_expects(tmp_path, placement, change, message):
    describe(tmp_path / "model")
    edit_json(tmp_path / "model" / "config.json", **change)
    model = load_model_index(str(tmp_path / "model"))
    with pytest.raises(CheckpointError, match=message):
        run(model, tmp_path / "stats", placement=placement)


def test_tokens_that_the_text_part_of_a_model_does_not_have(tmp_path):
    (case,) = [case for case in CASES if case.name == "aria"]
    tiny_model(case).save_pretrained(tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    text = json.loads(path.read_bytes())["text_config"]
    edit_json(path, text_config={**text, "vocab_size": 64})
    with pytest.raises(CorpusError, match=r"has the token id \d+, but model has 64 tokens"):
        run(load_model_index(str(tmp_path / "model")), tmp_path / "stats")


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("tokenizer_config.json", {"eos_token": 7}),
        ("tokenizer_config.json", {"tokenizer_class": []}),
        ("tokenizer.json", {"model": {"type": "BPE", "vocab": {}, "merges": [7]}}),
    ],
)
def test_tokenizers_that_cannot_be_read(tmp_path, name, changes):
    shutil.copytree(DEMO_CHECKPOINT, tmp_path / "model")
    edit_json(tmp_path / "model" / name, **changes)
    model = load_model_index(str(tmp_path / "model"))
    with pytest.raises(CheckpointError, match="model has no readable tokenizer"):
        load_tokenizer(model)


def test_tokenizers_that_cannot_read_a_text(tmp_path):
    shutil.copytree(DEMO_CHECKPOINT, tmp_path / "model")
    model = load_model_index(str(tmp_path / "model"))
    edit_json(tmp_path / "model" / "tokenizer_config.json", model_max_length="long")
    with pytest.raises(CorpusError, match=r"tokenizer cannot read a text \('>' not supported"):
        encode(Document(text="words"), load_tokenizer(model), ChatFormat(), "a.txt")
    # tokenizers raises a bare Exception where it needs the word for unknown ones.
    edit_json(tmp_path / "model" / "tokenizer_config.json", model_max_length=64)
    Tokenizer(WordPiece({"known": 0})).save(str(tmp_path / "model" / "tokenizer.json"))
    tokenizer = load_tokenizer(model)
    with pytest.raises(CorpusError, match=r"cannot read a text \(WordPiece error: Missing \[UNK\]"):
        encode(Document(text="other"), tokenizer, ChatFormat(), "a.txt")
    with pytest.raises(CorpusError, match=r"cannot read a text .*files are damaged"):
        prompt_ids(tokenizer, "other", as_chat=False)


TALK = [{"role": "user", "content": "How?"}, {"role": "assistant", "content": "So."}]


@pytest.mark.parametrize("count", ["all", "response"])
@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ 1 // 0 }}", "integer division or modulo by zero"),
        ("{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}", "maximum recursion depth"),
        ("{{ 'a'.encode('utf-99') }}", "unknown encoding: utf-99"),
        ("{{ 10**400 * 1.0 }}", "int too large to convert to float"),
        ("{{ raise_exception('') }}", "TemplateError"),
        ("{{", "unexpected 'end of template'"),
        (7, "Can't compile non template nodes"),
    ],
)
def test_chat_templates_that_fail(tmp_path, count, template, reason):
    shutil.copytree(DEMO_CHECKPOINT, tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").unlink()
    edit_json(tmp_path / "model" / "tokenizer_config.json", chat_template=template)
    tokenizer = load_tokenizer(load_model_index(str(tmp_path / "model")))
    said = rf"cannot format a conversation \({reason}.*\); "
    with pytest.raises(CorpusError, match=said + "give a corpus of text or of input_ids"):
        encode(Document(messages=TALK), tokenizer, ChatFormat(count), "a.jsonl")
    with pytest.raises(CorpusError, match=said + "ask with --raw"):
        prompt_ids(tokenizer, "How?", as_chat=True)


def test_a_configuration_that_transformers_cannot_read(tmp_path):
    path = tmp_path / "model" / "config.json"
    model = describe(tmp_path / "model")
    check_model_packs(model)
    edit_json(path, model_type="unheard of")
    check_model_packs(model)  # loading says so
    edit_json(path, model_type="olmoe", hidden_act=[7])
    with pytest.raises(CheckpointError, match="transformers cannot load model: "):
        check_model_packs(model)


@pytest.fixture
def unfinished(tmp_path, monkeypatch):
    """`unfinished(steps, **settings)`: a model, and the folder of a run of it that was left."""
    monkeypatch.setattr(partial, "_SAVE_EVERY_SECONDS", 0)
    monkeypatch.setattr(partial, "_TIMES_THE_SAVE", 0)
    model = describe(tmp_path / "model")

    def leave(steps, **changes):
        settings = make_settings(batch_size=2, **changes)
        task = calibrate(model, make_sequences(), settings, StatsStore(tmp_path / "stats"))
        for _ in range(steps):
            next(task)
        task.close()
        (folder,) = (tmp_path / "stats").glob("*.partial")
        return model, folder

    return leave


def test_a_saved_state_that_was_changed_is_not_resumed(tmp_path, unfinished, caplog):
    model, folder = unfinished(4)
    once = run(model, tmp_path / "once", batch_size=2)
    path = folder / "state.safetensors"
    whole, left = path.read_bytes(), shutil.copytree(folder, tmp_path / "left")
    recounted = re.sub(rb'(\\"done\\": )[1-9]', rb"\g<1>0", whole)
    assert recounted != whole
    for changed in (whole[:-2] + bytes([whole[-2] ^ 4]) + whole[-1:], recounted):
        shutil.rmtree(tmp_path / "stats")
        shutil.copytree(left, folder)
        path.write_bytes(changed)
        caplog.clear()
        assert run(model, tmp_path / "stats", batch_size=2).manifest.files == once.manifest.files
        assert "cannot be read; starting over" in caplog.text


def test_saved_hidden_states_that_were_changed_are_refused(tmp_path, unfinished):
    model, folder = unfinished(11, placement=STREAMED)
    path = max(folder.glob("hidden-*/1.safetensors"))
    whole = path.read_bytes()
    for changed in (whole[:-2] + bytes([whole[-2] ^ 4]) + whole[-1:], b""):
        path.write_bytes(changed)
        with pytest.raises(CheckpointError, match=r"are damaged; delete the file .* --no-resume"):
            run(model, tmp_path / "stats", batch_size=2, placement=STREAMED)
    settings = make_settings(batch_size=2, placement=STREAMED)
    store = StatsStore(tmp_path / "stats")
    drain(calibrate(model, make_sequences(), settings, store, resume=False))
    assert len(store.runs()) == 1


@pytest.mark.parametrize(
    "corpus", ["hub:one/two,a\nb=c", "rows.jsonl,text=a\u2028b,x", "demo\0", "a\udcff.txt"]
)
def test_names_of_corpora_that_no_terminal_shows(corpus):
    with pytest.raises(CorpusError, match=r"is not a corpus: it contains a line break") as refusal:
        parse_corpus(corpus)
    assert str(refusal.value).isprintable()


NINES = "9" * 5000


@pytest.mark.parametrize(
    ("read", "word"),
    [
        (get_criterion, f"{NINES},0,1"),
        (get_criterion, f"pathfinder:{NINES}"),
        (lambda word: parse_experts([word]), f"1:{NINES}-3"),
        (lambda word: parse_experts([word]), f"{NINES}:3"),
        (lambda word: parse_counts([word]), f"1={NINES}"),
    ],
)
def test_numbers_of_more_digits_than_python_reads(read, word):
    with pytest.raises(UserError):
        read(word)


@pytest.mark.parametrize(
    "line", [b"\xff", b"{", b"7", b'{"prompt": "a"}', b'{"prompt": 7, "document_digest": "a"}']
)
def test_local_benchmarks_that_are_damaged(tmp_path, line):
    task = tmp_path / "demo-math-exact-0" / "demo-math-exact.jsonl"
    task.parent.mkdir()
    task.write_bytes(b'{"prompt": "a", "document_digest": "b"}\n' + line)
    with pytest.raises(CorpusError, match=r"Line 2 of the benchmark .* is not a question; remove"):
        task_documents([tmp_path])


def doubled(text):
    """With its last column twice: pandas would read the first and rename the other."""
    return "".join(f"{line},{line.rpartition(',')[2]}\n" for line in text.splitlines())


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda text: text.replace("sparsity,", "share,", 1), "lacks the columns sparsity"),
        (lambda text: text.replace(",0.", ",7.", 1), "its score is not between 0 and 1"),
        (lambda text: text.replace(",0.", ",x.", 1), "could not convert"),
        (lambda text: text.replace("paper,table", '"paper,table', 1), "EOF inside string"),
        (doubled, "it has the columns score twice"),
    ],
)
def test_published_tables_that_are_damaged(tmp_path, damage, reason):
    text = (PUBLISHED / "unified-table-1.csv").read_text()
    (tmp_path / "one.csv").write_text(damage(text))
    with pytest.raises(StatsError, match=rf"one\.csv is damaged \(.*{reason}.*\); install the"):
        read_published(tmp_path / "one.csv")


def test_sums_that_cannot_be_made_for_another_reason(tmp_path):
    """A wrong call is no lack of memory."""
    model = describe(tmp_path / "model")
    with pytest.raises(RuntimeError, match="non-negative"):
        sums_of(model, ("routed", "dense"), -1)
