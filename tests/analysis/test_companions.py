"""Files beside the weights: fetched and copied by one list, and code that must be there."""

import json
from pathlib import Path

import pytest
from exports import export, failed, files_of, verified
from hub_server import FILES, hub, printed

from analysis.calibration.loading import check_loadable, load_tokenizer
from analysis.checkpoint.companions import code_of, missing_code, missing_vocabulary, tokenizer_code
from analysis.corpora.early import check_vocabulary
from analysis.errors import CheckpointError, UnsupportedModelError
from analysis.model.opening import load_model_index
from builders import edit_json, tiny_checkpoint
from pruning.surgery.source_checks import source_notes

# What Kimi-K2, Hunyuan, Mistral and gpt-oss have beside their weights.
COMPANIONS = (
    *("tokenization_kimi.py", "configuration_deepseek.py", "tool_declaration_ts.py"),
    *("tiktoken.model", "hy.tiktoken", "tekken.json", "SYSTEM_PROMPT.txt", "merges.txt"),
    *("LICENCE", "LICENSE.txt", "License.txt", "NOTICE", "Notice.md", "USE_POLICY.md"),
    *("THIRD_PARTY_NOTICES.md", "tokenizer_config.json", "chat_template.jinja", "vocab.json"),
    *("generation_config.json", "preprocessor_config.json", "hf_quant_config.json"),
)
CODE = """
from transformers import PreTrainedTokenizer

from .helper_code import words

VOCAB_FILES_NAMES = {"vocab_file": "words.tiktoken"}


class OwnTokenizer(PreTrainedTokenizer):
    vocab_files_names = VOCAB_FILES_NAMES

    def __init__(self, vocab_file=None, **options):
        self.words = words(vocab_file)
        super().__init__(**options)

    @property
    def vocab_size(self):
        return len(self.words)

    def get_vocab(self):
        return {word: number for number, word in enumerate(self.words)}

    def _tokenize(self, text):
        return text.split()

    def _convert_token_to_id(self, token):
        return self.words.index(token)

    def _convert_id_to_token(self, number):
        return self.words[number]
"""
HELPER = (
    "from pathlib import Path\n\n\ndef words(file):\n    return Path(file).read_text().split()\n"
)


@pytest.fixture
def coded(tmp_path):
    """A checkpoint whose tokenizer is code, in two files, and reads a vocabulary of its own."""
    folder = tmp_path / "source"
    tiny_checkpoint(folder, "qwen3_moe")
    (folder / "tokenization_own.py").write_text(CODE)
    (folder / "helper_code.py").write_text(HELPER)
    (folder / "words.tiktoken").write_text("the cat sat on mat")
    settings = {"auto_map": {"AutoTokenizer": ["tokenization_own.OwnTokenizer", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def described(folder):
    return load_model_index(str(folder))


def test_what_an_export_copies_is_what_is_fetched(tmp_path, monkeypatch):
    source = tmp_path / "source"
    tiny_checkpoint(source, "qwen3_moe")
    for name in COMPANIONS:
        (source / name).write_text("{}")
    (source / "notes.pdf").write_bytes(b"pdf")
    export(source, (0, 1, 3), tmp_path / "out")
    copied = set(files_of(tmp_path / "out"))
    assert set(COMPANIONS) <= copied
    served = {**FILES, **{path.name: path.read_bytes() for path in source.iterdir()}}
    program = "from analysis.model.opening import resolve_model as f; print(f('someone/cats'))"
    with hub(served) as place:
        folder = printed(program, home=tmp_path / "hub", HF_ENDPOINT=place)
    here = {path.name for path in Path(folder.strip()).iterdir()}
    assert here == {path.name for path in source.iterdir()} - {"notes.pdf"} | {"README.md"}


def test_code_is_found_by_every_file_that_names_some(tmp_path):
    names = {
        "config.json": {"auto_map": {"AutoConfig": "a.Config", "AutoModel": "other/repo--x.Model"}},
        "tokenizer_config.json": {"auto_map": ["b.Slow", None]},
        "preprocessor_config.json": {"auto_map": {"AutoImageProcessor": "c.Images"}},
        "processor_config.json": {"auto_map": {"AutoProcessor": "d.Processor"}},
        "video_preprocessor_config.json": {"auto_map": {"AutoVideoProcessor": "e.Videos"}},
    }
    for name, raw in names.items():
        (tmp_path / name).write_text(json.dumps(raw))
    (tmp_path / "a.py").write_text("from .f import g\nfrom .package.part import h\nimport os\n")
    (tmp_path / "f.py").write_text("from .a import Config\n")  # one of the other
    assert code_of(tmp_path) == {
        **{"a.py": "config.json", "b.py": "tokenizer_config.json"},
        **{"c.py": "preprocessor_config.json", "d.py": "processor_config.json"},
        **{"e.py": "video_preprocessor_config.json", "f.py": "a.py", "package.py": "a.py"},
    }
    assert tokenizer_code(tmp_path) == {"b.py": "tokenizer_config.json"}
    assert len(missing_code(tmp_path)) == 5


@pytest.mark.parametrize("raw", [None, [], 3, "a", {"AutoConfig": 3}, {"AutoConfig": "../x.Y"}])
def test_an_auto_map_of_a_wrong_kind_names_no_code(raw, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"auto_map": raw}))
    (tmp_path / "tokenizer_config.json").write_text("[]")
    assert code_of(tmp_path) == tokenizer_code(tmp_path) == {}


def test_a_tokenizer_that_is_code_names_the_option_and_runs_with_it(coded):
    model = described(coded)
    for ask in (check_vocabulary, load_tokenizer):
        with pytest.raises(CheckpointError, match=r"tokenization_own\.py.*--trust-remote-code"):
            ask(model)
    assert load_tokenizer(model, trust_remote_code=True)("cat on mat")["input_ids"] == [1, 3, 4]


@pytest.mark.parametrize("file", ["tokenization_own.py", "helper_code.py", "words.tiktoken"])
@pytest.mark.parametrize("trusted", [False, True])
def test_a_file_that_the_tokenizer_lacks_is_named(file, trusted, coded):
    (coded / file).unlink()
    with pytest.raises(CheckpointError, match=rf"{file} is missing from {coded}; fetch it"):
        load_tokenizer(described(coded), trust_remote_code=trusted)


def test_the_vocabulary_is_read_off_the_code_without_running_it(coded):
    assert missing_vocabulary(coded) == []
    (coded / "tokenization_own.py").write_text("VOCAB_FILES_NAMES = {'v': 'x.bpe', 'w': '../y'}\n")
    assert missing_vocabulary(coded) == ["x.bpe"]
    (coded / "tokenization_own.py").write_text("VOCAB_FILES_NAMES = {'v': ")
    assert missing_vocabulary(coded) == []


def test_a_model_of_its_own_code_names_the_option(coded):
    edit_json(coded / "config.json", auto_map={"AutoConfig": "configuration_own.OwnConfig"})
    model = described(coded)
    check_loadable(model)  # transformers has its class
    with pytest.raises(CheckpointError, match=r"configuration_own\.py, which config\.json names"):
        check_loadable(model, trusted=True)
    edit_json(coded / "config.json", model_type="new_moe", architectures=["NewForCausalLM"])
    with pytest.raises(UnsupportedModelError, match="run it with --trust-remote-code"):
        check_loadable(described(coded))


@pytest.mark.parametrize("file", ["tokenization_own.py", "helper_code.py"])
def test_an_export_needs_the_code_and_verify_looks_for_it(file, coded, tmp_path):
    out = tmp_path / "out"
    export(coded, (0, 1, 3), out)
    verified(out, source=coded, level="bytes")
    raw = json.loads((out / "moeprune_manifest.json").read_text())
    del raw["files"][file]
    (out / "moeprune_manifest.json").write_text(json.dumps(raw))
    (out / file).unlink()
    found = failed(out, source=coded, level="bytes")
    assert f"{file}, which " in found["files"]
    assert found["source"] == f"{file} of the source has no counterpart"


@pytest.mark.parametrize("file", ["tokenization_own.py", "helper_code.py"])
def test_code_that_a_source_lacks_is_said_before_verify_fails(file, coded, tmp_path):
    (coded / file).unlink()
    (note,) = source_notes(described(coded))
    assert note.startswith(f"{file}, which ")
    export(coded, (0, 1, 3), tmp_path / "out")
    assert f"{file}, which " in (tmp_path / "out" / "README.md").read_text()
    assert f"{file}, which " in failed(tmp_path / "out", level="bytes")["files"]


def test_verify_misses_the_tokenizer_of_the_source(coded, tmp_path):
    out = tmp_path / "out"
    export(coded, (0, 1, 3), out)
    (coded / "tokenizer.json").write_text("{}")
    found = failed(out, source=coded, level="bytes")
    assert found == {"source": "tokenizer.json of the source has no counterpart"}
