"""`python -m tllmprof` runs the command that this package installed in this Python's environment."""
import importlib.metadata
import os
import sys


def command():
    # path of the command if the package was installed with `pip install --target`
    beside = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "bin", "tllmprof")
    installed = [os.fspath(file.locate()) for file in importlib.metadata.files("tllmprof") or ()
                 if file.name == "tllmprof" and file.parent.name == "bin"]
    for path in [*installed, beside]:
        if os.access(path, os.X_OK):
            return os.path.realpath(path)
    sys.exit(f"tllmprof: the command was not found, neither {' nor '.join([*installed, beside])} (wanted: the package installed by pip)")


path = command()
os.execv(path, [path, *sys.argv[1:]])
