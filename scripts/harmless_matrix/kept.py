"""Keeps the outcomes of earlier runs in a file, so that a matrix that takes too long for one run can be completed
in several runs."""
import dataclasses
import hashlib
import json
import threading

from .cells import Outcome


class Kept:
    """A file of JSON lines, one for each program and surrounding. A line's key is a hash of the library, the program
    and the surrounding, so that changes to any of them make the line invalid."""

    def __init__(self, path, library):
        self.path, self.found, self.writing = path, {}, threading.Lock()
        self.taken = 0
        with open(library, "rb") as file:
            self.library = hashlib.sha256(file.read()).hexdigest()
        with open(path, "a+") as file:
            file.seek(0)
            text = file.read()
            if not text.endswith("\n"):  # an earlier run was killed while it wrote the last line
                file.write("\n")
        for line in text.splitlines():
            try:
                kept = json.loads(line)
            except ValueError:
                continue
            self.found[kept["key"]] = [Outcome(**outcome) for outcome in kept["outcomes"]]

    def key(self, *what):
        return hashlib.sha256(repr((self.library, *what)).encode()).hexdigest()

    def take(self, key):
        """Returns the kept outcomes with this key, if all are "same" or "once". Otherwise returns None, so that the
        program is run again."""
        found = self.found.get(key)
        if not found or any(outcome.verdict not in ("same", "once") for outcome in found):
            return None
        self.taken += len(found)
        return found

    def add(self, key, outcomes):
        line = json.dumps({"key": key, "outcomes": [dataclasses.asdict(outcome) for outcome in outcomes]})
        with self.writing, open(self.path, "a") as file:
            file.write(line + "\n")
