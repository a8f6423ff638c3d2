"""May a plan be shipped: a verdict in green, amber or red, with its reasons in words."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Light(StrEnum):
    """How good or bad a reason is; the worst one decides."""

    GREEN = "green"
    AMBER = "amber"
    RED = "red"


_HEADLINES: Final = {
    Light.GREEN: "Ready to ship",
    Light.AMBER: "Check before shipping",
    Light.RED: "Do not ship",
}
_ORDER: Final = tuple(Light)
_SHOWN: Final = 2  # reasons in one line


@dataclass(frozen=True, slots=True)
class Reason:
    """One thing that was looked at, and what it says."""

    about: str  # what was looked at, such as "Size"
    light: Light
    words: str  # one sentence, without a full stop
    short: str = ""  # a few words for one line, where the reason is not green


@dataclass(frozen=True, slots=True)
class ShipVerdict:
    """The verdict on a plan, from its recorded facts."""

    reasons: tuple[Reason, ...]

    @property
    def light(self) -> Light:
        """That of the worst reason."""
        return max((reason.light for reason in self.reasons), key=_ORDER.index)

    @property
    def headline(self) -> str:
        """What the verdict says to do."""
        return _HEADLINES[self.light]

    @property
    def worst(self) -> tuple[Reason, ...]:
        """The reasons that decide; none of a green verdict."""
        if self.light is Light.GREEN:
            return ()
        return tuple(reason for reason in self.reasons if reason.light is self.light)

    @property
    def in_one_line(self) -> str:
        """The headline, and what decides: two reasons, and how many more."""
        shown, others = self.worst[:_SHOWN], self.worst[_SHOWN:]
        why = ", ".join(reason.short for reason in shown)
        why += f", {len(others)} more" if others else ""
        return f"{self.headline}: {why}" if why else self.headline

    @property
    def lines(self) -> tuple[str, ...]:
        """A line for each reason, the worst first: `red, Size: ...`."""
        ordered = sorted(self.reasons, key=lambda reason: -_ORDER.index(reason.light))
        return tuple(f"{reason.light}, {reason.about}: {reason.words}" for reason in ordered)

    @property
    def numbers(self) -> dict[str, object]:
        """The verdict and its reasons as plain JSON."""
        reasons = [
            {"about": reason.about, "light": str(reason.light), "words": reason.words}
            for reason in self.reasons
        ]
        return {"light": str(self.light), "headline": self.headline, "reasons": reasons}
