"""Word problems with worked answers, two in a conversation."""

from collections.abc import Callable
from hashlib import sha256

from analysis.demo.generate.draw import Draw, GeneratedText
from analysis.demo.generate.story_sentences import PEOPLE

_THINGS = (
    *("apples", "books", "coins", "pencils", "tickets", "stamps", "bottles", "tiles"),
    *("candles", "buttons", "ribbons", "marbles", "plates", "chairs", "flowers", "nails"),
)
Worked = tuple[str, str]  # problem, worked answer


def _shopping(draw: Draw) -> Worked:
    count, price, change = draw.integer(2, 15), draw.integer(2, 12), draw.integer(1, 40)
    total, who, what = count * price, draw.pick(PEOPLE), draw.pick(_THINGS)
    return (
        f"{who} buys {count} {what} at {price} dollars each and pays with {total + change} "
        f"dollars. How much change does {who} get?",
        f"The {what} cost {count} * {price} = {total} dollars. "
        f"The change is {total + change} - {total} = {change} dollars. The answer is {change}.",
    )


def _sharing(draw: Draw) -> Worked:
    friends, each, rest = draw.integer(3, 9), draw.integer(3, 15), draw.integer(0, 2)
    total, who, what = friends * each + rest, draw.pick(PEOPLE), draw.pick(_THINGS)
    return (
        f"{who} shares {total} {what} equally among {friends} friends. "
        f"How many does each friend get?",
        f"{friends} * {each} = {friends * each}, and {total} - {friends * each} = {rest}. "
        f"Each friend gets {each} and {rest} are left. The answer is {each}.",
    )


def _travel(draw: Draw) -> Worked:
    speed, first, second = draw.integer(3, 12) * 10, draw.integer(1, 6), draw.integer(1, 6)
    hours, what = first + second, draw.pick(("train", "bus", "ship", "truck"))
    return (
        f"A {what} goes {speed} km per hour for {first} hours, rests, and goes on for {second} "
        f"hours at the same speed. How far does it go?",
        f"It goes {first} + {second} = {hours} hours. "
        f"The distance is {speed} * {hours} = {speed * hours} km. The answer is {speed * hours}.",
    )


def _area(draw: Draw) -> Worked:
    width, length = draw.integer(3, 15), draw.integer(3, 15)
    what = draw.pick(("garden", "room", "field", "carpet", "roof"))
    return (
        f"A {what} is {width} m wide and {length} m long. What is its area?",
        f"The area is {width} * {length} = {width * length} square meters. "
        f"The answer is {width * length}.",
    )


def _edge(draw: Draw) -> Worked:
    width, length = draw.integer(3, 40), draw.integer(3, 40)
    what = draw.pick(("garden", "room", "field", "carpet", "roof"))
    around = width + length
    return (
        f"A {what} is {width} m wide and {length} m long. How long is the way around it?",
        f"Half of the way is {width} + {length} = {around} m. "
        f"The whole is 2 * {around} = {2 * around} m. The answer is {2 * around}.",
    )


def _equation(draw: Draw) -> Worked:
    factor, shift, root = draw.integer(2, 12), draw.integer(1, 40), draw.integer(2, 12)
    right, x = factor * root + shift, draw.pick(("x", "y", "z", "a", "b"))
    return (
        f"Solve for {x}: {factor} * {x} + {shift} = {right}.",
        f"Subtract {shift}: {factor} * {x} = {right} - {shift} = {right - shift}. "
        f"Divide by {factor}: {x} = {right - shift} / {factor} = {root}. The answer is {root}.",
    )


def _saving(draw: Draw) -> Worked:
    start, week = draw.integer(5, 60), draw.integer(2, 12)
    weeks, who = draw.integer(2, 12), draw.pick(PEOPLE)
    saved = week * weeks
    return (
        f"{who} has {start} dollars and saves {week} dollars a week for {weeks} weeks. "
        f"How much does {who} have then?",
        f"Saving gives {week} * {weeks} = {saved} dollars. "
        f"Together {start} + {saved} = {start + saved} dollars. The answer is {start + saved}.",
    )


def _percent(draw: Draw) -> Worked:
    share, base, what = draw.integer(1, 9) * 10, draw.integer(2, 40) * 10, draw.pick(_THINGS)
    tenth, tenths = base // 10, share // 10
    return (
        f"A shop has {base} {what} and sells {share} percent of them. How many does it sell?",
        f"Ten percent of {base} is {tenth}. {share} percent is {tenths} * {tenth} = "
        f"{tenths * tenth}. The answer is {tenths * tenth}.",
    )


def _ages(draw: Draw) -> Worked:
    (older, younger), age = draw.some(PEOPLE, 2), draw.integer(5, 30)
    more, years = draw.integer(2, 20), draw.integer(2, 15)
    return (
        f"{younger} is {age} years old, and {older} is {more} years older. "
        f"How old will {older} be in {years} years?",
        f"{older} is {age} + {more} = {age + more}. "
        f"In {years} years it is {age + more} + {years} = {age + more + years}. "
        f"The answer is {age + more + years}.",
    )


def _boxes(draw: Draw) -> Worked:
    boxes, each, broken = draw.integer(2, 12), draw.integer(3, 12), draw.integer(1, 5)
    what, total = draw.pick(_THINGS), boxes * each
    return (
        f"There are {boxes} boxes of {each} {what}, and {broken} of the {what} are broken. "
        f"How many are whole?",
        f"There are {boxes} * {each} = {total} {what}. "
        f"Of these {total} - {broken} = {total - broken} are whole. "
        f"The answer is {total - broken}.",
    )


def _difference(draw: Draw) -> Worked:
    (first, second), less, more = draw.some(PEOPLE, 2), draw.integer(10, 60), draw.integer(3, 35)
    what = draw.pick(_THINGS)
    return (
        f"{first} has {less + more} {what} and {second} has {less}. "
        f"How many more does {first} have?",
        f"The difference is {less + more} - {less} = {more}. The answer is {more}.",
    )


def _three(draw: Draw) -> Worked:
    first, second, third = (draw.integer(4, 40) for _ in range(3))
    who, what = draw.pick(PEOPLE), draw.pick(_THINGS)
    return (
        f"{who} counts {first} {what} on Monday, {second} on Tuesday and {third} on Wednesday. "
        f"How many are that?",
        f"{first} + {second} = {first + second}, and {first + second} + {third} = "
        f"{first + second + third}. The answer is {first + second + third}.",
    )


_PROBLEMS: tuple[Callable[[Draw], Worked], ...] = (
    *(_shopping, _sharing, _travel, _area, _edge, _equation),
    *(_saving, _percent, _ages, _boxes, _difference, _three),
)
_ANSWER = "The answer is "
_HELD_OUT_OF = 8


def _worked(draw: Draw, kind: Callable[[Draw], Worked], held_out: bool) -> Worked:
    """A problem of this kind: of every eight, by the hash of its words, one is held out."""
    while True:
        problem, answer = kind(draw)
        if (sha256(problem.encode()).digest()[0] % _HELD_OUT_OF == 0) == held_out:
            return problem, answer


def problem_text(number: int, *, held_out: bool) -> GeneratedText:
    """Two problems of different kinds; the second is asked, and its answer is a number."""
    draw = Draw(number)
    first, second = (_worked(draw, kind, held_out) for kind in draw.some(_PROBLEMS, 2))
    answer = second[1].rpartition(_ANSWER)[2].rstrip(".")
    return GeneratedText(f"problems {number}", *second, answer, earlier=(first,))
