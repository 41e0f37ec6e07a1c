"""Lists the programs whose CUDA call streams are recorded."""
import os
import sys
from dataclasses import dataclass, field

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "programs")


@dataclass(frozen=True)
class Program:
    name: str
    command: tuple
    ranks: int = 1
    variables: dict = field(default_factory=dict)


def python(name, script, *words, **more):
    return Program(name, (sys.executable, "-B", os.path.join(HERE, script), *words), **more)


GENERATE = ("greedy_b1", "greedy_b16", "sample", "beam_sample", "penalty", "streamed", "prompt_lookup", "mixtral",
            "mixtral_eager", "qwen3_moe", "deepseek_v3", "t5", "bart_beam", "whisper", "static_compiled")


NESTED = ("items8", "items5", "items_tail", "graph_parts", "requests16", "requests40", "tied", "tied3", "nowait", "passes20",
          "passes8", "uneven", "varying_free")


def all_programs(llama, model):
    """Returns all programs. `llama`: the folder with the built llama_loop, or None. `model`: the GGUF file that
    llama_loop loads."""
    jax = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    # Programs that compile models take longest, so they start first.
    programs = [
        python("compiled_default", "decode_loop.py", "default"),
        python("compiled_reduce_overhead", "decode_loop.py", "reduce-overhead"),
        *(python(f"hf_{variant}", "generate.py", variant) for variant in reversed(GENERATE)),
        *(python(f"cb_{variant}", "batching.py", variant) for variant in ("plain", "graphs", "async")),
        *(python(f"train_{variant}", "training.py", variant) for variant in ("every1", "every10", "accumulate", "amp")),
        *(python(f"async_engine_{variant}", "async_engine.py", variant) for variant in ("eager", "graph")),
        *(python(f"server_{variant}", "server.py", variant) for variant in ("threads", "pool", "batches")),
        python("diffusion", "diffusion.py"),
        *(python(f"nested_{variant}", "nested.py", variant) for variant in NESTED),
        *(python(f"jax_{variant}", "jax_loops.py", variant, variables=jax)
          for variant in ("decode", "scan", "train", "long", "late")),
        python("tp_each", "tensor_parallel.py", "each", ranks=2),
        python("tp_leader", "tensor_parallel.py", "leader", ranks=2),
        python("train_ddp", "training.py", "ddp", ranks=2),
    ]
    if llama is not None:
        loop = os.path.join(llama, "llama_loop")
        programs += [
            Program("llamacpp_graphs", (loop, model, "single")),
            Program("llamacpp_parallel", (loop, model, "parallel")),
            Program("llamacpp_parallel_nograph", (loop, model, "parallel"),
                    variables={"GGML_CUDA_DISABLE_GRAPHS": "1"}),
        ]
    return programs
