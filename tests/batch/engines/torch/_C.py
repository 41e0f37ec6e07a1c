# The active `TorchFunctionMode`s, and a function that returns their number. Like torch's own
# function, it is compiled code.
modes = []
_len_torch_function_stack = modes.__len__
