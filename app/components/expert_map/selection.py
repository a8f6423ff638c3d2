"""Reconciles the two that may move the selection: the browser and the app. Pure, no streamlit."""

from dataclasses import dataclass

from app.components.expert_map.payload import Selection


@dataclass(frozen=True)
class SelectionMemory:
    """What one map knew after the previous run of the script."""

    reported: object
    given: Selection | None
    current: Selection | None


def settle(
    memory: SelectionMemory | None,
    reported: object,
    chosen: Selection | None,
    given: Selection | None,
) -> SelectionMemory:
    """The newer of the browser's choice and the app's wish wins, the choice if both are new.

    The browser repeats its last message with every run, so only a message that differs from the
    remembered one is a choice. Messages carry a time stamp: the same choice made twice differs.
    """
    if memory is None:
        memory = SelectionMemory(None, None, None)
    current = memory.current
    if given != memory.given:
        current = given
    # No message at all is no choice: the map was just mounted and not clicked yet.
    if reported is not None and reported != memory.reported:
        current = chosen
    return SelectionMemory(reported, given, current)
