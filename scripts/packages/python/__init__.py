"""tllmprof: profile any CUDA program by iteration. The command and its library are not in Python."""
