"""Checks layers in CUDA graphs: each layer of a program has a certain number of its own kernels, which the report must
show."""
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
# Scopes in which the graphs within the graph were captured.
INNER = {"child": ("child",), "children": ("first", "second", "third"), "conditional": ("body",)}
ENDS = 3  # exit status of layers.cu
COLD = 2  # number of starts with an empty compile cache
ENGINE_WINDOW = (300, 359)
# End of the label of an engine's run without graphs, which launches each kernel separately.
NO_GRAPHS = "no graphs"
GRAPHS_OFF = ("GRAPHS", "MORE")  # environment variables of a run without graphs
# Maximum relative difference from nsys's times.
APART = 0.02
SAMPLE = {"sample": 2}
# The function that only one layer launches, by its mangled or demangled name.
MARKER = re.compile(r"of_layer(?:ILi|<)(\d+)[E>]")
# For models in torch: the minimum share of the kernels' time that has a module, by the way in which the models run.
MODELS = ("llama", "mixtral", "gpt_oss")
# llama.cpp's operations: functions of libggml-cuda by name. Its hundreds of attention templates are left out, because
# there is a limit for scopes.
LLAMA_WINDOW, LLAMA_TURNS, LLAMA_ROWS = "120-159", 3, 25
LLAMA_WAYS = {"graph": {}, "eager": {"GGML_CUDA_DISABLE_GRAPHS": 1}}
LLAMA_LEAST = 0.8  # minimum share of its kernels' time
LLAMA_SCOPES = r"sym:^ggml_cuda_op_@ggml|llama,sym:^ggml_cuda_(mul_mat(_id|_q|_vec_q|_vec_f|_f|_cublas)?|cpy|dup|flash_attn_ext|argmax)\(@ggml|llama"
# The driver's own kernels, by their names on an H200 (driver 580).
DRIVERS_OWN = re.compile(r"mem(cpy|set)\d+(_post)?$")
# In an eager run, there are gaps between kernels in which the GPU rests and its clocks rise, so kernels are faster than
# in a graph. To compare times, both runs are queued after one kernel that keeps the GPU busy until everything is
# launched. A second queued run shows the difference between two equal runs. The busy kernel has no module. The first
# word of a way is the program's argument.
QUEUED, AGAIN, QUEUED_GRAPH = "queued", "queued again", "queued_graph"
KEEPS_BUSY = "spin_kernel"
WAYS = {"eager": 0.99, "graph": 0.99, QUEUED: 0, AGAIN: 0, QUEUED_GRAPH: 0, "compiled": 0.95}
GRAPH = {f"model/layers.{layer}": layer + 1 for layer in range(5)}
TITLE = (f"## {NAME.capitalize()}", "", f"Kernels of {TAKEN} steps by layer: each layer of the graph has another number of kernels. A graph "
         "that is changed after its capture (*swapped*) is not known, which is what is wanted there. Of models in torch, the part of the kernels' time that has a module, "
         "whether each has as many kernels in a CUDA graph as eagerly, and whether these take as long there.")


def judge(mode, process):
    """Returns errors in the report of a process; None: no errors."""
    found = {row["name"]: row["kernels"] / TAKEN for row in process["layers"]}
    if mode == "copies":
        found.pop("model", None)  # the driver's own kernels for copies and memsets are launched between the layers
    wanted = SAMPLE if mode == "swapped" else SAMPLE | GRAPH | ({"added": 1} if mode == "explicit" else {})
    for inner in INNER.get(mode, ()):
        wanted |= {name.replace("model", inner): kernels for name, kernels in GRAPH.items()}
    if found != wanted:
        return f"{found}, not {wanted}; not known: {process['layers_unknown']}"
    unknown = sum(row["kernels"] for row in process["layers_unknown"])
    inside = 2 * sum(GRAPH.values()) * TAKEN if mode == "swapped" else 0
    return None if unknown == inside else f"{process['layers_unknown']}"


def judge_markers(found):
    """Returns (number of kernels of layers.cu's layers that have a layer in the time line's events, number of those
    whose layer is the one that launches them)."""
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
    """Returns ({scope: kernels per step}, the share of the kernels' time that has a scope), for scopes with `within` in
    their names. "/" leaves out the model itself, which encloses all its modules."""
    steps = process["kernel_window"]["iterations"]
    rows = [row for row in process["layers"] if row["name"] and within in row["name"]]
    all_ns = sum(row["gpu_ns"] for row in process["layers"] + process["layers_unknown"])
    return {row["name"]: row["kernels"] / steps for row in rows}, sum(row["gpu_ns"] for row in rows) / max(1, all_ns)


def kernels_in_modules(found):
    """Returns the number of kernels by scope and name, from a time line's events. Kernels with which the driver copies
    and sets memory are left out: it uses them in a graph, but not in an eager run."""
    return Counter((event["args"].get("scope", ""), event["name"]) for event in found
                   if event.get("cat") == "kernel" and not DRIVERS_OWN.match(event["name"]))


def unlike(eager, graph):
    """Returns a description of the kernels that differ in a graph; None: there are none."""
    kernels = sorted(kernel for kernel in eager | graph if eager[kernel] != graph[kernel])
    shown = [f"{scope}, {name[:60]}: {eager[scope, name] / TAKEN:g} a step eagerly, {graph[scope, name] / TAKEN:g} in the graph" for scope, name in kernels[:3]]
    return f"{len(kernels)} kernels differ: {'; '.join(shown)}" if kernels else None


def judge_engine(eager, graph):
    """Returns (description, True if all kernels that two runs of an engine launch equally often are in the same
    scopes). An engine launches some other kernels in a capture: vLLM splits its attention there."""
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
    """Returns the median step's time in the kernels of each scope, from a time line's events: {scope: ns}. Kernels with
    which the driver copies and sets memory in a graph are left out."""
    starts = sorted(event["start"] for event in found if event.get("cat") == "iteration")
    steps = defaultdict(lambda: defaultdict(int))
    for event in found:
        if event.get("cat") == "kernel" and "scope" in event["args"] and not DRIVERS_OWN.match(event["name"]):
            steps[event["args"]["scope"]][bisect.bisect(starts, event["start"])] += event["ns"]
    return {scope: statistics.median(of.values()) for scope, of in steps.items()}


def compared(times, others):
    """Returns (median, 5th and 95th percentile) of the modules' ratios."""
    ratios = sorted(others[scope] / times[scope] for scope in times.keys() & others.keys())
    return statistics.median(ratios), ratios[len(ratios) // 20], ratios[-1 - len(ratios) // 20]


def spread(times, others):
    """Returns the result of `compared` in words."""
    return "{:.3f} ({:.3f}–{:.3f})".format(*compared(times, others))


def judge_times(ours, theirs):
    """Returns (description, True if modules take as long in a graph by our record as by nsys's, and the kernels are
    slower than in an eager run by the same factor). Each argument is ({scope: ns per step} in a graph, ns per step of
    all kernels in a graph, the same in an eager run)."""
    (times, graph, eager), (nsys_times, nsys_graph, nsys_eager) = ours, theirs
    middle = compared(nsys_times, times)[0]
    longer, nsys_longer = graph / eager, nsys_graph / nsys_eager
    return (f"a module takes {spread(nsys_times, times)} of its time by nsys; all kernels take {longer:.3f} of their time eagerly, by nsys {nsys_longer:.3f}",
            abs(middle - 1) <= APART and abs(longer - nsys_longer) <= APART)


def judge_spread(times):
    """Returns (description, True if modules take as long in a graph as in a run without one, within the difference
    between two runs without a graph). All these runs are queued. The argument is {way: {scope: ns}}."""
    _, least, most = compared(times[QUEUED], times[AGAIN])
    middle = compared(times[QUEUED], times[QUEUED_GRAPH])[0]
    together = sum(times[QUEUED_GRAPH].values()) / sum(times[QUEUED].values())
    return (f"queued, a module in the graph takes {spread(times[QUEUED], times[QUEUED_GRAPH])} of its time in a run without one, all together "
            f"{together:.4f}; in a second such run {spread(times[QUEUED], times[AGAIN])}; not queued {spread(times['eager'], times['graph'])}",
            least <= middle <= most)


def single(name):
    """Returns the modules in a kernel's scope: several if the kernel was fused from them."""
    fused = re.fullmatch(r"(.*)\((.*)\)", name)
    return [fused[1] + part for part in fused[2].split(" + ")] if fused else [name]


def unlike_eager(eager, compiled):
    """Returns a description of a compiled model's modules that are neither modules of the eager model nor around such
    modules; None: there are none."""
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
    """Checks the scopes of llama.cpp's operations, by their functions: each row of the table, and the share of the
    kernels' time that has a scope."""
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
    """Returns (description, True if the blocks are the layers: `whole` of them equal, and the others in part)."""
    blocks = process["blocks"]
    if not blocks:
        return f"no equal blocks, {layers} layers", False
    found, more = len(blocks["block_ns"]), blocks["partly"]
    partly = f", one more equal up to kernel {more}" if more else ""
    return (f"{found} equal blocks of {len(blocks['kernels'])} kernels{partly}, in {blocks['iterations']} of {blocks['of']} steps; {layers} layers",
            found == whole and found + bool(more) == layers)


def check_llama_blocks(bench, report):
    """Checks the blocks of llama.cpp. The last layer only processes the last token, whose rows it selects first, so its
    kernels differ from there on."""
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
    """Checks an engine (engines.py) without Python: the blocks that are found must match the model's layers."""
    what = f"{own.name}, {run.label}"
    made, process, _ = own.recorded(run, "blocks", ENGINE_WINDOW, TLLMPROF_KERNELS=TAKEN)
    if process is None or made.ended.status != 0:
        report.raw(what, made.ended)
        return report.check(what, f"no record; {made.ended.why()}", False)
    layers = run.variables["LAYERS"]
    return report.check(what, *judge_blocks(process, layers, layers))


def by_nsys(bench, kind, way):
    """Returns nsys's export of the window."""
    base = nsys.report_base(bench.folder, f"layers-{kind}-{way}")
    words = [sys.executable, os.path.join(HERE, "layers_torch.py"), kind, way, str(STEPS)]
    ended = child.run([bench.nsys, "profile", *nsys.profile_arguments(base, "stop", "node"), *words],
                      bench.shimmed(WINDOW, "cudaEventSynchronize"), 240)
    nsys.read(bench.nsys, base, ended)
    return f"{base}.sqlite"


def of_all_kernels(process):
    """Returns the ns per step of a record's process or of an nsys export. Kernels with which the driver copies and sets
    memory in a graph, and the kernel that keeps the GPU busy, are left out."""
    window = process["kernel_window"]
    steps = window["iterations"] if window else sum(len(one["iterations"]) for one in process["windows"])
    return sum(row["total_ns"] for row in process["kernels"] if not DRIVERS_OWN.match(row["name"]) and KEEPS_BUSY not in row["name"]) / steps


def of_modules(process, steps):
    """{scope: ns a step}"""
    return {row["name"]: row["gpu_ns"] / steps for row in process["layers"] if "/" in row["name"]}


def check_nsys(bench, report, kind):
    """Checks that a graph's kernels in nsys's record get the layers that our record without nsys has, and the same
    times."""
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
    """Checks a model that is compiled, without a cache, while kernels are recorded. No kernels are recorded when its
    graph is replayed."""
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
    """Compares the kernels of an engine's run without graphs with those of its earlier runs with graphs."""
    def model(one):
        return {name: value for name, value in one.variables.items() if name not in GRAPHS_OFF}

    eager = kernels_in_modules(events(bench.command, own.kept(run.label)))
    for other in own.engine.runs:
        if other.looks_at != run.looks_at or other is run or model(other) != model(run) or not os.path.exists(own.kept(other.label)):
            continue
        graph = kernels_in_modules(events(bench.command, own.kept(other.label)))
        report.check(f"{own.name}, {run.label}, against {other.label}", *judge_engine(eager, graph))


def check_engine(bench, report, own, run):
    """Checks an engine (engines.py): the share of its kernels' time that has a scope."""
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
