"""Runs the commands of the documentation.

Commands are in fenced blocks of the language `console`, each after `$ `. A shell runs the commands of a page in order,
in one folder that has a `./server`, a `./engine` and a `serve.py`. The exit status must be 0. Lines after a command
that begin with `tllmprof:` must be among the lines that the command prints, except for numbers and units. A word after
`console` is a requirement of the block that not every machine satisfies:

    console              none: the stand-in for CUDA and fake versions of nsys and ncu are enough
    console gpu          a GPU and nsys; without ncu, a fake version is used
    console needs=NAME   NAME, often a name that the reader replaces; only tllmprof's options are checked
    console repo         the repository: the commands are tests or builds themselves, and only have to exist

A command in a block of another language is an error.
"""
