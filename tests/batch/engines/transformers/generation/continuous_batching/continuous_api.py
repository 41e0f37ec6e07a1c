class RequestState:
    def __init__(self, part):
        self.initial_tokens = [0] * part.request.prompt
        self.tokens_to_process = [0] * part.tokens
        self.position_offset = part.done + part.tokens


class FutureRequestState:
    __slots__ = ("state", "query_length")

    def __init__(self, part):
        self.state, self.query_length = RequestState(part), part.tokens


class ContinuousBatchingIOs:
    def __init__(self, parts):
        self.requests_in_batch = [FutureRequestState(part) for part in parts]
        self.total_seqlen_q = sum(part.tokens for part in parts)


class Pair:
    def __init__(self, parts):
        self.host_io = ContinuousBatchingIOs(parts)


class ContinuousBatchingAsyncIOs:
    def __init__(self, parts, current):
        self.current_pair, self.io_pairs = current, [Pair([]), Pair([])]
        self.io_pairs[current] = Pair(parts)

    @property
    def use_block_table(self):
        raise AssertionError("a property was read")


class ContinuousBatchProcessor:
    def _generation_step(self, model):
        """Performs a single generation step."""


class Engine:
    runs_idle = False

    def __init__(self, way):
        self.way, self.processor, self.steps = way, ContinuousBatchProcessor(), 0

    def step(self, parts, work):
        processor, self.steps = self.processor, self.steps + 1
        if self.way == "synchronous":
            processor.inputs_and_outputs = ContinuousBatchingIOs(parts)
        elif self.way == "asynchronous":
            processor.inputs_and_outputs = ContinuousBatchingAsyncIOs(parts, self.steps % 2)
        else:
            processor.requests_in_batch = [RequestState(part) for part in parts]
            processor.actual_query_length = sum(part.tokens for part in parts)
        processor._generation_step(None)
        work()
