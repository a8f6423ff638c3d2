"""Which published layouts are cut to a few layers, exported and compared byte by byte."""

# Layout -> layers, and the level of verification: bytes where transformers has no class.
CUTS = {
    "GLM-4.5-Air": (2, "logits"),
    "GLM-4.7-Flash": (3, "logits"),
    "Qwen3-Next-80B-A3B-Instruct": (4, "logits"),
    "Qwen3.5-35B-A3B": (4, "logits"),
    "Qwen3-VL-30B-A3B-Instruct": (2, "logits"),
    "DeepSeek-V3": (2, "logits"),
    "DeepSeek-V3.2": (2, "logits"),
    "MiniMax-M2": (2, "logits"),
    "gpt-oss-20b": (2, "logits"),
    "K-EXAONE-236B-A23B": (4, "logits"),
    "GLM-4.5-Air-REAP-82B-A12B": (2, "logits"),
    "deepseek-moe-16b-base": (2, "logits"),
    "Qwen3-Omni-30B-A3B-Instruct": (2, "logits"),
    "InternVL3_5-30B-A3B-HF": (2, "logits"),
    "GLM-4.5V": (2, "logits"),
    "GLM-4.5-Air-FP8": (2, "bytes"),
    "Qwen3-30B-A3B-NVFP4": (2, "bytes"),
    "Qwen3-30B-A3B-bnb-4bit": (2, "bytes"),
    "Kimi-K2-Instruct": (2, "bytes"),
    "Kimi-K2-Thinking": (2, "bytes"),
    "Qwen1.5-MoE-A2.7B-Chat-GPTQ-Int4": (2, "bytes"),
    "mixtral-instruct-awq": (2, "bytes"),
}
