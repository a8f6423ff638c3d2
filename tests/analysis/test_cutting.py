"""Long texts are cut before they are tokenised; the tokens used are those of the whole text."""

import numpy as np
import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from analysis.calibration.loading import load_tokenizer
from analysis.corpora.cutting import Extent, tokenize_part
from analysis.corpora.documents import Document
from analysis.corpora.encoding import TextReader, encode
from analysis.corpora.sampling import DocumentSelection, tokenize
from analysis.corpora.settings import Sampling
from analysis.corpora.sources import in_memory
from analysis.corpora.tokens import ChatFormat
from analysis.demo.texts import demo_text
from analysis.errors import CorpusError
from analysis.model.opening import load_model_index

LENGTH = 70_000  # characters; texts of up to 65,536 are not cut
UNKNOWN = "[UNK]"
STORIES = [demo_text("demo-stories", number).whole for number in range(400)]
WORDS = " ".join(STORIES).split()


def drawn(rng, items, count):
    """So many random items; a text of characters."""
    chosen = [items[place] for place in rng.integers(len(items), size=count)]
    return "".join(chosen) if isinstance(items, str) else chosen


def train(tokenizer, kind, **options):
    trainer = kind(
        vocab_size=500, special_tokens=[UNKNOWN, "[CLS]", "[SEP]"], show_progress=False, **options
    )
    tokenizer.train_from_iterator(STORIES, trainer)
    return tokenizer


def byte_level():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return train(tokenizer, trainers.BpeTrainer, initial_alphabet=alphabet)


def joined_bpe():
    """As of Llama 2 and Mixtral: no pre-tokenizer, so a text is one word."""
    tokenizer = Tokenizer(models.BPE(unk_token=UNKNOWN, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    return train(tokenizer, trainers.BpeTrainer)


def unigram(pre_tokenizer):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizer
    return train(tokenizer, trainers.UnigramTrainer, unk_token=UNKNOWN)


def word_piece():
    tokenizer = Tokenizer(models.WordPiece(unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    train(tokenizer, trainers.WordPieceTrainer)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    return tokenizer


@pytest.fixture(scope="module")
def demo():
    return load_model_index("demo")


KINDS = {
    "byte level": byte_level,
    "no pre-tokenizer": joined_bpe,
    "unigram": lambda: unigram(pre_tokenizers.Metaspace()),
    "unigram, no pre-tokenizer": lambda: unigram(pre_tokenizers.Split("\n", "isolated")),
    "word piece": word_piece,
}


@pytest.fixture(scope="module", params=[*KINDS, "demo"])
def tokenizer(request, demo):
    if request.param == "demo":
        return load_tokenizer(demo)
    special = {"eos_token": "[SEP]", "unk_token": UNKNOWN}
    return PreTrainedTokenizerFast(tokenizer_object=KINDS[request.param](), **special)


def texts(rng):
    mixed = "".join(map(chr, (*range(32, 127), 10, 0x301, *range(0x4E00, 0x4E40), 0x1F600)))
    yield "words", " ".join(drawn(rng, WORDS, LENGTH // 3))
    yield "no white space", "".join(drawn(rng, WORDS, LENGTH // 3))
    yield "characters", drawn(rng, mixed, LENGTH + 11)
    yield "digits", drawn(rng, "0123456789", LENGTH + 1)
    yield "a run", drawn(rng, "ae \n=", 1) * (LENGTH + 2)


@pytest.fixture(scope="module")
def encoded(tokenizer):
    """Names of texts, the texts, and their ids, which take longest to find."""
    return [(name, text, tokenizer.encode(text)) for name, text in texts(np.random.default_rng(5))]


@pytest.mark.parametrize("from_end", [False, True], ids=["head", "tail"])
def test_ids_of_a_part_are_those_of_the_whole_text(tokenizer, encoded, from_end):
    num_cut = 0
    for name, text, whole in encoded:
        for most in (1, 40, 700):
            part = tokenize_part(text, tokenizer.encode, Extent(most, from_end), name)
            expected = whole[-len(part.ids) :] if from_end else whole[: len(part.ids)]
            assert list(part.ids) == expected, (name, most)
            assert len(part.ids) >= most or part.is_whole
            num_cut += not part.is_whole
    assert num_cut >= 6


def test_runs_that_may_be_segmented_in_many_ways():
    # A unigram model of a periodic text has equally likely segmentations, and which one is chosen
    # depends on the length of the text.
    rng = np.random.default_rng(3)
    num_cut = 0
    for _ in range(25):
        letters = rng.choice(["a", "ab", "abc"])
        pieces = {drawn(rng, letters, rng.integers(2, 10)) for _ in range(6)}
        vocabulary = [("?", -20.0), *((piece, -rng.uniform(1, 8)) for piece in letters)]
        vocabulary += [
            (piece, -rng.choice([float(len(piece)), round(rng.uniform(1, 8))]))
            for piece in sorted(pieces)
        ]
        model = Tokenizer(models.Unigram(vocabulary, unk_id=0))
        period = drawn(rng, letters, rng.choice([1, 2, 3, 5]))
        text = (period * LENGTH)[: LENGTH + rng.integers(20)]
        part = tokenize_part(text, lambda part, model=model: model.encode(part).ids, Extent(20), "")
        assert list(part.ids) == model.encode(text).ids[: len(part.ids)]
        num_cut += not part.is_whole
    assert num_cut >= 12


class Watched:
    """A tokenizer that knows the most characters it was ever given."""

    def __init__(self, tokenizer):
        self._tokenizer, self.longest = tokenizer, 0

    def __getattr__(self, name):
        return getattr(self._tokenizer, name)

    def encode(self, text, **options):
        self.longest = max(self.longest, len(text))
        return self._tokenizer.encode(text, **options)

    def __call__(self, text, **options):
        self.longest = max(self.longest, len(text))
        return self._tokenizer(text, **options)


@pytest.fixture(scope="module")
def huge():
    rng = np.random.default_rng(1)
    return " ".join(drawn(rng, WORDS, 1_300_000))


MODES = {
    "joined": {},
    "head": {"packing": "pad"},
    "tail": {"packing": "pad", "truncate": "tail"},
    "packed": {"packing": "pack"},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("is_chat", [False, True], ids=["text", "conversation"])
def test_a_tokenizer_is_given_little_of_a_long_document(demo, huge, mode, is_chat):
    assert len(huge) > 5_000_000
    turns = ({"role": "user", "content": "Hi"}, {"role": "assistant", "content": huge})
    document = Document(messages=turns) if is_chat else Document(text=huge)
    watched = Watched(load_tokenizer(demo))
    sampling = Sampling(512, 64, **MODES[mode])
    sequences = tokenize([document], watched, sampling, corpus="long.jsonl")
    assert watched.longest < 20_000
    assert sequences.num_tokens == (512 if mode == "joined" else 64)
    assert sequences.num_dropped > 0
    if mode == "tail":
        expected = [*watched.encode(huge[-2000:]), watched.eos_token_id][-64:]
    else:
        before = "<|user|>Hi<|assistant|>" if is_chat else ""
        expected = watched.encode(before + huge[:2000])[:64]
    assert sequences.rows[0].tolist() == expected


@pytest.mark.parametrize("template", ["generation", "prefixes"])
def test_answers_of_long_conversations_are_those_of_the_whole(demo, template):
    tokenizer = load_tokenizer(demo)
    if template == "prefixes":
        tokenizer.chat_template = tokenizer.chat_template.replace("{% generation %}", "").replace(
            "{% endgeneration %}", ""
        )
    rng = np.random.default_rng(2)
    turns = [
        {"role": role, "content": " ".join(drawn(rng, WORDS, count))}
        for _ in range(8)
        for role, count in (("user", 20), ("assistant", rng.integers(1300, 2200)))
    ]
    document, watched = Document(messages=tuple(turns)), Watched(tokenizer)
    whole = encode(document, tokenizer, ChatFormat("response"), "chat")
    for most in (5, 300, 900):
        part = encode(document, watched, ChatFormat("response"), "chat", Extent(most))
        assert most <= len(part.ids) < len(whole.ids)
        np.testing.assert_array_equal(part.ids, whole.ids[: len(part.ids)])
        np.testing.assert_array_equal(part.counted, whole.counted[: len(part.ids)])
        assert part.counted.any() or most == 5
    assert watched.longest < 65_537
    last = encode(document, tokenizer, ChatFormat("response"), "chat", Extent(300, from_end=True))
    np.testing.assert_array_equal(last.counted, whole.counted)


def test_the_budget_that_is_left_is_what_can_be_used(demo):
    tokenizer = load_tokenizer(demo)
    rng = np.random.default_rng(4)
    documents = [Document(text=" ".join(drawn(rng, WORDS, 20_000))) for _ in range(3)]
    documents.insert(1, Document(text="a short one"))
    sampling = Sampling(3000, 30)
    sequences = tokenize(documents, tokenizer, sampling, corpus="mixed")
    expected = []
    for document in in_memory(documents).draw(sampling.seed):
        expected += [*tokenizer.encode(document.text), tokenizer.eos_token_id]
    assert np.concatenate(sequences.rows).tolist() == expected[:3000]
    chosen = DocumentSelection(lambda found, _: list(found)[1:], "all but the first", reads=50)
    selected = tokenize(documents, tokenizer, sampling, corpus="mixed", selection=chosen)
    assert selected.num_tokens == 3000


def test_what_must_be_read_whole_and_is_too_long_is_refused(demo, huge):
    tokenizer = load_tokenizer(demo)
    turns = ({"role": "user", "content": huge}, {"role": "assistant", "content": "So."})
    with pytest.raises(CorpusError, match=r"^A document of the corpus a.jsonl has 6,.*split it"):
        encode(Document(messages=turns), tokenizer, ChatFormat("response"), "a.jsonl")
    with pytest.raises(CorpusError, match=r"^The prompt has 6,.*split it"):
        TextReader(tokenizer, "The prompt").tokenize(huge, add_special_tokens=True)
    # One unknown word, of which no part gives 9 tokens.
    words = PreTrainedTokenizerFast(tokenizer_object=word_piece(), unk_token=UNKNOWN)
    with pytest.raises(CorpusError, match="its first 9 tokens depend on more than 4,194,304"):
        encode(Document(text="a" * 5_000_000), words, ChatFormat(), "a.jsonl", Extent(9))
