"""The part of transformers' `generate` that draft models need: one function that prepares the inputs of a forward
pass, for the main model and for the draft model."""


class GenerationMixin:
    def __init__(self, said, work):
        self.said, self.work = said, work

    def prepare_inputs_for_generation(self, input_ids, **kwargs):
        return {"input_ids": input_ids}

    def forward(self):
        self.prepare_inputs_for_generation([[1]])
        self.work()
        print(self.said)

    def generate(self, passes):
        for _ in range(passes):
            self.forward()
