"""A module with marked functions, which several interpreters import."""
from truth_of_calls import paused, ran, report


def called(n):
    with ran("called"):
        return n and called(n - 1)


def generated():
    with ran("generated"):
        with paused("generated"):
            yield 1


# Whenever a module is imported, the library looks for the functions that `TLLMPROF_PY_RANGES` names. So this import
# makes the library find the functions above.
import colorsys  # noqa: E402


def work():
    called(3)
    list(generated())
    report()
