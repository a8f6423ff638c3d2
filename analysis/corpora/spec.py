"""How corpora are named: on the command line, in manifests, as presets, and with weights."""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args
from unicodedata import category

from analysis.corpora.fields import DEFAULT_FIELDS, Fields
from analysis.corpora.presets import PRESETS, HubDataset, Preset
from analysis.demo.listing import DEMO_CORPORA
from analysis.errors import CorpusError, StatsError, unknown_name
from analysis.files.content import known_digest
from analysis.files.home import from_home
from analysis.files.text_file import near_file

HUB = "hub:"
SUFFIXES = (".txt", ".jsonl", ".json", ".parquet")  # of local files, which `files` opens
# The rules of `checks`.
CheckName = Literal["exact", "number", "contains", "function"]
CHECK_NAMES: tuple[CheckName, ...] = get_args(CheckName)
_UNSHOWN = ("Cc", "Cs", "Zl", "Zp")  # control characters, lone surrogates, line breaks
_OPTIONS = ("config", "split", "revision")
_FIELDS = tuple(Fields.__dataclass_fields__)
_CHECK = "check"  # the rule that the field `answer` is for
# What tells how answers are checked; the corpus is the same without.
_CHECKING = re.compile(rf",(?:answer|{_CHECK})=[^,]*")
_URL = re.compile(r"([\w-]+=)?\w+://")  # of a corpus, or of a copy of one
_REPO = re.compile(r"[\w.-]+/[\w.-]+")
# The first digits of a digest of what the files hold; they tell files of one name apart.
_CONTENT = r"@(?P<content>[0-9a-f]{8})"
_BARE = re.compile(rf"(?P<bare>.+?){_CONTENT}")
# FILE.jsonl,text=content: options follow a known ending, so a path may hold commas.
_FILE = re.compile(
    rf"(?P<path>.+?(?:{'|'.join(map(re.escape, SUFFIXES))}))(?:{_CONTENT})?"
    r"(?P<rest>(?:,\w+=[^,]*)*)"
)
_ENDINGS = ", ".join(SUFFIXES)


@dataclass(frozen=True, slots=True)
class CorpusSpec:
    """A corpus as the user named it."""

    name: str  # without digits of its content; never a file's location
    dataset: HubDataset | None = None  # a dataset of the hub, or what `path` is a copy of
    path: Path | None = None  # a local file; with `dataset`, a file or folder with a copy
    fields: Fields = DEFAULT_FIELDS
    preset: Preset | None = None
    content: str = ""  # the first digits of the digest that the files must have, if given
    check: str = ""  # one of CHECK_NAMES; empty: its answers are not checked
    answer_tokens: int | None = None  # of an answer, at most; None: as usual
    stop: str | None = None  # text at which an answer ends

    @property
    def names_check(self) -> bool:
        """Whether the check was given with the corpus; those of the demo have theirs unasked."""
        return bool(self.check) and self.name not in DEMO_CORPORA

    def own_content(self) -> str:
        """The first digits of the digest of the files' bytes and of the fields that are read.

        Of one file with the usual fields those of its SHA-256, if it has at most 1 GiB. Empty
        without files.
        """
        if self.path is None or not self.path.exists():
            return self.content
        digest = known_digest(self.path)
        if self.fields != (self.dataset.fields if self.dataset else DEFAULT_FIELDS):
            digest = hashlib.sha256(f"{digest} {self.fields}".encode()).hexdigest()
        return digest[:8]

    def check_present(self) -> None:
        """Refuse a file that is not there, before what reads it is imported."""
        if self.path is not None and not self.path.exists():
            what = f"copy {self.path} of {self.name}" if self.preset else f"corpus file {self.path}"
            hint = near_file(self.path)
            raise CorpusError(f"The {what} does not exist.{hint}")

    def check_content(self) -> None:
        """Refuse files that hold something else than the name says."""
        if self.content and self.path is None:
            raise CorpusError(
                f"{self.name}@{self.content} is a copy of {self.name}; name it by its path: "
                f"{self.name}=PATH."
            )
        if self.content and (content := self.own_content()) != self.content:
            raise CorpusError(
                f"{self.path} holds another text than {self.name}@{self.content}: it is "
                f"{self.name}@{content}. It has changed, or is another file of this name; name the "
                "right one by its path."
            )


def bare_name(corpus: str) -> str:
    """The name of a corpus without the digits of its content, and without a location."""
    if match := _BARE.fullmatch(corpus):
        return Path(match["bare"]).name
    preset, equals, _ = corpus.partition("=")
    if equals and preset in PRESETS:
        return preset
    if corpus in DEMO_CORPORA or corpus in PRESETS:
        return corpus
    if corpus.startswith(HUB):
        return _CHECKING.sub("", corpus)
    file = _FILE.fullmatch(corpus)
    return Path(file["path"] if file else corpus).name


def corpus_name(corpus: str) -> str:
    """The name of a corpus in runs, plans and records, `run.jsonl@1a2b3c4d` for a file.

    A file is known by its content and by its name, never by its location. A file that is not there
    has the bare name.
    """
    name = bare_name(corpus)
    try:
        content = parse_corpus(corpus).own_content()
    except CorpusError:  # merged runs, or a file of another kind
        return name
    except OSError as error:
        raise CorpusError(f"{corpus} cannot be read: {error.strerror or error}.") from error
    return f"{name}@{content}" if content else name


def content_of(name: str) -> str:
    """The digits in a corpus' name that tell what its files hold; empty without."""
    match = _BARE.fullmatch(name)
    return match["content"] if match else ""


def is_same_corpus(name: str, other: str) -> bool:
    """Whether two names are of one text."""
    return name == other or (content_of(name) == content_of(other) != "")


def name_among(known: Collection[str], corpus: str) -> str:
    """The one of the known names that a corpus has, else its own name.

    A file that is there is known by its content. A bare name is enough where only one has it.
    """
    if corpus in known:
        return corpus
    name = corpus_name(corpus)
    matches = [candidate for candidate in known if is_same_corpus(candidate, name)]
    if not matches and not content_of(name):
        namesakes = [candidate for candidate in known if bare_name(candidate) == corpus]
        matches = namesakes if len(namesakes) == 1 else []
    return matches[0] if matches else name


def parse_corpus(corpus: str) -> CorpusSpec:
    """A built-in corpus, a preset, `hub:owner/name[,option=value ...]`, or a local file."""
    _check_words(corpus)
    name = bare_name(corpus)
    if corpus in DEMO_CORPORA:
        demo = DEMO_CORPORA[name]
        return CorpusSpec(name, check=demo.check, answer_tokens=demo.answer_tokens, stop=demo.stop)
    if content_of(corpus) and name in PRESETS:
        preset = PRESETS[name]
        return CorpusSpec(name, preset.dataset, None, preset.fields, preset, content_of(corpus))
    if name in PRESETS and corpus.partition("=")[0] == name:
        preset = PRESETS[name]
        mirror = corpus[len(name) + 1 :]
        if corpus != name and not mirror:
            raise CorpusError(f"{corpus} names no file; write {name}=PATH or {name}.")
        path = from_home(mirror) if mirror else None
        return CorpusSpec(name, preset.dataset, path, preset.fields, preset)
    if corpus.startswith(HUB):
        repo, _, rest = corpus.removeprefix(HUB).partition(",")
        if not _REPO.fullmatch(repo):
            raise CorpusError(
                f"{corpus} names no dataset; write {HUB}owner/name, then options after commas: "
                f"{', '.join((*_OPTIONS, *_FIELDS, _CHECK))}."
            )
        options = _options(rest, corpus, (*_OPTIONS, *_FIELDS, _CHECK))
        dataset = HubDataset(
            repo,
            config=options.get("config"),
            split=options.get("split", "train"),
            revision=options.get("revision"),
            fields=_fields(options, corpus),
        )
        return CorpusSpec(name, dataset, fields=dataset.fields, check=_check(options, corpus))
    if match := _FILE.fullmatch(corpus):
        options = _options(match["rest"].removeprefix(","), corpus, (*_FIELDS, _CHECK))
        return CorpusSpec(
            name,
            path=from_home(match["path"]),
            fields=_fields(options, corpus),
            content=match["content"] or "",
            check=_check(options, corpus),
        )
    raise _no_corpus(corpus)


def with_check(corpus: str, column: str, check: str) -> str:
    """The corpus with its answers, in this column, checked by a rule.

    Raises:
        CorpusError: no option can name the column.
    """
    if "," in column or _has_unshown(column):
        raise CorpusError(
            f"The column of the answer cannot be {column!r}: it contains a comma or a control "
            "character; rename that column in the corpus, or name another."
        )
    return f"{corpus},answer={column},{_CHECK}={check}"


def _has_unshown(text: str) -> bool:
    return any(category(character) in _UNSHOWN for character in text)


def _check_words(corpus: str) -> None:
    """Refuse what is no name of a corpus, by its characters."""
    if _has_unshown(corpus):
        raise CorpusError(
            f"{corpus!r} is not a corpus: it contains a line break or a control character."
        )
    if _URL.match(corpus):
        raise CorpusError(
            f"{corpus} is a URL; download the file and name its path, or name a dataset of the "
            f"hub: {HUB}owner/name."
        )


def _no_corpus(corpus: str) -> CorpusError:
    """Why a word is no corpus, and what would be one."""
    base, colon, weight = corpus.rpartition(":")
    if colon and base in (*DEMO_CORPORA, *PRESETS):
        return CorpusError(
            f"{corpus} has a weight, but each corpus is calibrated in full; blend them afterwards, "
            f"as in `moeprune plan --calibrated-on {base}:{weight}`."
        )
    name, comma, _ = corpus.partition(",")
    if comma and name in DEMO_CORPORA:
        return CorpusError(
            f"{corpus} has options, but {name} knows its columns and its check; leave them out."
        )
    if comma and name in PRESETS:
        return CorpusError(
            f"{corpus} has options, but {name} is a preset with columns of its own and without "
            "answers to check; leave them out, or name the dataset of the hub or a file."
        )
    folder = from_home(corpus)
    if os.path.isdir(folder):  # noqa: PTH112  (a Path raises if the name is too long)
        what = "a model" if (folder / "config.json").is_file() else "a folder"
        return CorpusError(f"{corpus} is {what}; a corpus is a file that ends in {_ENDINGS}.")
    return CorpusError(
        unknown_name("corpus", corpus, (*DEMO_CORPORA, *PRESETS))
        + f" A local file ends in {_ENDINGS}; a dataset of the hub is {HUB}owner/name."
    )


def _options(text: str, corpus: str, known: tuple[str, ...]) -> dict[str, str]:
    options: dict[str, str] = {}
    for item in filter(None, text.split(",")):
        key, _, value = item.partition("=")
        if key not in known or not value or key in options:
            problem = "is given twice" if key in options else "is not an option"
            raise CorpusError(
                f"{item!r} in {corpus} {problem}; write OPTION=VALUE with one of "
                f"{', '.join(known)}."
            )
        options[key] = value
    return options


def _fields(options: Mapping[str, str], corpus: str) -> Fields:
    names = {key: options[key] for key in _FIELDS if key in options}
    if _CHECK in options:
        names.setdefault("answer", "answer")
    if "prompt" in names and "answer" in names:
        names.setdefault("response", names["answer"])  # as where the columns have usual names
    if len({"prompt", "response"} & set(names)) == 1:
        raise CorpusError(f"{corpus} names a prompt or a response; name both.")
    return Fields.only(**names) if names else DEFAULT_FIELDS


def _check(options: Mapping[str, str], corpus: str) -> str:
    """The rule by which answers are checked; empty without one."""
    name = options.get(_CHECK, "")
    if name and name not in CHECK_NAMES:
        raise CorpusError(f"{corpus}: {unknown_name(_CHECK, name, CHECK_NAMES)}")
    if "answer" in options and not name:
        raise CorpusError(
            f"{corpus} names an answer; say how it is checked: ,{_CHECK}= with one of "
            f"{', '.join(CHECK_NAMES)}."
        )
    return name


def is_at_hand(corpus: str) -> bool:
    """Whether a corpus is named as `calibrate` takes it, and a file that it names is there."""
    try:
        spec = parse_corpus(corpus)
    except CorpusError:
        return False  # merged runs, or the name of a file of another kind
    if spec.path is None:
        return not spec.content
    return spec.path.exists() and spec.content in ("", spec.own_content())


@dataclass(frozen=True, slots=True)
class CorpusWeight:
    """A corpus and its weight in a blend."""

    corpus: str
    weight: float = 1.0
    text: str = field(default="", compare=False)  # as written, if it has a weight

    @property
    def cache_key(self) -> str:
        """All of it."""
        return repr(self)

    def among(self, known: Container[str]) -> CorpusWeight:
        """Itself, or the corpus of `known` whose name is the whole text."""
        return CorpusWeight(self.text) if self.text in known else self


def parse_corpus_weight(text: str) -> CorpusWeight:
    """`NAME` or `NAME:WEIGHT`; `run:2.jsonl` and `hub:owner/name` have no weight."""
    name, colon, weight = text.rpartition(":")
    if not colon or "/" in weight:
        return CorpusWeight(text)
    try:
        value = float(weight)
    except ValueError as error:
        if names_corpus(text):
            return CorpusWeight(text)
        raise StatsError(
            f"{weight!r} in {text!r} is not a weight; write CORPUS:2 or CORPUS."
        ) from error
    if not 0 < value < math.inf:
        raise StatsError(f"The weight in {text!r} must be greater than 0, and finite.")
    return CorpusWeight(name, value, text)


def corpus_weight_text(name: str, weight: float = 1.0) -> str:
    """Text from which `parse_corpus_weight` reads this name and weight, whatever the name."""
    try:
        needs_weight = weight != 1 or parse_corpus_weight(name).corpus != name
    except StatsError:
        needs_weight = True
    return f"{name}:{weight:g}" if needs_weight else name


def names_corpus(text: str) -> bool:
    """Whether `calibrate` takes this text as a corpus."""
    try:
        parse_corpus(text)
    except CorpusError:
        return False
    return True
