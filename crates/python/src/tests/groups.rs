//! Tests how the library finds groups of ranks in Python, with stand-ins for torch and for engines.

use super::hosted::{Host, in_few};
use crate::attached;
use crate::groups::find;
use crate::object::Python;

/// Python source of a stand-in for torch. It has a world (group of all ranks) of eight ranks, in which this process
/// has rank 5.
const MADE_UP: &str = "
import sys, types
import multiprocessing.process as processes
class Group:
    def __init__(self, desc=None): self.group_desc = desc
    def rank(self): return 5
    def size(self): return 8
class Config:
    def __init__(self, **values): self.__dict__.update(values)
def module(name, **values):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__dict__.update(values)
def group(*ranks): return Config(ranks=list(ranks), world_size=len(ranks), rank_in_group=ranks.index(5))
def replica(index, size):
    processes._current_process._kwargs = dict(rank=5, vllm_config=Config(
        parallel_config=Config(data_parallel_index=index, world_size=size)))
def torch(**groups):
    all = {Group(name): {rank: n for n, rank in enumerate(ranks)} for name, ranks in groups.items()}
    world = Config(_default_pg=Group('default_pg'))
    module('torch.distributed.distributed_c10d', _world=world, _pg_group_ranks=all)
";

#[track_caller]
fn assert_found(host: &Host, source: &str, expected: &[&str]) {
    host.run(source);
    let api = attached::api().expect("Python is attached to");
    let found = Python::if_held(api, |py| {
        let found = find(py);
        assert!(!py.has_raised(), "{source}");
        found
    });
    let found: Vec<_> = found.unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(found, expected, "{source}");
}

#[test]
fn groups_of_engines_and_of_torch_have_their_names() {
    in_few(&[("TLLMPROF_TRACE", "record")], |host| {
        host.run(MADE_UP);
        assert_found(host, "replica(0, 8)", &[]);
        assert_found(
            host,
            "torch(default_pg=range(8), mesh_dp=[1, 5], mesh_tp=[4, 5, 6, 7], mesh_pp=[5], mesh_ep=[0, 1])",
            &["TP 1 4 4", "DP 1 2 1"],
        );
        // The descriptions of both groups stand for TP (tensor parallelism). In such a case, the group that was created
        // first counts.
        assert_found(
            host,
            "torch(TENSOR_MODEL_PARALLEL_GROUP=[4, 5], mesh_tp=range(8))",
            &["TP 1 2 4"],
        );
        let vllm = "module('vllm.distributed.parallel_state', \
                    _TP=group(4, 5, 6, 7), _PP=group(5), _EP=group(*range(8)), _DP=group(1, 5))";
        assert_found(host, vllm, &["TP 1 4 4", "EP 5 8 0", "DP 1 2 1"]);
        // This replica has a torch world that contains only the replica's own ranks.
        let dense = "module('vllm.distributed.parallel_state', \
                     _TP=group(*range(8)), _PP=group(5), _DP=group(5), _EP=None); replica(2, 8)";
        assert_found(host, dense, &["TP 5 8 16", "DP 2 - -"]);
        assert_found(host, "replica(0, 8)", &["TP 5 8 0"]);
        let sglang = "del sys.modules['vllm.distributed.parallel_state']
module('sglang.srt.distributed.parallel_state', _TP=group(4, 5), _PP=group(1, 3, 5, 7), _MOE_EP=group(4, 5))";
        assert_found(host, sglang, &["TP 1 2 4", "PP 2 4 1", "EP 1 2 4"]);
        host.end();
    });
}

#[test]
fn what_is_no_group_is_left_out() {
    in_few(&[("TLLMPROF_TRACE", "record")], |host| {
        host.run(MADE_UP);
        host.run("torch()");
        for broken in [
            "module('vllm.distributed.parallel_state')",
            "module('vllm.distributed.parallel_state', _TP=None, _PP=5, _DP=Config(), _EP=Config(rank_in_group='x', world_size=4))",
            "module('vllm.distributed.parallel_state', _TP=Config(rank_in_group=4, world_size=4, ranks=[1]))",
            "sys.modules['torch.distributed.distributed_c10d']._pg_group_ranks = 5",
            "sys.modules['torch.distributed.distributed_c10d']._pg_group_ranks = {Group('mesh_tp'): 3, Group(3): {}, 7: {5: 1}}",
            "del sys.modules['torch.distributed.distributed_c10d']._pg_group_ranks",
        ] {
            assert_found(host, broken, &[]);
        }
        let unknown = "module('vllm.distributed.parallel_state', _TP=Config(rank_in_group=1, world_size=4, ranks=None))";
        assert_found(host, unknown, &["TP 1 4 -"]);
        host.end();
    });
}
