"""A scripted reader of reports that knows nothing about tllmprof. It asks `tllmprof mcp` for the brief of a run and then
for the first finding, and names the cause by fixed rules. It sees nothing else. It shows if the brief is enough to find
the cause.

   python3 scripts/gpu_check/reader.py TLLMPROF FOLDER [FILE...]    # files are relative to FOLDER; none: its newest run

It prints JSON: the cause ("" if there is none), the words that name the function or file of the cause, and the numbers
of calls and of characters that it needed."""
import json
import re
import subprocess
import sys

MAX_CALLS, MAX_CHARACTERS = 3, 16_000
# Matches the beginning of a finding in the answer of the tool `brief`: two spaces and the finding's name.
FINDING = re.compile(r"^  ([a-z][a-z-]+)(?: \(costs [^)]*\))?: ", re.MULTILINE)
IDENTIFIER = re.compile(r"\bid ([a-z-]+), confidence (low|medium|high); more: ")


class Tools:
    """The tools of a running `tllmprof mcp`. Counts the calls and the characters of the answers."""

    def __init__(self, command, folder):
        self.server = subprocess.Popen([command, "mcp", folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8")
        self.number = self.calls = self.characters = 0
        self.ask("initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo={"name": "reader", "version": "1"})
        self.write(method="notifications/initialized")

    def write(self, **message):
        self.server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        self.server.stdin.flush()

    def ask(self, method, **params):
        self.number += 1
        self.write(id=self.number, method=method, params=params)
        return json.loads(self.server.stdout.readline())

    def call(self, tool, **arguments):
        self.calls += 1
        result = self.ask("tools/call", name=tool, arguments=arguments)["result"]
        text = "\n".join(part["text"] for part in result["content"])
        self.characters += len(text)
        if result.get("isError"):
            raise ValueError(text)
        return result["content"][0]["text"]

    def end(self):
        self.server.stdin.close()
        self.server.wait()


def read(command, folder, files=()):
    """Lets the reader read a run. Returns the object that this script prints as JSON."""
    tools = Tools(command, folder)
    try:
        of = {"files": list(files)} if files else {}
        brief = tools.call("brief", **of)
        first, said = FINDING.search(brief), IDENTIFIER.search(brief)
        cause = where = ""
        if first and said:
            finding = json.loads(tools.call("finding", id=said.group(1), **of))
            if finding["verdict"] == "yes" and finding["kind"] in ("cause", "note"):
                cause = finding["id"]
                rows = " ".join(row["cause"] for row in finding["rows"][:3])
                where = f"{finding['evidence']} {finding['advice']} {rows}"
    finally:
        tools.end()
    return {"cause": cause, "where": where, "calls": tools.calls, "characters": tools.characters}


def faults(said):
    """Returns the limits (MAX_CALLS, MAX_CHARACTERS) that the reader exceeded, in words."""
    found = []
    if said["calls"] > MAX_CALLS:
        found.append(f"{said['calls']} calls")
    if said["characters"] > MAX_CHARACTERS:
        found.append(f"{said['characters']} characters")
    return found


if __name__ == "__main__":
    print(json.dumps(read(sys.argv[1], sys.argv[2], sys.argv[3:])))
