"""children.py KIND: runs Python code in child processes and in their child processes."""

import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import truth


def square(number):
    truth.work(1)
    return number * number


def once(number):
    truth.work(number)
    truth.report()


def main(kind):
    truth.work()
    if kind == "os.fork":
        for code in range(3):
            pid = os.fork()
            if pid == 0:
                truth.work(2)
                truth.report()
                os._exit(code)
            print(os.WEXITSTATUS(os.waitpid(pid, 0)[1]))
    elif kind == "fork-in-thread":
        import threading

        def forks():
            pid = os.fork()
            if pid == 0:
                truth.work()
                truth.report()
                sys.stdout.flush()
                os._exit(5)
            print(os.WEXITSTATUS(os.waitpid(pid, 0)[1]))

        thread = threading.Thread(target=forks)
        thread.start()
        thread.join()
    elif kind == "subprocess":
        source = "import sys; sys.path.insert(0, sys.argv[1]); import truth; truth.work(); truth.report(); print('child')"
        for flags in ([], ["-I"], ["-S", "-E"], ["-X", "dev"]):
            folder = os.path.dirname(truth.__file__)
            print(subprocess.run([sys.executable, *flags, "-c", source, folder], stdout=subprocess.PIPE))
    else:
        import multiprocessing

        context = multiprocessing.get_context(kind)
        children = [context.Process(target=once, args=(n,)) for n in range(1, 4)]
        for child in children:
            child.start()
        for child in children:
            child.join()
        print([child.exitcode for child in children])
        with context.Pool(2) as pool:
            print(pool.map(square, range(20)))
    truth.report()


if __name__ == "__main__":
    main(sys.argv[1])
