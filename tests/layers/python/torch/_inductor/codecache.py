"""The compiled code."""


class PyCodeCache:
    modules = []
