"""workers.py [--workers N] [--replicas N] [--SITUATION]: worker processes of an engine with real torch.distributed.

Each replica has its own world, over gloo. Like in vLLM, multiprocessing starts the workers, and an argument says which
replica a worker belongs to.
"""

import argparse
import multiprocessing
import os
import sys

parser = argparse.ArgumentParser()
parser.add_argument("--workers", type=int, default=2)
parser.add_argument("--replicas", type=int, default=1)
parser.add_argument("--begin", type=int, default=0, help="the step before which torch.distributed is initialised")
parser.add_argument("--groups", action="store_true", help="torch.distributed has a group with a description")
parser.add_argument("--plain", action="store_true", help="the workers are of no engine that is known")
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--set-rank", action="store_true", help="the launcher sets RANK and WORLD_SIZE, the other way round")
options = parser.parse_args()


class Config:
    def __init__(self, **values):
        self.__dict__.update(values)


def work(vllm_config, rank, folder):
    import torch.distributed
    from py_ctypes import Driver
    from ranks_step import step

    parallel = vllm_config.parallel_config
    store = os.path.join(folder, "store-%d" % parallel.data_parallel_index)
    loop = Driver("libcuda.so.1")
    loop.capture()
    for n in range(options.steps):
        if n == options.begin:
            torch.distributed.init_process_group(
                "gloo", init_method="file://" + store, rank=rank, world_size=parallel.world_size
            )
            if options.groups:
                torch.distributed.new_group(range(parallel.world_size), group_desc="mesh_tp")
        step(loop)
    assert loop.result()
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def work_plainly(*values):
    work(*values)


def main():
    context = multiprocessing.get_context("spawn")
    workers = []
    for replica in range(options.replicas):
        for rank in range(options.workers):
            parallel = Config(data_parallel_index=replica, data_parallel_rank=0, world_size=options.workers)
            config = Config(parallel_config=parallel)
            if options.set_rank:
                os.environ["RANK"] = str(options.workers - 1 - rank)
                os.environ["WORLD_SIZE"] = str(options.workers)
            if options.plain:
                worker = context.Process(target=work_plainly, args=(config, rank, os.getcwd()))
            else:
                named = {"vllm_config": config, "rank": rank, "folder": os.getcwd()}
                worker = context.Process(target=work, kwargs=named)
            workers.append(worker)
            workers[-1].start()
    for worker in workers:
        worker.join()
    print("workers ended with %s" % [worker.exitcode for worker in workers])
    return max(worker.exitcode for worker in workers)


if __name__ == "__main__":
    sys.exit(main())
