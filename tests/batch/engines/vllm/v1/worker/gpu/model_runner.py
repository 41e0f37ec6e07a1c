from vllm.shapes import Scheduler
from vllm.v1.worker.gpu_worker import Worker


class GPUModelRunner:
    def prepare_inputs(self, scheduler_output, batch_req_state, *, batch_desc=None):
        # The inner function uses the argument. So Python keeps the argument in a closure cell of
        # this function's frame, where the library has to find it.
        return lambda: scheduler_output


class Engine:
    """The stand-in for vLLM's engine. If `way` says data parallel, it also has idle steps."""

    def __init__(self, way):
        self.runs_idle = way == "data parallel"
        self.scheduler, self.runner, self.worker = Scheduler("0.33.0" if self.runs_idle else way), GPUModelRunner(), Worker()

    def step(self, parts, work):
        if parts:
            self.runner.prepare_inputs(self.scheduler.schedule(parts), None)
        else:
            self.worker.execute_dummy_batch()
        work()
