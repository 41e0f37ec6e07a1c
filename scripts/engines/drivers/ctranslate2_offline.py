"""ctranslate2_offline.py MODEL: runs CTranslate2's Generator. MODEL is first converted to MODEL-ct2, if that does
not exist. A callback of the decoder counts the steps."""
import json
import os
import sys
import time

import ctranslate2
from driver import Steps, digest, env, load, said_round, say


def main():
    requests, tokens, rounds, _ = load((16, 128, 2, 0))
    device, model = env("DEVICE", "cuda"), sys.argv[1]
    converted = model + "-ct2"
    if not os.path.isdir(converted):
        ctranslate2.converters.TransformersConverter(model).convert(converted, quantization="float16")
    began = time.time()
    generator = ctranslate2.Generator(converted, device=device, intra_threads=2,
                                      compute_type="float16" if device == "cuda" else "float32")
    say("UP", version=ctranslate2.__version__, seconds=time.time() - began)
    with open(os.path.join(model, "tokenizer.json")) as file:
        words = {i: word for word, i in json.load(file)["model"]["vocab"].items()}
    prompts = [[words[270 + (i + j) % 20] for j in range(8)] for i in range(requests)]
    steps = Steps()
    for number in range(rounds):
        last = -1

        def callback(step):
            nonlocal last
            # the engine calls back once for each request of a step; only the first call counts the
            # step
            if step.step > last:
                last = step.step
                steps.add(requests)
            return False

        began = time.time()
        out = generator.generate_batch(prompts, max_length=tokens, min_length=tokens, beam_size=1, sampling_topk=1,
                                       include_prompt_in_result=False, end_token=[], callback=callback)
        said_round(number, began, sum(len(o.sequences_ids[0]) for o in out), [digest(o.sequences_ids[0]) for o in out])


if __name__ == "__main__":
    main()
