"""Word problems with worked answers, two in a conversation.

Names and things stand at the end of a question and answers are short, so that no long run of
tokens is the same in two texts unless the problem is.
"""

from collections.abc import Callable
from hashlib import sha256

from analysis.demo.generate.draw import Draw, GeneratedText
from analysis.demo.generate.story_sentences import PEOPLE

_THINGS = (
    *("apples", "books", "coins", "pencils", "tickets", "stamps", "bottles", "tiles"),
    *("candles", "buttons", "ribbons", "marbles", "plates", "chairs", "flowers", "nails"),
)
_PLACES = ("garden", "room", "field", "carpet", "roof", "yard", "hall", "floor")
_RIDES = ("train", "bus", "ship", "truck")
Worked = tuple[str, str]  # problem, worked answer


def _shopping(draw: Draw) -> Worked:
    count, price, change = draw.integer(2, 15), draw.integer(2, 12), draw.integer(1, 40)
    total, who, what = count * price, draw.pick(PEOPLE), draw.pick(_THINGS)
    return (
        f"{who} buys {count} {what} at {price} dollars each and pays with {total + change} "
        f"dollars. How much change does {who} get for the {what}?",
        f"{count} * {price} = {total}. {total + change} - {total} = {change}.",
    )


def _sharing(draw: Draw) -> Worked:
    friends, portion, rest = draw.integer(3, 9), draw.integer(3, 15), draw.integer(0, 2)
    total, who, what = friends * portion + rest, draw.pick(PEOPLE), draw.pick(_THINGS)
    return (
        f"{who} shares {total} {what} equally among {friends} friends. "
        f"How many {what} are left for {who}?",
        f"{friends} * {portion} = {total - rest}. {total} - {total - rest} = {rest}.",
    )


def _travel(draw: Draw) -> Worked:
    speed, first, second = draw.integer(3, 12) * 10, draw.integer(1, 6), draw.integer(1, 6)
    hours, who, what = first + second, draw.pick(PEOPLE), draw.pick(_RIDES)
    return (
        f"{who} goes by {what}, {speed} km per hour for {first} hours and then for {second} "
        f"hours more. How far does {who} go by {what}?",
        f"{first} + {second} = {hours}. {speed} * {hours} = {speed * hours}.",
    )


def _area(draw: Draw) -> Worked:
    width, length = draw.integer(3, 15), draw.integer(3, 15)
    what, who = draw.pick(_PLACES), draw.pick(PEOPLE)
    return (
        f"The {what} of {who} is {width} m wide and {length} m long. "
        f"How large is the {what} of {who}?",
        f"{width} * {length} = {width * length}.",
    )


def _edge(draw: Draw) -> Worked:
    width, length = draw.integer(3, 40), draw.integer(3, 40)
    what, who, around = draw.pick(_PLACES), draw.pick(PEOPLE), width + length
    return (
        f"The {what} of {who} is {width} m wide and {length} m long. "
        f"How far is it around the {what} of {who}?",
        f"{width} + {length} = {around}. 2 * {around} = {2 * around}.",
    )


def _equation(draw: Draw) -> Worked:
    factor, shift, root = draw.integer(2, 12), draw.integer(1, 40), draw.integer(2, 12)
    product, x = factor * root, draw.pick(("x", "y", "z", "a", "b"))
    return (
        f"Solve for {x}: {factor} * {x} + {shift} = {product + shift}.",
        f"{product + shift} - {shift} = {product}. {product} / {factor} = {root}.",
    )


def _saving(draw: Draw) -> Worked:
    start, week, weeks = draw.integer(5, 60), draw.integer(2, 12), draw.integer(2, 12)
    who, what, saved = draw.pick(PEOPLE), draw.pick(_THINGS), week * weeks
    return (
        f"{who} has {start} {what} and gets {week} more each week for {weeks} weeks. "
        f"How many {what} does {who} have then?",
        f"{week} * {weeks} = {saved}. {start} + {saved} = {start + saved}.",
    )


def _percent(draw: Draw) -> Worked:
    share, base, what = draw.integer(1, 9) * 10, draw.integer(2, 40) * 10, draw.pick(_THINGS)
    who, tenth, tenths = draw.pick(PEOPLE), base // 10, share // 10
    return (
        f"{who} has {base} {what} and sells {share} percent of them. "
        f"How many {what} does {who} sell?",
        f"{base} / 10 = {tenth}. {tenths} * {tenth} = {tenths * tenth}.",
    )


def _ages(draw: Draw) -> Worked:
    (older, younger), age = draw.some(PEOPLE, 2), draw.integer(5, 30)
    more, years = draw.integer(2, 20), draw.integer(2, 15)
    return (
        f"{younger} is {age} years old, and {older} is {more} years older. "
        f"In {years} years, how old will {older} be?",
        f"{age} + {more} = {age + more}. {age + more} + {years} = {age + more + years}.",
    )


def _boxes(draw: Draw) -> Worked:
    boxes, portion, broken = draw.integer(2, 12), draw.integer(3, 12), draw.integer(1, 5)
    who, what, total = draw.pick(PEOPLE), draw.pick(_THINGS), boxes * portion
    return (
        f"{who} has {boxes} boxes of {portion} {what}, and {broken} of the {what} are broken. "
        f"How many {what} of {who} are whole?",
        f"{boxes} * {portion} = {total}. {total} - {broken} = {total - broken}.",
    )


def _difference(draw: Draw) -> Worked:
    (first, second), less, more = draw.some(PEOPLE, 2), draw.integer(10, 60), draw.integer(3, 35)
    what = draw.pick(_THINGS)
    return (
        f"{first} has {less + more} {what} and {second} has {less}. "
        f"How many more {what} does {first} have than {second}?",
        f"{less + more} - {less} = {more}.",
    )


def _three(draw: Draw) -> Worked:
    first, second, third = (draw.integer(4, 40) for _ in range(3))
    who, what, both = draw.pick(PEOPLE), draw.pick(_THINGS), first + second
    return (
        f"{who} counts {first} {what} on Monday, {second} on Tuesday and {third} on Wednesday. "
        f"How many {what} does {who} count?",
        f"{first} + {second} = {both}. {both} + {third} = {both + third}.",
    )


_PROBLEMS: tuple[Callable[[Draw], Worked], ...] = (
    *(_shopping, _sharing, _travel, _area, _edge, _equation),
    *(_saving, _percent, _ages, _boxes, _difference, _three),
)
_HELD_OUT_OF = 8


def _worked(draw: Draw, kind: Callable[[Draw], Worked], held_out: bool) -> Worked:
    """A problem of this kind: of every eight, by the hash of its words, one is held out."""
    while True:
        problem, answer = kind(draw)
        if (sha256(problem.encode()).digest()[0] % _HELD_OUT_OF == 0) == held_out:
            return problem, answer


def problem_text(number: int, *, held_out: bool) -> GeneratedText:
    """Two problems of different kinds; the second is asked, and its answer is the last number."""
    draw = Draw(number)
    first, second = (_worked(draw, kind, held_out) for kind in draw.some(_PROBLEMS, 2))
    answer = second[1].rpartition(" ")[2].rstrip(".")
    return GeneratedText(f"problems {number}", *second, answer, earlier=(first,))
