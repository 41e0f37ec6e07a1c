"""Marked functions of a module that several interpreters import."""
from truth_of_calls import paused, ran, report


def called(n):
    with ran("called"):
        return n and called(n - 1)


def generated():
    with ran("generated"):
        with paused("generated"):
            yield 1


# Python looks for these when it imports: by now there are functions to be found.
import colorsys  # noqa: E402


def work():
    called(3)
    list(generated())
    report()
