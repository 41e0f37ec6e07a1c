"""The commands of the documentation.

They stand in fenced blocks of the language `console`, each behind `$ `, and are run by a shell in their order, those of a page
in one folder that has a `./server`, a `./engine` and a `serve.py`. The status has to be 0. Lines behind a command that begin
with `tllmprof:` have to be among those that it prints, but for numbers and units. A word behind `console` says what a block
needs, which is not everywhere:

    console              nothing: the stand-in for CUDA and a stub of nsys and ncu do
    console gpu          a GPU and nsys; where there is no ncu, a stub of it does
    console needs=NAME   NAME, and mostly a name that the reader replaces; only the options of tllmprof are checked
    console repo         the repository: the commands are tests or builds of their own, and have to be there

A command in a block of another kind is a mistake.
"""
