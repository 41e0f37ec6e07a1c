"""cupy_graph.py STEPS: a loop in CuPy. Each step launches a CUDA graph and a separate kernel, and waits for the
stream."""
import sys

import cupy

from truth import mark

x = cupy.ones(4096, dtype=cupy.float32)
total = cupy.zeros(4096, dtype=cupy.float32)
stream = cupy.cuda.Stream(non_blocking=True)
with stream:
    y = x * 2
    cupy.add(total, 0, out=total)
    cupy.cuda.Device().synchronize()
    stream.begin_capture()
    cupy.multiply(x, 2, out=y)
    cupy.add(y, 1, out=y)
    graph = stream.end_capture()
    for i in range(int(sys.argv[1])):
        graph.launch(stream)
        cupy.add(total, y, out=total)
        mark(i)
        stream.synchronize()
    print("cupy_graph:", float(total.sum()))
