import subprocess
import sys

import pytest

from analysis.devices import parse_device
from analysis.errors import CheckpointError


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
