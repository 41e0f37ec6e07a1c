"""Speculative decoding with an assistant model. Prints a line of JSON for each forward pass, with the model that makes
it."""

from py_ctypes import Runtime
from transformers.generation import candidate_generator as candidates
from transformers.generation.utils import GenerationMixin

STEPS = 5

loop = Runtime("libcudart.so.12")
loop.capture()
model, assistant = GenerationMixin("null", loop.step), GenerationMixin('"draft"', loop.step)
model.generate(3)
for kind in (
    candidates.AssistedCandidateGenerator,
    candidates.AssistedCandidateGeneratorDifferentTokenizers,
    candidates.UniversalSpeculativeDecodingGenerator,
    candidates.EarlyExitCandidateGenerator,
):
    generator = kind(assistant)
    for step in range(STEPS):
        generator.get_candidates(1 + step % 3)
        model.forward()
looks_up = candidates.PromptLookupCandidateGenerator()
for step in range(STEPS):
    looks_up.get_candidates(3)
    model.forward()
