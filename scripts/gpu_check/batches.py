"""Checks the findings about batches and CUDA graphs of vLLM: programs/vllm_batches.py plants batches that run without
their graph, or in a graph that is much larger than they are."""
import os

from . import answers
from .record_file import output_of

FINDINGS = {"eager": "eager-fallback", "padded": "graph-padding"}
# graph-padding is judged only if layers are followed, and only by iterations whose kernels are recorded
# (docs/diagnosis.md). Together these must have batches of all sizes in a wave.
OPTIONS = {"padded": ("--window", "100-499", "--layers", "--kernels=400")}


def judged(findings, wanted):
    """Judges a report's findings. `wanted`: the finding that is planted, or None. Returns (description, verdict)."""
    rules = [one["rule"] for one in findings if one["verdict"] == "yes"]
    found = [rule for rule in rules if rule in FINDINGS.values()]
    place = f"finding {rules.index(found[0]) + 1} of {len(rules)}" if found else "no such finding"
    evidence = "".join(f": {one['evidence']}" for one in findings if one["rule"] == wanted)
    return f"{place}; {', '.join(rules) or 'none'}{evidence}", found == ([wanted] if wanted else [])


def check_engine(bench, report, own, run):
    """Makes this check for an engine (engines.py). The words of `run`: the program, what is planted, and a model."""
    kind, what, folder = run.variables["KIND"], f"{own.name}, {run.label}", own.records(run)
    *starts, end = answers.wrap(bench)
    made = own.made(run, "batches", wrap=[*starts, *OPTIONS.get(kind, ()), end], folder=folder)
    answers.keep(os.path.join(folder, "printed.txt"), made.ended.out + made.ended.err)
    if made.ended.status != 0:
        report.raw(what, made.ended)
    answer = output_of(bench.command, "report", "--json", folder=folder)
    report.check(what, *judged(answer["findings"], FINDINGS.get(kind)))
