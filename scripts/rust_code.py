"""Rust source as text: without comments and strings, and without tests."""

import re

TOKEN = re.compile(
    r"""(?P<line>//[^\n]*)|(?P<block>/\*.*?\*/)|(?P<raw>b?r(?P<hash>\#*)".*?"(?P=hash))"""
    r"""|(?P<string>[bc]?"(?:\\.|[^"\\])*")|(?P<char>b?'(?:\\.[^']*|[^'\\])')""",
    re.S,
)

# Code that is compiled only for tests.
FOR_TESTS = re.compile(r"#\[cfg\((?:all\()?test\b[^\]]*\]")


def code_of(text, mark=""):
    """The text without comments, and with `mark` on each line of a string in its place; lines keep their numbers."""

    def shortened(found):
        is_comment = found["line"] is not None or found["block"] is not None
        return ("\n" if is_comment else mark + "\n").join([""] * found[0].count("\n") + ["" if is_comment else mark])

    return TOKEN.sub(shortened, text)


def closing(text, start):
    """Where the item that starts at `start` ends: its `;`, or the brace that closes it."""
    depth = 0
    for at in range(start, len(text)):
        if text[at] in "{([":
            depth += 1
        elif text[at] in "})]":
            depth -= 1
            if depth == 0 and text[at] == "}":
                return at + 1
        elif text[at] == ";" and depth == 0:
            return at + 1
    return len(text)


def tests_in(code):
    """Where items for tests alone start and end in text without comments and strings."""
    return [(found.start(), closing(code, found.end())) for found in FOR_TESTS.finditer(code)]


def without_tests(code):
    """The same with blanks in place of tests; lines keep their numbers."""
    for start, end in tests_in(code):
        code = code[:start] + re.sub(r"[^\n]", " ", code[start:end]) + code[end:]
    return code
