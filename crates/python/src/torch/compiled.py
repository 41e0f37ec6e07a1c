# Finds out which module of a model each kernel belongs to after torch has compiled the model. When a graph is compiled,
# this file stores the module of each operation. It then reads the code that Inductor writes, and finds the modules of
# each call that launches a kernel. The file runs in a namespace of its own.

import re
import sys
from _thread import get_ident
from dis import findlinestarts
from types import FunctionType

WRONG = (AttributeError, LookupError, TypeError, ValueError)
INDEX = re.compile(r'''\[['"]?([^'"\]]+)['"]?\]''')
NAME = re.compile(r'[\w.]+')
COMMENT = re.compile(r'# (?:(Topologically Sorted|Unsorted) )?Source Nodes: \[([^\]]*)\]')
FUSED = re.compile(r'\w\.run\(')
EXTERN = re.compile(r'\b(?:extern_kernels|torch\.ops|aten|inductor_ops|_quantized)\.')

# For each thread, a list of the graphs that it is compiling, the innermost last. Each graph is a dictionary from the
# names of its operations to the paths of their modules.
compiling = {}


def path_of(source):
    """Returns `model.layers.0` for `L['self'].model._modules['layers'][0]`."""
    source = INDEX.sub(r'.\1', source)
    if not NAME.fullmatch(source):
        return None
    return '.'.join(part for part in source.split('.')[2:] if part not in ('_modules', '_orig_mod'))


def module_of(node):
    """Returns the path to the innermost module that contains an operation, or None if there is none."""
    stack = node.meta.get('nn_module_stack') or {}
    paths = (path_of(source) for source, _ in reversed(tuple(stack.values())))
    return next((path for path in paths if path is not None), None)


def modules_of(graph_module):
    """Returns the path to the module of each operation by name; '' if it is in none, or if two of a name are in different ones."""
    modules = {}
    for within in graph_module.modules():
        for node in within.graph.nodes if hasattr(within, 'graph') else ():
            if node.op.startswith('call_'):
                path = module_of(node) or ''
                for origin in (node, *(node.meta.get('from_node') or ())[:1]):
                    if modules.setdefault(origin.name, path) != path:
                        modules[origin.name] = ''
    return modules


def module_of_graph(graph_module):
    """Returns the path to the one module that contains all operations of a graph, or None if there is none."""
    try:
        own = object.__getattribute__(graph_module, '__dict__')
        nodes = graph_module.graph.nodes if '_graph' in own else ()
        paths = {module_of(node) for node in nodes if node.op.startswith('call_')}
    except WRONG:
        return None
    return paths.pop() if len(paths) == 1 else None


def begins(graph_module):
    """Notes that this thread begins to compile a graph."""
    try:
        modules = modules_of(graph_module)
    except WRONG:
        modules = {}
    compiling.setdefault(get_ident(), []).append(modules)


def ends():
    graphs = compiling.get(get_ident())
    if graphs:
        graphs.pop()
    if not graphs:
        compiling.pop(get_ident(), None)


def modules():
    """Returns the modules of the graph that this thread compiles."""
    graphs = compiling.get(get_ident())
    return graphs[-1] if graphs else None


def calls_in(source, modules):
    """Returns, by the number of each line that calls a kernel, the paths of the kernel's modules."""
    calls, comment = {}, None
    for number, line in enumerate(source.split('\n'), 1):
        line = line.strip()
        found = COMMENT.match(line)
        if found:
            comment = found
        elif line.startswith(('def ', 'class ')):
            comment = None
        elif comment and not line.startswith('#'):
            is_fused = FUSED.search(line)
            if not is_fused and not EXTERN.search(line):
                continue
            order, nodes = comment.groups()
            nodes = nodes.split(', ')
            if not is_fused and order != 'Unsorted':
                # Keep only the last node, which stands for the call itself. The nodes before it stand for the call's
                # inputs.
                nodes = nodes[-1:]
            paths = [modules[node] for node in nodes if node in modules]
            calls[number] = tuple(dict.fromkeys(paths))
            comment = None
    return calls


def functions_in(module):
    for value in tuple(vars(module).values()):
        members = vars(value).values() if isinstance(value, type) else (value,)
        for member in tuple(members):
            if isinstance(member, FunctionType) and member.__globals__ is vars(module):
                yield member.__code__


def lines_of(graph, modules):
    """Returns the code objects of the functions that a compiled graph runs. For each: the offsets of its instructions, in bytes, from
    which on its launches belong to other modules, and the paths of these modules."""
    try:
        loaded = sys.modules['torch._inductor.codecache'].PyCodeCache.modules
        calls = calls_in(graph.source_code, modules)
        return tuple(
            (code, tuple((at, calls.get(line, ())) for at, line in findlinestarts(code)))
            for module in tuple(loaded)
            if getattr(module, 'key', None) == graph.cache_key
            for code in functions_in(module)
        )
    except WRONG:
        return ()
