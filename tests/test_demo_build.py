"""The builder of the demo model: documents in sequences, shares of batches, what is held out."""

import json
from itertools import islice

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, OlmoeForCausalLM

from analysis.corpora.documents import demo_document
from analysis.corpora.encoding import encode
from analysis.corpora.sources import fitness_source
from analysis.corpora.tokens import ChatFormat
from analysis.demo.held_out import HELD_OUT_FILE, held_out_numbers
from analysis.demo.listing import DEMO_CORPORA, HELD_OUT_FROM
from analysis.demo.texts import demo_text
from analysis.files.shipped import DEMO_CHECKPOINT
from analysis.model.opening import load_model_index
from tools.demo.build import (
    Training,
    build,
    demo_config,
    held_out_tokens,
    mixed_batches,
    packed,
    training_tokens,
)
from tools.demo.corpora import Excerpt
from tools.demo.first_weights import set_first_weights
from tools.demo.tokenizer import train_tokenizer
from tools.demo.work import inputs_digest, texts_digest

LENGTH = 128
SHARES = {"demo-code": 5, "demo-stories": 5, "demo-math": 4, "demo-recipes": 2}


def test_documents_are_packed_end_to_end():
    documents = [np.array(ids, dtype=np.int32) for ids in ([1, 2, 3], [4, 5], [6, 7, 8, 9])]
    assert packed(documents, 4).tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]  # and 9 is dropped


def numbered_rows(count=10):
    """Corpora of sequences that count up from 1,000 a sequence and 100,000 a corpus."""
    starts = 1000 * np.arange(count)[:, None] + np.arange(LENGTH)
    return {name: (100_000 * place + starts).astype(np.int32) for place, name in enumerate(SHARES)}


def test_batches_have_each_corpus_share_and_no_sequence_twice_in_an_epoch():
    rows, training = numbered_rows(), Training()
    batches = list(islice(mixed_batches(rows, training), 40))
    assert all(len(set((batch[:, 0] // 100_000).tolist())) == 4 for batch in batches)
    drawn = np.concatenate(batches)
    for sixteen in np.split(drawn[:, 0] // 100_000, 20):
        assert np.bincount(sixteen).tolist() == list(SHARES.values())
    for place, of_corpus in enumerate(rows.values()):
        found = drawn[drawn[:, 0] // 100_000 == place]
        first, second = found[:10, 0].tolist(), found[10:20, 0].tolist()
        assert set(first) == set(second) == set(of_corpus[:, 0].tolist())
        assert first != second
    again = np.concatenate(list(islice(mixed_batches(rows, training), 40)))
    assert np.array_equal(drawn, again)


@pytest.fixture(scope="module")
def tokenizer():
    numbers = range(300)
    return train_tokenizer(
        demo_text(corpus.name, number).whole
        for corpus in DEMO_CORPORA.values()
        for number in numbers
    )


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr("tools.demo.build.TRAINING_DOCUMENTS", 40)
    monkeypatch.setattr("tools.demo.build.EVALUATED", 20)
    monkeypatch.setattr("tools.demo.build.BENCHMARKED", 10)


@pytest.mark.parametrize("corpus", DEMO_CORPORA.values(), ids=DEMO_CORPORA)
def test_training_reads_documents_as_calibration_does_and_their_ends(corpus, tokenizer, few):
    documents = training_tokens(corpus, tokenizer)
    assert len(documents) == 40
    for number, document in enumerate(documents):
        read = encode(
            demo_document(demo_text(corpus.name, number)), tokenizer, ChatFormat(), corpus.name
        )
        assert tokenizer.decode(document).removesuffix("<|end|>") == tokenizer.decode(
            read.ids
        ).removesuffix("<|end|>")
        assert (document == tokenizer.eos_token_id)[-2:].tolist() == [False, True]


def test_the_first_weights_look_up_what_followed_before(tokenizer):
    """Of two equal pieces of random tokens, the second is looked up in the first."""
    torch.manual_seed(0)
    model = OlmoeForCausalLM(demo_config(Training(), tokenizer)).eval()
    before = model.state_dict()["model.layers.2.self_attn.q_proj.weight"].clone()
    set_first_weights(model)
    assert torch.equal(model.state_dict()["model.layers.2.self_attn.q_proj.weight"], before)
    piece = torch.randint(4, 2048, (4, 40))
    ids = torch.cat([piece, piece], dim=1)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        outputs = model(ids, output_attentions=True)
    first, second = (attention[:, 0] for attention in outputs.attentions[:2])
    places = torch.arange(41, 79)
    assert first[:, places, places - 1].mean() > 0.6
    assert second[:, places, places - 39].mean() > 0.9
    losses = torch.nn.functional.cross_entropy(
        outputs.logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="none"
    ).view(4, -1)
    assert losses[:, 41:].mean() < losses[:, :39].mean() - 2


def runs(ids):
    """All runs of 32 tokens."""
    return {tuple(ids[start : start + 32].tolist()) for start in range(len(ids) - 31)}


def test_what_shares_a_run_of_32_tokens_with_training_is_not_held_out(tokenizer, few):
    """Training has a piece of every second document: 40 tokens of it, or too few to be a run."""
    corpus = DEMO_CORPORA["demo-recipes"]
    texts = [demo_text(corpus.name, HELD_OUT_FROM + number).whole for number in range(40)]
    whole = [np.array(tokenizer.encode(text)) for text in texts]
    seen = [ids[5 : 5 + (31 if place % 2 else 40)] for place, ids in enumerate(whole[::2])]
    known = set().union(*map(runs, seen))
    wanted = [number for number, ids in enumerate(whole) if known.isdisjoint(runs(ids))]
    assert 20 < len(wanted) <= 30
    found = held_out_tokens(corpus, tokenizer, seen)
    assert len(found) == 30
    assert [number - HELD_OUT_FROM for number in found][: len(wanted)] == wanted


def test_a_digest_of_texts_is_that_of_every_document():
    numbers = {"demo-math": [1, 2], "demo-code": [1]}
    assert texts_digest(numbers) == texts_digest({**numbers, "demo-code": (1,)})
    others = [
        {**numbers, "demo-code": [2]},
        {**numbers, "demo-math": [2, 1]},
        {"demo-math": [1, 2]},
    ]
    assert len({texts_digest(other) for other in (numbers, *others)}) == 4


def test_records_are_of_the_list_of_held_out_documents(tmp_path, monkeypatch):
    monkeypatch.setattr("tools.demo.work.TRAINING_DOCUMENTS", 3)
    for path in DEMO_CHECKPOINT.iterdir():
        if path.name != HELD_OUT_FILE:
            (tmp_path / path.name).symlink_to(path)
    listed = {corpus: list(numbers) for corpus, numbers in held_out_numbers().items()}
    listed["demo-math"][7] += 10_000
    (tmp_path / HELD_OUT_FILE).write_text(json.dumps(listed))
    assert inputs_digest(tmp_path) != inputs_digest()


@pytest.mark.parametrize("corpus", DEMO_CORPORA)
def test_an_excerpt_is_a_held_out_document_as_the_model_reads_it(corpus):
    tokenizer = AutoTokenizer.from_pretrained(DEMO_CHECKPOINT)
    document = list(islice(fitness_source(corpus).draw(42), 4))[3]
    text = Excerpt(corpus, 3).read()
    ids = encode(document, tokenizer, ChatFormat(), corpus).ids
    assert text == tokenizer.decode(ids).removesuffix("<|end|>" if document.text else "")


def test_a_build_is_a_model_with_its_list_and_its_losses(tmp_path, few, monkeypatch):
    monkeypatch.setattr("tools.demo.build._TOKENIZER_DOCUMENTS", 100)
    monkeypatch.setattr("tools.demo.build.EVALUATED", 2)
    training = Training(steps=1, batch_size=1, seq_len=64)
    manifest = build(tmp_path / "model", training)
    assert json.loads((tmp_path / "model" / "demo_manifest.json").read_bytes()) == manifest
    assert load_model_index(str(tmp_path / "model")).num_experts == 6 * 32
    listed = held_out_numbers(tmp_path / "model")
    assert {name: len(numbers) for name, numbers in listed.items()} == dict.fromkeys(
        DEMO_CORPORA, 12
    )
    model = OlmoeForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    for name, numbers in listed.items():
        documents = (demo_document(demo_text(name, number)) for number in numbers[:2])
        encoded = [encode(document, tokenizer, ChatFormat(), name).ids for document in documents]
        ids = np.concatenate(encoded)
        rows = torch.from_numpy(ids[: len(ids) // 64 * 64].reshape(-1, 64).astype(np.int64))
        with torch.no_grad():
            logs = model(rows).logits.double().log_softmax(-1)
        mean = -logs[:, :-1].gather(2, rows[:, 1:, None]).mean().item()
        # The builder computes in bfloat16.
        assert manifest["held_out_loss_nats"][name] == pytest.approx(mean, abs=3e-3)
    with pytest.raises(FileExistsError, match="remove it or name another folder"):
        build(tmp_path / "model", training)
