"""The function in which vLLM V1 waits for requests, under the same module and name as in vLLM."""


class EngineCoreProc:
    def __init__(self, queue):
        self.input_queue = queue

    def _process_input_queue(self):
        return self.input_queue.get()
