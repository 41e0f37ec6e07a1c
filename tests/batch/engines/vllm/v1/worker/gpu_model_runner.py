from vllm.shapes import Scheduler
from vllm.v1.worker.gpu_worker import Worker


class GPUModelRunner:
    def __init__(self, requests):
        self.requests = requests

    def _prepare_inputs(self, scheduler_output, num_scheduled_tokens=None):
        assert scheduler_output.total_num_scheduled_tokens > 0


class Engine:
    """The stand-in for vLLM's engine. If `way` says data parallel, it also has idle steps."""

    def __init__(self, way):
        self.runs_idle = way == "data parallel"
        self.scheduler = Scheduler("0.33.0" if self.runs_idle else way)
        self.runner, self.worker = GPUModelRunner(self.scheduler.requests), Worker()

    def step(self, parts, work):
        if parts:
            self.runner._prepare_inputs(self.scheduler.schedule(parts))
        else:
            self.worker.execute_dummy_batch()
        work()
