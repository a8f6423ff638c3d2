"""Wrong files, and what the one line that answers each must say: what is wrong, what works.

What is wrong in the words of a command is in `test_mistakes.py`.
"""

import pytest

# The command -> what its answer says. The files are those of `wrong_files.py`.
WRONG_FILES = {
    # Plans
    "export demo out --plan nope.json": ["nope.json cannot be read"],
    "export demo out --plan .": ["The plan . cannot be read: it is a folder"],
    "export demo out --plan text.json": ["text.json: ", "not valid JSON", "`moeprune plan`"],
    "export demo out --plan recipe.yaml": ["recipe.yaml: ", "not valid JSON"],
    "evaluate demo --corpus demo-code --plan judged.json": [
        "judged.json: It is a result of `moeprune evaluate`, not a plan",
    ],
    "export demo out --plan settings.json": ["It is the configuration of a model, not a plan"],
    "evaluate demo --corpus demo-code --plan list.json": ["list.json: ", "not a JSON object"],
    "plans show old.json": ["old.json: ", "schema_version 0", "make the plan again"],
    "plans show list-kept.json": ["no 'kept': layer -> ids"],
    "plot kept-by demo --plan spec.json": ["The plan's 'spec', what was asked for, cannot be read"],
    "plans show empty.jsonl": ["not valid JSON: it is empty"],
    "plans show no-expert.json": ["no expert in layer 2; list at least as many as its router"],
    "evaluate demo --corpus demo-code --plan no-expert.json": ["leave the layer out to keep all"],
    # Corpora
    "calibrate demo --corpus nowhere.jsonl": ["nowhere.jsonl does not exist"],
    "calibrate demo --corpus bad.jsonl": ["bad.jsonl, line 2 is not JSON", '{"text": '],
    "calibrate demo --corpus fields.jsonl": ["fields.jsonl, line 1 has the fields txt", "text"],
    "calibrate demo --corpus empty.jsonl": ["empty.jsonl is empty"],
    "calibrate demo --corpus latin.txt": ["latin.txt is not UTF-8", "save it as UTF-8"],
    "calibrate demo --corpus bad.parquet": ["bad.parquet is not a readable parquet file"],
    "calibrate demo --corpus corpus.docx": ["'corpus.docx'", ".txt, .jsonl, .json, .parquet"],
    "calibrate {tiny} --corpus no-token.jsonl": ["no token"],
    "calibrate {tiny} --corpus far.jsonl": ["token id 96"],
    "evaluate {tiny} --corpus far.jsonl": ["has the token id 96, but tiny has 96 tokens"],
    "calibrate demo --corpus null.jsonl": ["line 1 has the fields text (null)"],
    # Recipes
    "prune q.yaml": ["q.yaml cannot be read", "`moeprune recipe init MODEL` writes one"],
    "prune recip.yml": ["No such file", "Did you mean 'recipe.yaml'?"],
    "prune .": ["The recipe . cannot be read: it is a folder"],
    "prune key.yaml": ["key.yaml, line 4: budgt: unknown key; did you mean 'budget'?"],
    "prune criterion.yaml": ["criterion.yaml, line 3: criterion: ", "Did you mean 'reap'?"],
    "prune corpus.yaml": ["corpus.yaml, line 2: corpora: ", "Did you mean 'demo-code'?"],
    "prune schedule.yaml": ["schedule.yaml, line 5: schedule: ", "Did you mean 'uniform'?"],
    "prune indent.yaml": ["indent.yaml is not valid YAML", "line 2"],
    "prune two.yaml": ["two.yaml, line 4: budget.remove: give one budget: "],
    "prune none.yaml": ["none.yaml, line 1: ", "give one budget: "],
    "prune number.yaml": ["number.yaml, line 5: tokens: give a whole number (got 'many')"],
    "prune place.yaml": ["line 5: calibrate.tokens: ", "stands at the top of a recipe"],
    "prune plan-as-recipe.json": ["is a plan, not a recipe", "--plan"],
    "search search.yaml --out prose.txt": ["prose.txt is a file; give a folder"],
    "search recipe.yaml": ["recipe.yaml has no key search", "search: {corpus: CORPUS}"],
    "prune uneven.yaml": ["line 4: budget.uneven: uneven goes with shrink, target_size or"],
    "prune names.yaml": ["line 2: corpora: ./red.jsonl is listed twice, by name or content"],
    "prune no-criterion.yaml": ["line 3: criterion: give a text; it is empty"],
    "prune corpora.yaml": ["line 5: evaluate.corpora: unknown key; did you mean 'corpus'?"],
    "prune corpora-list.yaml": ["5: evaluate.corpora: unknown key; did you mean 'corpus'?"],
    "prune twice.yaml": ["line 5: budget: is there twice."],
    # Results of other programs
    "benchmark demo --import nope.json": ["--import: ", "'nope.json' does not exist"],
    "benchmark demo --import text.json": ["text.json is no JSON", "lm-evaluation-harness"],
}


@pytest.mark.parametrize("words", WRONG_FILES)
def test_a_wrong_file_gets_one_line_that_says_what_works(answer, words):
    message = answer(words)
    for part in WRONG_FILES[words]:
        assert part in message
