"""ends.py END: ends the program in the given way."""

import os
import signal
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import truth

end = sys.argv[1]
printed = threading.Event()


def collects():
    while True:
        truth.work(1)


truth.work()
if end == "daemons":  # the threads are running, waiting for the GIL, or asleep when the interpreter ends
    for target in (collects, collects, collects, lambda: time.sleep(60)):
        threading.Thread(target=target, daemon=True).start()
    time.sleep(0.05)
elif end == "thread-exits":
    for _ in range(5):
        thread = threading.Thread(target=lambda: sys.exit("not shown"))
        thread.start()
        thread.join()
    truth.report()
elif end == "late-thread":  # when the interpreter ends, it waits for this thread
    threading.Thread(target=lambda: (printed.wait(), time.sleep(0.05), truth.work(), print("late"))).start()
elif end == "atexit":
    import atexit

    atexit.register(lambda: (truth.work(), print("at exit")))
elif end == "atexit-cleared":
    import atexit

    atexit._clear()
elif end == "_exit":
    truth.report()
    os._exit(9)
elif end == "_exit-in-thread":
    threading.Thread(target=lambda: (truth.report(), os._exit(10))).start()
    time.sleep(60)
elif end == "exit":
    truth.report()
    sys.exit(11)
elif end == "raises":
    truth.report()
    raise ValueError("on purpose")
elif end == "interrupted":
    # Lets SIGINT interrupt Python even if the parent process ignores SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)
elif end == "killed":
    truth.report()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
elif end == "aborts":
    os.abort()
elif end == "execs":
    truth.report()
    os.execv(sys.executable, [sys.executable, "-c", "import gc; gc.collect(); print('another program')"])
print("end of", end)
printed.set()
