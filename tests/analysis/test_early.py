"""What is refused before torch is imported, and what must not be."""

import re
from dataclasses import replace
from itertools import count

import pytest
from transformers import AutoTokenizer

from analysis.corpora.documents import Document
from analysis.corpora.early import check_positions, check_reaches, check_vocabulary
from analysis.corpora.sources import local_source
from analysis.corpora.spec import parse_corpus
from analysis.errors import CheckpointError, CorpusError
from analysis.files.shipped import DEMO_CHECKPOINT
from analysis.model.opening import load_model_index


@pytest.fixture
def demo():
    return load_model_index("demo")


def reaches(path, seq_len):
    check_reaches(local_source(parse_corpus(str(path))), str(path), seq_len, 42, DEMO_CHECKPOINT)


def test_no_text_of_a_whole_sequence_is_refused(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(DEMO_CHECKPOINT)
    documents = [f"The number {n} is odd or even." for n in range(9)]
    (tmp_path / "text.txt").write_text("\n\n".join(documents))
    # With the token that ends each document.
    num_tokens = sum(len(tokenizer.encode(text)) + 1 for text in documents)
    for seq_len in range(2, num_tokens + 1):
        reaches(tmp_path / "text.txt", seq_len)
    with pytest.raises(CorpusError, match="less than one sequence of"):
        reaches(tmp_path / "text.txt", 2 * num_tokens)


def test_what_cannot_be_counted_is_left_to_the_tokenizer_of_the_model(tmp_path):
    (tmp_path / "talk.jsonl").write_text('{"prompt": "a", "response": "b"}\n')
    reaches(tmp_path / "talk.jsonl", 512)  # a template adds to it
    (tmp_path / "bad.jsonl").write_text('{"prompt": "a"}\n')
    reaches(tmp_path / "bad.jsonl", 512)  # who reads it says what is wrong with the row
    (tmp_path / "text.txt").write_text("a")
    source = local_source(parse_corpus(str(tmp_path / "text.txt")))
    check_reaches(source, str(tmp_path / "text.txt"), 512, 42, tmp_path)  # without a tokenizer
    (tmp_path / "tokenizer.json").write_text("{")
    check_reaches(source, str(tmp_path / "text.txt"), 512, 42, tmp_path)
    # Many small documents may be a sequence of special tokens, and are not all read.
    drawn = count()
    small = replace(source, draw=lambda _seed: (Document(text="") for _ in drawn))
    check_reaches(small, str(tmp_path / "text.txt"), 512, 42, DEMO_CHECKPOINT)
    assert next(drawn) == 512 / 4


def test_the_context_may_be_stretched(demo):
    def model(**changes):
        return replace(demo, checkpoint=replace(demo.checkpoint, config=demo.config | changes))

    check_positions(demo, 1024)
    check_positions(demo, None)
    check_positions(model(max_position_embeddings=None), 10**6)
    stretched = model(rope_scaling={"rope_type": "yarn", "factor": 4.0})
    check_positions(stretched, 4096)
    for subject, most in ((demo, 1024), (stretched, 4096)):
        with pytest.raises(CorpusError, match=f"a sequence length of {most} or less"):
            check_positions(subject, most + 1)


def test_a_vocabulary_is_looked_for_by_its_files(demo, tmp_path):
    check_vocabulary(demo)
    bare = replace(demo, checkpoint=replace(demo.checkpoint, path=tmp_path))
    with pytest.raises(CheckpointError, match=r"demo has no readable tokenizer; copy .* or say so"):
        check_vocabulary(bare, "say so")
    (tmp_path / "config.json").write_text('{"_name_or_path": "owner/base"}')
    with pytest.raises(CheckpointError, match=re.escape(f"from owner/base to {tmp_path}.")):
        check_vocabulary(bare, "")
    (tmp_path / "vocab.json").write_text("{}")
    check_vocabulary(bare)
    whole = (DEMO_CHECKPOINT / "tokenizer.json").read_bytes()
    for content in (b"", whole[:1000], b"version https://git-lfs.github.com/spec/v1\n"):
        (tmp_path / "tokenizer.json").write_bytes(content)
        with pytest.raises(CheckpointError, match="no readable tokenizer"):
            check_vocabulary(bare)
    (tmp_path / "tokenizer.json").write_bytes(whole + b"\n" * 3)
    check_vocabulary(bare)
