"""The demo quantised in llama.cpp, whole and pruned: bytes and loss of real files.

`python -m tools.engines llama.cpp`, then `python -m tools.engines.quantised_loss`. Losses are of
the held-out samples of `moeprune evaluate`, by llama.cpp and by transformers in float32.
"""

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Annotated, Any, Final

import numpy as np
import typer
from safetensors.torch import load_file, save_file

from analysis.drain import drain
from analysis.errors import UserError
from pruning import Model
from pruning.measures.result import SampleValues
from pruning.measures.samples import Samples, make_samples
from pruning.plan.plan import PruningPlan, keep_all
from pruning.records.repair_files import with_repair_files
from pruning.requests.evaluation import EvaluateRequest
from pruning.requests.repair import RepairRequest
from pruning.tasks.evaluation import drawn_corpora
from pruning.tasks.repair import repair_run
from tools.engines.environments import HERE, python_of

ENGINE: Final = "llama.cpp"
MIB: Final = 1 << 20
ORIGINAL: Final = "original"
# Scope -> types. Q2_K needs rows of 256, which the demo lacks: what it becomes is an answer too.
OF_ORIGINAL: Final = {
    "everything": ("F32", "F16", "Q8_0", "Q5_0", "Q4_1", "Q4_0", "IQ4_NL", "MXFP4", "Q2_K"),
    "experts": ("Q8_0", "Q5_0", "Q4_1", "Q4_0", "IQ4_NL", "MXFP4"),
}
OF_PRUNED: Final = {
    "everything": ("F32", "F16", "Q8_0", "Q4_0", "MXFP4"),
    "experts": ("Q8_0", "Q5_0", "Q4_0", "MXFP4"),
}
# As the plans and repairs that ship, see tools/demo/steps.py: the order counts.
CORPORA: Final = ("demo-code", "demo-math", "demo-stories")
# Tokens of the repairs, by criterion.
REPAIRED_ON: Final = {"ean": 65_536, "reap": 32_768}


# Corpus -> loss of each sample, in nats per token.
Losses = Mapping[str, Sequence[float]]
Documents = Mapping[str, Sequence[int] | None]  # corpus -> of its samples; without: unknown
_UNKNOWN: Final[Documents] = MappingProxyType({})


@dataclass(frozen=True)
class QuantisedFile:
    """A file that llama.cpp wrote, and its losses."""

    checkpoint: str
    scope: str  # "everything" or "experts"
    type: str  # as llama-quantize names it
    file_bytes: int
    expert_bytes: int
    tensors: Mapping[str, int]  # role and type -> tensors
    fallbacks: Sequence[str]  # lines of the log about types that the shapes do not take
    alike: Sequence[int] | None  # rows of experts that gguf-py quantises to the same bytes, of all
    losses: Losses  # as the file is
    dequantised: Losses | None  # of experts only: by the same weights in float32


@dataclass(frozen=True)
class Increase:
    """What a file's loss lies above another's, in nats per token; corpora count alike."""

    mean: float
    error: float  # standard error by documents; both losses are of the same samples


def mean_loss(losses: Losses) -> float:
    """The mean over corpora of what `moeprune evaluate` reports: the mean of the samples' means."""
    return float(np.mean([np.mean(loss) for loss in losses.values()]))


def increase(losses: Losses, base: Losses, documents: Documents = _UNKNOWN) -> Increase:
    """The losses of a file above those in float32."""
    pairs = [
        SampleValues(np.subtract(loss, base[corpus]), documents.get(corpus))
        for corpus, loss in losses.items()
    ]
    return Increase(
        float(np.mean([pair.numbers.mean() for pair in pairs])),
        float(np.sqrt(np.sum([pair.variance_of_mean() for pair in pairs])) / len(pairs)),
    )


def table(
    files: Sequence[QuantisedFile],
    float32: Mapping[str, Losses],
    documents: Documents = _UNKNOWN,
) -> str:
    """A Markdown table: a row per file, with its distance from transformers in float32."""
    corpora = list(files[0].losses)
    names = [corpus.removeprefix("demo-") for corpus in corpora]
    head = ["checkpoint", "quantised", "type", "file, MiB", "experts, MiB", *names, "mean"]
    rows = [[*head, "above float32", "by weights alone"]]
    rows.append(["---"] * len(rows[0]))
    for file in files:
        base = float32[file.checkpoint]
        sizes = [f"{file.file_bytes / MIB:.2f}", f"{file.expert_bytes / MIB:.2f}"]
        losses = [f"{np.mean(file.losses[corpus]):.4f}" for corpus in corpora]
        found = increase(file.losses, base, documents)
        above = [f"{found.mean:+z.4f} ± {found.error:.4f}"]
        above.append(f"{increase(file.dequantised, base).mean:+z.4f}" if file.dequantised else "")
        label = [file.checkpoint, file.scope, file.type]
        rows.append([*label, *sizes, *losses, f"{mean_loss(file.losses):.4f}", *above])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def plans(model: Model) -> Iterator[tuple[str, PruningPlan]]:
    """Name and plan of each checkpoint: the original, and half of it by two criteria."""
    yield ORIGINAL, keep_all(model.described)
    for criterion, tokens in REPAIRED_ON.items():
        plan = model.plan(criterion, CORPORA, sparsity="50%")
        yield f"{criterion} 50%", plan
        request = RepairRequest(
            model="demo",
            plan=plan.to_dict(),
            tokens=tokens,
            dtype="float32",
            stats_dir=model.store.directories[0],
        )
        repaired = replace(plan, repair=drain(repair_run(request)).reference)
        yield f"{criterion} 50%, repaired", with_repair_files(repaired, model.store.directories)


def write_head(checkpoint: Path) -> None:
    """Give a checkpoint with a tied head one of its own: llama.cpp's OLMoE knows no other.

    Exports that remove something have one already.
    """
    weights = checkpoint / "model.safetensors"
    tensors = load_file(weights)
    if "lm_head.weight" not in tensors:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
        save_file(tensors, weights, {"format": "pt"})
        config = json.loads((checkpoint / "config.json").read_text())
        config["tie_word_embeddings"] = False
        (checkpoint / "config.json").write_text(json.dumps(config, indent=2))


def held_out(model: Model, samples: int) -> dict[str, Samples]:
    """Corpus -> the samples that `moeprune evaluate` takes."""
    request = EvaluateRequest(model="demo", corpora=CORPORA, samples=samples)
    draws = drain(drawn_corpora(request, model.described, model.store))
    return {draw.sequences.corpus: make_samples(draw.sequences, 1) for draw in draws}


def as_asked(samples: Samples) -> list[dict[str, Any]]:
    """The samples as the engine gets them: token ids, and places whose next token counts."""
    scored = [np.flatnonzero(batch.scored[0]).tolist() for batch in samples.batches()]
    rows = zip(samples.sequences.rows, scored, strict=True)
    return [{"tokens": row.tolist(), "scored": places} for row, places in rows]


def losses_in_float32(
    checkpoint: Path, samples: Mapping[str, Samples], stats: Path
) -> dict[str, list[float]]:
    """The losses of a checkpoint by transformers."""
    model, found = Model(checkpoint, stats_dir=stats), {}
    for corpus, sample in samples.items():
        record = model.evaluate(corpus=corpus, samples=len(sample), dtype="float32", measures="nll")
        if record.corpus["digest"] != sample.sequences.digest:
            raise UserError(f"{checkpoint.name} tokenises {corpus} in another way than the demo.")
        if record.samples is None:
            raise UserError(f"The record {record.record_id} has no losses of samples.")
        found[corpus] = [float(loss) for loss in record.samples.means]
    return found


def files_of(checkpoint: str) -> list[tuple[str, str]]:
    """Scope and type of the files that are made of a checkpoint."""
    kinds = OF_ORIGINAL if checkpoint == ORIGINAL else OF_PRUNED
    return [(scope, kind) for scope in kinds for kind in kinds[scope]]


def ask_engine(
    folder: Path, checkpoints: Mapping[str, Path], samples: Mapping[str, Samples]
) -> dict[str, Any]:
    """What `run_quantised` answers about every checkpoint and file."""
    python = python_of(ENGINE)
    if python is None:
        raise UserError(f"There is no environment of {ENGINE}: python -m tools.engines {ENGINE}")
    asked, answered, log = (folder / name for name in ("asked.json", "answers.json", "log"))
    question = {
        "checkpoints": {
            name: {"folder": str(path), "files": files_of(name)}
            for name, path in checkpoints.items()
        },
        "samples": {corpus: as_asked(sample) for corpus, sample in samples.items()},
    }
    asked.write_text(json.dumps(question))
    command = [python, str(HERE / "run_quantised.py"), str(asked), str(answered)]
    with log.open("w") as file:
        done = subprocess.run(command, stderr=file, check=False)
    if done.returncode:
        raise UserError(f"{ENGINE} failed: {log.read_text()[-2000:]}")
    answers: dict[str, Any] = json.loads(answered.read_text())
    return answers


def read_files(answers: Mapping[str, Any], samples: Mapping[str, Samples]) -> list[QuantisedFile]:
    """The answers, with losses per token for sums."""
    counts = {corpus: sample.num_scored.tolist() for corpus, sample in samples.items()}
    return [
        QuantisedFile(
            **{key: value for key, value in answer.items() if key != "sums"}
            | {
                "losses": per_token(answer["sums"], counts),
                "dequantised": answer["dequantised"] and per_token(answer["dequantised"], counts),
            }
        )
        for answer in answers["files"]
    ]


def per_token(sums: Losses, counts: Mapping[str, Sequence[int]]) -> dict[str, list[float]]:
    """Sums over the tokens of each sample as means."""
    return {name: np.divide(sum_, counts[name]).tolist() for name, sum_ in sums.items()}


def main(
    out_file: Annotated[Path | None, typer.Option("--out", "-o", help="Raw results, JSON.")] = None,
    samples: Annotated[int, typer.Option(min=2, help="Samples of each corpus.")] = 64,
) -> None:
    """Quantise the demo and exports of it in llama.cpp; print bytes and losses as a table."""
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        model = Model("demo", stats_dir=folder / "stats")
        drawn = held_out(model, samples)
        checkpoints = {}
        for name, plan in plans(model):
            checkpoints[name] = model.export(plan, folder / f"checkpoint-{len(checkpoints)}")
            write_head(checkpoints[name])
        float32 = {
            name: losses_in_float32(path, drawn, folder / "stats")
            for name, path in checkpoints.items()
        }
        answers = ask_engine(folder, checkpoints, drawn)
    files = read_files(answers, drawn)
    documents = {corpus: draw.sequences.documents for corpus, draw in drawn.items()}
    typer.echo(table(files, float32, documents))
    if out_file:
        tokens = {corpus: int(draw.num_scored.sum()) for corpus, draw in drawn.items()}
        content = {
            "versions": answers["versions"],
            "samples": {corpus: draw.sequences.digest for corpus, draw in drawn.items()},
            "tokens": tokens,
            "float32": float32,
            "files": [asdict(file) for file in files],
        }
        out_file.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
