"""lmdeploy_offline.py MODEL: runs LMDeploy's TurboMind. TurboMind does not count its steps, so this driver writes
no rows for them."""
import sys
import time

from driver import digest, load, refuse, said_round, say


def main():
    requests, tokens, rounds, warm = load((16, 128, 2, 8))
    import lmdeploy
    import lmdeploy.turbomind
    from lmdeploy import GenerationConfig, TurbomindEngineConfig, pipeline
    if not lmdeploy.turbomind.is_available():
        refuse(f"TurboMind does not load: {lmdeploy.turbomind._import_error}")

    began = time.time()
    pipe = pipeline(sys.argv[1], log_level="WARNING", backend_config=TurbomindEngineConfig(
        max_batch_size=requests, session_len=1024, cache_max_entry_count=0.05, dtype="float16"))
    say("UP", version=lmdeploy.__version__, seconds=time.time() - began)

    def config(count):
        return GenerationConfig(max_new_tokens=count, min_new_tokens=count, ignore_eos=True, do_sample=False)

    if warm:
        pipe(["the quick brown fox"], gen_config=config(warm), do_preprocess=False)
    for number in range(rounds):
        began = time.time()
        out = pipe(["the lazy dog " * (i + 1) for i in range(requests)], gen_config=config(tokens), do_preprocess=False)
        said_round(number, began, sum(o.generate_token_len for o in out), [digest(list(o.token_ids)) for o in out])
    pipe.close()


if __name__ == "__main__":
    main()
