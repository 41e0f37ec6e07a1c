"""The fake of Inductor's module that holds compiled code."""


class PyCodeCache:
    modules = []
