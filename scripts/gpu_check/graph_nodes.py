"""Finds out by which rule CUPTI numbers the nodes of CUDA graphs. Runs programs/graph_nodes.c for each type of node
and of capture, and compares CUPTI's numbers with several possible rules."""
import glob
import os
import subprocess
from collections import namedtuple

from . import child
from .programs import HERE

CASES = ("plain", "others", "relaxed", "thread-local", "global", "empty", "child", "grandchild", "children", "if", "while")
ENDS = 3  # exit status of graph_nodes.c if it succeeds
SECONDS = 60
CONTAINERS = ("child", "if", "while", "type4", "type13")
Node = namedtuple("Node", "graph index kind name")
Ran = namedtuple("Ran", "name graph exec node")


def parse(text):
    """Parses the output of graph_nodes.c. Returns (nodes in the order of creation, CUPTI's numbers of the
    executable graphs, kernels that ran)."""
    made, execs, ran = [], [], []
    for words in (line.split() for line in text.splitlines()):
        match words:
            case ["made", graph, index, kind, name, _]:
                made.append(Node(graph, int(index), kind, name))
            case ["exec", number]:
                execs.append(number)
            case ["ran", name, graph, executable, node]:
                ran.append(Ran(name, graph, executable, int(node)))
    return named(made, ran), execs, ran


def named(made, ran):
    """Sets the names of captured kernel nodes, which the program prints without names. Kernels were captured in the
    order of the numbers in their names."""
    own = {node.name for node in made}
    free = sorted({kernel.name for kernel in ran} - own - {"stop"}, key=lambda name: int(name[1:]))
    captured = [at for at, node in enumerate(made) if node.kind == "type0"]
    for at, name in zip(captured, free):
        made[at] = made[at]._replace(name=name)
    return made


def within(made, graph="root", counts_container=True):
    """Returns the nodes of a graph in order, with the nodes of each inner graph in the place of the node that
    contains it. With `counts_container`, the containing node itself stays in the list before them."""
    order = []
    for node in sorted((node for node in made if node.graph == graph), key=lambda node: node.index):
        is_container = node.kind in CONTAINERS
        if counts_container or not is_container:
            order.append(node)
        if is_container:
            order += within(made, f"{graph}/{node.index}", counts_container)
    return order


def behind(made):
    """Returns the nodes of the outer graph, then the nodes of the graphs in it, and so on, level by level."""
    def place(node):
        way = [int(part) for part in node.graph.split("/")[1:]]
        return len(way), way, node.index

    return sorted(made, key=place)


def deep(made, graph):
    """Returns the nodes of a graph, and after them, recursively, the nodes of each graph in it."""
    order = sorted((node for node in made if node.graph == graph), key=lambda node: node.index)
    return order + [inner for node in order if node.kind in CONTAINERS for inner in deep(made, f"{graph}/{node.index}")]


def by_root(made):
    """Returns {outermost graph: its nodes and the nodes of the graphs in it}. There are several outermost graphs if
    several threads each made a graph."""
    roots = dict.fromkeys(node.graph.split("/")[0] for node in made)
    return {root: [node for node in made if node.graph.split("/")[0] == root] for root in roots}


def numbered(order):
    return {node.name: at for at, node in enumerate(order)}


# Possible rules by which CUPTI numbers the nodes of graphs. Each is a function that returns the number of each named
# node. The library uses the first rule (crates/scopes/src/graphs.rs).
RULE = "graph by graph"
RULES = {
    RULE: lambda made: {name: at for root, nodes in by_root(made).items() for name, at in numbered(deep(nodes, root)).items()},
    "its place in its own graph": lambda made: {node.name: node.index for node in made},
    "the order in which all nodes were made": numbered,
    "graphs in the place of their nodes, which count": lambda made: numbered(within(made)),
    "graphs in the place of their nodes, which do not count": lambda made: numbered(within(made, counts_container=False)),
    "level by level": lambda made: numbered(behind(made)),
}


def fitting(made, ran):
    """Returns the names of the rules that give the right number for every kernel that ran."""
    fits = []
    for rule, number in RULES.items():
        numbers = number(made)
        if ran and all(numbers.get(kernel.name) == kernel.node for kernel in ran if kernel.name != "stop"):
            fits.append(rule)
    return fits


def shown(made, execs, ran):
    """Returns the nodes that were made and the kernels that ran, as text."""
    lines = [f"  {node.graph} {node.index}: {node.kind} {node.name}" for node in made[:40]]
    kernels = dict.fromkeys(f"  {kernel.name}: graph {kernel.graph}, exec {kernel.exec}, node {kernel.node}" for kernel in ran)
    return "\n".join([f"exec {', '.join(execs)}; made:", *lines, "ran:", *list(kernels)[:60]])


def check(bench, report, case, words):
    ended = child.run([*words[:1], case, *words[1:]], bench.variables(), SECONDS)
    what = f"node numbers, {case}"
    if ended.status != ENDS:
        report.raw(what, ended)
        return report.check(what, ended.why(), False)
    made, execs, ran = parse(ended.out)
    ended.out = shown(made, execs, ran)
    report.raw(what, ended)
    fits = fitting(made, ran)
    is_of_exec = bool(ran) and {kernel.exec for kernel in ran} <= set(execs)
    said = f"{'; '.join(fits) or 'by no rule that was thought of'}; {len(ran)} kernels, {'' if is_of_exec else 'not '}of the executable graph"
    return report.check(what, said, is_of_exec and RULE in fits)


def build(program, cuda):
    """Builds the program. Returns None, or the reason why it cannot be built."""
    stubs = os.path.join(cuda, "lib64", "stubs")
    built = subprocess.run(["cc", "-O1", "-o", program, os.path.join(HERE, "graph_nodes.c"), f"-I{cuda}/include", f"-L{stubs}", "-lcuda", "-ldl",
                            "-pthread"], capture_output=True, text=True, timeout=120)
    return built.stderr[-500:] if built.returncode else None


def cupti_of(cuda):
    found = sorted(glob.glob(f"{cuda}/extras/CUPTI/lib64/libcupti.so.*") + glob.glob(f"{cuda}/lib64/libcupti.so.*"), key=len)
    return found[0] if found else "libcupti.so"


def check_all(bench, report, cuda):
    program = os.path.join(bench.folder, "graph_nodes")
    wrong = build(program, cuda)
    if wrong:
        return report.check("node numbers", wrong, False)
    for case in CASES:
        report.guarded(check, bench, case, [program, cupti_of(cuda), cuda])
    return None
