"""A file that is there is replaced by no command, unless --force asks for it."""

import pytest

OVER = ("--sparsity", "50%")
PAIR = ("--criterion", "random", "--with-criterion", "aimer")


@pytest.mark.parametrize(
    "words",
    [
        ("evaluate", "demo", "--corpus", "demo-math"),
        ("sweep", "demo", "--criterion", "random", *OVER, "--corpus", "demo-math"),
        ("variance", "demo", "--corpus", "demo-math"),
        ("bins", "demo", "--corpus", "demo-math", "--criterion", "random"),
        ("score", "demo", "--criterion", "aimer"),
        ("overlap", "demo", *OVER),
        ("compare", "demo", *PAIR, *OVER),
        ("recipe", "init", "demo"),
        ("report", "demo"),
        ("plot", "loss-bins", "demo"),
        ("benchmark", "demo", "--task", "arc_easy"),
    ],
)
def test_a_file_of_somebody_else_is_refused_before_any_work(words, refused, here):
    taken = here / ("mine.csv" if words[0] in ("sweep", "variance", "bins") else "mine.json")
    if words[0] in ("score", "overlap", "compare", "plot"):
        taken = here / "mine.csv"
    if words[0] == "report":
        taken = here / "mine.html"
    taken.write_text("mine")
    assert "is there already; name another file with -o" in refused(*words, "-o", taken.name)
    assert taken.read_text() == "mine"


def test_the_usual_name_is_looked_at_too_and_force_replaces(refused, works, here):
    words = ("score", "demo", "--criterion", "aimer")
    (here / "scores.csv").write_text("mine")
    assert "scores.csv is there already" in refused(*words)
    works(*words, "--force")
    assert (here / "scores.csv").read_text() != "mine"
    (here / "loss-bins.html").write_text("mine")
    assert "loss-bins.html is there already" in refused("plot", "loss-bins", "demo")
