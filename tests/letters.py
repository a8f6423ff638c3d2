"""Documents of letters, and a tokenizer whose tokens can be read off: a = 1 ... z = 26, end = 0."""

from types import MappingProxyType

from analysis.corpora.files import open_documents
from analysis.corpora.sampling import tokenize
from analysis.corpora.settings import Sampling
from analysis.corpora.sources import local_source
from analysis.corpora.spec import parse_corpus

USER, ASSISTANT = 30, 31
MESSAGES = [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "c"}]


class LetterTokenizer:
    """A conversation is 30, words, 31, words."""

    eos_token_id = 0
    special_tokens_map = MappingProxyType({"answer": ">"})

    def encode(self, text, *, add_special_tokens=True):
        signs = {"<": USER, ">": ASSISTANT}
        ids = (
            signs.get(sign) or ord(sign) - 96 for sign in text if sign.isalpha() or sign in signs
        )
        return list(ids)

    def get_chat_template(self):
        """Without the mark of answers."""
        return (
            "{% for turn in messages %}{{ '<' if turn.role == 'user' else answer }}"
            "{{ turn.content }}{% endfor %}{{ answer if add_generation_prompt }}"
        )


def sequences_of(documents, tokens, seq_len, seed=42, corpus="letters", **options):
    sampling = Sampling(tokens, seq_len, seed, **options)
    return tokenize(documents, LetterTokenizer(), sampling, corpus=corpus)


def as_lists(sequences):
    return [row.tolist() for row in sequences.rows]


def read_documents(corpus):
    """All documents of a local file in their own order, or of a built-in corpus in a drawn one."""
    spec = parse_corpus(corpus)
    if spec.path is None:
        return list(local_source(spec).draw(0))
    documents = open_documents(spec.path, spec.fields)
    return list(documents.read(range(len(documents))))
