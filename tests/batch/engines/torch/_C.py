# What is on of `TorchFunctionMode`, and how many: by compiled code, as torch's own.
modes = []
_len_torch_function_stack = modes.__len__
