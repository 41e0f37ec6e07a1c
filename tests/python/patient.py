"""One thread waits for the GIL much longer than any other thread: until the program ends."""
import ctypes
import os
import threading
import time

library = ctypes.PyDLL(os.environ["TEST_LIBRARY"])
has_waited = threading.Event()


def waits():
    library.wait_for_it(100_000, (ctypes.c_int64 * 2)())
    has_waited.set()
    threading.Event().wait()


threading.Thread(target=waits, name=os.environ.get("THREAD_NAME", "the patient one"), daemon=True).start()
time.sleep(0.02)
library.keep(1_000_000)
has_waited.wait()
