"""Exports as GGUF files: what is refused, what the converter is told, what is recorded."""

import hashlib
import json
from pathlib import Path

import pytest
from exports import files_of, keeping, uneven
from tokenizers import Regex, Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence, Split

from analysis.drain import drain
from analysis.errors import ExportError
from analysis.model.opening import load_model_index
from analysis.progress import Progress
from builders.converter import STAND_IN, write_converter
from pruning.plan.plan import keep_all
from pruning.requests.model import ExportRequest
from pruning.serving.commands import CONVERTER
from pruning.serving.gguf import _written, find_converter, pre_tokenizer_of
from pruning.spec.base import validated
from pruning.tasks.export import export_run


@pytest.fixture
def llama_cpp(tmp_path, monkeypatch):
    monkeypatch.delenv("LLAMA_CPP", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    return write_converter(tmp_path / "llama.cpp")


def run(out, plan=None, on_step=lambda _: None, **fields):
    model = load_model_index("demo")
    plan = plan or keeping(model, tuple(range(0, 32, 2)))
    values = {"model": "demo", "out": out, "plan": plan.to_dict(), **fields}
    return drain(export_run(validated(ExportRequest, values)), on_step)


def test_without_a_converter_nothing_is_written(llama_cpp, tmp_path, monkeypatch):
    out = tmp_path / "out"
    with pytest.raises(ExportError, match=rf"There is no {CONVERTER}.*--llama-cpp, \$LLAMA_CPP"):
        run(out, gguf="q8_0")
    with pytest.raises(ExportError, match=f"nothing has no {CONVERTER}.*or export without --gguf"):
        run(out, gguf="q8_0", llama_cpp=tmp_path / "nothing")
    assert not out.exists()
    for name, value in (("LLAMA_CPP", llama_cpp), ("PATH", llama_cpp)):
        with monkeypatch.context() as patch:
            (llama_cpp / CONVERTER).chmod(0o755)
            patch.setenv(name, str(value))
            assert find_converter(None).folder == llama_cpp


def test_what_llama_cpp_cannot_run_is_refused_before_any_work(llama_cpp, tmp_path):
    model = load_model_index("demo")
    # One number for all layers; and a head of its own, which exports that remove something have.
    for plan, why in ((uneven(model), "Unprocessed experts"), (keep_all(model), "'output.weight'")):
        with pytest.raises(ExportError, match=f"^No GGUF file: llama.cpp, fails: .*{why}"):
            run(tmp_path / "out", plan, gguf="q8_0", llama_cpp=llama_cpp)
    assert not (tmp_path / "out").exists()


def test_the_record_says_what_made_the_file(llama_cpp, tmp_path):
    out, fields = tmp_path / "out", {"gguf": "q8_0", "llama_cpp": llama_cpp}
    record = run(out, **fields)["gguf"]
    content = (tmp_path / "out-q8_0.gguf").read_bytes()
    # The tokenizer of the demo is in no table of the converter.
    assert content == b"starcoder --outtype q8_0"
    assert record == json.loads((tmp_path / "out-q8_0.gguf.json").read_text())
    script = hashlib.sha256(STAND_IN.encode()).hexdigest()
    assert record["converter"] == f"sha256 {script[:16]}"
    assert (record["bytes"], record["sha256"]) == (
        len(content),
        hashlib.sha256(content).hexdigest(),
    )
    assert str(tmp_path) not in json.dumps(record)
    before, steps = files_of(tmp_path), []
    # The export and the file stay as they are, and nothing is expected to be written.
    again = run(out, on_step=steps.append, verify=True, **fields)
    assert again["gguf"] == record
    assert not any("write" in step.whole.total for step in steps if step.whole)
    assert any(step.whole for step in steps)
    assert files_of(tmp_path) == before


def test_what_the_converter_says_is_kept_while_its_file_grows(tmp_path):
    (draft := tmp_path / "draft").write_bytes(b"12345")
    running = iter_of(Progress("converting to GGUF", 0, 0, note="a note", at="tensor 3"))
    (step,) = _written(running, draft, 20)
    assert (step.note, step.at) == ("a note", "tensor 3")
    assert (step.done, step.total, step.whole.fraction) == (5, 20, 0.25)


def iter_of(*steps):
    """A task of these steps."""
    yield from steps


def test_a_failed_conversion_says_why_and_leaves_the_export(llama_cpp, tmp_path):
    with pytest.raises(ExportError, match=r"converter \(sha256 \w+\) stopped: no room for f16"):
        run(tmp_path / "out", gguf="f16", llama_cpp=llama_cpp)
    assert (tmp_path / "out" / "moeprune_manifest.json").is_file()
    assert not list(tmp_path.glob("out-*"))


# Of llama.cpp, in src/llama-vocab.cpp: name -> patterns by which it splits, one after another.
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
PATTERNS = {"gpt-2": [GPT2], "starcoder": [r"\p{N}", GPT2]}


@pytest.mark.parametrize(("name", "before"), [("gpt-2", []), ("starcoder", [Digits(True)])])
def test_byte_level_splits_as_llama_cpp_does_by_this_name(tmp_path, name, before):
    text = (
        "I've 'told x=12,  y\n\n\tdef add(a, b):\n    return a+b  # größer  3.3… 日本 ½² \u00a0🦙7 "
    )
    words = Sequence([Split(Regex(pattern), "isolated") for pattern in PATTERNS[name]])
    plain = ByteLevel(add_prefix_space=False, use_regex=True)
    split = Sequence([*before, plain]) if before else plain
    assert [span for _, span in split.pre_tokenize_str(text)] == [
        span for _, span in words.pre_tokenize_str(text)
    ]
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = split
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert pre_tokenizer_of(tmp_path) == name


DIGITS = {"type": "Digits", "individual_digits": True}
BARE = {"type": "ByteLevel", "add_prefix_space": False}


@pytest.mark.parametrize(
    "other",
    [
        {"type": "ByteLevel", "use_regex": False},
        {"type": "ByteLevel", "add_prefix_space": True},
        {"type": "Sequence", "pretokenizers": [DIGITS, {**BARE, "use_regex": False}]},
        {"type": "Sequence", "pretokenizers": [{**DIGITS, "individual_digits": False}, BARE]},
        {"type": "Sequence", "pretokenizers": [BARE, DIGITS]},
        {"type": "Sequence"},
        None,
    ],
)
def test_other_splits_have_no_name(tmp_path, other):
    (tmp_path / "tokenizer.json").write_text(json.dumps({"pre_tokenizer": other}))
    assert pre_tokenizer_of(tmp_path) == ""
    assert pre_tokenizer_of(Path("nowhere")) == ""
