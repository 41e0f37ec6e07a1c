"""Tests the functions of scripts/harmless: python3 -m unittest discover -s scripts/harmless_matrix -t scripts"""
import contextlib
import glob
import io
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

sys.dont_write_bytecode = True
from harmless_matrix import cells, main, page, programs, surroundings  # noqa: E402
from harmless_matrix.compare import Expected, brief, differences, pattern_of  # noqa: E402
from harmless_matrix.kept import Kept  # noqa: E402
from harmless_matrix.packages import Packages  # noqa: E402
from harmless_matrix.programs import Program  # noqa: E402
from harmless_matrix.settings import PRELOADS, SETTINGS, Setting  # noqa: E402

BARE, EVERYTHING, NATIVE, BAD = SETTINGS
PLAIN = surroundings.ALL[0]


def find(name):
    return next(surrounding for surrounding in surroundings.ALL if surrounding.name == name)


class Lines(unittest.TestCase):
    def same(self, baselines, lines):
        self.assertEqual(Expected(baselines).differences(lines), [])

    def different(self, baselines, lines):
        self.assertNotEqual(Expected(baselines).differences(lines), [])

    def test_what_does_not_vary_must_be_the_same(self):
        stable = [["a", "b 1"], ["a", "b 1"]]
        self.same(stable, ["a", "b 1"])
        for lines in (["a"], ["a", "b 2"], ["a", "b 1", ""], ["b 1", "a"], []):
            self.different(stable, lines)

    def test_a_number_that_varies_may_vary(self):
        varying = [["pid 17", "end"], ["pid 23", "end"]]
        self.same(varying, ["pid 99", "end"])
        for lines in (["pid x", "end"], ["pid 99"], ["pid 99", "END"], ["pid 99", "end", "more"], ["pod 99", "end"], ["end"]):
            self.different(varying, lines)

    def test_only_the_number_that_varies_may(self):
        varying = [["17 of 5"], ["23 of 5"]]
        self.assertEqual(pattern_of(["17 of 5", "23 of 5"]), r"\d+\ of\ 5")
        self.same(varying, ["4 of 5"])

    def test_an_address_is_one_number(self):
        varying = [["free(7f11ba507000): no"], ["free(7f79ef4c8000): no"]]
        self.same(varying, ["free(7f55400de000): no"])
        self.same([["at 0x7f11ba507000"], ["at 0x55"]], ["at 0xabc"])
        for lines in (["free(7f55400de000): on"], ["free(seven): no"]):
            self.different(varying, lines)

    def test_one_line_more_of_a_kind_that_varies(self):
        self.different([["t 1", "t 2"], ["t 3", "t 4"]], ["t 5", "t 6", "t 7"])

    def test_how_many_lines_may_vary_too(self):
        varying = [["GC 1", "done"], ["GC 1", "GC 2", "done"]]
        self.same(varying, ["GC 1", "GC 2", "GC 3", "done"])
        self.different(varying, ["GC 1", "other", "done"])

    def test_order_that_never_varies(self):
        varying = [["first", "n 1", "second"], ["first", "n 2", "second"]]
        self.different(varying, ["second", "n 3", "first"])

    def test_order_that_varies(self):
        self.same([["a", "b"], ["b", "a"]], ["b", "a"])
        self.different([["a", "b"], ["b", "a"]], ["b", "c"])

    def test_streams(self):
        runs = [{"status": ["0"], "out": ["x"]}] * 2
        self.assertEqual(differences(runs, runs[0]), [])
        self.assertEqual(differences(runs, {"status": ["1"], "out": ["x"]}),
                         [("status", "@@ -1 +1 @@"), ("status", "-0"), ("status", "+1")])
        self.assertEqual(len(brief([("out", str(n)) for n in range(100)])), 13)


class Allowed(unittest.TestCase):
    def after(self, uses, setting, **streams):
        found = {"err": [], "census": [], "out": [], **streams}
        return cells.without_ours(found, uses, setting)

    def test_own_lines(self):
        for uses, setting, is_allowed in (("", BARE, False), ("cuda", BARE, False), ("", EVERYTHING, False),
                                          ("cuda", EVERYTHING, True),
                                          ("python", EVERYTHING, True), ("", BAD, True)):
            left = self.after(uses, setting, err=["tllmprof: x", "own"])["err"]
            self.assertEqual(left, ["own"] if is_allowed else ["tllmprof: x", "own"], (uses, setting.name))

    def test_never_on_standard_output_and_only_at_a_lines_beginning(self):
        after = self.after("cuda", EVERYTHING, out=["tllmprof: x"], err=["a tllmprof: x"])
        self.assertEqual((after["out"], after["err"]), (["tllmprof: x"], ["a tllmprof: x"]))

    def test_lines_of_another_preload(self):
        seen = {**cells.unrun(0), "err": ["PROFILE: 1", "own"], "out": ["PROFILE: 1"]}
        after = cells.streams(seen, "PROFILE: ")
        self.assertEqual((after["err"], after["out"]), (["own"], ["PROFILE: 1"]))
        self.assertEqual(cells.streams(seen)["err"], seen["err"])

    def test_threads_and_descriptors(self):
        census = ["process p: 0=/dev/null 3=socket: 63=/proc/7/task/7/schedstat 5=/tmp/records/1.tllmprof 64=socket: "
                  "65=/proc/7/task/8/schedstat 100=/tmp/calls", "thread tllmprof", "thread tllmprof-live", "thread own",
                  "thread tllmprof-stacks"]
        self.assertEqual(self.after("cuda", EVERYTHING, census=census)["census"],
                         ["process p: 0=/dev/null 63=/proc/7/task/7/schedstat 100=/tmp/calls", "thread own"])
        self.assertEqual(self.after("", EVERYTHING, census=census)["census"], census)

    def test_numbers_of_children_under_gdb(self):
        found = {"status": 0, **dict.fromkeys(cells.STREAMS, []), "out": ["[Detaching after fork from child process 9]"]}
        for where, expected in (("gdb", "N"), ("plain", "9")):
            group = cells.Group(None, Program("quiet", ["/bin/true"]), where, find(where))
            self.assertEqual(group.streams(found)["out"], [f"[Detaching after fork from child process {expected}]"])


# Number of runs at the same time. It may exceed the number of processors, because some runs only wait.
WORKERS = 4
HARMS = {
    "nothing": "",
    "errno": "errno = 5;",
    "out": '(void)!write(1, "!\\n", 2);',
    "err": '(void)!write(2, "tllmprof: !\\n", 12);',
    "descriptor": 'dup2(open("/dev/null", O_RDONLY), 40);',
    "status": "atexit(ends);",
    "file": 'close(open("left.txt", O_CREAT | O_WRONLY, 0600));',
    "signal": "signal(SIGPIPE, SIG_IGN);",
    "variable": 'setenv("HARM", "1", 1);',
    "limit": "struct rlimit l = {50, 50}; setrlimit(RLIMIT_NOFILE, &l);",
    "umask": "umask(077);",
    "dlerror": 'dlopen("/no/such.so", RTLD_NOW);',
    "process": "if (fork() == 0) { close(0); close(1); close(2); sleep(30); _exit(0); }",
    "thread": "pthread_t t; pthread_create(&t, NULL, waits, NULL);",
    "hooked errno": "",
}
HARMFUL = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
__attribute__((unused)) static void ends(void) { _exit(1); }
__attribute__((unused)) static void *waits(void *p) { pause(); return p; }
#ifdef HOOKED
void *dlsym(void *restrict handle, const char *restrict name)
{
    errno = 6;
    return dlvsym(handle, name, "GLIBC_2.2.5");
}
#endif
__attribute__((constructor)) static void harm(void) { HARM }
"""


@unittest.skipUnless(shutil.which("gcc"), "there is no gcc")
class Harmful(unittest.TestCase):
    """Tests that the matrix reports libraries that each change a program in a small way, and does not report a
    library that changes nothing."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="harmful-")
        built = os.path.join(cls.folder, "bin")
        programs.build(built, print, ("census.c", "fit.c", "state.c"))
        cls.libraries = {name: os.path.join(cls.folder, f"{name.replace(' ', '-')}.so") for name in HARMS}
        with ThreadPoolExecutor(WORKERS) as pool:
            list(pool.map(cls.build, HARMS))
        packages = Packages(cls.folder, print)
        packages.unpacked = ""
        cls.bench = cells.Bench("", built, packages, [cls.folder], cls.folder)
        cls.bench.patience = 0.4
        cls.state = next(iter(programs.built_programs(built)))

    @classmethod
    def build(cls, name):
        options = ["-DHOOKED"] if name == "hooked errno" else []
        subprocess.run(["gcc", "-shared", "-fPIC", "-w", *options, "-xc", "-", "-o", cls.libraries[name], "-ldl", "-pthread"],
                       input=HARMFUL.replace("HARM }", HARMS[name] + " }"), text=True, check=True)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def verdicts(self, harms, where=PLAIN, program=None):
        """Runs the program with each of these libraries. Returns {name: verdict}. No further runs without a library
        are made, so that all are compared with the same runs."""
        group = cells.Group(self.bench, program or self.state, where.name, where)
        self.assertEqual(group.begin(), [])
        with ThreadPoolExecutor(WORKERS) as pool, mock.patch.object(cells, "MORE_BASELINES", 0):
            return dict(zip(harms, pool.map(lambda harm: group.compared(self.libraries[harm], BARE), harms)))

    def assert_verdicts(self, wanted, harms, where=PLAIN, program=None):
        for harm, outcome in self.verdicts(harms, where, program).items():
            self.assertEqual(outcome.verdict, wanted, f"{harm}: {outcome}")

    def verdict(self, harm, where=PLAIN, program=None, setting=BARE):
        done = cells.outcomes(self.bench, program or self.state, where.name, where, [setting], {where.name: self.libraries[harm]})
        return next(iter(done))

    def test_no_harm(self):
        for where in (PLAIN, find("census"), find("ulimit -f 0")):
            outcome = self.verdict("nothing", where)
            self.assertEqual((outcome.verdict, outcome.why), ("same", []), where.name)

    def test_each_harm(self):
        self.assert_verdicts("different", [harm for harm in HARMS if harm not in ("nothing", "thread")])

    def test_a_thread_and_a_descriptor_of_a_program_that_looks_for_neither(self):
        quiet = Program("quiet", ["/bin/true"])
        self.assert_verdicts("same", ["nothing"], find("census"), quiet)
        self.assert_verdicts("different", ["thread", "descriptor"], find("census"), quiet)

    def test_an_elastic_program_may_have_more_of_its_threads_and_no_others(self):
        quiet = Program("quiet", ["/bin/true"], is_elastic=True)
        found = {"status": 0, **dict.fromkeys(cells.STREAMS, []), "census": ["thread a", "thread a", "thread b"]}
        group = cells.Group(self.bench, quiet, "census", find("census"))
        self.assertEqual(group.streams(found)["census"], ["thread a", "thread b"])
        self.assert_verdicts("different", ["thread", "descriptor"], find("census"), quiet)

    @unittest.skipUnless(shutil.which("strace"), "there is no strace")
    def test_a_system_call_beyond_the_loaders(self):
        quiet = Program("quiet", ["/bin/true"])
        self.assert_verdicts("same", ["nothing"], find("seccomp"), quiet)
        self.assert_verdicts("different", ["signal", "umask", "file"], find("seccomp"), quiet)

    def test_a_program_that_cannot_run_is_left_out_and_not_passed(self):
        for run in ("no-such-program", ["/no/such/program"]):
            self.assertEqual(self.verdict("nothing", program=Program("none", run)).verdict, "left out")
        self.assertEqual(self.bench.lacks(Program("none", "no-such-program -v")), "no no-such-program here")

    def test_what_happens_every_other_time_is_not_reported(self):
        group = cells.Group(self.bench, self.state, "plain", PLAIN)
        runs = [{**cells.unrun(7), "out": [line]} for line in ("a", "a", "b", "a", "a", "a", "b")]
        with mock.patch.object(group, "run", lambda *_: runs.pop(0)):
            self.assertEqual(group.begin(), [])
            self.assertEqual(group.compared("library", BARE).verdict, "same")
        self.assertEqual(runs, [])

    def test_what_varies_by_itself_is_not_reported(self):
        varies = Program("varies", "echo $RANDOM$RANDOM; date +%N >file; sleep 0.0$((RANDOM % 9))")
        self.assertEqual(self.verdict("nothing", program=varies).verdict, "same")
        self.assertEqual(self.verdict("out", program=varies).verdict, "different")


# A script that starts a long run with scripts/harmless. The program of this run starts a process in a new session.
LONG_RUN = """
import sys
sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[1])
from harmless_matrix import cells
from harmless_matrix.packages import Packages
packages = Packages(sys.argv[2], print)
packages.unpacked = ""
bench = cells.Bench("", sys.argv[2], packages, [], sys.argv[2])
bench.namespaces = bench.namespaces if sys.argv[4] == "apart" else []
bench.start(["sh", "-c", "setsid sleep $0 & sleep $0", sys.argv[3]], {}, timeout=300)
"""


def running(word):
    """Yields the PIDs of the processes whose first argument is `word`."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
            if word.encode() in file.read().split(b"\0")[1:2]:
                yield int(pid)


def waited(condition, seconds=100):
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.02)
    return condition()


class Killed(unittest.TestCase):
    """Tests that programs end when the harmless that started them is killed."""

    def test_runs_end_when_harmless_is_killed(self):
        for number, way in enumerate(("apart", "on this machine")):
            seconds = f"{200 + number}.{os.getpid()}"
            with tempfile.TemporaryDirectory() as folder:
                bench = subprocess.Popen([sys.executable, "-c", LONG_RUN, os.path.join(programs.ROOT, "scripts"), folder,
                                          seconds, way])
                try:
                    self.assertTrue(waited(lambda: len(list(running(seconds))) == 2), way)
                finally:
                    bench.kill()
                    bench.wait()
                self.assertTrue(waited(lambda: not list(running(seconds))), way)

    def test_a_signal_ends_the_runs_and_leaves_no_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            library = os.path.join(folder, "lib.so")
            open(library, "w").close()
            command = [os.path.join(programs.ROOT, "scripts", "harmless"), "--quick", "--lib", library]
            with subprocess.Popen(command, env={**os.environ, "TMPDIR": folder}, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True) as harmless:
                try:
                    self.assertTrue(waited(lambda: glob.glob(f"{folder}/tllmprof-harmless-*/run-*")))
                    harmless.send_signal(signal.SIGTERM)
                    _, said = harmless.communicate(timeout=100)
                finally:
                    harmless.kill()
            self.assertEqual((harmless.returncode, os.listdir(folder)), (128 + signal.SIGTERM, ["lib.so"]), said)


class Page(unittest.TestCase):
    RESULTS = [cells.Outcome("a", "plain", "bare", "same", seconds=(0.1, 0.2)),
               cells.Outcome("a", "jemalloc first", "bare", "different", ["out: -1"]),
               cells.Outcome("b", "plain", "bare", "left out", ["no b here"]),
               cells.Outcome("b", "gdb", "bare", "once", ["out: +|"])]

    def test_counts(self):
        self.assertEqual(page.summary(self.RESULTS), "3 comparisons: 1 different, 1 different once and not again, 1 left out")

    def test_what_is_left_out_is_no_comparison(self):
        lines = list(page.of_programs(self.RESULTS))
        self.assertTrue(lines[2].startswith("| a | 1 |"), lines)
        self.assertTrue(lines[3].startswith("| b | 1 left out |"), lines)

    def test_whole(self):
        with tempfile.TemporaryDirectory() as folder:
            given = type("Given", (), {"settings": [BARE], "out": os.path.join(folder, "page")})
            self.assertNotIn("Other situations", page.written(self.RESULTS, given, 60))
            kept = "## Other situations\n\nA row.\n<!-- end of situations -->\n"
            with open(given.out, "w") as file:
                file.write(f"# Harmless\n\n{kept}\n## By place\n\nOUTDATED\n")
            text = page.written(self.RESULTS, given, 60, [("no b", "NAME")])
        self.assertIn(f"\n\n{kept}\n## By place\n", text)
        self.assertNotIn("OUTDATED", text)
        self.assertIn("NAME here", text)
        self.assertIn("| jemalloc first | an allocator | 1, 1 different |", text)


class KeptOutcomes(unittest.TestCase):
    def test_only_what_was_the_same_is_taken_and_only_for_the_same_library_and_program(self):
        with tempfile.TemporaryDirectory() as folder:
            path, library = os.path.join(folder, "kept"), os.path.join(folder, "lib.so")

            def opened(contents):
                with open(library, "w") as file:
                    file.write(contents)
                return Kept(path, library)

            first = opened("one")
            self.assertIsNone(first.take(first.key("a")))
            for name, result in zip("abcd", Page.RESULTS):
                first.add(first.key(name), [result])
            with open(path, "a") as file:
                file.write('{"key": "half a li')
            first = opened("one")
            first.add(first.key("e"), [Page.RESULTS[0]])
            again = opened("one")
            self.assertEqual([again.take(again.key(name)) is not None for name in "abcdef"],
                             [True, False, False, True, True, False])
            self.assertEqual((again.taken, again.take(again.key("a"))[0].program), (3, "a"))
            other = opened("two")
            self.assertIsNone(other.take(other.key("a")))


class Order(unittest.TestCase):
    """Tests that a run of harmless that is ended early has used all programs and all surroundings."""

    def jobs(self):
        bench = mock.Mock(**{"lacks.return_value": ""})
        given = mock.Mock(where=[], quick=False, settings=[BARE])
        table = [program for program in programs.all_programs("", "/built", "/standin", True) if not program.left_out]
        jobs = main.jobs_of(bench, table, given, {}, [(preload, "") for preload in PRELOADS])
        return table, sorted(jobs, key=lambda job: job.rank)

    def test_all_programs_and_all_places_come_early(self):
        table, jobs = self.jobs()
        early = jobs[:len(jobs) // 4]
        self.assertEqual({job.program.name for job in early}, {program.name for program in table})
        self.assertEqual({job.where for job in early}, {job.where for job in jobs})
        self.assertEqual(len(jobs), len({(job.program.name, job.where) for job in jobs}))

    def test_slow_programs_hold_nobody_up(self):
        slow = [main.rank_of(Program("s", "s", is_heavy=True, is_slow=True), position, 0)[0] for position in range(6)]
        heavy = [main.rank_of(Program("h", "h", is_heavy=True), position, 0)[0] for position in range(6)]
        self.assertGreater(slow[0], heavy[1])
        self.assertGreater(slow[0], main.rank_of(Program("c", "c"), 7, 0)[0])


class CommandLine(unittest.TestCase):
    def test_bad_values(self):
        for arguments, wanted in ((["--settings", "bare,x"], 'there is no setting "x"'), (["--jobs", "0"], '--jobs "0"'),
                                  (["--in", "x"], '--in "x"'),
                                  (["--minutes", "0"], '--minutes "0"'), (["--jobs", "x"], "'x'"), (["more"], "more")):
            said = io.StringIO()
            with self.assertRaises(SystemExit) as ended, contextlib.redirect_stderr(said):
                main.options("doc", arguments)
            self.assertEqual(ended.exception.code, 2)
            self.assertIn(wanted, said.getvalue())
            self.assertEqual(said.getvalue().count("\n"), 1)


class Tables(unittest.TestCase):
    def test_names_are_unique(self):
        for table in (programs.TABLE, surroundings.ALL, PRELOADS, SETTINGS):
            names = [one.name for one in table]
            self.assertEqual(len(names), len(set(names)))

    def test_sixty_programs(self):
        self.assertGreaterEqual(len(programs.TABLE), 60)

    def test_settings_name_variables_that_are_read(self):
        with open(os.path.join(programs.ROOT, "crates", "config", "src", "settings.rs")) as file:
            known = file.read()
        for setting in SETTINGS:
            for name in setting.variables:
                self.assertIn(f'"{name}"', known)
        self.assertIsInstance(Setting("a", "b", {}), Setting)


if __name__ == "__main__":
    unittest.main()
