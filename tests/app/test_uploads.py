"""Files dropped on the Plan page: what cannot be read is refused with one line, and quickly."""

from pathlib import Path

import pytest

from analysis.errors import UserError
from analysis.families import MoELayer
from app.session.uploads import MEGABYTES, uploaded_text
from pruning.plan import plan_from_json
from pruning.recipe_file import recipe_from_yaml
from pruning.schedules import counts_from_text

# Each line nine times the one before: 9 ** 10 words, if anybody wrote them out.
BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10)
)
# What is no text of ours at all.
HARMFUL = {
    "parquet": b"PAR1\x15\x04\x15\xff\xfePAR1",
    "zeros": b"{}\0\0",
    "brackets": b"[" * 200_000,
    "braces": b'{"a":' * 100_000,
    "too large": b" " * (MEGABYTES * 2**20 + 1),
}

# Text, but neither plan nor recipe nor schedule.
BAD = {
    "bomb": BOMB,
    "tag": '!!python/object/apply:os.system ["touch here"]',
    "number": '{"0": ' + "9" * 5000 + "}",
    "not a number": '{"schema_version": NaN, "granularity": "expert"}',
    "twice": '{"0": 1, "0": 2}',
    "empty": "",
    "list": "[1, 2]",
}


@pytest.mark.parametrize("content", HARMFUL.values(), ids=HARMFUL)
def test_what_is_no_text_of_a_plan_is_refused_before_it_is_parsed(content):
    with pytest.raises(UserError) as refused:
        uploaded_text("plan.json", content)
    assert str(refused.value).startswith("plan.json ")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_every_reader_refuses_with_one_line(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    layers = (MoELayer(0, 8, 2), MoELayer(1, 8, 2))
    for read in (
        plan_from_json,
        lambda text: recipe_from_yaml(text, name="recipe.yaml"),
        *(
            lambda text, name=name: counts_from_text(text, Path(name), layers)
            for name in ("kept.csv", "kept.yaml", "kept.json")
        ),
    ):
        with pytest.raises(UserError) as refused:
            read(uploaded_text("file", text.encode()))
        assert str(refused.value)
    # Nothing of the file was run.
    assert list(tmp_path.iterdir()) == []


def test_a_byte_order_mark_is_no_text():
    assert uploaded_text("kept.csv", b"\xef\xbb\xbflayer,keep\n") == "layer,keep\n"
