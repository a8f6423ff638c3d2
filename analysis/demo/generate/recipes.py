"""Short recipes with questions about amounts and times: text that nothing is calibrated on."""

from analysis.demo.generate.draw import Draw, GeneratedText

_DISHES = (
    *("soup", "stew", "pie", "salad", "bread", "cake", "pudding", "porridge", "curry", "sauce"),
    *("omelette", "casserole", "broth", "pancakes", "dumplings"),
)
_KINDS = (
    *("apple", "potato", "carrot", "mushroom", "pumpkin", "lemon", "onion", "bean", "cheese"),
    *("spinach", "walnut", "barley", "leek", "cherry", "tomato", "cabbage"),
)
# Ingredient, its unit; none: counted.
_INGREDIENTS = (
    ("flour", "grams"),
    ("sugar", "grams"),
    ("butter", "grams"),
    ("rice", "grams"),
    ("oats", "grams"),
    ("milk", "cups"),
    ("water", "cups"),
    ("cream", "cups"),
    ("oil", "spoons"),
    ("salt", "pinches"),
    ("honey", "spoons"),
    ("vinegar", "spoons"),
    ("eggs", ""),
    ("onions", ""),
    ("carrots", ""),
    ("lemons", ""),
    ("potatoes", ""),
    ("apples", ""),
)
_FIRST = (
    "Wash everything and cut it into small pieces.",
    "Warm the pan over a low flame.",
    "Heat the oven and grease a deep dish.",
    "Put a large pot on the stove.",
    "Clear the table and get out your largest bowl.",
    "Begin an hour before the guests arrive.",
)
_STEPS = (
    "Mix the {a} with the {b} until smooth.",
    "Stir in the {a} a little at a time.",
    "Add the {a} and then the {b}.",
    "Beat the {a} and fold in the {b}.",
    "Sprinkle the {a} on top.",
    "Cover the {a} with the {b}.",
    "Let the {a} rest while you warm the {b}.",
    "Set aside a little of the {a} for later.",
    "Press the {a} through a sieve.",
    "Rub the {a} into the {b} with your fingers.",
    "If it is too thick, use less of the {a}.",
    "Taste it, and add more {a} if you like.",
)
_HEATING = (
    ("Bake the {dish} for {minutes} minutes.", "How long does it bake?"),
    ("Let the {dish} simmer for {minutes} minutes.", "How long does it simmer?"),
    ("Boil the {dish} for {minutes} minutes with the lid on.", "How long does it boil?"),
    ("Fry the {dish} for {minutes} minutes, and turn it once.", "How long does it fry?"),
)
_RESTING = (
    "Let it cool for {minutes} minutes with the {a}.",
    "Then it should stand for {minutes} minutes without the {a}.",
    "Keep the {a} in a cold place for {minutes} minutes.",
)
_SERVING = (
    "Serve the {dish} hot with bread.",
    "The {dish} tastes even better on the next day.",
    "Serve the {dish} in deep bowls.",
    "Cut it into squares and serve the {dish} cold.",
    "Children like the {dish} with jam.",
    "The {dish} keeps for three days.",
)


def _amount(draw: Draw, unit: str) -> str:
    if unit == "grams":
        return f"{draw.integer(2, 19) * 25} grams"
    return f"{draw.integer(2, 9)} {unit}" if unit else str(draw.integer(2, 12))


def recipe_text(number: int, *, held_out: bool) -> GeneratedText:
    """A recipe and some questions; the last is asked, and its answer is an amount or a time."""
    draw = Draw(number)
    dish = f"{draw.pick(_KINDS)} {draw.pick(_DISHES)}"
    title = f"{dish.capitalize()} for {draw.integer(2, 8)}"
    parts = draw.some(_INGREDIENTS, draw.integer(2, 6))
    amounts = {name: _amount(draw, unit) for name, unit in parts}
    names = list(amounts)
    steps = [draw.pick(_FIRST)]
    for step in draw.some(_STEPS, draw.integer(1, 5)):
        first, second = draw.some(names, 2)
        steps.append(step.format(a=first, b=second))
    heating, question = draw.pick(_HEATING)
    hot, cold = draw.integer(1, 12) * 5, draw.integer(1, 12) * 5
    steps.append(heating.format(dish=dish, minutes=hot))
    steps.append(draw.pick(_RESTING).format(a=draw.pick(names), minutes=cold))
    steps.append(draw.pick(_SERVING).format(dish=dish))
    asked = [
        (question, f"{hot} minutes."),
        ("How long must it wait?", f"{cold} minutes."),
        *(
            (f"How {'much' if unit else 'many'} {name} does it need?", f"{amounts[name]}.")
            for name, unit in parts
        ),
    ]
    *before, (last, answer) = draw.some(asked, min(len(asked), 5))
    needed = "\n".join(f"- {name}: {amount}" for name, amount in amounts.items())
    lines = [title, "", needed, "", " ".join(steps), ""]
    lines += [f"{prompt} {reply}" for prompt, reply in before]
    return GeneratedText(f"recipe {number}", "\n".join([*lines, last]), f" {answer}\n", answer)
