"""Reconciles selections of the browser and the app. Pure, no streamlit."""

from dataclasses import dataclass

from app.components.expert_map.payload import Selection


@dataclass(frozen=True)
class SelectionMemory:
    """State of one map after the previous script run."""

    reported: object
    given: Selection | None
    current: Selection | None


def settle(
    memory: SelectionMemory | None,
    reported: object,
    chosen: Selection | None,
    given: Selection | None,
) -> SelectionMemory:
    """The newer of the browser's choice and the app's selection wins; the choice if both are new.

    The browser repeats its last message in every run, so only a message that differs from the
    remembered one is a choice. Time stamps make repeated choices differ.
    """
    if memory is None:
        memory = SelectionMemory(None, None, None)
    current = memory.current
    if given != memory.given:
        current = given
    # No message is no choice: the map was just mounted.
    if reported is not None and reported != memory.reported:
        current = chosen
    return SelectionMemory(reported, given, current)
