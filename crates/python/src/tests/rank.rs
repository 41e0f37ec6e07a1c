//! Tests how the library finds the process's rank in Python, with stand-ins for torch and for
//! engines.

use crate::attached;
use tllmprof_platform::lifecycle::{HOOKS, OnlyThread, Stage};
use tllmprof_session::{Interpreter, Rank};

use super::hosted::{Host, in_few};
use crate::Cpython;

const RECORDED: (&str, &str) = ("TLLMPROF_TRACE", "record");

/// Python source of a stand-in for torch. Its function `begin` creates a world (group of all ranks) of three ranks, in
/// which this process has rank 1. Its function `work` makes the process look like an engine's worker.
const MADE_UP: &str = "
import sys, types
import multiprocessing.process as processes
c10d = types.ModuleType('torch.distributed.distributed_c10d')
class World: _default_pg = None
class Group:
    def rank(self): return 1
    def size(self): return 3
def begin(): c10d._world._default_pg = Group()
def work(target, *args, **named):
    processes._current_process._target = target
    processes._current_process._args = args
    processes._current_process._kwargs = named
class Config:
    def __init__(self, **values): self.__dict__.update(values)
    def __getattr__(self, name): raise RuntimeError('the program is asked for ' + name)
c10d._world = World()
c10d._world.__dict__['_default_pg'] = None
";
const IMPORTED: &str = "sys.modules[c10d.__name__] = c10d";

fn found() -> String {
    match Cpython.rank() {
        Rank::Known(ranked) => {
            let size = ranked
                .world_size
                .map_or("?".to_owned(), |size| size.to_string());
            format!("{} of {size} by {}", ranked.rank, ranked.source)
        }
        Rank::Unknown(why) => why.to_owned(),
        Rank::None => "none".to_owned(),
        Rank::NotAsked => unreachable!(),
    }
}

/// Forgets the rank, as in the child of a fork.
fn forget() {
    // SAFETY: in this process, only this thread uses the state that these hooks reset.
    let alone = unsafe { OnlyThread::new() };
    let ours = HOOKS.iter().filter(|hook| hook.stage == Stage::Sinks);
    ours.filter_map(|hook| hook.child)
        .for_each(|child| child(&alone));
}

#[test]
fn the_world_of_torch_gives_the_rank_once_it_is_there() {
    in_few(&[RECORDED], |host| {
        host.run(MADE_UP);
        assert_eq!(found(), "none");
        host.run(IMPORTED);
        assert_eq!(found(), "torch.distributed is not initialised");
        host.run("begin()");
        assert_eq!(found(), "1 of 3 by torch.distributed");
        // A known rank is not looked up again, so it stays known when the world (the group of all ranks) no longer
        // exists.
        host.run("c10d._world._default_pg = None");
        assert_eq!(found(), "1 of 3 by torch.distributed");
        host.end();
    });
}

#[test]
fn the_child_of_a_fork_has_its_parents_world_and_not_its_rank() {
    in_few(&[RECORDED], |host| {
        host.run(MADE_UP);
        host.run(IMPORTED);
        host.run("begin()");
        assert_eq!(found(), "1 of 3 by torch.distributed");
        forget();
        assert_eq!(found(), "torch.distributed is not initialised");
        host.run("old = c10d._world._default_pg; begin()");
        assert_eq!(found(), "1 of 3 by torch.distributed");
        host.end();
    });
}

#[test]
fn without_the_gil_the_main_thread_is_asked_and_nobody_waits() {
    in_few(&[RECORDED], |host| {
        host.run(MADE_UP);
        host.run(IMPORTED);
        host.run("begin()");
        let before = host.without_gil(found);
        let api = attached::api().expect("Python is attached to");
        let is_asked = api.version.takes_pending_calls_to_the_end();
        let answer = if is_asked {
            "Python's main thread has not answered yet"
        } else {
            "none"
        };
        assert_eq!(before, answer);
        host.run("for n in range(1000): pass");
        let after = if is_asked {
            "1 of 3 by torch.distributed"
        } else {
            "none"
        };
        assert_eq!(host.without_gil(found), after);
        // The test's thread holds the GIL, so it looks up the rank itself.
        assert_eq!(found(), "1 of 3 by torch.distributed");
        host.end();
    });
}

#[test]
fn what_goes_wrong_is_not_raised_in_the_program() {
    in_few(&[RECORDED], |host| {
        host.run(MADE_UP);
        host.run(IMPORTED);
        for broken in [
            "del c10d._world",
            "c10d._world = Config()",
            "c10d._world = Config(_default_pg=Config())",
            "c10d._world._default_pg = Config(rank=lambda: 1 / 0, size=len)",
            "c10d._world._default_pg = Config(rank=lambda: -1, size=lambda: 3)",
            "sys.modules[c10d.__name__] = None",
        ] {
            host.run(broken);
            assert_eq!(found(), "torch.distributed is not initialised", "{broken}");
            host.run("assert sys.exc_info() == (None, None, None)");
        }
        host.end();
    });
}

/// Asserts the rank that is found after `work` has run, in a world of three ranks.
#[track_caller]
fn assert_found(host: &Host, work: &str, expected: &str) {
    forget();
    host.run("begin()");
    host.run(work);
    assert_eq!(found(), expected, "{work}");
}

#[test]
fn replicas_of_an_engine_have_worlds_of_their_own() {
    const VLLM: &str = "
def vllm(index, size): work(None, rank=1, vllm_config=Config(
    parallel_config=Config(data_parallel_index=index, data_parallel_rank=0, world_size=size)))
";
    const SGLANG: &str = "
def run_scheduler_process(server_args, port_args, gpu_id, tp_rank, pp_rank, dp_rank, pipe): here = 1
def sglang(dp_rank, dp_size, attention): work(run_scheduler_process,
    Config(dp_size=dp_size, enable_dp_attention=attention), None, 0, 1, 0, dp_rank, None)
class Parallel:
    __slots__ = ('_stamp', '_config')
def sglang_of_context(dp_rank, dp_size):
    work(None)
    context = types.ModuleType('sglang.srt.runtime_context')
    context._PARALLEL = Parallel()
    context._PARALLEL._stamp = dict(dp_rank=dp_rank)
    context._PARALLEL._config = Config(_fields=dict(dp_size=dp_size))
    sys.modules[context.__name__] = context
";
    in_few(&[RECORDED], |host| {
        host.run(MADE_UP);
        host.run(IMPORTED);
        host.run(VLLM);
        host.run(SGLANG);
        for (work, expected) in [
            ("vllm(0, 3)", "1 of 3 by torch.distributed"),
            ("vllm(2, 3)", "7 of ? by torch.distributed and vLLM"),
            // In the next two cases, the torch world contains the ranks of all replicas, so the process's rank in this
            // world is its rank in the job.
            ("vllm(1, 2)", "1 of 3 by torch.distributed"),
            ("sglang(None, 1, False)", "1 of 3 by torch.distributed"),
            (
                "sglang(0, 2, False)",
                "1 of 6 by torch.distributed and SGLang",
            ),
            (
                "sglang(1, 2, False)",
                "4 of 6 by torch.distributed and SGLang",
            ),
            ("sglang(1, 2, True)", "1 of 3 by torch.distributed"),
            (
                "sglang_of_context(1, 2)",
                "4 of 6 by torch.distributed and SGLang",
            ),
            ("sglang_of_context(1, 1)", "1 of 3 by torch.distributed"),
            ("sglang_of_context(None, 1)", "1 of 3 by torch.distributed"),
        ] {
            assert_found(host, work, expected);
        }
        host.run("del sys.modules['sglang.srt.runtime_context']");
        // If no torch world exists, the rank is computed from the arguments of vLLM's worker. The arguments of SGLang's
        // worker are not used for this, so its rank is unknown.
        host.run("begin = lambda: setattr(c10d._world, '_default_pg', None)");
        assert_found(host, "vllm(2, 3)", "7 of ? by vLLM");
        assert_found(host, "vllm(0, 3)", "1 of 3 by vLLM");
        assert_found(
            host,
            "sglang(1, 2, False)",
            "torch.distributed is not initialised",
        );
        host.end();
    });
}

#[test]
fn a_rank_that_the_user_sets_needs_no_python() {
    in_few(
        &[RECORDED, ("TLLMPROF_RANK", "5"), ("TLLMPROF_GIL", "1")],
        |host| {
            host.run(MADE_UP);
            host.run(IMPORTED);
            host.run("begin()");
            assert_eq!(found(), "none");
            host.end();
        },
    );
}
