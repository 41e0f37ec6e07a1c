"""An engine that the library does not know. With `way` threads, each step runs in a new thread."""

import threading


class Batch:
    def __init__(self, parts):
        self.requests = parts
        self.total = sum(part.tokens for part in parts)
        self.prompts = [part.tokens for part in parts if part.done < part.request.prompt]

    @property
    def computed(self):
        print("a property ran")


class Runner:
    def step(self, batch, work):
        self.forward(batch)
        work()
        return self

    def forward(self, batch, *, scale=1.0):
        """Launches kernels."""


class Engine:
    runs_idle = True

    def __init__(self, way):
        self.runner, self.threads = Runner(), way == "threads"

    def step(self, parts, work):
        args = Batch(parts), work
        if not self.threads:
            self.runner.step(*args)
            return
        thread = threading.Thread(target=self.runner.step, args=args)
        thread.start()
        thread.join()
