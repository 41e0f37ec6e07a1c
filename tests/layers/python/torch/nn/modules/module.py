"""The function through which torch's modules are called, like in torch itself."""


class Module:
    def __init__(self):
        self._modules = {}

    def __setattr__(self, name, value):
        if isinstance(value, Module):
            self.__dict__["_modules"][name] = value
        object.__setattr__(self, name, value)

    def _wrapped_call_impl(self, *args):
        return self.forward(*args)

    def __call__(self, *args):
        return self._wrapped_call_impl(*args)
