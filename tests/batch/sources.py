"""Compares the names in formulas with an engine's source: sources.py FOLDER ROWS. The file ROWS has [{"step",
"arguments", "names"}…].

Prints errors, one per line: an argument that the step's function does not have, or a name that is not a plain attribute
of any class in the folder. Plain attributes are fields, slots, what a method assigns to self, and members of an enum.
"""

import ast
import json
import os
import sys

# Names that formulas may use although the engine's source does not define them: the name of an enum member and the
# shape of a tensor. They are attributes of Python's and torch's own classes.
OTHERS = {"_name_", "shape"}


def files(folder):
    for place, _, names in os.walk(folder):
        for name in names:
            if name.endswith(".py"):
                yield os.path.join(place, name)


def functions(node, prefix=""):
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from functions(child, f"{prefix}{child.name}.")
        elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield prefix + child.name, child


def attributes(tree):
    """Yields the plain attributes of the classes."""
    for node in ast.walk(tree):
        targets = []
        if isinstance(node, ast.ClassDef):
            for part in node.body:
                if isinstance(part, ast.AnnAssign):
                    targets.append(part.target)
                elif isinstance(part, ast.Assign):
                    targets += part.targets
                    if getattr(part.targets[0], "id", "") == "__slots__":
                        yield from (word.value for word in ast.walk(part.value) if isinstance(word, ast.Constant))
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            for target in getattr(node, "targets", [getattr(node, "target", None)]):
                if isinstance(target, ast.Attribute) and getattr(target.value, "id", "") == "self":
                    yield target.attr
        yield from (target.id for target in targets if isinstance(target, ast.Name))


def main():
    folder = sys.argv[1]
    with open(sys.argv[2], encoding="utf-8") as text:
        rows = json.load(text)
    trees = {}
    for file in files(folder):
        with open(file, encoding="utf-8") as text:
            trees[file] = ast.parse(text.read())
    plain = OTHERS.union(*(attributes(tree) for tree in trees.values()))
    for row in rows:
        module, _, name = row["step"].partition(":")
        file = os.path.join(folder, module.replace(".", "/") + ".py")
        function = dict(functions(trees[file])).get(name) if file in trees else None
        if function is None:
            print(f"{row['step']}: no such function")
            continue
        has = {argument.arg for argument in function.args.args + function.args.kwonlyargs}
        for argument in row["arguments"]:
            if argument not in has:
                print(f"{row['step']}: no argument {argument}")
        for name in row["names"]:
            if name not in plain:
                print(f"{row['step']}: no plain attribute {name}")


if __name__ == "__main__":
    main()
