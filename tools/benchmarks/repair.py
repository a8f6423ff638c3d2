"""A whole repair against one forward of the same text through the original model.

`OMP_NUM_THREADS=1 python tools/benchmarks/repair.py [demo|wide] [tokens]`

Both are streamed layer by layer. Processor time: on a shared machine wall time says little. Also
prints what a layer's activations and Gram matrices take, and by how much memory grows.
"""

import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from forward import forward
from synthetic import olmoe_config, random_model
from timing import peak_memory_mib

from analysis.calibration.loading import CalibrationSettings
from analysis.corpora.sequences import TokenSequences
from analysis.drain import drain
from analysis.model.opening import load_model_index
from analysis.model.widths import computed_widths
from pruning.plan.plan import PruningPlan, fit_plan, model_ref
from pruning.records.repair import RepairStore
from pruning.repair.run import repair_plan

LENGTH, BATCH = 256, 8
ATTEMPTS = 4  # each, in turn; the fastest counts


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else "demo"
    tokens = int(sys.argv[2]) if len(sys.argv) > 2 else 8192
    with TemporaryDirectory() as folder:
        if name == "wide":
            config = olmoe_config(4, 32, (512, 512), num_experts_per_tok=4, vocab_size=1024)
            random_model(config).save_pretrained(Path(folder) / "model")
            model = load_model_index(str(Path(folder) / "model"))
        else:
            model = load_model_index("demo")
        rng = np.random.default_rng(0)
        ids = rng.integers(3, int(model.config["vocab_size"]), (tokens // LENGTH, LENGTH))
        sequences = TokenSequences("random", tuple(ids.astype(np.int32)), len(ids), 0)
        settings = CalibrationSettings(LENGTH, dtype="float32", batch_size=BATCH)
        half = {layer.index: tuple(range(layer.num_experts // 2)) for layer in model.layers}
        plan = fit_plan(PruningPlan(model_ref(model), half), model)
        forward(model, sequences, settings)  # loads libraries
        before = peak_memory_mib()
        forwards, repairs = [], []
        for attempt in range(ATTEMPTS):
            started = time.process_time()
            forward(model, sequences, settings)
            forwards.append(time.process_time() - started)
            store = RepairStore([Path(folder) / str(attempt)])
            started = time.process_time()
            drain(repair_plan(model, plan, [sequences], settings, store))
            repairs.append(time.process_time() - started)
    one, repair = min(forwards), min(repairs)
    width = max(max(widths) for widths in computed_widths(model).values())
    layer = model.layers[0]
    kept = len(plan.kept[layer.index])
    rows = tokens * 4 * (layer.top_k * width + model.hidden_size) / 2**20
    grams = kept * width * width * 8 / 2**20
    print(f"{name}, {tokens} tokens, {kept} of {layer.num_experts} experts of {width} neurons")
    print(f"  one forward {one:8.2f} s; the repair {repair:8.2f} s: {repair / one:.2f} forwards")
    print(f"  activations of a layer {rows:.0f} MiB, Gram matrices {grams:.0f} MiB")
    print(
        f"  peak memory {before:.0f} MiB after the forward, {peak_memory_mib():.0f} MiB at the end"
    )


if __name__ == "__main__":
    main()
