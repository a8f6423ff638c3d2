"""Export: FP8 in bfloat16, and a GGUF file beside the export."""

import pytest
from exports import uneven
from page_texts import command, metrics_of, texts, upload

from analysis.drain import drain
from analysis.model.opening import load_model_index
from app.jobs.model import JobState
from app.session.job_queue import job_store
from builders.converter import write_converter
from builders.fp8 import write_fp8_pair
from pruning.plan.sizes import format_bytes
from pruning.requests.model import ExportRequest
from pruning.tasks.export import dry_export, export_run


@pytest.fixture
def models_root(tmp_path):
    root = tmp_path / "models"
    root.mkdir()
    write_fp8_pair(root)
    return root


def written(job):
    """The export that the job asks for, finished."""
    request = ExportRequest(**job.request)
    with job_store().transaction() as jobs:
        jobs.update(job.id, state=JobState.RUNNING, started_at=1.0)
    job_store().finish(job.id, JobState.DONE, result=drain(export_run(request)))
    return request


def test_fp8_is_written_in_bfloat16_where_that_is_asked_for(open_page, queued_jobs):
    test = open_page("export", "plain", criterion="random")
    assert "dequantise" not in [toggle.key for toggle in test.toggle]
    test = open_page("export", "fp8", criterion="random")
    before = metrics_of(test)["On disk"]
    assert "--dequantise" not in command(test, "export")
    test.toggle(key="dequantise").set_value(True).run()
    assert " --dequantise " in command(test, "export")
    test.button(key="export.start").click().run()
    request = written(queued_jobs()[0])
    model = load_model_index(request.model)
    nbytes = format_bytes(drain(dry_export(request, model))[0].tensor_bytes)
    assert metrics_of(test)["On disk"] == nbytes != before
    exported = load_model_index(str(request.out))
    assert (exported.quantisation, model.quantisation) == ("", "fp8")


def test_a_gguf_file_is_offered_where_the_converter_is_at_hand(
    open_page, queued_jobs, tmp_path, monkeypatch
):
    monkeypatch.delenv("LLAMA_CPP", raising=False)
    test = open_page("export")
    assert "gguf" not in [box.key for box in test.selectbox]
    assert any("llama.cpp's converter" in text for text in texts(test.caption))
    monkeypatch.setenv("LLAMA_CPP", str(write_converter(tmp_path / "llama.cpp")))
    test = open_page("export")
    test.selectbox(key="gguf").set_value("q8_0").run()
    assert " --gguf q8_0 " in command(test, "export")
    test.button(key="export.start").click().run()
    request = written(queued_jobs()[0])
    file = request.out.with_name(f"{request.out.name}-q8_0.gguf")
    assert file.read_text().endswith("--outtype q8_0")
    test.run().segmented_control(key="program").set_value("llama.cpp").run()
    assert f"llama-server --model {file} --port 8080" in texts(test.code)
    # What llama.cpp cannot run is refused before the job.
    upload(test, "uneven.json", uneven(load_model_index("demo")).to_json())
    assert any("No GGUF file: llama.cpp, fails" in text for text in texts(test.markdown))
    assert test.button(key="export.start").disabled
