"""The code that was compiled."""


class PyCodeCache:
    modules = []
