"""Documents of letters, and a tokenizer whose tokens can be read off: a = 1 ... z = 26, end = 0."""

from analysis.corpora import Sampling, parse_corpus, tokenize
from analysis.corpora.files import open_documents
from analysis.corpora.sources import local_source

USER, ASSISTANT = 30, 31
MESSAGES = [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "c"}]


class LetterTokenizer:
    """A conversation is 30, words, 31, words."""

    eos_token_id = 0

    def encode(self, text):
        return [ord(letter) - 96 for letter in text if letter.isalpha()]

    def get_chat_template(self):
        return "a template without the mark of answers"

    def apply_chat_template(self, conversation, *, add_generation_prompt=False, **options):
        assert options == {"tokenize": True, "return_dict": True}
        ids = []
        for message in conversation:
            role = {"user": USER, "assistant": ASSISTANT}[message["role"]]
            ids += [role, *self.encode(message["content"])]
        return {"input_ids": [*ids, ASSISTANT] if add_generation_prompt else ids}


def sequences_of(documents, tokens, seq_len, seed=42, corpus="letters", **options):
    sampling = Sampling(tokens, seq_len, seed, **options)
    return tokenize(documents, LetterTokenizer(), sampling, corpus=corpus)


def as_lists(sequences):
    return [row.tolist() for row in sequences.rows]


def read_documents(corpus):
    """All documents of a local file in their own order, or of a built-in corpus in a drawn one."""
    spec = parse_corpus(corpus)
    if spec.path is None:
        return list(local_source(spec).drawn(0))
    documents = open_documents(spec.path, spec.fields)
    return list(documents.read(range(len(documents))))
