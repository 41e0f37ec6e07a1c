"""generate.py VARIANT: runs transformers' generate(). An iteration is a forward pass of the model. VARIANTS lists
the variants."""
import sys

import torch
import transformers
from common import DEVICE, VOCABULARY, llama, mark, marked, ready, sizes, tokens
from transformers.generation.streamers import BaseStreamer

transformers.logging.set_verbosity_error()


def mixtral():
    config = transformers.MixtralConfig(**sizes(), num_local_experts=8, num_experts_per_tok=2)
    return ready(transformers.MixtralForCausalLM(config))


def mixtral_eager():
    model = mixtral()
    model.set_experts_implementation("eager")  # each step waits, because this implementation reads from the GPU which experts were chosen
    return model


def qwen3_moe():
    config = transformers.Qwen3MoeConfig(**sizes(), head_dim=32, moe_intermediate_size=128, num_experts=16,
                                         num_experts_per_tok=4)
    return ready(transformers.Qwen3MoeForCausalLM(config))


def deepseek_v3():
    config = transformers.DeepseekV3Config(**{**sizes(3), "num_key_value_heads": 8}, moe_intermediate_size=128,
                                           first_k_dense_replace=1, n_routed_experts=16, n_group=4, topk_group=2,
                                           num_experts_per_tok=4, n_shared_experts=1, kv_lora_rank=64, q_lora_rank=96,
                                           qk_rope_head_dim=16, qk_nope_head_dim=32, v_head_dim=32)
    return ready(transformers.DeepseekV3ForCausalLM(config))


def t5():
    config = transformers.T5Config(d_model=256, d_kv=32, d_ff=512, num_layers=2, num_heads=8, vocab_size=VOCABULARY,
                                   decoder_start_token_id=0)
    return ready(transformers.T5ForConditionalGeneration(config))


def bart():
    config = transformers.BartConfig(d_model=256, encoder_layers=2, decoder_layers=2, encoder_ffn_dim=512,
                                     decoder_ffn_dim=512, encoder_attention_heads=8, decoder_attention_heads=8,
                                     vocab_size=VOCABULARY, max_position_embeddings=512, forced_eos_token_id=None)
    return ready(transformers.BartForConditionalGeneration(config))


def whisper():
    config = transformers.WhisperConfig(d_model=256, encoder_layers=2, decoder_layers=2, encoder_ffn_dim=512,
                                        decoder_ffn_dim=512, encoder_attention_heads=8, decoder_attention_heads=8,
                                        vocab_size=VOCABULARY, pad_token_id=0, bos_token_id=1, eos_token_id=2,
                                        decoder_start_token_id=1, suppress_tokens=None, begin_suppress_tokens=None)
    return ready(transformers.WhisperForConditionalGeneration(config))


class Reader(BaseStreamer):
    """Reads every token on the host as soon as it is generated, like a server that streams its answers."""

    def put(self, value):
        value.tolist()

    def end(self):
        pass


def marked_static(model):
    # The mark is in this function instead of a hook on the forward pass, because a hook would be compiled with the
    # model.
    prepare = model.prepare_inputs_for_generation

    def marked_prepare(*arguments, **named):
        mark()
        return prepare(*arguments, **named)

    model.prepare_inputs_for_generation = marked_prepare
    return model


GREEDY = {"do_sample": False}
# For each variant: the model, the batch size, the prompt lengths (one generate() call each), the number of new tokens,
# and further arguments of generate().
VARIANTS = {
    "greedy_b1": (llama, 1, (12, 40, 7, 25), 50, GREEDY),
    "greedy_b16": (llama, 16, (30, 9, 64, 17), 50, GREEDY),
    "sample": (llama, 3, (20, 33, 11), 60, dict(do_sample=True, temperature=0.7, top_p=0.9, top_k=40)),
    "beam_sample": (llama, 2, (20, 11), 60, dict(do_sample=True, num_beams=3)),
    "penalty": (llama, 2, (16, 28, 9), 60, dict(do_sample=False, repetition_penalty=1.2, no_repeat_ngram_size=3)),
    "streamed": (llama, 1, (10, 44, 23), 60, GREEDY),
    "prompt_lookup": (llama, 1, (40, 40), 120, dict(do_sample=False, prompt_lookup_num_tokens=4)),
    "static_compiled": (llama, 2, (16, 16, 16), 70, dict(do_sample=False, cache_implementation="static")),
    "mixtral": (mixtral, 2, (16, 30, 9), 50, GREEDY),
    "mixtral_eager": (mixtral_eager, 2, (16, 30, 9), 50, GREEDY),
    "qwen3_moe": (qwen3_moe, 4, (16, 30, 9), 50, GREEDY),
    "deepseek_v3": (deepseek_v3, 2, (16, 30, 9), 50, GREEDY),
    "t5": (t5, 4, (30, 12, 50), 50, GREEDY),
    "bart_beam": (bart, 2, (30, 12, 50), 50, dict(do_sample=False, num_beams=4)),
    "whisper": (whisper, 2, (3000, 3000, 3000), 50, GREEDY),
}


def main(variant):
    make, batch, lengths, new, more = VARIANTS[variant]
    model = make()
    model = marked_static(model) if variant == "static_compiled" else marked(model)
    if variant == "streamed":
        more = {**more, "streamer": Reader()}
    for length in lengths:
        with torch.inference_mode():
            if variant == "whisper":
                features = torch.randn(batch, 80, length, dtype=model.dtype).to(DEVICE)
                # Calls generate() of the base class, because Whisper's own needs settings that only the
                # configuration of a trained model has.
                result = super(type(model), model).generate(
                    features, decoder_input_ids=tokens(batch, 4), max_new_tokens=new, min_new_tokens=new, **more)
            else:
                result = model.generate(tokens(batch, length), max_new_tokens=new, min_new_tokens=new, **more)
    print(variant, tuple(result.shape))


main(sys.argv[1])
