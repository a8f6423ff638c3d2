"""A tokenizer whose tokens can be read off: one a letter, a = 1 ... z = 26, end = 0."""

from analysis.corpora import Sampling, tokenize

USER, ASSISTANT, TURN_END = 30, 31, 32
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
