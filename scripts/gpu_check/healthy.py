"""Runs engines under load for three minutes, each started by `tllmprof run` without options, with captures on demand
meanwhile. Nothing is planted, so no finding may say that something is wrong with the machine, the graphs or the streams.
The energy in the report must match the power draw that nvidia-smi samples meanwhile."""
import datetime
import os
import shutil
import subprocess
import tempfile
import threading
from itertools import pairwise

from . import answers, child
from .kernels import Report
from .programs import llama_with
from .record_file import output_of

NAME = "healthy"
SECONDS = 180
# A server starts before its load begins. The first start of an engine takes longest.
PATIENCE = SECONDS + 300
CAPTURE_SECONDS, PAUSE, LEAST_CAPTURES = 5, 25, 3
# Findings that would be false: nothing of this is planted, and no other program uses the GPU. Others may be true of an
# engine, such as `compilation`: kernels that are first needed under load are loaded then.
WOULD_BE_FALSE = ("eager-fallback", "graph-padding", "throttled", "shared-gpu", "far-from-gpu", "serial-streams", "event-loop")
WITHIN = 0.05
# Maximum time in seconds between two samples of the power draw, for an energy to be known.
FARTHEST = 0.5
# More rounds than a program makes in that time, and the words that end it as Ctrl-C does.
ROUNDS = 1_000_000
END_IN_TIME = ("timeout", "--foreground", "--signal=INT", str(SECONDS))
# The number of layers of llama.cpp's model and their width.
SHAPE = (16, 1024)
TITLE = ("## Three minutes of load", "", "Each by `tllmprof run --` with no option, and captures on demand. *Energy*: of all windows, by the "
         "report, and by the power draw, which nvidia-smi samples ten times a second.")


class Power:
    """Samples the power draw of the GPU while it is entered. samples: [(seconds since 1970, watts)]."""

    def __init__(self):
        self.samples = []

    def __enter__(self):
        self.said = tempfile.TemporaryFile("w+")
        gpu = (os.environ.get("CUDA_VISIBLE_DEVICES") or "0").split(",")[0]
        self.running = subprocess.Popen(["nvidia-smi", "-i", gpu, "--query-gpu=timestamp,power.draw.instant", "--format=csv,noheader,nounits",
                                         "--loop-ms=100"], stdout=self.said, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        return self

    def __exit__(self, *_error):
        self.running.terminate()
        self.running.wait()
        self.said.seek(0)
        self.samples = samples_in(self.said)
        self.said.close()


def samples_in(lines):
    """Returns [(seconds since 1970, watts)] of nvidia-smi's lines. Leaves out lines that are not samples, such as one
    that was cut."""
    found = []
    for line in lines:
        moment, _, watts = line.partition(", ")
        try:
            found.append((datetime.datetime.strptime(moment, "%Y/%m/%d %H:%M:%S.%f").timestamp(), float(watts)))
        except ValueError:
            continue
    return found


def joules(samples, start, end):
    """Returns the energy in joules from `start` to `end` (seconds since 1970), or None if samples are missing."""
    total = covered = 0
    for (at, watts), (later, more) in pairwise(samples):
        first, last = max(at, start), min(later, end)
        if first >= last or later - at > FARTHEST:
            continue
        middle = ((first + last) / 2 - at) / (later - at)
        total += (watts + (more - watts) * middle) * (last - first)
        covered += last - first
    return total if covered >= 0.98 * (end - start) > 0 else None


def spans_of(process):
    """Returns (start, end) of each window in seconds since 1970."""
    times = [[(one["start_ns"], one["start_ns"] + one["dur_ns"]) for one in window["iterations"]] for window in process["windows"]]
    offset = process["unix_minus_monotonic_ns"]
    return [((min(start for start, _ in window) + offset) / 1e9, (max(end for _, end in window) + offset) / 1e9) for window in times if window]


def judge_energy(process, samples):
    """Compares the energy in a report with samples of the power draw. Returns (description, verdict)."""
    ours = sum(one["energy_j"] or 0 for one in process["gpu_state"])
    spans = spans_of(process)
    each = [joules(samples, *span) for span in spans]
    seconds = sum(end - start for start, end in spans)
    if not each or None in each:
        return f"{ours:.0f} J in {seconds:.1f} s; the power draw is not known in {each.count(None)} of {len(each)} windows", False
    theirs = sum(each)
    return f"{ours:.0f} J in {seconds:.1f} s, {theirs:.0f} J by the power draw: {ours / theirs - 1:+.1%}", abs(ours - theirs) <= WITHIN * theirs


def judge_findings(findings):
    """Returns (description, verdict) of a report's findings."""
    found = [one for one in findings if one["verdict"] == "yes"]
    return ("; ".join(f"{one['rule']}: {one['evidence']}" for one in found) or "none",
            not any(one["rule"] in WOULD_BE_FALSE for one in found))


def capture_often(bench, stop):
    """Captures iterations on demand until `stop` is set. Returns the results of the captures that the running program
    was ready for."""
    made = []
    while not stop.wait(PAUSE):
        ended = child.run([bench.command, "capture", "--for", f"{CAPTURE_SECONDS}s"], child.variables(), 2 * PAUSE)
        if ended.status == 0 or any(one.status == 0 for one in made):
            made.append(ended)
    return made


def check_run(bench, report, what, folder, run):
    """Makes the check for one program. `run()` runs it by `tllmprof run` in `folder` for `SECONDS` and returns its end."""
    stop, captures = threading.Event(), []
    thread = threading.Thread(target=lambda: captures.extend(capture_often(bench, stop)))
    with Power() as power:
        thread.start()
        try:
            ended = run()
        finally:
            stop.set()
            thread.join()
    answers.keep(os.path.join(folder, "printed.txt"), ended.out + ended.err)
    answer = output_of(bench.command, "report", "--json", folder=folder)
    process = max(answer["processes"], key=lambda one: len(answers.iterations_of(one)), default=None)
    if process is None or not answers.iterations_of(process):
        report.raw(what, ended)
        return report.check(f"{what}: window", "no iteration", False)
    # The last capture may come when the program ends.
    right = sum(one.status == 0 for one in captures)
    refused = next((f": {one.why()}" for one in captures[:-1] if one.status != 0), "")
    report.check(f"{what}: windows", f"{len(process['windows'])} with {len(answers.iterations_of(process))} iterations; {right} of {len(captures)} "
                 f"captures{refused}", right >= LEAST_CAPTURES)
    report.check(f"{what}: findings", *judge_findings(answer["findings"]))
    return report.check(f"{what}: energy", *judge_energy(process, power.samples))


def for_some_time(bench, words):
    """Returns the command that runs a program by `tllmprof run` and ends it after `SECONDS` as Ctrl-C does."""
    return [*answers.wrap(bench), "timeout", "--foreground", "--signal=INT", str(SECONDS), *words]


def check_engine(bench, report, own, run):
    """Makes this check for a real engine (engines.py)."""
    folder = own.records(run)

    def ended():
        if run.is_server:
            made = own.made(run, NAME, folder=folder, seconds=PATIENCE, WRAP=" ".join(answers.wrap(bench)))
        else:
            made = own.made(run, NAME, folder=folder, seconds=PATIENCE, wrap=[*answers.wrap(bench), *END_IN_TIME])
        return child.Ended(made.ended.status, made.ended.out, made.ended.err + made.log)

    check_run(bench, report, f"{own.name}, {run.label}", folder, ended)


def check_llama(bench, report):
    program = llama_with(bench.programs["llama.cpp"], os.path.join(bench.folder, "healthy.gguf"), *SHAPE)
    if program.missing:
        return report.check("llama.cpp", program.missing, None)
    folder = os.path.join(bench.folder, NAME, "llama.cpp")
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    words = [*answers.wrap(bench), *END_IN_TIME, *program.words(ROUNDS)]
    variables = child.variables(TRUTH_LIBRARY=os.path.join(bench.folder, "bin", "libtruth.so"))
    return check_run(bench, report, "llama.cpp", folder, lambda: child.run(words, variables, PATIENCE, folder))


def table(bench, _cuda, log):
    """Returns (lines of the page, number of passed checks, number of failed checks)."""
    report = Report(NAME, log)
    report.guarded(check_llama, bench)
    return report.page(*TITLE)
