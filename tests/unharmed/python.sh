# Runs Python with different start-up options, with ctypes, and with every way to start a child and to end.
python=$(python3 -c 'import sys; print(sys.executable)') || exit
"$python" -X dev -c pass; echo "dev: $?"
"$python" -I -S -E -c 'print(1 + 1)'
"$python" -c 'import sys; sys.exit(12)'; echo "exit: $?"
"$python" -c 'import os; print("lost", end=""); os._exit(13)'; echo "_exit: $?"
"$python" -c 'import ctypes; libc = ctypes.CDLL(None, use_errno=True); print(libc.abs(-5), libc.close(-1), ctypes.get_errno())'
"$python" -c 'import ctypes
try: ctypes.CDLL("libabsent.so.9")
except OSError as error: print(error)'
"$python" -c 'import ctypes; print(hasattr(ctypes.CDLL("libm.so.6"), "cuGraphLaunch"))'
cat > children.py << 'P'
import multiprocessing, os, subprocess, sys, threading

def square(n):
    return n * n

if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            print(method, pool.map(square, range(5)))
    for close_fds in (True, False):
        child = subprocess.run([sys.executable, "-c", "import os; print(sorted(map(int, os.listdir('/proc/self/fd')))[:3])"],
                               close_fds=close_fds, capture_output=True)
        print(child)
    threads = [threading.Thread(target=square, args=(n,)) for n in range(20)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    pid = os.fork()
    if pid == 0:
        os.execvp("sh", ["sh", "-c", "exit 14"])
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    print(os.waitstatus_to_exitcode(os.waitpid(os.posix_spawn("/bin/false", ["false"], os.environ), 0)[1]))
P
"$python" -W ignore children.py; echo "children: $?"
"$python" -W ignore -X dev children.py; echo "children, dev: $?"
{ "$python" -c 'import os, signal; os.kill(os.getpid(), signal.SIGKILL)'; } 2> /dev/null; echo "killed: $?"
# The thread reads without sys.stdin, whose lock Python needs at its end.
"$python" -c 'import os, threading
threading.Thread(target=lambda: os.read(os.pipe()[0], 1), daemon=True).start()
raise SystemExit("message")'; echo "message: $?"
