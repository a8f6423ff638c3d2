"""Points of curves on a tiny model, and what measures them."""

from dataclasses import replace

from masked_cases import DEEP, plans_of, sequences, subject_of

from analysis.families.listing import FAMILIES
from analysis.model.moe_model import ModelRef
from families.tiny_models import tiny_model
from pruning.engine.candidate import MeasureSettings
from pruning.measurements.block import SampleSet
from pruning.measures.points import MEASURES, curve_points
from pruning.measures.samples import make_samples
from pruning.plan.units import expert_units
from pruning.records.sensitivity import SensitivityRecord, SensitivityStore
from pruning.search.fitness import MaskedRuns
from pruning.search.sensitivity import Measuring

CASE = DEEP[0]


def units_of(case):
    layers = FAMILIES[case.model_type].layers(tiny_model(case).config.to_dict())
    return expert_units(layers)


def record_of(case):
    layers = tuple((layer, case.experts) for layer in case.sparse)
    return SensitivityRecord.begun(
        ("sensitivity", "reap"),
        {"case": str(case)},
        model=ModelRef("tiny", "00" * 32),
        order={"criterion": "reap", "granularity": "expert", "digest": "aa"},
        corpus={"name": "text", "seed": 42},
        layers=layers,
        settings={"dtype": "float32"},
    )


def measuring(folder, case=CASE, count=5, max_bytes=None, stream=None, documents=None):
    """Of the first `count` samples, in batches of two; loads are counted."""
    loads = []
    few = replace(sequences().picked(range(count)), documents=documents)

    def load():
        yield from ()
        if stream is not None:
            return stream
        loads.append(1)
        subject = subject_of(case, tiny_model(case))
        subject = replace(subject, full=replace(subject.full, samples=make_samples(few, 2)))
        return MaskedRuns(subject, MeasureSettings(MEASURES), max_bytes)

    store, record = SensitivityStore([folder]), record_of(case)
    where = SampleSet("text", few.digest, "float32", 42)
    samples = make_samples(few, 2)
    work = Measuring(store, store.find(record), samples, where, plans_of(case), load)
    work.loads = loads
    return work


def points_at(count):
    return curve_points(units_of(CASE), count)
