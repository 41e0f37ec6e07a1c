"""Runs the PyTorch profiler in the windows.

The library runs this in a namespace of its own, once torch is imported, and calls start, stop, write and finish. It
adds these functions:

  warn(text), info(text)   a line on standard error
  runs(flag)               sets whether the profiler runs
  at_end()                 finish(), by way of the library, which does not count the calls made meanwhile

An exception that torch raises is logged as one line. An exception that leaves a function here is the program's own,
from a handler of a signal that came meanwhile; the library raises it again in the program.
"""

import _signal
import _thread
import os
import sys
import time

# The time at which this file was loaded, on the clock that file times use.
_BEGAN = time.time()

# The running profiler, and the recorded trace that has not been written yet. Each list has at most
# one element.
_running = []
_recorded = []


class _Trace:
    pass


def start(window, number, rank, stem, extension, cpu_only):
    """Starts the profiler for `window`, the `number`-th requested one."""
    trace = _Trace()
    trace.window = window
    try:
        _start(trace, number, rank, stem, extension, cpu_only)
    except BaseException as error:
        _report(error, "the PyTorch profiler does not start for window " + window)


def stop(is_capturing):
    """Stops the profiler. `is_capturing`: a stream capture is under way, and a synchronization would break it."""
    trace = _take(_running)
    if trace is None or trace.process != os.getpid():
        return
    if trace.thread is not None and trace.thread != _thread.get_ident():
        _running.append(trace)
        warn(
            "window %s ends on another thread than it began on, where this PyTorch cannot stop its profiler: it goes "
            "on until that thread begins or ends a window" % trace.window
        )
        return
    runs(False)
    try:
        if is_capturing:
            trace.profile.profiler.use_device = None
        trace.profile.stop()
        _recorded.append(trace)
    except BaseException as error:
        _report(error, "the PyTorch profiler does not stop for window " + trace.window)
    finally:
        _leave(trace)


def write():
    """Writes the recorded trace, first under a temporary name."""
    trace = _take(_recorded)
    if trace is None:
        return
    folder, name = os.path.split(trace.path)
    # The temporary file has the same name ending as the final one, because PyTorch compresses the
    # trace if the name ends in .gz.
    temporary = os.path.join(folder, ".%d-%s" % (trace.process, name))
    try:
        trace.profile.export_chrome_trace(temporary)
        path = _free(trace)
        os.replace(temporary, path)
        info("window %s: the PyTorch profiler's trace is %s" % (trace.window, path))
    except BaseException as error:
        try:
            os.unlink(temporary)
        except OSError:
            pass
        _report(error, "the PyTorch profiler's trace of window %s is not written" % trace.window)


def finish():
    """Handles the end of the process, or of its part that is profiled."""
    stop(False)
    write()


def _start(trace, number, rank, stem, extension, cpu_only):
    torch = sys.modules["torch"]
    if _running:
        stop(False)
        write()
    if _is_on(torch):
        warn("the program runs the PyTorch profiler itself: there is no trace of window " + trace.window)
        return
    trace.process = os.getpid()
    trace.path = "%s-rank-%d%s%s" % (
        stem,
        rank,
        "" if number == 1 else "-window-%d" % number,
        extension,
    )
    trace.stem = trace.path[: len(trace.path) - len(extension)]
    trace.extension = extension
    folder = os.path.dirname(trace.path)
    os.makedirs(folder, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError("%s cannot be written to" % folder)

    options = _options(torch, cpu_only)
    # Without `experimental_config`, PyTorch records only the current thread, and only that thread
    # can stop the profiler.
    trace.thread = None if "experimental_config" in options else _thread.get_ident()
    trace.profile = torch.profiler.profile(**options)
    trace.profile.start()
    _running.append(trace)
    runs(True)
    _enter(trace, torch)


def _options(torch, cpu_only):
    """Returns the options of the profiler: as many as this PyTorch supports."""
    profiler = torch.profiler
    supported = profiler.supported_activities()
    wanted = ("CPU",) if cpu_only else ("CPU", "CUDA", "XPU")
    activities = [getattr(profiler.ProfilerActivity, name, None) for name in wanted]
    options = {"activities": [one for one in activities if one in supported], "record_shapes": True}
    if _version(torch) < (2, 15):
        # From 2.15 on, PyTorch warns that this option has no effect except for TorchScript, so it
        # is set only before that.
        options["with_modules"] = True
    if "acc_events" in profiler.profile.__init__.__code__.co_varnames:
        # Without this option, PyTorch warns that a second start clears the events.
        options["acc_events"] = True
    try:
        options["experimental_config"] = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    except (AttributeError, TypeError):
        pass
    return options


def _enter(trace, torch):
    """Stops the profiler if the process ends without Python's end, and if the program is about to start a profiler of its
    own: only one can run."""
    trace.finalizer = None
    multiprocessing = sys.modules.get("multiprocessing.util")
    if multiprocessing is not None:
        trace.finalizer = multiprocessing.Finalize(None, at_end, exitpriority=-100)
    trace.module = torch.autograd.profiler
    prepare = trace.prepare = getattr(trace.module, "_prepare_profiler", None)

    def gives_way(*arguments, **named):
        warn("the program starts the PyTorch profiler itself: the trace of window %s ends here" % trace.window)
        at_end()
        return prepare(*arguments, **named)

    trace.gives_way = gives_way
    if prepare is not None:
        trace.module._prepare_profiler = gives_way


def _leave(trace):
    if trace.finalizer is not None:
        trace.finalizer.cancel()
    if getattr(trace.module, "_prepare_profiler", None) is trace.gives_way:
        trace.module._prepare_profiler = trace.prepare


def _is_on(torch):
    if getattr(torch.autograd.profiler, "_is_profiler_enabled", False):
        return True
    enabled = getattr(torch.autograd, "_profiler_enabled", None)
    return enabled is not None and enabled()


def _version(torch):
    numbers = torch.__version__.split("+")[0].split(".")
    return tuple(int(number) if number.isdigit() else 0 for number in numbers[:2])


def _free(trace):
    """Returns the path, or a similar one if another process of this run has written to it."""
    try:
        is_another = os.stat(trace.path).st_mtime >= _BEGAN
    except OSError:
        return trace.path
    return "%s-pid-%d%s" % (trace.stem, trace.process, trace.extension) if is_another else trace.path


def _take(traces):
    try:
        return traces.pop()
    except IndexError:
        return None


def _report(error, what):
    """Logs an exception from torch. Raises it again if it came from a signal handler instead."""
    if not isinstance(error, Exception) or _comes_from_handler(error):
        warn(what + ": a signal came meanwhile")
        raise error
    text = str(error).strip()
    warn("%s: %s%s" % (what, type(error).__name__, text and ": " + text.splitlines()[0]))


def _comes_from_handler(error):
    handlers = [_signal.getsignal(number) for number in range(1, _signal.NSIG)]
    codes = [getattr(handler, "__code__", None) for handler in handlers]
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code in codes:
            return True
        traceback = traceback.tb_next
    return False
