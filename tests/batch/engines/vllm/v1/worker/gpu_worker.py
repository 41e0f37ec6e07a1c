class Worker:
    """Of a rank of data parallelism that runs the model for the others while it has nothing to do."""

    def execute_dummy_batch(self):
        pass
