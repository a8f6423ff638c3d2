"""Prompts: what a model reads of a document before it answers."""

from analysis.corpora.conversations import Turn, texts_of
from analysis.corpora.documents import Document
from analysis.corpora.encoding import TextReader, Tools
from analysis.errors import CorpusError

_ASSISTANT = "assistant"


def question_turns(document: Document) -> tuple[Turn, ...]:
    """The turns of a conversation up to its last answer; none of other documents."""
    turns = document.messages or ()
    while turns and turns[-1].get("role") == _ASSISTANT:
        turns = turns[:-1]
    return turns


def question_text(document: Document) -> str:
    """The words of a document's prompt, without any format: equal questions have equal ones."""
    contents = [turn.get("content") or "" for turn in question_turns(document)]
    text = document.prompt or document.text or ""
    return "\n".join([text, *(_words(content) for content in contents)])


def _words(content: object) -> str:
    return " ".join(texts_of(content)) or str(content)


def document_prompt(document: Document, reader: TextReader) -> list[int]:
    """Token ids of a document's prompt, at least one.

    A conversation goes as far as its last answer, in the chat template and with the beginning of
    a turn. Text ends where a token does: its last words, without space behind them. Models have
    learned the space as the beginning of the next token, and small ones stop at such an end.
    """
    if document.messages is not None:
        turns = question_turns(document)
        if not turns:
            raise CorpusError(f"{reader.name} has no turn before the answer.")
        return conversation_prompt(turns, document.tools, reader)
    if document.text is None:
        raise CorpusError(f"{reader.name} is token ids; a check needs a text or a conversation.")
    prompt = document.prompt or document.text
    ids = list(reader.tokenize(prompt.rstrip(), add_special_tokens=True).ids)
    if ids and ids[-1] == reader.tokenizer.eos_token_id:
        ids.pop()  # of a tokenizer that ends every text
    if not ids:
        raise CorpusError(f"{reader.name} is an empty prompt.")
    return ids


def conversation_prompt(turns: tuple[Turn, ...], tools: Tools, reader: TextReader) -> list[int]:
    """Token ids of turns in the chat template, with the beginning of the assistant's turn."""
    text = reader.format(turns, tools, add_generation_prompt=True).text
    return list(reader.tokenize(text, add_special_tokens=False).ids)
