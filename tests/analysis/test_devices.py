import subprocess
import sys

import pytest

from analysis.errors import CheckpointError
from analysis.machine.devices import check_device, parse_device


@pytest.mark.parametrize("name", ["meta", "mps", "", "cuda:", "cuda:-1", "cpu\n", "CUDA", "cuda:٣"])
def test_a_device_that_no_run_can_use_is_refused(name):
    with pytest.raises(CheckpointError, match="try cpu, or auto, cuda, cuda:N"):
        parse_device(name)


def test_a_device_is_refused_before_torch_is_imported():
    words = ["calibrate", "demo", "--corpus", "demo-code", "--device", "meta"]
    code = (
        f"import sys; sys.argv[1:] = {words}\n"
        "from app.cli import main\n"
        "try:\n    main()\n"
        "finally:\n    assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "No run can use the device 'meta'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="other systems keep no such files")
@pytest.mark.parametrize(
    ("files", "chosen", "name", "message"),
    [
        ("", None, "cuda", "try cpu"),
        ("nvidia0", None, "xpu", "try cpu"),
        ("nvidia0 nvidia3 nvidiactl", None, "cuda:1", None),
        ("nvidia0 nvidia3 nvidiactl", None, "cuda:2", "GPUs are numbered 0 to 1"),
        ("nvidia0 nvidia3", "GPU-8932f937-1", "cuda:1", "GPUs are numbered 0 to 0"),
        ("nvidia0 nvidia3", "3,0", "cuda:1", None),
        ("nvidia0 nvidia3", "3,-1,0", "cuda:1", "GPUs are numbered 0 to 0"),
        ("nvidia0", "", "cuda", "CUDA_VISIBLE_DEVICES hides all"),
        ("kfd", None, "cuda:7", None),
        ("nvidia0 dxg", None, "cuda:7", None),
        ("", None, "cpu", None),
    ],
)
def test_a_gpu_that_the_files_of_its_driver_do_not_show(
    tmp_path, monkeypatch, files, chosen, name, message
):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if chosen is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    for file in files.split():
        (tmp_path / file).touch()
    if message is None:
        check_device(name, tmp_path)
    else:
        with pytest.raises(CheckpointError, match=message):
            check_device(name, tmp_path)
