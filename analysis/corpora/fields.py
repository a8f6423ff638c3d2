"""Fields: the names of the columns that hold a document."""

from dataclasses import dataclass, field, replace

_COMPANIONS = ("tools", "system", "answer")  # fields that are no form of their own


@dataclass(frozen=True, slots=True)
class Fields:
    """Names of the fields that hold a document; a row's first form is used."""

    input_ids: str = "input_ids"
    messages: str = "messages"
    text: str = "text"
    prompt: str = "prompt"
    response: str = "response"
    tools: str = "tools"  # beside any conversation
    system: str = "system"  # the first turn of a conversation that has none
    # What a check compares with; empty: nothing is read. It changes no text, so it is no part of
    # what a corpus is.
    answer: str = field(default="", compare=False, repr=False)

    @classmethod
    def only(cls, **names: str) -> "Fields":
        """These fields and no other form; all forms if only companions are named."""
        if not set(names) - set(_COMPANIONS):
            return cls(**names)
        forms = {form: "" for form in cls.__dataclass_fields__ if form not in _COMPANIONS}
        return cls(**(forms | names))

    @property
    def by_form(self) -> dict[str, str]:
        """Form -> field, for the forms to look for."""
        names = (form for form in type(self).__dataclass_fields__ if form not in _COMPANIONS)
        forms = {form: str(getattr(self, form)) for form in names}
        return {form: name for form, name in forms.items() if name}

    @property
    def has_usual(self) -> bool:
        """Whether forms of other usual names are looked for: no form was named."""
        return replace(self, tools="tools", system="system") == DEFAULT_FIELDS


DEFAULT_FIELDS = Fields()
