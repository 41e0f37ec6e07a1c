"""Checks that layers of CUDA graphs are recognized. Each layer of the program launches a known number of kernels of
its own, and the report must show this number for the layer."""
import bisect
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
from collections import Counter, defaultdict

from . import child, graph_nodes, nsys
from .kernels import Report
from .programs import HERE, llama_with
from .record_file import events, output_of, process_of

NAME = "layers"
STEPS, WINDOW, TAKEN = 100, "20-79", 20
MODES = ("chain", "streams", "clone", "update", "copies", "child", "children", "conditional", "explicit", "swapped")
# For each mode with graphs inside a graph: the names of the NVTX ranges (scopes) in which the inner graphs were
# captured.
INNER = {"child": ("child",), "children": ("first", "second", "third"), "conditional": ("body",)}
ENDS = 3  # exit status of layers.cu if it succeeds
COLD = 2  # number of times that the compiled model is started with an empty compile cache
ENGINE_WINDOW = (300, 359)
# End of the label of an engine's run in which CUDA graphs are turned off.
NO_GRAPHS = "no graphs"
GRAPHS_OFF = ("GRAPHS", "MORE")  # the environment variables in which a run without graphs differs from one with graphs
# Maximum relative difference between the record's times of kernels and nsys's.
APART = 0.02
SAMPLE = {"sample": 2}
# Matches the function `of_layer<L>`, which only layer L launches, by its mangled or demangled name.
MARKER = re.compile(r"of_layer(?:ILi|<)(\d+)[E>]")
# The models in torch that are checked.
MODELS = ("llama", "mixtral", "gpt_oss")
# For llama.cpp: the window, the number of rounds that the program makes, and the number of rows that are printed. A
# scope is an operation, that is, a function of libggml-cuda whose name matches LLAMA_SCOPES. libggml-cuda's hundreds of
# attention templates are left out, because the number of scopes is limited.
LLAMA_WINDOW, LLAMA_TURNS, LLAMA_ROWS = "120-159", 3, 25
LLAMA_WAYS = {"graph": {}, "eager": {"GGML_CUDA_DISABLE_GRAPHS": 1}}
LLAMA_LEAST = 0.8  # minimum share of the kernels' time that must have a scope
LLAMA_SCOPES = r"sym:^ggml_cuda_op_@ggml|llama,sym:^ggml_cuda_(mul_mat(_id|_q|_vec_q|_vec_f|_f|_cublas)?|cpy|dup|flash_attn_ext|argmax)\(@ggml|llama"
# Matches the names of the kernels with which the driver itself copies and sets memory (on an H200 with driver 580).
DRIVERS_OWN = re.compile(r"mem(cpy|set)\d+(_post)?$")
# WAYS: the ways to run a model, each with the minimum share of the kernels' time that must have a module. The first
# word of each way is an argument of layers_torch.py. In an eager run, the GPU rests between kernels and its clocks
# rise, so kernels are faster than in a graph. To compare eager runs with graphs, both are also run "queued": a first
# kernel, KEEPS_BUSY, occupies the GPU until everything is launched. A second queued run (AGAIN) shows the difference
# between equal runs.
QUEUED, AGAIN, QUEUED_GRAPH = "queued", "queued again", "queued_graph"
KEEPS_BUSY = "spin_kernel"
WAYS = {"eager": 0.99, "graph": 0.99, QUEUED: 0, AGAIN: 0, QUEUED_GRAPH: 0, "compiled": 0.95}
GRAPH = {f"model/layers.{layer}": layer + 1 for layer in range(5)}
TITLE = (f"## {NAME.capitalize()}", "", f"Kernels of {TAKEN} steps by layer: each layer of the graph has another number of kernels. A graph "
         "that is changed after its capture (*swapped*) is not known, which is what is wanted there. Of models in torch, the part of the kernels' time that has a module, "
         "whether each has as many kernels in a CUDA graph as eagerly, and whether these take as long there.")


def judge(mode, process):
    """Compares the layers in the report of a process with those of layers.cu in this mode. Returns the errors, or
    None."""
    found = {row["name"]: row["kernels"] / TAKEN for row in process["layers"]}
    if mode == "copies":
        found.pop("model", None)  # these are kernels with which the driver copies and sets memory between the layers
    wanted = SAMPLE if mode == "swapped" else SAMPLE | GRAPH | ({"added": 1} if mode == "explicit" else {})
    for inner in INNER.get(mode, ()):
        wanted |= {name.replace("model", inner): kernels for name, kernels in GRAPH.items()}
    if found != wanted:
        return f"{found}, not {wanted}; not known: {process['layers_unknown']}"
    unknown = sum(row["kernels"] for row in process["layers_unknown"])
    inside = 2 * sum(GRAPH.values()) * TAKEN if mode == "swapped" else 0
    return None if unknown == inside else f"{process['layers_unknown']}"


def judge_markers(found):
    """Checks which layer the time line gives for the kernels `of_layer<L>`. Returns (the number of these kernels
    that have a layer, the number whose layer is L)."""
    pairs = [(event["args"]["scope"], MARKER.search(event["name"])) for event in found if event.get("cat") == "kernel" and "scope" in event["args"]]
    layers = [(scope, marker[1]) for scope, marker in pairs if marker]
    return len(layers), sum(scope.endswith(f"/layers.{layer}") for scope, layer in layers)


def check(bench, report, mode, program):
    trace = os.path.join(bench.folder, f"layers-{mode}.tllmprof")
    plain = child.run([program, mode, str(STEPS)], bench.variables())
    ended = child.run([program, mode, str(STEPS)],
                      bench.shimmed(WINDOW, "cudaEventSynchronize", TLLMPROF_TRACE=trace, TLLMPROF_LAYERS=1, TLLMPROF_KERNELS=TAKEN))
    report.raw(mode, ended)
    if ended.status != ENDS or plain.status != ENDS:
        return report.check(mode, f"status {plain.status}, {ended.status}: {ended.why()}", False)
    read = child.run([bench.command, "report", "--json", trace], child.variables())
    if read.status != 0:
        return report.check(mode, read.why(), False)
    wrong = judge(mode, json.loads(read.out)["processes"][0])
    markers, right = judge_markers(events(bench.command, trace))
    return report.check(mode, f"{wrong or 'as launched'}; {right} of {markers} kernels that one layer alone launches are in it; {ended.out.strip()} captured, "
                        f"{plain.out.strip()} without the library", wrong is None and right == markers and (markers > 0 or mode == "swapped"))


def in_modules(process, within=""):
    """Returns ({scope: kernels per step}, the share of the kernels' time that has a scope). Only scopes whose names
    contain `within` are used. "/" thus selects modules inside the model, without the model itself."""
    steps = process["kernel_window"]["iterations"]
    rows = [row for row in process["layers"] if row["name"] and within in row["name"]]
    all_ns = sum(row["gpu_ns"] for row in process["layers"] + process["layers_unknown"])
    return {row["name"]: row["kernels"] / steps for row in rows}, sum(row["gpu_ns"] for row in rows) / max(1, all_ns)


def kernels_in_modules(found):
    """Counts kernels by (scope, name) in a time line's events. Leaves out kernels with which the driver copies and
    sets memory, because only graphs have them."""
    return Counter((event["args"].get("scope", ""), event["name"]) for event in found
                   if event.get("cat") == "kernel" and not DRIVERS_OWN.match(event["name"]))


def unlike(eager, graph):
    """Compares the kernels by (scope, name) of an eager run and of a graph. Returns a description of those whose
    numbers differ, or None."""
    kernels = sorted(kernel for kernel in eager | graph if eager[kernel] != graph[kernel])
    shown = [f"{scope}, {name[:60]}: {eager[scope, name] / TAKEN:g} a step eagerly, {graph[scope, name] / TAKEN:g} in the graph" for scope, name in kernels[:3]]
    return f"{len(kernels)} kernels differ: {'; '.join(shown)}" if kernels else None


def judge_engine(eager, graph):
    """Compares the scopes of kernels in an engine's runs without and with graphs. Returns (description, True if
    they are equal). Only kernels that both runs launch equally often are compared, because some engines launch
    others in a capture: vLLM splits its attention there."""
    totals = [Counter(), Counter()]
    for total, found in zip(totals, (eager, graph)):
        for (_, name), count in found.items():
            total[name] += count
    others = sorted(name for name in totals[0] | totals[1] if totals[0][name] != totals[1][name])
    eager, graph = (Counter({kernel: count for kernel, count in found.items() if kernel[1] not in others}) for found in (eager, graph))
    wrong, alike = unlike(eager, graph), sum((eager & graph).values())
    shown = f"; {len(others)} kernels are not launched equally often: {', '.join(name[:60] for name in others[:4])}" if others else ""
    return f"{alike / TAKEN:g} kernels a step in the same scopes{shown}{f'; {wrong}' if wrong else ''}", wrong is None and alike > 0


def times_in_modules(found):
    """Returns {scope: ns per step}, the median over the steps of the time in kernels of this scope, from a time line's
    events. Leaves out kernels with which the driver copies and sets memory in a graph."""
    starts = sorted(event["start"] for event in found if event.get("cat") == "iteration")
    steps = defaultdict(lambda: defaultdict(int))
    for event in found:
        if event.get("cat") == "kernel" and "scope" in event["args"] and not DRIVERS_OWN.match(event["name"]):
            steps[event["args"]["scope"]][bisect.bisect(starts, event["start"])] += event["ns"]
    return {scope: statistics.median(of.values()) for scope, of in steps.items()}


def compared(times, others):
    """Returns (median, 5th percentile, 95th percentile) of the ratio of a module's time in `others` to that in
    `times`, over all modules that both have."""
    ratios = sorted(others[scope] / times[scope] for scope in times.keys() & others.keys())
    return statistics.median(ratios), ratios[len(ratios) // 20], ratios[-1 - len(ratios) // 20]


def spread(times, others):
    """Returns the result of `compared` as text."""
    return "{:.3f} ({:.3f}–{:.3f})".format(*compared(times, others))


def judge_times(ours, theirs):
    """Compares modules' times in a graph by our record (`ours`) with those by nsys (`theirs`). Each is ({scope: ns
    per step} in a graph, ns per step of all kernels in a graph, ns per step of all kernels in an eager run). Returns
    (description, True if the modules' times agree and both tools agree how much longer the kernels take in a
    graph)."""
    (times, graph, eager), (nsys_times, nsys_graph, nsys_eager) = ours, theirs
    middle = compared(nsys_times, times)[0]
    longer, nsys_longer = graph / eager, nsys_graph / nsys_eager
    return (f"a module takes {spread(nsys_times, times)} of its time by nsys; all kernels take {longer:.3f} of their time eagerly, by nsys {nsys_longer:.3f}",
            abs(middle - 1) <= APART and abs(longer - nsys_longer) <= APART)


def judge_spread(times):
    """Compares modules' times in a graph with those in an eager run, both queued. `times`: {way: {scope: ns}}.
    Returns (description, True if they differ by no more than two equal eager runs do)."""
    _, least, most = compared(times[QUEUED], times[AGAIN])
    middle = compared(times[QUEUED], times[QUEUED_GRAPH])[0]
    together = sum(times[QUEUED_GRAPH].values()) / sum(times[QUEUED].values())
    return (f"queued, a module in the graph takes {spread(times[QUEUED], times[QUEUED_GRAPH])} of its time in a run without one, all together "
            f"{together:.4f}; in a second such run {spread(times[QUEUED], times[AGAIN])}; not queued {spread(times['eager'], times['graph'])}",
            least <= middle <= most)


def single(name):
    """Returns the modules that a scope's name consists of. If the compiler fused several modules into one kernel,
    the scope `a.(b + c)` names them all."""
    fused = re.fullmatch(r"(.*)\((.*)\)", name)
    return [fused[1] + part for part in fused[2].split(" + ")] if fused else [name]


def unlike_eager(eager, compiled):
    """Checks the scopes of a compiled model. Each must be a module of the eager model or a module that contains one.
    Returns a description of the others, or None."""
    known = {name[:end] for name in eager for end in [*(place.start() for place in re.finditer(r"[./]", name)), len(name)]}
    wrong = sorted({module for name in compiled for module in single(name) if module not in known and not module.endswith(" more")})
    return f"{len(wrong)} are no modules: {wrong[:3]}" if wrong else None


def record_of(bench, kind, way):
    return os.path.join(bench.folder, f"layers-{kind}-{way}.tllmprof".replace(" ", "-"))


def check_model(bench, report, kind):
    found = {}
    for way, least in WAYS.items():
        what, trace = f"{kind}, {way}", record_of(bench, kind, way)
        words = [sys.executable, os.path.join(HERE, "layers_torch.py"), kind, way.split()[0], str(STEPS)]
        ended = child.run(words, bench.shimmed(WINDOW, "cudaEventSynchronize", TLLMPROF_TRACE=trace, TLLMPROF_LAYERS=1,
                                               TLLMPROF_KERNELS=TAKEN), 240)
        if ended.status != 0 or ended.out.strip() != "done":
            report.raw(what, ended)
            report.check(what, ended.why(), False)
            continue
        process = process_of(bench.command, trace)
        found[way], share = in_modules(process, "/")
        unknown = {row["why"]: f"{row['share']:.1%}" for row in process["layers_unknown"]}
        report.check(what, f"{share:.2%} of the kernels' time in {len(found[way])} modules; not known: {unknown}", share >= least)
    if "eager" in found and "graph" in found:
        lines = {way: events(bench.command, record_of(bench, kind, way)) for way in found}
        eager, graph = (kernels_in_modules(lines[way]) for way in ("eager", "graph"))
        wrong = unlike(eager, graph)
        report.check(f"{kind}, graph as eagerly", wrong or f"{sum(graph.values()) / TAKEN:g} kernels of the same names in the same modules", wrong is None)
        if {QUEUED, AGAIN, QUEUED_GRAPH} <= found.keys():
            report.check(f"{kind}, times", *judge_spread({way: times_in_modules(line) for way, line in lines.items()}))
    if "eager" in found and "compiled" in found:
        wrong = unlike_eager(found["eager"], found["compiled"])
        report.check(f"{kind}, compiled as eagerly", wrong or f"{len(found['compiled'])} scopes of the same modules", wrong is None)


def check_llama(bench, report):
    """Checks the scopes of llama.cpp's kernels, which are its operations by function. Reports a row for each, and
    checks the share of the kernels' time that has a scope."""
    program = bench.programs["llama.cpp"]
    if program.missing:
        return report.check("llama.cpp", program.missing, None)
    for way, more in LLAMA_WAYS.items():
        what, trace = f"llama.cpp, {way}", os.path.join(bench.folder, f"layers-llama-{way}.tllmprof")
        ended = child.run(program.words(LLAMA_TURNS), bench.shimmed(
            LLAMA_WINDOW, "sym:^llama_decode$", TLLMPROF_TRACE=trace, TLLMPROF_SCOPES=LLAMA_SCOPES, TLLMPROF_KERNELS=TAKEN, **more), 240)
        report.raw(what, ended)
        if ended.status != 0:
            report.check(what, ended.why(), False)
            continue
        process = process_of(bench.command, trace)
        found, share = in_modules(process)
        for name in sorted(found, key=found.get, reverse=True)[:LLAMA_ROWS]:
            report.check(f"{what}, {name}", f"{found[name]:g} kernels a step", None)
        unknown = {row["why"]: f"{row['share']:.1%}" for row in process["layers_unknown"]}
        report.check(what, f"{share:.2%} of the kernels' time in {len(found)} functions; not known: {unknown}", share >= LLAMA_LEAST)
    return None


def judge_blocks(process, layers, whole):
    """Checks the blocks that the report finds: equal groups of kernels in a step. They must be the model's layers,
    of which `whole` are equal to each other. Returns (description, True if they are)."""
    blocks = process["blocks"]
    if not blocks:
        return f"no equal blocks, {layers} layers", False
    found, more = len(blocks["block_ns"]), blocks["partly"]
    partly = f", one more equal up to kernel {more}" if more else ""
    return (f"{found} equal blocks of {len(blocks['kernels'])} kernels{partly}, in {blocks['iterations']} of {blocks['of']} steps; {layers} layers",
            found == whole and found + bool(more) == layers)


def check_llama_blocks(bench, report):
    """Checks that the blocks in llama.cpp's kernels are its layers. The last layer only processes the last token, so
    its kernels differ from those of the other layers."""
    for layers in (4, 8, 32):
        what = f"llama.cpp, blocks of {layers} layers"
        program = llama_with(bench.programs["llama.cpp"], os.path.join(bench.folder, f"tiny-{layers}.gguf"), layers)
        if program.missing:
            report.check(what, program.missing, None)
            continue
        trace = os.path.join(bench.folder, f"blocks-llama-{layers}.tllmprof")
        ended = child.run(program.words(LLAMA_TURNS), bench.shimmed(
            LLAMA_WINDOW, "sym:^llama_decode$", TLLMPROF_TRACE=trace, TLLMPROF_KERNELS=TAKEN), 240)
        report.raw(what, ended)
        report.check(what, *(judge_blocks(process_of(bench.command, trace), layers, layers - 1) if ended.status == 0 else (ended.why(), False)))
    return None


def check_engine_blocks(bench, report, own, run):
    """Checks the blocks of an engine (engines.py) that does not use Python. They must be the model's layers."""
    what = f"{own.name}, {run.label}"
    made, process, _ = own.recorded(run, "blocks", ENGINE_WINDOW, TLLMPROF_KERNELS=TAKEN)
    if process is None or made.ended.status != 0:
        report.raw(what, made.ended)
        return report.check(what, f"no record; {made.ended.why()}", False)
    layers = run.variables["LAYERS"]
    return report.check(what, *judge_blocks(process, layers, layers))


def by_nsys(bench, kind, way):
    """Records the window with nsys. Returns the path of nsys's export."""
    base = nsys.report_base(bench.folder, f"layers-{kind}-{way}")
    words = [sys.executable, os.path.join(HERE, "layers_torch.py"), kind, way, str(STEPS)]
    ended = child.run([bench.nsys, "profile", *nsys.profile_arguments(base, "stop", "node"), *words],
                      bench.shimmed(WINDOW, "cudaEventSynchronize"), 240)
    nsys.read(bench.nsys, base, ended)
    return f"{base}.sqlite"


def of_all_kernels(process):
    """Returns the ns per step of all kernels in a process of a record or of an nsys export. Leaves out the kernels of
    DRIVERS_OWN and KEEPS_BUSY."""
    window = process["kernel_window"]
    steps = window["iterations"] if window else sum(len(one["iterations"]) for one in process["windows"])
    return sum(row["total_ns"] for row in process["kernels"] if not DRIVERS_OWN.match(row["name"]) and KEEPS_BUSY not in row["name"]) / steps


def of_modules(process, steps):
    """Returns {scope: ns per step} for the modules inside the model."""
    return {row["name"]: row["gpu_ns"] / steps for row in process["layers"] if "/" in row["name"]}


def check_nsys(bench, report, kind):
    """Checks a graph's kernels in nsys's record: with `--scopes`, they must get the layers from a record of this
    library, and the times must agree."""
    what, record = f"{kind}, graph, nsys", record_of(bench, kind, QUEUED_GRAPH)
    shown = output_of(bench.command, "report", "--json", by_nsys(bench, kind, QUEUED_GRAPH), "--scopes", record)["processes"][0]
    eager = output_of(bench.command, "report", "--json", by_nsys(bench, kind, QUEUED))["processes"][0]
    recorded = process_of(bench.command, record)
    each = sum(in_modules(recorded, "/")[0].values())
    steps = sum(len(window["iterations"]) for window in shown["windows"])
    found = sum(row["kernels"] for row in shown["layers"] if "/" in row["name"])
    unknown = {row["why"]: row["kernels"] for row in shown["layers_unknown"]}
    report.check(what, f"{found} kernels in modules, {each * steps:g} wanted: {each:g} in each of {steps} steps; not known: {unknown}", found == each * steps > 0)
    ours = (of_modules(recorded, TAKEN), of_all_kernels(recorded), of_all_kernels(process_of(bench.command, record_of(bench, kind, QUEUED))))
    return report.check(f"{what}: times", *judge_times(ours, (of_modules(shown, steps), of_all_kernels(shown), of_all_kernels(eager))))


def check_compiling(bench, report):
    """Checks that a model can be compiled while kernels are recorded, with an empty compile cache. No kernels are
    recorded later, when its graph is replayed."""
    words = [sys.executable, os.path.join(HERE, "layers_torch.py"), "llama", "late", str(STEPS)]
    for number in range(COLD):
        for label, more in (("plain", None), ("kernels", {}), ("kernels and layers", {"TLLMPROF_LAYERS": 1})):
            cache = os.path.join(bench.folder, f"cold-{number}-{label}".replace(" ", "-"))
            given = dict(TORCHINDUCTOR_CACHE_DIR=f"{cache}/inductor", TRITON_CACHE_DIR=f"{cache}/triton")
            environment = bench.variables(**given) if more is None else bench.shimmed(
                WINDOW, "cudaStreamSynchronize", TLLMPROF_TRACE=f"{cache}.tllmprof", TLLMPROF_KERNELS=TAKEN, **more, **given)
            ended = child.run(words, environment, 240)
            if ended.status != 0:
                report.raw(f"compiled within the window, {label}", ended)
            report.check(f"compiled within the window, {label}, {number + 1}", ended.why() if ended.status else "ends as it should",
                         ended.status == 0)


def check_without_graphs(bench, report, own, run):
    """Compares the kernels of an engine's run without graphs with those of its earlier runs with graphs of the same
    model."""
    def model(one):
        return {name: value for name, value in one.variables.items() if name not in GRAPHS_OFF}

    eager = kernels_in_modules(events(bench.command, own.kept(run.label)))
    for other in own.engine.runs:
        if other.looks_at != run.looks_at or other is run or model(other) != model(run) or not os.path.exists(own.kept(other.label)):
            continue
        graph = kernels_in_modules(events(bench.command, own.kept(other.label)))
        report.check(f"{own.name}, {run.label}, against {other.label}", *judge_engine(eager, graph))


def check_engine(bench, report, own, run):
    """Checks the layers of an engine (engines.py): the share of the kernels' time that has a scope."""
    what = f"{own.name}, {run.label}"
    made, process, path = own.recorded(run, "layers", ENGINE_WINDOW, TLLMPROF_LAYERS=1, TLLMPROF_KERNELS=TAKEN)
    if process is None or made.ended.status != 0 or not process["kernel_window"]:
        report.raw(what, made.ended)
        return report.check(what, f"no kernels; {made.ended.why()}", False)
    shutil.copy(path, own.kept(run.label))
    modules, share = in_modules(process)
    unknown = {row["why"]: f"{row['share']:.1%}" for row in process["layers_unknown"]}
    deepest = max((name.count(".") for name in modules), default=0)
    if run.label.endswith(NO_GRAPHS):
        check_without_graphs(bench, report, own, run)
    return report.check(what, f"{share:.2%} of the kernels' time in {len(modules)} scopes, {sum(modules.values()):g} kernels a step; the deepest: "
                        f"{[name for name in modules if name.count('.') == deepest][:3]}; not known: {unknown}", share >= WAYS["compiled"])


def table(bench, cuda, log):
    """Returns (lines of the page, number of passed checks, number of failed checks)."""
    report = Report(NAME, log)
    if not bench.command:
        report.check(NAME, "skipped: no tllmprof command built", None)
        return report.page(*TITLE)
    program = os.path.join(bench.folder, "layers")
    built = subprocess.run([os.path.join(cuda, "bin", "nvcc"), "-O2", "-std=c++17", "-arch=native", "--cudart", "shared", "-Xlinker",
                            f"-rpath={cuda}/lib64", "-o", program, os.path.join(HERE, "layers.cu"), "-ldl"],
                           capture_output=True, text=True, timeout=180)
    if built.returncode:
        report.check(NAME, built.stderr[-500:], False)
        return report.page(*TITLE)
    for mode in MODES:
        report.guarded(check, bench, mode, program)
    report.guarded(graph_nodes.check_all, bench, cuda)
    report.guarded(check_llama, bench)
    report.guarded(check_llama_blocks, bench)
    if bench.programs["hf_generate"].missing:
        report.check("models", bench.programs["hf_generate"].missing, None)
    else:
        for kind in MODELS:
            report.guarded(check_model, bench, kind)
        report.guarded(check_nsys, bench, MODELS[0])
        report.guarded(check_compiling, bench)
    return report.page(*TITLE)
