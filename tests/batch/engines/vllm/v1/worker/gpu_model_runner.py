from vllm.shapes import Scheduler


class GPUModelRunner:
    def __init__(self, requests):
        self.requests = requests

    def _prepare_inputs(self, scheduler_output, num_scheduled_tokens=None):
        assert scheduler_output.total_num_scheduled_tokens > 0


class Engine:
    runs_idle = False

    def __init__(self, way):
        self.scheduler = Scheduler(way)
        self.runner = GPUModelRunner(self.scheduler.requests)

    def step(self, parts, work):
        self.runner._prepare_inputs(self.scheduler.schedule(parts))
        work()
