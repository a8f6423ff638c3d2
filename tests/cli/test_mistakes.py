"""Mistakes of users, and what the one line that answers each must say: what is wrong, what works.

The line names the option, and no mistake leaves a file behind. Wrong files are in
`test_wrong_files.py`.
"""

import re
import shlex
import sys

import pytest

from analysis.machine.extras import install_line
from app.cli import COMMANDS
from app.cli.usage import LOOKED_FOR

PLAN = "plan demo --criterion reap --calibrated-on demo-code --sparsity 50%"
HALF = "demo --criterion reap --calibrated-on demo-code --sparsity 50%"
# Layers 0, 2, 3 of 6 experts, top-2, with statistics of two corpora and of the weights.
TINY = "plan {tiny} --stats-dir {stats} --criterion reap --calibrated-on {red}"
RANKED = "plan {tiny} --stats-dir {stats} --sparsity 0.5 --criterion reap"
NEURONS = "plan demo --granularity neuron --criterion neuron-norms"
LEARN = "calibrate demo --corpus demo-math"
SWEEP = "sweep {tiny} --corpus {red} --criterion aimer --sparsity 50%"
CACHE = "--stats-dir {stats}"
# The command -> what its answer says.
MISTAKES = {
    # Names
    "plan show half.json": ["`moeprune plans show half.json`"],
    "plan diff half.json half.json": ["`moeprune plans diff half.json half.json`"],
    "version": ["`moeprune --version`"],
    "serve out": ["`moeprune export` prints the commands that serve", "`moeprune app`"],
    "help plan": ["`moeprune --help`"],
    "compare half.json": ["half.json is no model", "`moeprune plans diff A B`"],
    "evaluate half.json": ["half.json is no model", "MODEL --plan half.json"],
    "export half.json out": ["half.json is no model", "MODEL --plan half.json"],
    "plna demo": ["'plna'", "Did you mean 'plan', 'plans'?"],
    "runs shw": ["'shw'", "Did you mean 'show'?"],
    "--verison": ["no option --verison", "Did you mean '--version'?"],
    f"{PLAN} --shedule late": ["`moeprune plan` has no option --shedule", "'--schedule'?"],
    "overlap demo --sparsty 50%": ["no option --sparsty", "'--sparsity'?"],
    "weights demo --corpus x": ["no option --corpus", "`moeprune weights --help`"],
    "weights a b": ["takes MODEL; b is too much", "`moeprune weights --help`"],
    "evaluate demo plan.json --corpus x": ["plan.json is too much. Write --plan plan.json."],
    "export demo out --dtype bfloat16": ["no option --dtype. Commands with it: calibrate,"],
    "evaluate demo --calibrated-on x": ["It reads text, which --corpus names"],
    "prune recipe.yaml --sparsity 50%": ["Write it in the recipe.", "`moeprune prune --help`"],
    "plan demo -criterion reap": ["begin with two dashes", "`moeprune plan --help`"],
    "prune settings.json": ["settings.json is no recipe", "recipe init MODEL"],
    "export demo out --plan half.json --llama-cpp .": ["--llama-cpp goes with --gguf TYPE"],
    "subsets demo --criterion aimer --sparsity 50% --corpus demo-math": ["such as reap"],
    f"{PLAN.replace('demo-code', 'demo-code,demo-math')}": ["demo-code --calibrated-on demo-math"],
    "report demo --plan half.json --view sizes": ["--view is for figures", "leave one out"],
    f"{PLAN} --protect 0-5": ["at most 0 (0%) can go, since limits, such as --protect,"],
    "recipe demo": ["No such command 'demo'. Known: init."],
    "plan demo --criterion REAP --sparsity 50%": ["'REAP'", "Did you mean 'reap'?"],
    "plan demo --criterion raep --sparsity 50%": ["'raep'", "Did you mean 'reap'?", "aimer"],
    "plan demo --criterion 1,2 --sparsity 50%": ["'1,2'", "exponents b,alpha,beta"],
    f"compare {HALF} --with-criterion mann": ["'mann'", "Did you mean 'man'?"],
    f"{PLAN} --schedule unifrm": ["'unifrm'", "Did you mean 'uniform'?"],
    f"{PLAN} --schedule Late": ["'Late'", "Did you mean 'late'?"],
    f"{PLAN} --gate strong": ["--gate: choose 'applied' or 'renormalized'", "'strong'"],
    f"{PLAN} --granularity atomic": ["--granularity: choose 'expert' or 'neuron'"],
    "plan demo --criterion reap --calibrated-on demo-cod --sparsity 50%": [
        *("'demo-cod'", "Did you mean 'demo-code'?"),
    ],
    "plan demo --criterion reap --sparsity 50%": [
        "demo-code, demo-math, demo-stories",
        "--calibrated-on",
    ],
    "plan demo --criterion reap --run demo-cod --sparsity 50%": [
        *("'demo-cod' is unknown", "Did you mean 'demo-demo-code-"),
    ],
    f"{PLAN} --run demo-demo-code": ["use --run or --calibrated-on, not both"],
    "runs show nothing": ["'nothing' is unknown", "demo-demo-code-"],
    "runs remove demo": ["'demo' is not unique", "demo-weights-"],
    "calibrate demo --corpus demo-moth": ["'demo-moth'", "Did you mean 'demo-math'?", ".jsonl"],
    "calibrate demo --corpus demo-code --group dens": ["'dens'", "Did you mean 'dense'?"],
    "calibrate demo --corpus demo-code --dtype bf16": ["--dtype: ", "Did you mean 'bfloat16'?"],
    "plot overlp demo": ["'overlp'", "Did you mean 'overlap'?"],
    "report demo --view sizs": ["'sizs'", "Did you mean 'sizes'?"],
    "evaluate demo --corpus demo-code --measure kl --measure spec": ["'spec'", "'spec-dec'?"],
    "verify . --level logit": ["is not a finished export"],
    # Models
    "inspect nowhere": ["nowhere is not a directory", "hub id", "'demo'"],
    "inspect text.json": ["text.json is a file; give the folder of a checkpoint"],
    "inspect .": ["has no config.json"],
    "inspect demo --revision main": ["demo is a local folder", "--revision main", "leave it out"],
    "inspect demo --config-only --revision main": ["--revision main is for hub ids"],
    "inspect owner/name": ["owner/name is not a local directory", "HF_HUB_OFFLINE"],
    # Budgets and constraints
    "plan demo": ["give one budget: ", "--sparsity, "],
    "plan": ["`moeprune plan` needs MODEL: ", "`demo`"],
    "plan demo --config-only": ["give one budget: "],
    "plan demo --config-only --sparsity 50% --criterion reap": ["--criterion chooses", "leave it"],
    "plan demo --config-only --sparsity 50% --schedule global": ["--schedule global chooses"],
    "plan demo --config-only --sparsity 50% --granularity neuron": ["--granularity chooses"],
    "plan demo --config-only --sparsity 50% -o x.json": ["x.json", "leave -o out"],
    "plan demo --config-only --sparsity 98%": ["its router picks", "suits every layer: 87.5%"],
    "plan demo --criterion reap --calibrated-on demo-code": ["give one budget: ", "--sparsity, "],
    f"{PLAN} --remove 3": ["give one budget: ", "not several"],
    PLAN.replace("50%", "150%"): ["'150%' is out of range", "50% or 0.5"],
    PLAN.replace("50%", "40"): ["'40' is out of range", "50% or 0.5"],
    PLAN.replace("50%", "half"): ["'half' is not a number", "0.5, or 50%"],
    PLAN.replace("50%", "99%"): ["keep 1 of 32 experts", "picks 4", "every layer: 87.5%"],
    PLAN.replace("--sparsity 50%", "--remove 1000"): ["1000 of 192", "from 0 to 191"],
    PLAN.replace("--sparsity 50%", "--target-size 1"): ["10.3 MiB", "1 GiB"],
    PLAN.replace("--sparsity 50%", "--target-size 0.00001"): ["smallest target that works"],
    f"{PLAN} --pin 3:99": ["expert 99 of layer 3", "0..31"],
    f"{PLAN} --pin x": ["'x'", "LAYER:EXPERTS, such as 3:5"],
    f"{PLAN} --pin 3:5 --drop 3:5": ["Expert 5 of layer 3 is both pinned and dropped"],
    f"{PLAN} --protect 9": ["layer 9", "0-5"],
    f"{PLAN} --set 3:5": ["'3:5'", "LAYER=KEPT, such as 3=20"],
    f"{PLAN.replace('50%', '10%')} --multiple-of 7": ["layers are to keep 7 to 28", "12.5%"],
    f"{PLAN} --multiple-of 32": ["--multiple-of 32 lets no expert go", "give --multiple-of 16"],
    PLAN.replace("--sparsity 50%", "--shrink 40% --multiple-of 64"): ["give --multiple-of 16"],
    "sweep demo --criterion aimer --corpus demo-code": ["needs --sparsity or --shrink"],
    f"{PLAN} --cost kl": ["--cost is for --schedule measured"],
    f"{PLAN} --schedule-file counts.csv --schedule late": ["--schedule file and --schedule-file"],
    PLAN.replace("--sparsity 50%", "--schedule-file counts.csv"): ["counts.csv", "'99'", "32"],
    PLAN.replace("--sparsity 50%", "--schedule-file columns.csv"): ["columns.csv lacks", "layer"],
    PLAN.replace("--sparsity 50%", "--schedule-file none.csv"): ["none.csv cannot be read"],
    PLAN.replace("--sparsity 50%", "--schedule-file ."): ["The schedule . cannot be read: it is a"],
    "plan demo --criterion aimer --calibrated-on demo-code --sparsity 50%": [
        "leave --calibrated-on",
        "out",
    ],
    PLAN.replace("demo-code", "demo-code:x"): ["'x' in 'demo-code:x'", "CORPUS:2"],
    f"{PLAN} --granularity neuron": ["REAP does not score neurons", "heapr"],
    # Numbers
    "calibrate demo --corpus demo-code --tokens many": ["--tokens: give a whole number", "'many'"],
    "calibrate demo --corpus demo-code --tokens 0": ["--tokens: give 2 or more (got 0)"],
    "calibrate demo --corpus demo-code --seed -1": ["--seed: give 0 or more (got -1)"],
    "evaluate demo --corpus demo-code --samples 0": ["--samples: give 1 or more (got 0)"],
    "app --port 99999": ["--port: give 65535 or less", "99999"],
    'ask demo --prompt ""': ["--prompt: it is empty"],
    "calibrate demo --corpus": ["--corpus needs a value"],
    # Places of results
    "export demo --plan text.json": ["`moeprune export` needs OUT: "],
    f"{PLAN} -o no/plan.json": ["folder of no/plan.json does not exist"],
    f"score {HALF.partition(' --sparsity')[0]} -o no/s.csv": ["folder of no/s.csv", "make it"],
    f"{PLAN} -o .": ["--out / -o: ", "'.' is a directory"],
    f"plot kept-by {HALF} -o map.jpg": ["map.jpg has no known ending", ".html, .svg"],
    f"sweep {HALF} --corpus demo-code -o table.xlsx": [
        "table.xlsx has no known ending",
        ".csv or .parquet",
    ],
    "calibrate demo --corpus demo-code --stats-dir text.json": ["--stats-dir: ", "text.json"],
    "app --stats-dir nowhere": ["--stats-dir: nowhere is not a directory"],
    # Corpora that are no files
    "calibrate demo --corpus demo-code:2": ["demo-code:2 has a weight", "`moeprune plan"],
    "calibrate demo --corpus hub:owner/name": ["owner/name cannot be reached", "a local file"],
    # What commands need
    "overlap demo --sparsity 50% --calibrated-on demo-code": ["has only demo-code", "another"],
    "overlap demo --sparsity 0": ["removes no expert", "0.03125"],
    # Nothing to remove, though something is asked for: one rule for each way to plan.
    "plan demo --criterion aimer --sparsity 1%": ["A sparsity of 1% removes nothing", "3.125%"],
    "plan demo --config-only --sparsity 3%": ["A sparsity of 3% removes nothing", "3.125%"],
    "plan demo --granularity neuron --criterion neuron-norms --sparsity 1% --multiple-of 32": [
        "A sparsity of 1% removes nothing",
        "blocks of 32 neurons",
    ],
    "paths demo --calibrated-on demo-code --sparsity 2%": [
        "A sparsity of 2% removes nothing",
        "3.125%",
    ],
    "sweep demo --criterion aimer --sparsity 2% --corpus demo-math": ["A sparsity of 2% removes"],
    f"blend {HALF}": ["at least two corpora", "--calibrated-on or --run"],
    "paths demo --calibrated-on demo-code": ["give --top-m or --sparsity"],
    "verify nowhere": ["nowhere is not a directory"],
    "verify .": ["is not a finished export", "`moeprune export`"],
    "runs merge demo-demo-code": ["at least two"],
    # Budgets and constraints of a small model
    f"{TINY} --remove 13": ["at most 12 (66.67%) can go"],
    f"{TINY} --remove 18": ["give a number from 0 to 17"],
    f"{TINY} --remove -1": ["remove: "],
    f"{TINY} --target-size 0.00001": ["the smallest target that works is 53.69KiB"],
    f"{TINY} --target-size 1": ["Nothing would be removed: "],
    f"{TINY} --target-size 1e9": ["and the target is 1e9 GiB"],
    f"{TINY} --target-size much": ["is no number of GiB"],
    f"{TINY} --shrink 95%": ["the largest share that works is 5"],
    f"{TINY} --shrink 40% --pin 0:0-4 --drop 2:0,1": [
        "layer 0 keeps at least 5, layer 2 at most 4"
    ],
    f"{TINY} --sparsity 50% --uneven": ["--uneven goes with --shrink, --target-size or --params"],
    f"{TINY} --sparsity 50% --schedule file": ["belong together"],
    f"{TINY} --remove 9 --schedule global --multiple-of 2": [
        "nearest: 8 (--remove 8) or 10 (",
    ],
    f"{TINY} --sparsity 33% --multiple-of 2": [
        "removes nothing",
        "at most 3 blocks of 2 experts",
        "Give 33.34% or more",
    ],
    f"{TINY} --sparsity 50% --protect 1": ["layer 1, which has no routed experts"],
    f"{TINY} --sparsity 50% --set 0=4 --lock 1": ["layer 1, which has no routed experts"],
    f"{TINY} --sparsity 50% --drop 0:0-4": ["at most 1 can stay; drop at most 4"],
    f"{TINY} --sparsity 50% --layer-set 0=1": ["nearest: 2"],
    f"{TINY} --sparsity 50% --floor 4": ["layers are to keep 4 to 6; nearest", "33.34%."],
    f"{TINY} --sparsity 50% --floor -1": ["floor: "],
    f"{TINY} --remove 7 --floor 4 --schedule global": ["at most 6 (33.34%) can go"],
    f"{TINY} --sparsity 83.4%": ["suits every layer: 66.67%"],
    f"{TINY} --schedule measured --sparsity 50%": ["was not measured yet"],
    f"{TINY} --remove 3 --target-size 1": ["give one budget"],
    # Which statistics rank
    f"{RANKED} --calibrated-on far.jsonl": [
        "Or run `moeprune calibrate MODEL --corpus far.jsonl` first"
    ],
    f"{RANKED} --calibrated-on 'one two.jsonl'": [
        "Or run `moeprune calibrate MODEL --corpus 'one two.jsonl'` first"
    ],
    "paths {tiny} --stats-dir {stats} --calibrated-on far.jsonl --top-m 2": ["--group dense"],
    f"{RANKED.replace('plan', 'score').replace(' --sparsity 0.5', '')} -o scores.txt": [
        "scores.txt has no known ending; use .csv or .parquet",
    ],
    f"{RANKED} --calibrated-on grey": ["grey"],
    RANKED: ["choose with --calibrated-on"],
    f"{RANKED} --run nothing": ["'nothing' is unknown"],
    f"{RANKED} --run other-": ["statistics of another model"],
    f"{RANKED} --run tiny-": ["is not unique"],
    f"{RANKED} --run tiny-weights": ["weight statistics"],
    "plan {tiny} --criterion reap --sparsity 0.5": ["moeprune calibrate"],
    f"overlap {{other}} --sparsity 0.5 {CACHE}": ["at least two corpora and has only red"],
    f"overlap {{tiny}} --criterion aimer --sparsity 0.5 {CACHE}": ["reads no corpus"],
    f"runs verify tiny- {CACHE}": ["is not unique"],
    f"runs merge tiny-red tiny-red {CACHE}": ["use them once"],
    f"runs merge tiny-red other- {CACHE}": ["different models"],
    f"runs merge tiny-red tiny-weights {CACHE}": ["Only calibration runs can be added"],
    "runs remove demo-weights --yes": ["ships with the program"],
    # Neurons
    NEURONS: ["give one budget: --shrink, --sparsity"],
    f"{NEURONS} --sparsity 0.5 --neuron-scope row": ["row"],
    f"{NEURONS} --sparsity 0.5 --schedule late": ["--schedule is for plans of whole experts"],
    f"{NEURONS} --sparsity 0.5 --schedule measured --neuron-scope global": [
        "with --schedule measured neurons compete within layers; leave --neuron-scope out",
    ],
    f"{NEURONS} --sparsity 0.5 --calibrated-on demo-math": ["leave out --calibrated-on and --run"],
    f"{NEURONS} --sparsity 0.5 --neuron-scope global --criterion camera-p": [
        "does not compare neurons of different layers; give --neuron-scope layer or expert",
    ],
    f"{NEURONS} --kept-neurons no-such-file.json": ["cannot be read"],
    f"{NEURONS} --remove 100000": ["at most 12288 (--remove 12288) can go"],
    f"{NEURONS} --remove 12 --multiple-of 8": ["8 at a time here; nearest: 8 (0.0651042%) or 16"],
    f"{NEURONS} --sparsity 90% --floor 16": ["at most 9216 (75%) can go"],
    f"{NEURONS} --sparsity 50% --drop 0:0-29": ["drop at most 28"],
    f"{NEURONS} --sparsity 50% --multiple-of 65": ["the largest multiple that works is 64"],
    f"{NEURONS} --sparsity 50% --set 0=4": ["--set is for plans of whole experts"],
    f"{NEURONS} --sparsity 50% --remove 3": ["not several"],
    f"{NEURONS} --target-size 0.001": ["the smallest target that works is 2."],
    f"{NEURONS} --shrink 99%": ["the largest share that works is 7"],
    f"{NEURONS} --shrink 20% --uneven": ["--uneven is for plans of whole experts"],
    f"{NEURONS} --params-share 90%": ["the largest share that works is 87.35%"],
    f"{NEURONS} --kept-neurons a.json --pin 0:1": ["says all that stays; leave --pin out"],
    f"{NEURONS} --kept-neurons a.json --sparsity 50%": ["all that stays; leave --sparsity out"],
    f"{PLAN} --neuron-scope layer": ["is for plans of neurons"],
    "export demo out --plan half.json --width-mode wide": ["--width-mode: choose "],
    "export demo out --plan half.json --max-shard-size much": ["'much' is not understood"],
    # Calibration
    "calibrate {tiny} --corpus prose.txt": ["no readable tokenizer"],
    "calibrate {tiny} --corpus {red} --corpus demo-moth": ["Did you mean 'demo-math'?"],
    "calibrate {tiny} --corpus {red} --corpus absent.jsonl": ["absent.jsonl does not exist"],
    "calibrate {tiny} --corpus {red} --corpus fields.jsonl": ["line 1 has the fields txt"],
    "calibrate {tiny} --corpus {red} --packing pack --attention flash_attention_2 --dry-run": [
        "cannot be packed with the attention flash_attention_2; choose one of eager",
    ],
    f"{LEARN} --tokens 100": ["less than one sequence of 256"],
    f"{LEARN} --device-map balancd": ["'balancd'", "Did you mean 'balanced'?"],
    f"{LEARN} --batch-size 0": ["--batch-size: "],
    f"{LEARN} --device-map auto --max-memory cpu=lots": [
        "--max-memory: write DEVICE=SIZE, as 0=20GiB or cpu=8GiB (got 'cpu=lots')",
    ],
    f"{LEARN} --group damage,router": ["--group damage --group router"],
    f"{LEARN} --select kmeans": ["--select kmeans and --clusters K belong together"],
    f"{LEARN} --clusters 3": ["belong together"],
    f"{LEARN} --packing tight": ["packing: choose 'auto'"],
    f"{LEARN} --truncate tail": ["are not truncated"],
    f"{LEARN} --group gradient --stream-layers": ["leave out --stream-layers"],
    f"{LEARN} --checkpoint-activations": ["--group gradient"],
    "calibrate demo --corpus prose.txt --count response": ["which has no responses"],
    "calibrate demo --corpus c4=nowhere": ["The copy nowhere of c4 does not exist"],
    "calibrate demo --corpus hub:cats": ["names no dataset; write hub:owner/name"],
    # Evaluation
    "evaluate {tiny} --corpus {red} --count answers": ["--count: choose 'auto', 'all' or"],
    "evaluate {tiny} --corpus {red} --offload-folder x": ["need --device-map auto"],
    "evaluate {tiny} --corpus {red} --stream-layers --device-map auto": [
        "choose one of --device-map, --stream-layers",
    ],
    "evaluate {tiny} --corpus {red} --stream-layers --measure esap --measure spec-dec": [
        "spec-dec decodes with the whole",
    ],
    f"{SWEEP} --against byte": ["--against: choose 'removed', 'bytes'"],
    f"{SWEEP} --criterion neuron-norms": ["add --granularity neuron"],
    f"{SWEEP} --schedule file": ["cannot be swept"],
    "variance {tiny} --corpus {red} --criterion reap --sparsity 50% --stats-dir {stats}": [
        "choose with --calibrated-on",
    ],
    "variance {tiny} --corpus {red} --criterion reap": ["--criterion and --sparsity belong"],
    "bins {tiny} --corpus {red} --criterion random --bins 1": ["--bins: give 2 or more"],
    "bins {tiny} --corpus {red} --criterion neuron-norms": ["add --granularity neuron"],
    "bins {tiny} --corpus {red} --criterion random --order score": ["--order: choose 'saliency'"],
    "bins {tiny} --corpus {red} --criterion camera-p --granularity neuron --scope global": [
        "camera-p does not compare neurons of different layers; use --scope layer",
    ],
    "bins {tiny} --corpus {red} --criterion random -o bins.txt": ["use .csv or .parquet"],
    "ask {tiny} --prompt Hello": [
        "copy tokenizer.json and tokenizer_config.json from the model that"
    ],
    "ask demo --prompt Hello --offload-folder x": ["--offload-folder needs --device-map auto"],
    "sensitivity {tiny} --criterion random --corpus prose.txt --refine 2": [
        "name their --sparsity"
    ],
    "sensitivity {tiny} --criterion random --corpus prose.txt --levels 1": ["--levels"],
    "sensitivity demo --criterion aimer --corpus demo-math --target-size 1": ["Nothing would be"],
    "sensitivity {tiny} --criterion heapr --granularity neuron --corpus prose.txt --shrink 40%": [
        "bytes of neurons depend on padding",
        "give --sparsity, --params-share or --remove",
    ],
    "benchmark demo --limit 0": ["--limit: give more than 0"],
    "benchmark demo --limit 1.5": ["--limit: give a whole number of questions"],
    "benchmark demo --num-fewshot -1": ["--num-fewshot: give 0 or more"],
    "benchmark demo --candidate x": ["--candidate goes with --import"],
    "benchmark demo --source demo": ["is no export; --source goes with one"],
    "benchmark demo --task arc_easy --task humaneval_plus": [
        "humaneval_plus runs code that the model"
    ],
    "benchmark demo --task arc_esay": ["'arc_esay'", "Did you mean 'arc_easy'?", "lm_eval ls"],
    "benchmark {tiny}": ["Name the benchmarks, such as --task"],
    # Figures
    "plot sizes demo": ["choose with --calibrated-on"],
    "plot overlap demo --criterion aimer": ["AIMER reads no corpus"],
    "plot coverage demo --criterion aimer": ["AIMER reads no corpus"],
    "plot overlap-map demo --sparsity 1%": ["removes no expert"],
    "plot overlap-by-tokens demo --criterion heapr": [
        "HEAPr cannot rank on a part of the tokens",
        "such as reap",
    ],
    "plot winner-map unified-table-9": ["Unknown table of a paper 'unified-table-9'"],
    "plot capability unified-table-5 --block x": ["Unknown block of unified-table-5 'x'"],
    "plot search demo --criterion man": ["is by man; known: ean, frequency, reap, seer."],
    "plot search demo --criterion reap --sparsity 25%": ["no search that removes 48 experts"],
    f"plot overlap-map {{other}} {CACHE}": ["other has 1. Calibrate on another"],
    f"plot evaluation-curves {{other}} {CACHE}": [
        "other has no evaluations yet; make some with `moeprune evaluate`.",
    ],
    # Several values in one word
    f"{SWEEP},60%": ["'50%,60%' is several values; repeat the option: --sparsity 50% --sparsity"],
    SWEEP.replace("aimer", "reap,ean"): ["repeat the option: --criterion reap --criterion ean"],
    PLAN.replace("reap", "reap,ean"): ["'reap,ean' is several values; give one, such as --crit"],
    f"{PLAN},60%": ["--sparsity: '50%,60%' is several values; give one, such as --sparsity 50%"],
    f"{LEARN},demo-code": ["repeat the option: --corpus demo-math --corpus demo-code"],
    # Names that a shell or a browser gives
    "export demo demo --plan half.json": [
        "folder demo would be read in place of the model",
        "demo-",
    ],
    "inspect https://huggingface.co/owner/name/tree/main": [
        "is a URL; give its hub id, owner/name"
    ],
    "plan demo --criterion aimer --sparsity 50% --pin 0:5-2": ["write the smaller number first"],
    # Budgets that nothing reads
    "repair demo --plan half.json --tokens 10": ["3 corpora share 10 tokens; use at least 768"],
    "repair demo --plan half.json --tokens 10 --corpus demo-math": ["10 tokens are less than one"],
    f"{LEARN} --seq-len 1000000": ["65536 tokens are less than one sequence of 1000000"],
    "paths demo --calibrated-on demo-code --top-m 5 --schedule nonsense": ["--schedule: choose"],
    "paths demo --calibrated-on demo-code --top-m 5 --schedule late": ["add --sparsity, or"],
    "fit demo --target-size 1KiB": ["takes at most 1,024 bytes", "--target-size 2.19MiB or more"],
    "report demo --view overlap --sparsity 1%": ["Nothing can be drawn.", "removes no expert"],
    "app --models-root nowhere": ["nowhere is not a directory"],
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_gets_one_line_that_says_what_works(answer, words):
    message = answer(words)
    for part in MISTAKES[words]:
        assert part in message


@pytest.mark.parametrize(
    ("module", "words", "extra"),
    [
        ("kaleido", f"plot kept-by {HALF} -o map.svg", "plots"),
        ("lm_eval", "benchmark demo --task arc_easy", "eval"),
        ("submitit", "app --slurm partition=gpu", "slurm"),
    ],
)
def test_a_missing_extra_is_named_with_its_install_line(
    refused, here, monkeypatch, module, words, extra
):
    monkeypatch.setitem(sys.modules, module, None)
    message = refused(*shlex.split(words))
    assert install_line(extra) in message


def test_one_reason_that_keeps_several_figures_out_of_a_report_is_said_once(works, here):
    views = ("--view", "kept-by", "--view", "damage-proxy", "--view", "overlap-map")
    said = works("report", "demo", *views)
    assert said.count("choose with --calibrated-on") == 1


TWO_AT_ONCE = {
    "evaluate demo --plan nope.json --plan list.json --corpus nope.jsonl": [
        "nope.json cannot be read",
        "list.json: The plan is not a JSON object",
        "corpus file nope.jsonl does not exist",
    ],
    "plan demo --criterion raep --schedule unifrm --sparsity 50% -o no/plan.json": [
        "The folder of no/plan.json does not exist",
        "Did you mean 'reap'?",
        "Did you mean 'uniform'?",
    ],
    "calibrate demo --corpus a.jsonl --corpus b.jsonl --dtype bf16 --device gpu": [
        "the device 'gpu'",
        "a.jsonl does not exist",
        "b.jsonl does not exist",
        "Did you mean 'bfloat16'?",
    ],
    "export demo out --plan nope.json --width-mode wide --max-shard-size much": [
        "nope.json cannot be read",
        "--width-mode: choose",
        "'much' is not understood",
    ],
}


@pytest.mark.parametrize("words", TWO_AT_ONCE)
def test_all_that_is_wrong_before_anything_is_loaded_is_said_at_once(moeprune, files, words):
    ended = moeprune(*shlex.split(words))
    first, *lines = ended.err.splitlines()
    wanted = TWO_AT_ONCE[words]
    assert (ended.code, first) == (1, f"error: {len(wanted)} things are wrong:")
    assert len(lines) == len(wanted)
    assert [part for part in wanted if sum(part in line for line in lines) != 1] == []


def test_words_that_are_no_commands_lead_to_commands_that_exist():
    named = re.findall(r"`moeprune (\w+)", " ".join(LOOKED_FOR.values()))
    assert len(named) > len(LOOKED_FOR) - 2
    assert set(named) <= COMMANDS.keys()
    assert not LOOKED_FOR.keys() & COMMANDS.keys()
