"""tiny_gguf.py FILE [LAYERS [WIDTH]]: writes a small Llama with random weights and no vocabulary as a GGUF file."""
import random
import struct
import sys

HEAD, VOCABULARY = 32, 4096
# Type numbers of the file format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
UINT32, FLOAT32, STRING = 4, 6, 8
F32, F16 = 0, 1
ALIGNMENT = 32


def string(text):
    return struct.pack("<Q", len(text)) + text.encode()


def key_value(key, kind, value):
    body = string(value) if kind == STRING else struct.pack("<I" if kind == UINT32 else "<f", value)
    return string(key) + struct.pack("<I", kind) + body


def tensors(layers, width):
    yield "token_embd.weight", (width, VOCABULARY)
    yield "output_norm.weight", (width,)
    yield "output.weight", (width, VOCABULARY)
    for layer in range(layers):
        for name, shape in {
            "attn_norm": (width,), "attn_q": (width, width), "attn_k": (width, width // 2), "attn_v": (width, width // 2),
            "attn_output": (width, width), "ffn_norm": (width,), "ffn_gate": (width, 2 * width),
            "ffn_up": (width, 2 * width), "ffn_down": (2 * width, width),
        }.items():
            yield f"blk.{layer}.{name}.weight", shape


def data(shape, random_halves):
    count = 1
    for extent in shape:
        count *= extent
    if len(shape) == 1:
        return F32, struct.pack("<f", 1.0) * count
    return F16, b"".join(random.choice(random_halves) for _ in range(count // 256))


def main(path, layers=4, width=256):
    random.seed(0)
    pieces = [struct.pack("<256e", *(random.gauss(0, 1 / 16) for _ in range(256))) for _ in range(512)]
    values = [
        ("general.architecture", STRING, "llama"), ("general.name", STRING, "tiny"),
        ("llama.block_count", UINT32, layers), ("llama.context_length", UINT32, 2048),
        ("llama.embedding_length", UINT32, width), ("llama.feed_forward_length", UINT32, 2 * width),
        ("llama.attention.head_count", UINT32, width // HEAD), ("llama.attention.head_count_kv", UINT32, width // HEAD // 2),
        ("llama.attention.layer_norm_rms_epsilon", FLOAT32, 1e-5), ("llama.vocab_size", UINT32, VOCABULARY),
        ("llama.rope.dimension_count", UINT32, HEAD), ("tokenizer.ggml.model", STRING, "no_vocab"),
    ]
    made = [(name, shape, *data(shape, pieces)) for name, shape in tensors(layers, width)]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(made), len(values)) + b"".join(key_value(*value) for value in values)
    offset = 0
    for name, shape, kind, content in made:
        head += string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)
        offset += -(-len(content) // ALIGNMENT) * ALIGNMENT
    with open(path, "wb") as file:
        file.write(head.ljust(-(-len(head) // ALIGNMENT) * ALIGNMENT, b"\0"))
        for *_, content in made:
            file.write(content.ljust(-(-len(content) // ALIGNMENT) * ALIGNMENT, b"\0"))


main(sys.argv[1], *map(int, sys.argv[2:]))
