"""Small models with experts, of transformers' own classes. build(NAME) makes one with random weights."""

import torch
import transformers

_BASE = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "max_position_embeddings": 2048,
}
_DEEPSEEK = {
    "q_lora_rank": 32,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "num_key_value_heads": 4,
    "first_k_dense_replace": 0,
}

# For each model's name: its class, and settings that make its configuration small.
MODELS = {
    "gpt_oss": (
        "GptOss",
        {
            "num_local_experts": 32,
            "num_experts_per_tok": 4,
            "head_dim": 16,
            "layer_types": ["full_attention"] * 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
    ),
    "deepseek_v3": (
        "DeepseekV3",
        {
            "n_routed_experts": 64,
            "num_experts_per_tok": 8,
            "n_group": 8,
            "topk_group": 4,
            "moe_intermediate_size": 32,
            **_DEEPSEEK,
        },
    ),
    "mixtral": ("Mixtral", {"num_local_experts": 8, "num_experts_per_tok": 2}),
    "qwen3_moe": (
        "Qwen3Moe",
        {
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
            "head_dim": 16,
        },
    ),
    "olmoe": ("Olmoe", {"num_experts": 64, "num_experts_per_tok": 8}),
    "llama4": (
        "Llama4",
        {
            "num_local_experts": 16,
            "num_experts_per_tok": 1,
            "intermediate_size_mlp": 96,
            "interleave_moe_layer_step": 1,
            "head_dim": 16,
        },
    ),
    "minimax_m2": ("MiniMaxM2", {"num_local_experts": 32, "num_experts_per_tok": 8, "head_dim": 16}),
    "ernie4_5_moe": (
        "Ernie4_5_Moe",
        {
            "moe_num_experts": 64,
            "num_experts": 64,
            "moe_k": 6,
            "num_experts_per_tok": 6,
            "moe_intermediate_size": 32,
            "moe_layer_start_index": 0,
        },
    ),
    "granitemoe": ("GraniteMoe", {"num_local_experts": 8, "num_experts_per_tok": 2}),
    "jamba": (
        "Jamba",
        {
            "num_experts": 16,
            "num_experts_per_tok": 2,
            "attn_layer_period": 1,
            "attn_layer_offset": 0,
            "expert_layer_period": 1,
            "expert_layer_offset": 0,
            "use_mamba_kernels": False,
        },
    ),
}


def build(name, **more):
    family, own = MODELS[name]
    configuration = getattr(transformers, family + "TextConfig", None) or getattr(transformers, family + "Config")
    torch.manual_seed(0)
    model = getattr(transformers, family + "ForCausalLM")(configuration(**{**_BASE, **own, **more})).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter.is_floating_point():
                is_norm = "norm" in parameter_name
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * (1 if is_norm else 0.08) + is_norm)
        for buffer_name, buffer in model.named_buffers():
            if "correction_bias" in buffer_name:
                buffer.copy_(torch.randn(buffer.shape, generator=generator) * 2)
    return model
