"""Run by test_shares.py: calibrations of the cases in a file; why some are refused."""

import json
import sys
from pathlib import Path

import torch
from calibrations import calibrated, make_sequences

from analysis.calibration.distributed import join
from analysis.errors import UserError
from analysis.model.opening import load_model_index

torch.set_num_threads(1)
ROOT = Path(sys.argv[1])
refused = {}
for name, groups in json.loads((ROOT / "cases.json").read_text()):
    described = load_model_index(str(ROOT / name))
    sequences = make_sequences(vocabulary=described.config["vocab_size"])
    try:
        calibrated(described, ROOT / "stats" / name, sequences, groups=groups, batch_size=2)
    except UserError as error:
        refused[name] = f"{type(error).__name__}: {error}"
(ROOT / f"refused-{join().rank}.json").write_text(json.dumps(refused))
