"""Mistakes of users, and what the one line that answers each must say: what is wrong, what works.

The line names the option, the file or the key, and no mistake leaves a file behind.
"""

import shlex
import sys

import pytest

from analysis.errors import UserError
from pruning import Model

RECIPE = "model: demo\ncorpora: [demo-code]\ncriterion: reap\nbudget: {sparsity: 50%}\n"
FILES = {
    "text.json": "this is no JSON",
    "list.json": "[1, 2]",
    "old.json": '{"schema_version": 0}',
    "bad.jsonl": '{"text": "a"}\n{"text": \n',
    "fields.jsonl": '{"txt": "a"}\n',
    "empty.jsonl": "",
    "corpus.docx": "",
    "latin.txt": b"caf\xe9\n\n",
    "bad.parquet": b"nope",
    "counts.csv": "layer,kept\n0,99\n",
    "columns.csv": "hello\n",
    "recipe.yaml": RECIPE,
    "key.yaml": RECIPE.replace("budget", "budgt"),
    "criterion.yaml": RECIPE.replace("reap", "REAP"),
    "corpus.yaml": RECIPE.replace("demo-code", "demo-cod"),
    "schedule.yaml": RECIPE + "schedule: unifrm\n",
    "indent.yaml": "model: demo\n  corpora: [\n",
    "two.yaml": RECIPE.replace("50%", "50%, remove: 3"),
    "none.yaml": RECIPE.partition("budget")[0],
    "place.yaml": RECIPE + "calibrate: {tokens: 64}\n",
    "number.yaml": RECIPE + "tokens: many\n",
    "plan-as-recipe.json": '{"model": {"name": "demo", "identity": ""}, "kept": {}}',
}
PLAN = "plan demo --criterion reap --corpus demo-code --sparsity 50%"
HALF = "demo --criterion reap --corpus demo-code --sparsity 50%"
# The command -> what its answer says.
MISTAKES = {
    # Names
    "plna demo": ["'plna'", "Did you mean 'plan', 'plans'?"],
    "runs shw": ["'shw'", "Did you mean 'show'?"],
    "--verison": ["no option --verison", "Did you mean '--version'?"],
    f"{PLAN} --shedule late": ["`moeprune plan` has no option --shedule", "'--schedule'?"],
    "overlap demo --sparsty 50%": ["no option --sparsty", "'--sparsity'?"],
    "weights demo --corpus x": ["no option --corpus", "`moeprune weights --help`"],
    "weights a b": ["unexpected extra argument", "(b)", "`moeprune weights --help`"],
    "plan demo --criterion REAP --sparsity 50%": ["'REAP'", "Did you mean 'reap'?"],
    "plan demo --criterion raep --sparsity 50%": ["'raep'", "Did you mean 'reap'?", "aimer"],
    "plan demo --criterion 1,2 --sparsity 50%": ["'1,2'", "exponents b,alpha,beta"],
    f"compare {HALF} --with-criterion mann": ["'mann'", "Did you mean 'man'?"],
    f"{PLAN} --schedule unifrm": ["'unifrm'", "Did you mean 'uniform'?"],
    f"{PLAN} --schedule Late": ["'Late'", "Did you mean 'late'?"],
    f"{PLAN} --gate strong": ["--gate: choose 'applied' or 'renormalized'", "'strong'"],
    f"{PLAN} --granularity neurons": ["--granularity: choose 'expert' or 'atomic'"],
    "plan demo --criterion reap --corpus demo-cod --sparsity 50%": [
        *("'demo-cod'", "Did you mean 'demo-code'?"),
    ],
    "plan demo --criterion reap --sparsity 50%": ["demo-code, demo-math, demo-prose", "--corpus"],
    "plan demo --criterion reap --run demo-cod --sparsity 50%": [
        *("'demo-cod' is unknown", "Did you mean 'demo-demo-code-"),
    ],
    f"{PLAN} --run demo-demo-code": ["use --run or --corpus, not both"],
    "runs show nothing": ["'nothing' is unknown", "demo-demo-code-"],
    "runs remove demo": ["'demo' is not unique", "demo-weights-"],
    "calibrate demo --corpus demo-moth": ["'demo-moth'", "Did you mean 'demo-math'?", ".jsonl"],
    "calibrate demo --corpus demo-code --groups dens": ["'dens'", "Did you mean 'dense'?"],
    "calibrate demo --corpus demo-code --dtype bf16": ["--dtype: ", "Did you mean 'bfloat16'?"],
    "plot overlp demo": ["'overlp'", "Did you mean 'overlap'?"],
    "report demo --view sizs": ["'sizs'", "Did you mean 'sizes'?"],
    "evaluate demo --corpus demo-code --measures kl,spec": ["'spec'", "'spec-dec'?"],
    "verify . --level logit": ["is not a finished export"],
    # Models
    "inspect nowhere": ["nowhere is not a directory", "hub id", "'demo'"],
    "inspect text.json": ["text.json is not a directory", "folder of a checkpoint"],
    "inspect .": ["has no config.json"],
    "inspect demo --revision main": ["demo is a local folder", "--revision main", "leave it out"],
    "inspect demo --config-only --revision main": ["--revision main is for hub ids"],
    "inspect owner/name": ["owner/name is not a local directory", "HF_HUB_OFFLINE"],
    # Budgets and constraints
    "plan demo": ["`moeprune plan` needs --criterion: ", "reap or aimer"],
    "plan": ["`moeprune plan` needs MODEL: ", "`demo`"],
    "plan demo --criterion reap --corpus demo-code": ["Give one budget: ", "--sparsity, "],
    f"{PLAN} --remove 3": ["Give one budget: ", "not several"],
    PLAN.replace("50%", "150%"): ["'150%' is out of range", "50% or 0.5"],
    PLAN.replace("50%", "40"): ["'40' is out of range", "50% or 0.5"],
    PLAN.replace("50%", "half"): ["'half' is not a number", "0.5, or 50%"],
    PLAN.replace("50%", "99%"): ["keep 1 of 32 experts", "picks 4", "at most 87.5%"],
    PLAN.replace("--sparsity 50%", "--remove 1000"): ["1000 of 192", "from 0 to 191"],
    PLAN.replace("--sparsity 50%", "--target-gib 1"): ["10.3 MiB", "1 GiB"],
    PLAN.replace("--sparsity 50%", "--target-gib 0.00001"): ["smallest target that works"],
    f"{PLAN} --pin 3:99": ["expert 99 of layer 3", "0..31"],
    f"{PLAN} --pin x": ["'x'", "LAYER:EXPERTS, such as 3:5"],
    f"{PLAN} --pin 3:5 --drop 3:5": ["Expert 5 of layer 3 is both pinned and dropped"],
    f"{PLAN} --protect 9": ["layer 9", "0..5"],
    f"{PLAN} --set 3:5": ["'3:5'", "LAYER=KEPT, such as 3=20"],
    f"{PLAN} --multiple-of 7": ["a multiple of 7", "nearest: 14"],
    f"{PLAN} --multiple-of 32": ["--multiple-of 32 lets no expert go", "give --multiple-of 16"],
    PLAN.replace("--sparsity 50%", "--shrink 40% --multiple-of 64"): ["give --multiple-of 16"],
    "sweep demo --criterion aimer --corpus demo-code": ["needs --sparsity or --shrink"],
    f"{PLAN} --cost kl": ["--cost is for --schedule measured"],
    f"{PLAN} --schedule-file counts.csv --schedule late": ["--schedule file and --schedule-file"],
    PLAN.replace("--sparsity 50%", "--schedule-file counts.csv"): ["counts.csv", "'99'", "32"],
    PLAN.replace("--sparsity 50%", "--schedule-file columns.csv"): ["columns.csv lacks", "layer"],
    PLAN.replace("--sparsity 50%", "--schedule-file none.csv"): ["none.csv cannot be read"],
    "plan demo --criterion aimer --corpus demo-code --sparsity 50%": ["leave --corpus", "out"],
    PLAN.replace("demo-code", "demo-code:x"): ["'x' in 'demo-code:x'", "CORPUS:2"],
    f"{PLAN} --granularity atomic": ["REAP does not score neurons", "heapr"],
    # Numbers
    "calibrate demo --corpus demo-code --tokens many": ["--tokens: give a whole number", "'many'"],
    "calibrate demo --corpus demo-code --tokens 0": ["--tokens: give 2 or more (got 0)"],
    "calibrate demo --corpus demo-code --seed -1": ["--seed: give 0 or more (got -1)"],
    "evaluate demo --corpus demo-code --samples 0": ["--samples: give 1 or more (got 0)"],
    "app --port 99999": ["--port: give 65535 or less", "99999"],
    'ask demo --prompt ""': ["--prompt: it is empty"],
    "calibrate demo --corpus": ["--corpus needs a value"],
    # Plans as files
    "export demo out --plan nope.json": ["nope.json cannot be read"],
    "export demo out --plan text.json": ["text.json: ", "not valid JSON", "`moeprune plan`"],
    "export demo out --plan recipe.yaml": ["recipe.yaml: ", "not valid JSON"],
    "evaluate demo --corpus demo-code --plan list.json": ["list.json: ", "not a JSON object"],
    "plans show old.json": ["old.json: ", "schema_version 0", "make the plan again"],
    "export demo --plan text.json": ["`moeprune export` needs OUT: "],
    # Places of results
    f"{PLAN} -o no/plan.json": ["folder of no/plan.json does not exist"],
    f"score {HALF.partition(' --sparsity')[0]} -o no/s.csv": ["folder of no/s.csv", "make it"],
    f"{PLAN} -o .": ["--out / -o: ", "'.' is a directory"],
    f"plot kept-by {HALF} -o map.jpg": ["map.jpg has no known ending", ".html, .svg"],
    f"sweep {HALF} -o table.xlsx": ["table.xlsx has no known ending", ".csv or .parquet"],
    "calibrate demo --corpus demo-code --stats-dir text.json": ["--stats-dir: ", "text.json"],
    "app --stats-dir nowhere": ["--stats-dir: nowhere is not a directory"],
    # Corpora as files
    "calibrate demo --corpus nowhere.jsonl": ["nowhere.jsonl does not exist"],
    "calibrate demo --corpus bad.jsonl": ["bad.jsonl, line 2 is not JSON", '{"text": '],
    "calibrate demo --corpus fields.jsonl": ["fields.jsonl, line 1 has the fields txt", "text"],
    "calibrate demo --corpus empty.jsonl": ["empty.jsonl is empty"],
    "calibrate demo --corpus latin.txt": ["latin.txt is not UTF-8", "save it as UTF-8"],
    "calibrate demo --corpus bad.parquet": ["bad.parquet is not a readable parquet file"],
    "calibrate demo --corpus corpus.docx": ["'corpus.docx'", ".txt, .jsonl, .parquet"],
    "calibrate demo --corpus demo-code:2": ["demo-code:2 has a weight", "`moeprune plan"],
    "calibrate demo --corpus hub:owner/name": ["owner/name cannot be reached", "a local file"],
    # Recipes
    "run nothing.yaml": ["nothing.yaml cannot be read"],
    "run key.yaml": ["key.yaml, line 4: budgt: unknown key; did you mean 'budget'?"],
    "run criterion.yaml": ["criterion.yaml, line 3: criterion: ", "Did you mean 'reap'?"],
    "run corpus.yaml": ["corpus.yaml, line 2: corpora.0.corpus: ", "Did you mean 'demo-code'?"],
    "run schedule.yaml": ["schedule.yaml, line 5: schedule.name: ", "Did you mean 'uniform'?"],
    "run indent.yaml": ["indent.yaml is not valid YAML", "line 2"],
    "run two.yaml": ["two.yaml, line 4: budget: give one of "],
    "run none.yaml": ["none.yaml, line 1: ", "add budget:"],
    "run number.yaml": ["number.yaml, line 5: tokens: give a whole number (got 'many')"],
    "run place.yaml": ["line 5: calibrate.tokens: ", "stands at the top of a recipe"],
    "run plan-as-recipe.json": ["is a plan, not a recipe", "--plan"],
    "search recipe.yaml": ["recipe.yaml has no key search", "search: {corpus: CORPUS}"],
    # What commands need
    "overlap demo --sparsity 50% --corpus demo-code": ["has only demo-code", "another"],
    "overlap demo --sparsity 0": ["removes no expert", "0.03125"],
    f"blend {HALF}": ["at least two corpora", "--corpus or --run"],
    "paths demo --corpus demo-code": ["give --top-m or --sparsity"],
    "verify nowhere": ["nowhere is not a directory"],
    "verify .": ["is not a finished export", "`moeprune export`"],
    "benchmark demo --import nope.json": ["--import: ", "'nope.json' does not exist"],
    "benchmark demo --import text.json": ["text.json is no JSON", "lm-evaluation-harness"],
    "runs merge demo-demo-code": ["at least two"],
}


@pytest.fixture
def files(here, monkeypatch):
    # Read when the library is first imported: a session with a network asks in vain as well.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for name, content in FILES.items():
        (here / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return here


def test_the_table_is_long_enough():
    assert len(MISTAKES) >= 100


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_gets_one_line_that_says_what_works(refused, files, words):
    message = refused(*shlex.split(words), codes=(1, 2))
    for part in MISTAKES[words]:
        assert part in message


@pytest.mark.parametrize(
    ("module", "words", "extra"),
    [
        ("kaleido", f"plot kept-by {HALF} -o map.svg", "plots"),
        ("lm_eval", "benchmark demo --tasks arc_easy", "eval"),
        ("submitit", "app --slurm partition=gpu", "slurm"),
    ],
)
def test_a_missing_extra_is_named_with_its_install_line(
    refused, here, monkeypatch, module, words, extra
):
    monkeypatch.setitem(sys.modules, module, None)
    message = refused(*shlex.split(words))
    assert f"pip install 'moe-prune-studio[{extra}]'" in message


PYTHON = {
    "a folder that is not there": (lambda: Model("nowhere"), "nowhere is not a directory"),
    "a criterion": (lambda: Model("demo").rank("REAP"), "Did you mean 'reap'?"),
    "no corpus": (lambda: Model("demo").rank("reap"), "choose with --corpus"),
    "a corpus": (lambda: Model("demo").rank("reap", "demo-cod"), "Did you mean 'demo-code'?"),
    "a budget": (lambda: Model("demo").plan("aimer"), "Give one budget"),
    "an option": (
        lambda: Model("demo").plan("aimer", sparsty="50%"),
        "Unknown option 'sparsty'. Did you mean 'sparsity'?",
    ),
    "a dtype": (
        lambda: Model("demo").calibrate("demo-code", dtype="bf16"),
        "--dtype: choose 'auto', 'float32', 'bfloat16'",
    ),
    "no export": (lambda: Model("demo").verify("nowhere"), "give the folder of an export"),
}


@pytest.mark.parametrize("name", PYTHON)
def test_a_mistake_in_python_is_one_line(here, name):
    wrong, part = PYTHON[name]
    with pytest.raises(UserError) as raised:
        wrong()
    message = str(raised.value)
    assert part in message
    assert "\n" not in message


def test_one_reason_that_keeps_several_figures_out_of_a_report_is_said_once(works, here):
    views = ("--view", "kept-by", "--view", "damage-proxy", "--view", "overlap-map")
    said = works("report", "demo", *views)
    assert said.count("choose with --corpus") == 1
