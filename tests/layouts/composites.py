"""Released MoE checkpoints with parts for images or speech, as `published` has the others."""

from layouts.published import QWEN_VISION, Layout, deepseek, every, qwen, sized

_VISION = "AutoModelForImageTextToText"
_QWEN3_SIZES = (2048, 48, (32, 4))
_OMNI = {
    "model_type": "qwen3_omni_moe", "tie_word_embeddings": False, "enable_audio_output": True,
    "thinker_config": {
        "model_type": "qwen3_omni_moe_thinker",
        "text_config": qwen(
            "qwen3_omni_moe_text", *_QWEN3_SIZES, 152_064, experts=(128, 8, 768), head_dim=128,
            intermediate_size=768, decoder_sparse_step=1, mlp_only_layers=[]),
        "vision_config": {
            **QWEN_VISION, "model_type": "qwen3_omni_moe_vision_encoder", "out_hidden_size": 2048,
            "deepstack_visual_indexes": [8, 16, 24]},
        "audio_config": {
            "model_type": "qwen3_omni_moe_audio_encoder", "d_model": 1280, "encoder_layers": 32,
            "encoder_attention_heads": 20, "encoder_ffn_dim": 5120, "output_dim": 2048,
            "num_mel_bins": 128, "downsample_hidden_size": 480}},
    "talker_config": {  # with as many experts as the thinker, which stay
        "model_type": "qwen3_omni_moe_talker", "thinker_hidden_size": 2048, "num_code_groups": 16,
        "accept_hidden_layer": 24, "spatial_merge_size": 2,
        "text_config": {
            "model_type": "qwen3_omni_moe_talker_text", "num_experts": 128,
            "num_experts_per_tok": 6, "moe_intermediate_size": 384, "intermediate_size": 2048,
            "shared_expert_intermediate_size": 768, "head_dim": 128, "decoder_sparse_step": 1,
            "mlp_only_layers": [], **sized(1024, 20, (16, 2), 3072)},
        "code_predictor_config": {
            "model_type": "qwen3_omni_moe_talker_code_predictor", "intermediate_size": 3072,
            "head_dim": 128, "num_code_groups": 16, **sized(1024, 5, (16, 8), 2048)}},
    "code2wav_config": {
        "codebook_size": 2048, "hidden_size": 1024, "num_hidden_layers": 8,
        "num_attention_heads": 16, "num_key_value_heads": 16, "intermediate_size": 3072,
        "num_quantizers": 16, "decoder_dim": 1536},
}  # fmt: skip

_COMPOSITES = (
    Layout(
        "Qwen/Qwen3-Omni-30B-A3B-Instruct", "35.3B", "3B", range(48), 128, 8, _OMNI,
        auto_class="AutoModelForMultimodalLM",
    ),
    Layout(
        "Qwen/Qwen3-VL-30B-A3B-Instruct", "31B", "3B", range(48), 128, 8,
        {"model_type": "qwen3_vl_moe", "tie_word_embeddings": False,
         "text_config": qwen(
             "qwen3_vl_moe_text", 2048, 48, (32, 4), 151_936, experts=(128, 8, 768),
             intermediate_size=6144, head_dim=128, decoder_sparse_step=1, mlp_only_layers=[]),
         "vision_config": {**QWEN_VISION, "model_type": "qwen3_vl_moe", "out_hidden_size": 2048,
                           "deepstack_visual_indexes": [8, 16, 24]}},
        fused=True, auto_class=_VISION,
    ),
    Layout(
        "OpenGVLab/InternVL3_5-30B-A3B-HF", "30.8B", "3B", range(48), 128, 8,
        {"model_type": "internvl", "tie_word_embeddings": False,
         "text_config": qwen(
             "qwen3_moe", *_QWEN3_SIZES, 151_936, experts=(128, 8, 768), head_dim=128,
             intermediate_size=6144, decoder_sparse_step=1, mlp_only_layers=[]),
         "vision_config": {
             "model_type": "internvl_vision", "hidden_size": 1024, "intermediate_size": 4096,
             "num_hidden_layers": 24, "num_attention_heads": 16, "image_size": [448, 448],
             "patch_size": [14, 14]}},
        auto_class=_VISION,
    ),
    Layout(
        "zai-org/GLM-4.5V", "108B", "12B", range(1, 46), 128, 8,
        {"model_type": "glm4v_moe", "tie_word_embeddings": False,
         "text_config": deepseek(
             "glm4v_moe_text", 4096, 46, (96, 8), 151_552, experts=(128, 8, 1408), inner=10_944,
             shared=1, head_dim=128, attention_bias=True, use_qk_norm=False,
             rope_parameters={"rope_type": "default", "rope_theta": 10_000.0,
                              "partial_rotary_factor": 0.5, "mrope_section": [8, 12, 12]}),
         "vision_config": {
             "model_type": "glm4v_moe_vision", "depth": 24, "hidden_size": 1536,
             "intermediate_size": 10_944, "num_heads": 12, "out_hidden_size": 4096,
             "patch_size": 14, "image_size": 336, "spatial_merge_size": 2,
             "temporal_patch_size": 2}},
        shared=1, auto_class=_VISION,
    ),
    Layout(
        "rhymes-ai/Aria", "25.3B", "3.9B", range(28), 64, 6,
        {"model_type": "aria",
         "text_config": {
             "model_type": "aria_text", "intermediate_size": 1664, "moe_num_experts": 64,
             "moe_topk": 6, "moe_num_shared_experts": 2, **sized(2560, 28, (20, 20), 100_352)},
         "vision_config": {
             "model_type": "idefics3_vision", "hidden_size": 1152, "intermediate_size": 4304,
             "num_hidden_layers": 27, "num_attention_heads": 16, "image_size": 980,
             "patch_size": 14}},
        shared=2, auto_class=_VISION,
    ),
    Layout(
        "google/gemma-4-26B-A4B", "25.2B", "3.8B", range(30), 128, 8,
        {"model_type": "gemma4", "tie_word_embeddings": True,
         "text_config": {
             "model_type": "gemma4_text", "num_experts": 128, "top_k_experts": 8,
             "moe_intermediate_size": 704, "intermediate_size": 2112, "enable_moe_block": True,
             "head_dim": 256, "global_head_dim": 512, "num_global_key_value_heads": 2,
             "attention_k_eq_v": True, "hidden_size_per_layer_input": 0,
             "layer_types": every(30, 6, "full_attention", "sliding_attention"),
             **sized(2816, 30, (16, 8), 262_144), "tie_word_embeddings": True},
         "vision_config": {
             "model_type": "gemma4_vision", "hidden_size": 1152, "intermediate_size": 4304,
             "num_hidden_layers": 27, "num_attention_heads": 16, "num_key_value_heads": 16}},
        shared=1, auto_class=_VISION,
    ),
)  # fmt: skip
COMPOSITES = {str(layout): layout for layout in _COMPOSITES}
