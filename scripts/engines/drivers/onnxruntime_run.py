"""onnxruntime_run.py MODE: runs a model of 40 layers (MatMul and Relu, 1024 x 1024, float32, batch 64) TOKENS times in
each of ROUNDS rounds. A step is one run of the model. MODE is the way to run it: InferenceSession.run (run),
run_with_iobinding (binding), or run_with_iobinding with replays of a CUDA graph (graph)."""
import hashlib
import os
import sys
import time

import numpy as np
import torch  # noqa: F401  imported because it loads CUDA's libraries, which ONNX Runtime needs
import onnx
import onnxruntime as ort
from driver import Steps, load, refuse, said_round, say
from onnx import TensorProto, helper, numpy_helper

LAYERS, WIDTH, BATCH = 40, 1024, 64


def chain(random):
    nodes, weights, name = [], [], "x"
    for i in range(LAYERS):
        weight = (random.standard_normal((WIDTH, WIDTH)) * (2 / WIDTH) ** 0.5).astype(np.float32)
        weights.append(numpy_helper.from_array(weight, f"w{i}"))
        nodes += [helper.make_node("MatMul", [name, f"w{i}"], [f"m{i}"]), helper.make_node("Relu", [f"m{i}"], [f"r{i}"])]
        name = f"r{i}"
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [BATCH, WIDTH]) for n in ("x", name)]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), name


def main():
    mode = sys.argv[1]
    _, steps_a_round, rounds, _ = load((0, 150, 2, 0))
    random = np.random.default_rng(0)
    model, output = chain(random)
    path = os.path.join(os.environ.get("CACHE", "/tmp"), f"chain-{os.getpid()}.onnx")
    onnx.save(model, path)
    x = random.standard_normal((BATCH, WIDTH)).astype(np.float32)
    began = time.time()
    options = {"enable_cuda_graph": "1"} if mode == "graph" else {}
    session = ort.InferenceSession(path, providers=[("CUDAExecutionProvider", dict(device_id="0", **options))])
    os.remove(path)
    # without CUDA, ONNX Runtime uses the CPU and reports no error
    if session.get_providers()[0] != "CUDAExecutionProvider":
        refuse("ONNX Runtime's CUDA provider does not load")
    given = ort.OrtValue.ortvalue_from_numpy(x, "cuda", 0)
    result = ort.OrtValue.ortvalue_from_shape_and_type((BATCH, WIDTH), np.float32, "cuda", 0)
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", given)
    binding.bind_ortvalue_output(output, result)
    say("UP", version=ort.__version__, seconds=time.time() - began)
    steps = Steps()
    for number in range(rounds):
        began = time.time()
        for _ in range(steps_a_round):
            steps.add(BATCH)
            if mode == "run":
                y = session.run(None, {"x": x})[0]
            else:
                session.run_with_iobinding(binding)
        y = y if mode == "run" else result.numpy()
        said_round(number, began, 0, [hashlib.sha256(y.tobytes()).hexdigest()[:12]])


if __name__ == "__main__":
    main()
