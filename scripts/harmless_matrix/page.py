"""Writes the page (Markdown) with the results of scripts/harmless."""
import os
import platform
import subprocess
import time
from collections import Counter, defaultdict

from . import surroundings
from .settings import PRELOADS, SETTINGS

# The first and the last line of the part of the page that tests/odd.rs writes. This part is kept
# when the rest of the page is written.
SITUATIONS = ("## Other situations\n", "<!-- end of situations -->\n")
COMPARED = ("same", "once", "different")
# The columns of the page's table of programs, each with the surroundings whose outcomes it sums up. All other
# surroundings are in one more column, PRELOADED.
COLUMNS = {"plain": ["plain"], "descriptors, threads": ["census"], "gdb, strace, rr": ["gdb", "strace", "rr"],
           "valgrind": ["valgrind"],
           "limits": [s.name for s in surroundings.ALL if s.limits], "seccomp": ["seccomp"], "user namespace": ["user namespace"],
           "sanitizers": [s.name for s in surroundings.ALL if s.sanitizer]}
PRELOADED = "other preloads"
FEW = 6


def counts(results):
    return Counter(result.verdict for result in results)


def summary(results):
    found = counts(results)
    return (f"{sum(found[verdict] for verdict in COMPARED)} comparisons: {found['different']} different, {found['once']} "
            f"different "
            f"once and not again, {found['left out']} left out")


def cell(found):
    """Returns the text of a table cell. `found`: number of outcomes by verdict."""
    if not found:
        return ""
    compared = sum(found[verdict] for verdict in COMPARED)
    parts = [str(compared)] if compared else []
    parts += [f"{found[verdict]} {verdict}" for verdict in ("different", "once", "left out") if found[verdict]]
    return ", ".join(parts)


def escaped(text):
    return text.replace("|", "\\|").replace("\n", " ")


def row(*fields):
    return "| " + " | ".join(escaped(str(field)) for field in fields) + " |"


def column_of(where):
    return next((name for name, places in COLUMNS.items() if where in places), PRELOADED)


def first_line(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30).stdout.strip().split("\n")[0]
    except (OSError, subprocess.TimeoutExpired):
        return ""


def versions():
    distribution = "unknown"
    if os.path.exists("/etc/os-release"):
        with open("/etc/os-release") as file:
            distribution = dict(line.rstrip().split("=", 1) for line in file if "=" in line).get("PRETTY_NAME", "").strip('"')
    return [("distribution", distribution), ("kernel", platform.release().split("-")[0]), ("glibc", platform.libc_ver()[1]),
            ("gcc", first_line("gcc", "-dumpfullversion")), ("processors", len(os.sched_getaffinity(0)))]


def of_programs(results):
    names = [*COLUMNS, PRELOADED]
    found = defaultdict(lambda: defaultdict(Counter))
    for result in results:
        found[result.program][column_of(result.where)][result.verdict] += 1
    yield row("program", *names)
    yield row(*["---"] * (len(names) + 1))
    for program, columns in found.items():
        yield row(program, *(cell(columns[name]) for name in names))


def of_places(results, settings):
    found = defaultdict(lambda: defaultdict(Counter))
    for result in results:
        found[result.where][result.setting][result.verdict] += 1
    about = {s.name: s.about for s in surroundings.ALL}
    for preload in PRELOADS:
        about.update({f"{preload.name} {order}": preload.about for order in ("first", "last")})
    yield row("where", "what it is", *(setting.name for setting in settings))
    yield row(*["---"] * (len(settings) + 2))
    for where in about:
        if where in found:
            yield row(where, about[where], *(cell(found[where][setting.name]) for setting in settings))


def of_differences(results, verdict):
    for result in results:
        if result.verdict == verdict:
            yield f"- **{result.program}**, {result.where}, {result.setting}:"
            yield ""
            yield "  ```text"
            yield from (f"  {line[:200]}" for line in result.why)
            yield "  ```"


def of_left_out(results):
    by_reason = defaultdict(list)
    for result in results:
        if result.verdict == "left out":
            by_reason[" / ".join(result.why)].append(result)
    for reason, left in sorted(by_reason.items()):
        programs = list(dict.fromkeys(result.program for result in left))
        places = list(dict.fromkeys(result.where for result in left))
        shown = ", ".join(programs[:FEW]) + (f" and {len(programs) - FEW} more" if len(programs) > FEW else "")
        where = ", ".join(places[:FEW]) + (f" and {len(places) - FEW} more" if len(places) > FEW else "")
        yield row(reason or "?", shown, where, len(left))


def of_times(results):
    """Returns a table with the durations of programs in the plain surrounding, without and with the library."""
    found = defaultdict(dict)
    for result in results:
        if result.where == "plain" and result.seconds:
            found[result.program][result.setting] = result.seconds
    settings = list(dict.fromkeys(result.setting for result in results))
    yield row("program", "without, s", *(f"{setting}, s" for setting in settings))
    yield row(*["---"] * (len(settings) + 2))
    for program, times in found.items():
        without = min(seconds[0] for seconds in times.values())
        yield row(program, f"{without:.2f}", *(f"{times[setting][1]:.2f}" if setting in times else "" for setting in settings))


def situations(path):
    """Returns the part of the existing page about other situations, which tests/odd.rs writes."""
    begin, end = SITUATIONS
    try:
        with open(path) as file:
            text = file.read()
    except OSError:
        return []
    if begin not in text or end not in text:
        return []
    return (text[text.index(begin):text.index(end)] + end).split("\n")


def written(results, given, seconds, hides=(), taken=0):
    programs = len({result.program for result in results if result.verdict in COMPARED})
    varying = Counter(stream for result in results if result.verdict in COMPARED for stream in result.varies)
    page = ["# Harmless", "",
            "Programs that have nothing to do with the library, and a few that use CUDA or Python, run without and with "
            "it, in many "
            "surroundings. This page is written by `scripts/harmless --out docs/harmless.md`.", "",
            f"{time.strftime('%Y-%m-%d')}: {programs} programs, {summary(results)}, in {seconds / 60:.0f} minutes" +
            (f" and, for {taken} of the comparisons, an earlier run with the same library" if taken else "") + ".", "",
            "| what | version |", "|---|---|", *(row(what, version) for what, version in versions()), "",
            "## What is compared", "",
            "Each program is run twice without the library, and once with each setting. Exit status, standard output, "
            "standard error, all "
            "files that are there afterwards (path, kind, mode, size and content, anywhere on the system: each run has "
            "file system, "
            "network and process namespaces of its own), processes that outlive it; "
            "in the column *descriptors, threads* also what each "
            "process has open when it ends, and all threads. A line that the runs without the library all have must be "
            "there; one that "
            "none of them has must not; "
            "what varies among them may vary in the same way. Where something differs, there are up to six more "
            "runs without the library, and one more with it: *different* differs again, *once* does not. A run that fails "
            "to start, "
            "or for which there is nothing to compare with, is *left out*, and counts nowhere.", "",
            "What the library may add: lines on standard error that begin with `tllmprof:`, its threads (`tllmprof`, "
            "`tllmprof-stacks`, `tllmprof-live`) and the descriptors of the record, of the control socket and of a thread's "
            "`schedstat`, where the program uses CUDA or Python and a setting asks for something; "
            "nothing anywhere else. Each setting:", ""]
    page += [f"- **{setting.name}**: {setting.about}" for setting in given.settings]
    page += ["", "Two changes are documented and not counted: with NVTX ranges on, `NVTX_INJECTION64_PATH` is in the environment, and "
             "Python has a callback in `gc.callbacks` where collections are asked for.", "",
             "Times are shown, and not judged: the machine may be busy.", "",
             "Chroots of older and other distributions: `scripts/old-systems`. Sanitized, leak-checked and sandboxed "
             "programs that use "
             "CUDA: `tests/hostile/`. More of Python: `tests/python_hosts/`.", "", *situations(given.out or "docs/harmless.md"),
             "## By place", "", *of_places(results, given.settings), "",
             "Streams in which something varied without the library, so that single lines are compared: " +
             (", ".join(f"{stream} {number}" for stream, number in sorted(varying.items())) or "none") + ".", "",
             "## By program", "", "Comparisons; empty: not run there (what takes long is run in a few places).",
                 "", *of_programs(results), ""]
    for title, verdict in (("Different", "different"), ("Different once", "once")):
        shown = list(of_differences(results, verdict))
        page += [f"## {title}", "", *(shown or ["None."]), ""]
    left = list(of_left_out(results))
    page += ["## Left out", ""]
    page += ["| why | programs | where | comparisons |", "|---|---|---|---|", *left, ""] if left else ["Nothing.", ""]
    page += ["## Times", "", *of_times(results), ""]
    text = "\n".join(page)
    for path, name in hides:
        text = text.replace(path, name)
    return text
