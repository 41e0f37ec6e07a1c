"""Uses a module with marked functions in the main interpreter and in sub-interpreters that are created and ended."""
import os
import sys

try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters

import functions_of_module

functions_of_module.work()
here = os.path.dirname(os.path.abspath(__file__))
for _ in range(3):
    made = [interpreters.create() for _ in range(3)]
    for one in made:
        interpreters.run_string(
            one,
            "import sys; sys.path.insert(0, %r)\nimport functions_of_module\nfunctions_of_module.work()" % here,
        )
    for one in made:
        interpreters.destroy(one)
    functions_of_module.work()
