"""How a corpus is written on the command line, and what it is called in manifests."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from unicodedata import category

from analysis.corpora.documents import DEFAULT_FIELDS, Fields
from analysis.corpora.files import SUFFIXES
from analysis.corpora.presets import PRESETS, HubDataset, Preset
from analysis.demo.texts import TEXTS
from analysis.errors import CorpusError, unknown_name

HUB = "hub:"
# Control characters, halves of surrogate pairs, ends of lines and of paragraphs.
_UNSHOWN = ("Cc", "Cs", "Zl", "Zp")
_OPTIONS = ("config", "split", "revision")
_FIELDS = tuple(Fields.__dataclass_fields__)
_REPO = re.compile(r"[\w.-]+/[\w.-]+")
# FILE.jsonl,text=content: options begin behind a known ending, so that a comma in a path is none.
_FILE = re.compile(
    rf"(?P<path>.+?(?:{'|'.join(map(re.escape, SUFFIXES))}))(?P<rest>(?:,\w+=[^,]*)*)"
)


@dataclass(frozen=True, slots=True)
class CorpusSpec:
    """A corpus as it was asked for."""

    name: str  # what manifests and plans call it; never where a file lies
    dataset: HubDataset | None = None  # a dataset of the hub, or what `path` is a copy of
    # A local file; with `dataset` a file or folder with a copy of it.
    path: Path | None = None
    fields: Fields = DEFAULT_FIELDS  # names of the fields
    preset: Preset | None = None  # the preset that was named


def corpus_name(corpus: str) -> str:
    """What a corpus is called in manifests and plans: a file's name, never where it lies."""
    preset, equals, _ = corpus.partition("=")
    if equals and preset in PRESETS:
        return preset
    if corpus in TEXTS or corpus in PRESETS or corpus.startswith(HUB):
        return corpus
    found = _FILE.fullmatch(corpus)
    return Path(found["path"] if found else corpus).name


def parse_corpus(corpus: str) -> CorpusSpec:
    """A built-in corpus, a preset, `hub:owner/name[,option=value ...]`, or a local file."""
    if any(category(character) in _UNSHOWN for character in corpus):
        raise CorpusError(
            f"{corpus!r} is no corpus: it holds a line break or another character that no terminal "
            "shows."
        )
    name = corpus_name(corpus)
    if corpus in TEXTS:
        return CorpusSpec(name)
    if name in PRESETS and corpus.partition("=")[0] == name:
        preset = PRESETS[name]
        mirror = corpus[len(name) + 1 :]
        if corpus != name and not mirror:
            raise CorpusError(f"{corpus} names no file; write {name}=PATH or {name}.")
        path = Path(mirror).expanduser() if mirror else None
        return CorpusSpec(name, preset.dataset, path, preset.dataset.fields, preset)
    if corpus.startswith(HUB):
        repo, _, rest = corpus.removeprefix(HUB).partition(",")
        if not _REPO.fullmatch(repo):
            raise CorpusError(
                f"{corpus} names no dataset; write {HUB}owner/name, with options behind commas: "
                f"{', '.join((*_OPTIONS, *_FIELDS))}."
            )
        options = _options(rest, corpus, (*_OPTIONS, *_FIELDS))
        dataset = HubDataset(
            repo,
            config=options.get("config"),
            split=options.get("split", "train"),
            revision=options.get("revision"),
            fields=_fields(options, corpus),
        )
        return CorpusSpec(name, dataset, fields=dataset.fields)
    if found := _FILE.fullmatch(corpus):
        options = _options(found["rest"].removeprefix(","), corpus, _FIELDS)
        path = Path(found["path"]).expanduser()
        return CorpusSpec(name, path=path, fields=_fields(options, corpus))
    base, colon, weight = corpus.rpartition(":")
    if colon and base in (*TEXTS, *PRESETS):
        raise CorpusError(
            f"{corpus} has a weight, but each corpus is calibrated in full; mix them afterwards, "
            f"as in `moeprune plan --corpus {base}:{weight}`."
        )
    raise CorpusError(
        unknown_name("corpus", corpus, (*TEXTS, *PRESETS))
        + f" A local file ends in {', '.join(SUFFIXES)}; a dataset of the hub is {HUB}owner/name."
    )


def _options(text: str, corpus: str, known: tuple[str, ...]) -> dict[str, str]:
    options: dict[str, str] = {}
    for item in filter(None, text.split(",")):
        key, _, value = item.partition("=")
        if key not in known or not value or key in options:
            problem = "given twice" if key in options else "is no option"
            raise CorpusError(
                f"{item!r} in {corpus} {problem}; write OPTION=VALUE with one of "
                f"{', '.join(known)}."
            )
        options[key] = value
    return options


def _fields(options: Mapping[str, str], corpus: str) -> Fields:
    given = {key: options[key] for key in _FIELDS if key in options}
    if len({"prompt", "response"} & set(given)) == 1:
        raise CorpusError(f"{corpus} names a prompt or a response; name both.")
    return Fields.only(**given) if given else DEFAULT_FIELDS
