"""Tests the functions of scripts/soak, and runs a short soak test of 12 seconds or TLLMPROF_TEST_SOAK seconds: python3
-m unittest discover -s scripts/soaking -t scripts"""
import contextlib
import io
import mmap
import os
import random
import subprocess
import tempfile
import sys
import unittest

from . import judge, loads, main, watch


def series(reading, count=400):
    return [(float(n), reading(n)) for n in range(count)]


def noisy(reading, by, seed=1):
    noise = random.Random(seed)
    return series(lambda n: reading(n) + noise.uniform(-by, by))


class Judgement(unittest.TestCase):
    bound = watch.MEMORY.bound

    def grows(self, points):
        return judge.growth(points).exceeds(self.bound)

    def test_a_leak_grows(self):
        self.assertTrue(self.grows(series(lambda n: 9000 + 2 * n)))
        self.assertTrue(self.grows(noisy(lambda n: 9000 + 2 * n, 40)))

    def test_a_leak_is_measured(self):
        growth = judge.growth(series(lambda n: 2 * n))
        self.assertAlmostEqual(growth.third, 198)
        self.assertAlmostEqual(growth.last, 198)

    def test_less_than_the_bound_is_none(self):
        self.assertFalse(self.grows(series(lambda n: 9000 + n)))

    def test_a_descriptor_a_window_grows(self):
        points = series(lambda n: 4 + n // 50)
        self.assertTrue(judge.growth(points).exceeds(watch.DESCRIPTORS.bound))

    def test_what_is_taken_early_and_kept_is_no_growth(self):
        self.assertFalse(self.grows(series(lambda n: min(n, 150) * 100)))

    def test_one_jump_is_no_growth(self):
        for at in range(0, 400, 10):
            self.assertFalse(self.grows(series(lambda n, at=at: 9000 + (2000 if n >= at else 0))), at)

    def test_noise_is_no_growth(self):
        for seed in range(100):
            self.assertFalse(self.grows(noisy(lambda n: 9000, 400, seed)), seed)

    def test_less_in_the_end_is_no_growth(self):
        self.assertFalse(self.grows(series(lambda n: 9000 - 5 * n)))

    def test_growth_of_both_programs_is_no_difference(self):
        plain = [(n + 0.5, 7000 + 10 * n) for n in range(400)]
        self.assertFalse(self.grows(judge.difference(series(lambda n: 7300 + 10 * n), plain)))
        self.assertTrue(self.grows(judge.difference(series(lambda n: 7300 + 13 * n), plain)))


    def test_a_difference_is_blurred_by_what_the_other_grows_between_readings(self):
        self.assertEqual(judge.blur(series(lambda n: 7000)), 0)
        self.assertAlmostEqual(judge.blur([(10.0 * n, 7000 + 50 * n) for n in range(40)]), 50)

    def test_windows_that_never_opened_are_counted(self):
        one = main.Watched.__new__(main.Watched)
        for line, count in (
                ("windows 1,3 captured: 9 iterations by auto", 0),
                ("window 3-4 captured; window 10 never opened: 4 iterations by auto", 1),
                ("windows 1,3,… (80 in all) captured; windows 5,7,9 never opened: 9 iterations by auto", 3),
                ("windows 1,3,… (80 in all) captured; windows 5,7,… (12 in all) never opened: 9 iterations", 12)):
            one.lines = lambda line=line: ["tllmprof: window 3 closed: 1 iteration", "tllmprof: " + line]
            self.assertEqual(one.never_opened(), count, line)


class Programs(unittest.TestCase):
    def test_every_list_of_windows_fits_a_variable(self):
        count = loads.MOST_WINDOWS
        for windows in (loads.one_in(loads.APART, count), loads.three_in(2 * loads.APART, count // 2)):
            self.assertLess(len("TLLM_PROFILE_START_STOP=" + windows), 128 << 10)

    def test_a_process_is_read(self):
        reading = watch.read(os.getpid())
        self.assertGreater(reading[watch.MEMORY], 1000)
        self.assertGreaterEqual(reading[watch.DESCRIPTORS], 3)
        self.assertGreaterEqual(reading[watch.THREADS], 1)
        self.assertGreater(reading[watch.MAPPINGS], 10)

    def test_a_mapped_record_is_not_counted(self):
        with tempfile.TemporaryDirectory() as folder:
            readings = []
            for name in ("a.tllmprof", "a file"):
                before = watch.read(os.getpid())[watch.RESIDENT]
                with open(os.path.join(folder, name), "w+b") as file:
                    file.truncate(16 << 20)
                    with mmap.mmap(file.fileno(), 0) as mapped:
                        mapped[:] = bytes(len(mapped))
                        readings.append(watch.read(os.getpid())[watch.RESIDENT] - before)
        self.assertLess(readings[0], 4096)
        self.assertGreater(readings[1], 12288)

    def test_unchanged_pages_of_a_file_are_not_counted(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "tables")
            with open(path, "wb") as file:
                file.write(bytes(range(256)) * (16 << 12))
                file.flush()
                os.fsync(file.fileno())
            before = watch.read(os.getpid())[watch.RESIDENT]
            with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                self.assertEqual(sum(mapped[at] for at in range(0, len(mapped), 4096)), 0)
                self.assertLess(watch.read(os.getpid())[watch.RESIDENT] - before, 4096)

    def test_one_that_is_gone_is_none(self):
        child = subprocess.Popen(["true"])
        child.wait()
        self.assertIsNone(watch.read(child.pid))

    def test_one_that_has_closed_its_descriptors_is_ending(self):
        closes = "import os, signal; os.write(1, b'x'); os.closerange(0, 64); signal.pause()"
        with subprocess.Popen([sys.executable, "-c", closes], stdout=subprocess.PIPE) as child:
            self.assertEqual(child.stdout.read(), b"x")
            while os.listdir(f"/proc/{child.pid}/fd"):
                pass
            self.assertIsNone(watch.read(child.pid))
            child.kill()

    def test_a_time_that_is_none_is_refused(self):
        with self.assertRaises(SystemExit) as refused, contextlib.redirect_stderr(io.StringIO()):
            main.options("", ["--hours", "0"])
        self.assertEqual(refused.exception.code, 2)


def soak(*arguments):
    script = os.path.join(loads.ROOT, "scripts", "soak")
    return subprocess.run([sys.executable, script, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True)


class Short(unittest.TestCase):
    def test_nothing_grows_in_seconds(self):
        only = [f"--only={load}" for load in ("launches", "ranges", "python", "forks", "closes-functions", "python*-shared*")]
        seconds = int(os.environ.get("TLLMPROF_TEST_SOAK", "12"))
        done = soak("--seconds", str(seconds), *only)
        if done.returncode != 0:
            # On a busy machine, programs may still take their first memory in the second half of a short run. What is lost
            # all the time also grows in a longer run.
            print(done.stdout + done.stderr, file=sys.stderr)
            done = soak("--seconds", str(3 * seconds), *only)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_a_library_that_loses_something_of_every_call_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            leak = os.path.join(folder, "leak.so")
            loads.must(["gcc", "-O1", "-shared", "-fPIC", "-o", leak, os.path.join(loads.SOURCES, "leak.c"), "-ldl"])
            done = soak("--seconds", "6", "--only", "closes", "--lib", leak)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"(?m)^soak: closes: anonymous memory grew by \d+ KiB in the third quarter and by \d+ "
                                      r"KiB in the last \(at most 128 KiB each\)$")
        self.assertRegex(done.stdout, r"(?m)^soak: closes: descriptors grew by ")


if __name__ == "__main__":
    unittest.main()
