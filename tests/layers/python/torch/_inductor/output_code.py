"""A compiled graph: a module with the generated code, whose `Runner.call` runs it."""
import types

from .codecache import PyCodeCache


class CompiledFxGraph:
    def __init__(self, source_code, cache_key, names):
        self.source_code = source_code
        self.cache_key = cache_key
        module = types.ModuleType(cache_key)
        module.key = cache_key
        vars(module).update(names)
        exec(compile(source_code, cache_key + ".py", "exec"), vars(module))
        PyCodeCache.modules.append(module)
        self.current_callable = module.Runner().call

    def post_compile(self, example_inputs, constants, graph_kwargs):
        pass

    def __call__(self, inputs):
        return self.current_callable(inputs)
