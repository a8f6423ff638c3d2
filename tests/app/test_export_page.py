"""Export: where it may write, and what it says before it does."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from page_texts import texts, unfolded

from analysis.errors import ExportError
from analysis.model.opening import load_model_index
from app.pages.export.form import export_path
from pruning.plan.sizes import format_bytes, size_report


def name_field(test):
    (field,) = (field for field in test.text_input if field.label == "Folder name")
    return field


def start_button(test):
    (button,) = (button for button in test.button if button.label == "Run export")
    return button


BAD_NAMES = [
    "../x",
    "..",
    ".",
    "/elsewhere/x",
    "a/b",
    "a\\b",
    "~",
    "~root",
    "-rf",
    ".hidden",
    "",
    " ",
    "a b",
    "a\nb",
    "a\x00b",
    "..%2fx",
    "caf\u00e9",
    "$HOME",
    "x" * 101,
]


@pytest.mark.parametrize("name", BAD_NAMES, ids=repr)
def test_names_that_lead_elsewhere_are_refused(tmp_path, name):
    with pytest.raises(ExportError, match="not usable"):
        export_path(tmp_path, name)


def test_a_name_is_checked_before_anything_is_written(
    open_page, export_root, tmp_path, monkeypatch
):
    test = open_page("export")
    offered = name_field(test).value
    assert export_path(export_root, offered).parent == export_root.resolve()
    assert not start_button(test).disabled

    def typed(name):
        name_field(test).set_value(name).run()
        assert not test.exception
        return [error.value for error in test.error]

    (message,) = typed("../x")
    assert "not usable" in message
    assert start_button(test).disabled
    assert "export" not in test.code[0].value.replace("--export", "").split("plan.json")[-1]
    assert not export_root.exists()
    (tmp_path / "elsewhere").mkdir()
    export_root.mkdir()
    (export_root / "link").symlink_to(tmp_path / "elsewhere")
    (message,) = typed("link")
    assert "is a link" in message
    assert start_button(test).disabled
    (export_root / "file").write_text("precious")
    typed("file")
    assert start_button(test).disabled
    (export_root / "taken").mkdir()
    # Empty: as good as new.
    assert typed("taken") == []
    assert not start_button(test).disabled
    (export_root / "taken" / "file").write_text("precious")
    test.run()
    assert start_button(test).disabled
    assert any("taken; choose another name" in text.value for text in test.markdown)
    typed(offered)
    # Room for a layer, not for the whole: the job compares layer by layer.
    demo = load_model_index("demo")
    free = (1 << 29) + demo.num_params * 4
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=free))
    test.run()
    assert any("; layer by layer, as here, " in text.value for text in test.markdown)
    assert any("--verify --stream-layers" in code.value for code in test.code)
    monkeypatch.setattr("shutil.disk_usage", lambda _path: SimpleNamespace(free=1000))
    test.run()
    assert start_button(test).disabled
    assert any("Free disk 1000 B" in text.value for text in test.markdown)


def test_the_page_says_who_reads_the_export_and_what_it_takes(open_page):
    test = unfolded(open_page("export"), "export.engines.part")
    (engines,) = (table.value for table in test.dataframe if "program" in table.value.columns)
    assert {"transformers", "moeprune, load_pruned", "vLLM"} <= set(engines["program"])
    assert engines["why"].str.len().min() > 0
    loaded = format_bytes(size_report(load_model_index("demo")).loaded("bfloat16")[0])
    assert any(
        f"Loaded in bfloat16: {loaded}, then" in paragraph.value for paragraph in test.markdown
    )


def test_an_export_larger_than_the_original_is_asked_about(open_page):
    # One expert of 32 in each layer takes less than the head that the export has to write.
    test = open_page("export", sparsity="5%")
    head, expert = 2048 * 128 * 2, (3 * 128 * 64 + 128) * 2
    grown = format_bytes(head - 6 * expert)
    assert start_button(test).disabled
    assert any(f"larger than the original by {grown}" in warning.value for warning in test.warning)
    assert any(
        f"**10.5 MiB** (:orange[larger than the original by {grown}])" in t
        for t in texts(test.markdown)
    )
    (box,) = (box for box in test.checkbox if box.label == "Write it although it is larger")
    box.check().run()
    assert not start_button(test).disabled
    smaller = open_page("export", sparsity="50%")
    assert not start_button(smaller).disabled
    assert not [box for box in smaller.checkbox if "larger" in box.label]


def test_the_name_follows_the_plan(open_page):
    names = {
        name_field(open_page("export", **address)).value
        for address in ({}, {"sparsity": "25%"}, {"corpora": "demo-math"}, {"criterion": "aimer"})
    }
    assert len(names) == 4


def test_an_export_is_queued_with_its_proof_and_its_partial_output(
    open_page, queued_jobs, export_root
):
    test = open_page("export", "once")
    test.button(key="export.start").click().run()
    assert not test.exception
    (job,) = queued_jobs()
    out = Path(job.request["out"])
    assert (job.title, out.parent) == (out.name, export_root)
    assert job.request["verify"] is True
    assert " --verify" in job.command
    assert job.partials == (f"{out}.partial",)
    assert export_root.is_dir()
    # Its folder is not offered twice.
    assert start_button(test.run()).disabled
    assert any(f"{out.name} is being written" in text.value for text in test.markdown)
