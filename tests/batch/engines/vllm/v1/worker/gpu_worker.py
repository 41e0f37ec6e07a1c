class Worker:
    """The worker of a rank of data parallelism, which runs the model for the other ranks while it has no requests."""

    def execute_dummy_batch(self):
        pass
