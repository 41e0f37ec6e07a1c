"""What compiles a graph, to code that is given."""
from .output_code import CompiledFxGraph


def compile_fx(model_, example_inputs_, code):
    compiled = CompiledFxGraph(*code)
    compiled.post_compile(example_inputs_, None, {})
    return compiled
