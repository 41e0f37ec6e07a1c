"""Removes comments, strings and tests from Rust source."""

import re

TOKEN = re.compile(
    r"""(?P<line>//[^\n]*)|(?P<block>/\*.*?\*/)|(?P<raw>b?r(?P<hash>\#*)".*?"(?P=hash))"""
    r"""|(?P<string>[bc]?"(?:\\.|[^"\\])*")|(?P<char>b?'(?:\\.[^']*|[^'\\])')""",
    re.S,
)

# Matches the attribute of Rust code that is compiled only for tests.
FOR_TESTS = re.compile(r"#\[cfg\((?:all\()?test\b[^\]]*\]")


def code_of(text, mark=""):
    """Returns Rust code without its comments and strings. `mark` replaces each line of a string. Line numbers stay
    the same."""

    def shortened(found):
        is_comment = found["line"] is not None or found["block"] is not None
        return ("\n" if is_comment else mark + "\n").join([""] * found[0].count("\n") + ["" if is_comment else mark])

    return TOKEN.sub(shortened, text)


def closing(text, start):
    """Returns the end of the Rust item that begins at `start`: the position of its `;`, or of its closing brace."""
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
    """Returns (start, end) for each item that is compiled only for tests. `code` must have no comments and
    strings."""
    return [(found.start(), closing(code, found.end())) for found in FOR_TESTS.finditer(code)]


def without_tests(code):
    """Returns the code with spaces in place of items that are compiled only for tests. Line numbers stay the
    same."""
    for start, end in tests_in(code):
        code = code[:start] + re.sub(r"[^\n]", " ", code[start:end]) + code[end:]
    return code
