"""Short stories of people and things in a village, with questions about what happened.

A story keeps account of who is where and who has what, so each question has one answer.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from analysis.demo.generate import story_sentences as written
from analysis.demo.generate.draw import Draw, GeneratedText

_MOST_QUESTIONS = 6


@dataclass(slots=True)
class _World:
    """What is so at a point of the story, by the last sentence that said it."""

    people: list[str]
    things: list[str]
    at: dict[str, str] = field(default_factory=dict)  # person -> where they went
    owner: dict[str, str] = field(default_factory=dict)  # thing -> who has it
    lying: dict[str, str] = field(default_factory=dict)  # thing -> where it lies
    said: dict[str, str] = field(default_factory=dict)  # person -> what they said last
    felt: dict[str, str] = field(default_factory=dict)  # person -> what they felt last


def _go(draw: Draw, world: _World) -> str:
    person = draw.pick(world.people)
    _, _, to = draw.pick(written.PLACES)
    world.at[person] = to
    return draw.pick(written.GOING).format(a=person, to=to)


def _take(draw: Draw, world: _World) -> str:
    person, thing = draw.pick(world.people), draw.pick(world.things)
    if world.owner.get(thing) is not None:
        return _put(draw, world)
    world.owner[thing] = person
    world.lying.pop(thing, None)
    return draw.pick(written.TAKING).format(a=person, thing=thing)


def _put(draw: Draw, world: _World) -> str:
    thing = draw.pick(list(world.owner) or world.things)
    person = world.owner.pop(thing, None) or draw.pick(world.people)
    _, where, _ = draw.pick(written.PLACES)
    world.lying[thing] = where
    return draw.pick(written.PUTTING).format(a=person, thing=thing, where=where)


def _give(draw: Draw, world: _World) -> str:
    thing = draw.pick(list(world.owner) or world.things)
    person = world.owner.get(thing) or draw.pick(world.people)
    other = draw.pick([name for name in world.people if name != person])
    world.owner[thing] = other
    world.lying.pop(thing, None)
    return draw.pick(written.GIVING).format(a=person, b=other, thing=thing)


def _speak(draw: Draw, world: _World) -> str:
    person, other = draw.some(world.people, 2)
    saying = draw.pick(written.SAYINGS)
    world.said[person] = saying
    return draw.pick(written.SPEAKING).format(a=person, b=other, saying=saying)


def _feel(draw: Draw, world: _World) -> str:
    person, feeling = draw.pick(world.people), draw.pick(written.FEELINGS)
    world.felt[person] = feeling
    return draw.pick(written.FEELING).format(a=person, feeling=feeling)


def _pass_time(draw: Draw, world: _World) -> str:
    if draw.integer(0, 1):
        return draw.pick(written.BETWEEN)
    person, other = draw.some(world.people, 2)
    return draw.pick(written.DOING).format(a=person, b=other)


_EVENTS: tuple[Callable[[Draw, _World], str], ...] = (
    *(_go, _take, _put, _give, _speak, _feel, _put, _give),
    *(_pass_time, _pass_time),
)


def _questions(world: _World) -> list[tuple[str, str]]:
    """All that can be asked, with one answer each."""
    return [
        *((f"Where is the {thing}?", f"{_begun(where)}.") for thing, where in world.lying.items()),
        *((f"Who has the {thing}?", f"{person}.") for thing, person in world.owner.items()),
        *((f"Where did {person} go?", f"{_begun(to)}.") for person, to in world.at.items()),
        *((f"What did {person} say?", f'"{words}"') for person, words in world.said.items()),
        *((f"How did {person} feel?", f"{_begun(how)}.") for person, how in world.felt.items()),
    ]


def _begun(words: str) -> str:
    """As the beginning of a sentence."""
    return words[0].upper() + words[1:]


def story_text(number: int, *, held_out: bool) -> GeneratedText:
    """A story and up to six questions; the last is asked.

    Many are short: from those a model learns where to look.
    """
    draw = Draw(number)
    people, things = draw.integer(2, 4), draw.integer(1, 3)
    world = _World(draw.some(written.PEOPLE, people), draw.some(written.THINGS, things))
    sentences = [draw.pick(written.OPENINGS)] * draw.integer(0, 1)
    length = len(sentences) + draw.integer(1, 9)
    while len(sentences) < length or not _questions(world):
        sentences.append(draw.pick(_EVENTS)(draw, world))
    sentences += [draw.pick(written.CLOSINGS)] * draw.integer(0, 1)
    questions = _questions(world)
    *before, (question, answer) = draw.some(questions, min(len(questions), _MOST_QUESTIONS))
    lines = [" ".join(sentences), ""]
    lines += [f"{prompt} {reply}" for prompt, reply in before]
    return GeneratedText(f"story {number}", "\n".join([*lines, question]), f" {answer}\n", answer)
