//! The situations in which the tests run a program under the library. Each has the public report that it comes from,
//! an event, an expected result, and a test that checks the result.

use std::fs;
use std::time::SystemTime;

use tllmprof_report::{Process, State};

use crate::harness::{Case, Ran, has, numbers};

/// A situation, which is a row of the table in `docs/harmless.md`.
pub(crate) struct Situation {
    pub kind: &'static str,
    pub report: &'static str,
    pub happens: &'static str,
    pub then: &'static str,
}

macro_rules! situations {
    ($($name:ident: $kind:literal, $report:literal, $happens:literal, $then:literal, $test:expr;)*) => {
        pub(crate) const ALL: &[Situation] = &[$(Situation {
            kind: $kind,
            report: $report,
            happens: $happens,
            then: $then,
        }),*];
        $(#[test]
        fn $name() {
            let test: fn() = $test;
            test();
        })*
    };
}

const OPENED: &str = "window all opened at iteration 0";
const CLOSED: &str = "window all closed: ";
const CAPTURED: &str = "window all captured: ";
const USUAL: [&str; 3] = [OPENED, CLOSED, CAPTURED];

/// Runs the program. Asserts that there is a complete record of this number of iterations, and that the library logged
/// only its usual messages.
#[track_caller]
fn is_whole(case: &Case<'_>, iterations: u64) -> Option<Ran> {
    let ran = case.compare()?;
    ran.says(&USUAL).record(State::Whole, iterations);
    Some(ran)
}

/// Runs the program. Asserts that the record ends within the window, that the library logged the reason `why`, and that
/// the record counts the missing events.
#[track_caller]
fn ends_early(case: &Case<'_>, iterations: u64, why: &str) {
    let Some(ran) = case.compare() else { return };
    // On a busy machine, the limit may be reached before the library's own thread first calls the driver.
    let optional = "tllmprof's thread does not call the driver: there is no memory";
    ran.says_and_may(&[OPENED, why, CLOSED, CAPTURED], Some(optional));
    is_cut_off(&ran, iterations);
}

/// Asserts that the record has only some iterations from the first one on, and that it counts the missing events.
#[track_caller]
fn is_cut_off(ran: &Ran, iterations: u64) {
    let [record] = &ran.records[..] else {
        panic!("{} records", ran.records.len());
    };
    assert_eq!(record.state(), State::Whole, "{}", record.record.damage);
    let (kept, dropped) = (numbers(record).len() as u64, record.record.dropped);
    assert!(kept > 20 && kept < iterations, "{kept}");
    assert!(kept + dropped >= iterations, "{kept} and {dropped}");
}

/// Runs the program. Asserts that there is no record, that no other file was left in its place, and that the library
/// logged the reason `why`.
#[track_caller]
fn has_none(case: &Case<'_>, why: &str) {
    let Some(ran) = case.compare() else { return };
    ran.says(&[why, OPENED, CLOSED, CAPTURED]);
    assert_eq!((ran.records.len(), ran.empty), (0, 0));
    assert_eq!(fs::read_dir(ran.path("left")).unwrap().count(), 0);
}

/// Runs the program. Asserts that the record is that of a process that was killed just before step `at`, that is,
/// during iteration `at - 1`.
#[track_caller]
fn is_unfinished(case: &Case<'_>, at: u64) {
    let Some(ran) = case.compare() else { return };
    ran.says(&[OPENED]);
    // An iteration that was running when the process was killed has no end, so the record does not have it.
    ran.record(State::Unfinished, at - 1);
}

situations! {
    addresses_are_used_up: "memory limits",
        "https://github.com/GrapheneOS/hardened_malloc/issues/235",
        "`RLIMIT_AS` is reached within the window",
        "the record ends there, with a line; what is missing is counted",
        || ends_early(
            &Case { arguments: "addresses 40000 20", ..Case::NEW },
            40_000,
            "ends here: it could not be mapped: there is no memory for it",
        );
    data_is_used_up: "memory limits",
        "https://github.com/llvm/llvm-project/pull/98625",
        "`RLIMIT_DATA` is reached within the window",
        "the record is whole: it is no data of the process's",
        || drop(is_whole(&Case { arguments: "data 20000 20", ..Case::NEW }, 20_000));
    no_memory_is_left_to_call_the_driver: "memory limits",
        "https://github.com/StephanGocht/VeriPB/issues/30",
        "`RLIMIT_DATA` is reached, and the C library has no memory left, before the library's own thread calls the driver",
        "a line says that the device is not waited for",
        || {
            let case = Case {
                arguments: "all_data 200 20",
                variables: &[("TLLM_PROFILE_START_STOP", "0-29"), ("TLLMPROF_TRACE", "")],
                ..Case::NEW
            };
            let Some(ran) = case.compare() else { return };
            ran.says(&[
                "window 0-29 opened at iteration 0",
                "tllmprof's thread does not call the driver: there is no memory for thread-local variables",
                "window 0-29 closed: 30 iterations",
                "window 0-29 captured: ",
            ]);
        };
    all_memory_is_locked: "memory limits",
        "https://github.com/GrapheneOS/hardened_malloc/issues/128",
        "`mlockall(MCL_FUTURE)` with a small `RLIMIT_MEMLOCK`, within the window",
        "the record ends there, with a line; what is missing is counted",
        || ends_early(
            &Case { arguments: "locked 40000 20", ..Case::NEW },
            40_000,
            "ends here: it could not be mapped: no more memory may be locked",
        );
    the_kernel_ends_a_process_without_memory: "memory limits",
        "https://github.com/kubernetes/kubernetes/issues/114142",
        "the memory of a control group is used up within the window, and the kernel kills",
        "the record is unfinished, and has all iterations until then",
        || is_unfinished(&Case {
            arguments: "memory 200 20",
            prepare: "group memory memory.limit_in_bytes memory.max; set_one memory.limit_in_bytes 64M; \
                      set_one memory.max 64M; set_one memory.swap.max 0; enter",
            after: "leave",
            ..Case::NEW
        }, 20);
    no_thread_may_be_made: "limits of threads",
        "https://github.com/moby/moby/issues/20096",
        "`pids.max` of the control group leaves no thread to the library",
        "the record is whole",
        || drop(is_whole(&Case {
            arguments: "nothing 200 20",
            prepare: "group pids pids.max pids.max; set_one pids.max 1; enter",
            after: "leave",
            ..Case::NEW
        }, 200));
    a_hundred_thousand_threads: "limits of threads",
        "https://github.com/PaperMC/Paper/issues/7485",
        "100 000 threads come and go within the window, each with a launch",
        "the record is whole and has each launch",
        || {
            let case = Case { arguments: "threads 100 20", ..Case::NEW };
            let Some(ran) = is_whole(&case, 100) else { return };
            let launches: u64 = ran.records[0]
                .windows
                .iter()
                .flat_map(|window| &window.iterations)
                .map(|iteration| u64::from(iteration.launches))
                .sum();
            // In each of 100 steps, the program makes 1000 kernel launches and then a graph launch, which begins an
            // iteration. The first 1000 kernel launches come before the first iteration, so they belong to none.
            let (made, dropped) = (100 + 99_000, ran.records[0].record.dropped);
            assert!(launches <= made && launches + dropped >= made, "{launches} and {dropped}");
        };
    a_stack_is_as_small_as_may_be: "limits of threads",
        "https://github.com/google/sanitizers/issues/522",
        "each step is made on a thread with a stack of `PTHREAD_STACK_MIN` bytes",
        "the record is whole",
        || drop(is_whole(&Case { arguments: "tiny 200 20", ..Case::NEW }, 200));
    a_process_is_frozen: "stopped processes",
        "https://github.com/moby/moby/pull/6061",
        "the control group is frozen for 0.4 s within the window, as by `docker pause`",
        "the record is whole; the iteration took at least as long",
        || is_held(&Case {
            arguments: "frozen 200 20 GROUP",
            prepare: "group freezer freezer.state cgroup.freeze; enter; \
                      n=$#; while [ $n -gt 0 ]; do [ \"$1\" = GROUP ] && set -- \"$@\" $group || set -- \"$@\" \"$1\"; \
                      shift; n=$((n - 1)); done",
            after: "leave",
            ..Case::NEW
        });
    a_process_is_stopped: "stopped processes",
        "https://github.com/checkpoint-restore/criu/issues/20",
        "`SIGSTOP`, and `SIGCONT` after 0.4 s, within the window",
        "the record is whole; the iteration took at least as long",
        || is_held(&Case { arguments: "stopped 200 20", ..Case::NEW });
    time_is_the_quotas: "stopped processes",
        "https://github.com/kubernetes/kubernetes/issues/67577",
        "the control group may have a twentieth of a processor",
        "the record is whole",
        || drop(is_whole(&Case {
            arguments: "nothing 4000 20",
            prepare: "group cpu cpu.cfs_quota_us cpu.max; set_one cpu.cfs_quota_us 5000; \
                      set_one cpu.max '5000 100000'; enter",
            after: "leave",
            ..Case::NEW
        }, 4000));
    a_process_has_a_processor_for_itself: "stopped processes",
        "https://github.com/google/sanitizers/issues/614",
        "`SCHED_FIFO` on one processor: no other thread of the process runs there unless this one waits",
        "the record is whole",
        || drop(is_whole(&Case { arguments: "alone 2000 20", ..Case::NEW }, 2000));
    an_image_is_taken: "checkpoint and restore",
        "https://github.com/checkpoint-restore/criu/issues/3040",
        "`gcore` takes an image of the process within the window",
        "the record is whole",
        || {
            if has("gcore") && has("gdb") {
                is_whole(&Case { arguments: "dumped 200 20", after: "rm -f image.*", ..Case::NEW }, 200);
            }
        };
    a_clock_begins_elsewhere: "checkpoint and restore",
        "https://github.com/namhyung/uftrace/issues/1916",
        "a time namespace, in which the monotonic clock is eleven days ahead, as after a restore on another machine",
        "the record is whole, and its time of day is right",
        || {
            let case = Case {
                arguments: "nothing 200 20",
                namespaces: "--time --monotonic 1000000 --boottime 1000000 --fork",
                ..Case::NEW
            };
            let Some(ran) = is_whole(&case, 200) else { return };
            let record = &ran.records[0];
            let start = record.windows[0].iterations[0].start;
            let unix = start.cast_signed() + record.record.unix_minus_monotonic;
            let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as i64;
            assert!((now - 3_600_000_000_000..=now).contains(&unix), "{unix} {now}");
        };
    a_file_cannot_be_reserved: "NFS and FUSE folders",
        "https://github.com/fluent/fluent-bit/issues/4279",
        "the file system of the record has no `fallocate`, as NFS before 4.2",
        "the record is whole",
        || drop(is_whole(&Case {
            arguments: "nothing 20000 20",
            prepare: "mkdir disk; mount -t ramfs ramfs disk || exit 98; export TLLMPROF_TRACE=disk/%p.tllmprof",
            after: "cp disk/*.tllmprof records 2>/dev/null",
            ..Case::NEW
        }, 20_000));
    a_file_cannot_be_shared: "NFS and FUSE folders",
        "https://github.com/redbo/cloudfuse/issues/74",
        "the file system of the record is in user space and lets no file be mapped shared",
        "a line says so; there is no record, and no file in its place",
        || has_none(&Case {
            arguments: "nothing 200 20",
            prepare: "mkdir disk left; [ -e /dev/fuse ] || { echo 'no /dev/fuse' >&2; exit 98; }; \
                      export TLLMPROF_TRACE=disk/%p.tllmprof; \
                      printf '\"$@\"; status=$?; cp disk/* left 2>/dev/null; exit $status\\n' > look; \
                      before=\"$FUSE disk sh look\"",
            ..Case::NEW
        }, "it could not be mapped: the file system lets no file be shared in memory");
    the_folder_goes_and_all_descriptors: "NFS and FUSE folders",
        "https://github.com/ValveSoftware/gamescope/issues/2422",
        "`close_range(3, ~0)`, and the program's own files take all numbers; the record's folder is removed",
        "the program's files stay empty; the record ends, with a line",
        || {
            let case = Case {
                arguments: "closed 40000 20 gone",
                prepare: "mkdir gone; export TLLMPROF_TRACE=gone/%p.tllmprof",
                ..Case::NEW
            };
            let Some(ran) = case.compare() else { return };
            ran.says(&[
                OPENED,
                "ends here: its file was closed, and is not where it was",
                CLOSED,
                CAPTURED,
            ]);
            assert!(ran.records.is_empty());
        };
    every_descriptor_is_taken: "descriptors",
        "https://github.com/WhiteBeamSec/WhiteBeam/issues/39",
        "`dup2` of the program's own file over every descriptor above 2, within the window",
        "the program's file stays empty; the record is whole",
        || drop(is_whole(&Case { arguments: "taken 20000 20", ..Case::NEW }, 20_000));
    the_disk_is_unmounted: "NFS and FUSE folders",
        "https://github.com/netdata/netdata/issues/2727",
        "`umount -l` of the record's disk within the window",
        "the record is whole, where that disk is seen",
        || drop(is_whole(&Case {
            arguments: "unmounted 20000 20 seen",
            prepare: "mkdir seen; mount --bind records seen || exit 98; export TLLMPROF_TRACE=seen/%p.tllmprof",
            ..Case::NEW
        }, 20_000));
    pages_are_huge: "huge pages",
        "https://github.com/Sandia-OpenSHMEM/SOS/issues/1207",
        "the record is on a file system of huge pages (`hugetlbfs`) that has none left",
        "a line says that the disk is full; there is no record, and no file in its place",
        || has_none(&Case {
            arguments: "nothing 200 20",
            prepare: "mkdir disk left; mount -t hugetlbfs -o size=0 hugetlbfs disk || exit 98; \
                      export TLLMPROF_TRACE=disk/%p.tllmprof",
            after: "cp disk/* left 2>/dev/null",
            ..Case::NEW
        }, "it could not grow: the disk is full");
    shared_memory_is_huge: "huge pages",
        "https://github.com/koute/bytehound/issues/125",
        "the record is on a `tmpfs` with `huge=always`",
        "the record is whole",
        || drop(is_whole(&Case {
            arguments: "nothing 20000 20",
            prepare: "mkdir disk; mount -t tmpfs -o huge=always tmpfs disk || exit 98; \
                      export TLLMPROF_TRACE=disk/%p.tllmprof",
            after: "cp disk/*.tllmprof records 2>/dev/null",
            ..Case::NEW
        }, 20_000));
    a_container_has_no_tools: "containers without tools",
        "https://github.com/jvm-profiling-tools/ap-loader/issues/15",
        "a root with the program and its libraries alone: no shell, `/proc`, `/dev`, `/etc` or `/tmp`",
        "the record is whole",
        || drop(is_whole(&Case {
            arguments: "nothing 200 20",
            prepare: "mkdir -p root/records; for file in \"$1\" $preload $libraries/libcuda.so.1 $(LD_LIBRARY_PATH=$libraries ldd \"$1\" $preload | \
                      grep -o '/[^ ]*[^ :]' | sort -u); do [ -f \"$file\" ] && cp -L --parents \"$file\" root; done; \
                      mount --bind records root/records || exit 98; inside='chroot root'",
            variables: &[("TLLMPROF_TRACE", "/records/%p.tllmprof")],
            ..Case::NEW
        }, 200));
    there_is_no_proc: "containers without tools",
        "https://github.com/openSUSE/installation-images/pull/427",
        "nothing is mounted at `/proc`",
        "the record is whole",
        || drop(is_whole(&Case {
            arguments: "nothing 200 20",
            prepare: "mount -t tmpfs tmpfs /proc || exit 98",
            after: "umount /proc",
            ..Case::NEW
        }, 200));
    the_root_is_another: "containers without tools",
        "https://github.com/async-profiler/async-profiler/issues/147",
        "`chroot` into an empty folder within the window",
        "the record is whole",
        || drop(is_whole(&Case {
            arguments: "root 20000 20 empty",
            prepare: "mkdir empty",
            ..Case::NEW
        }, 20_000));
    the_user_is_another: "containers without tools",
        "https://github.com/DataDog/ddprof/pull/122",
        "root becomes `nobody` within the window, and the process may not be dumped: `/proc/self` is closed to it",
        "the record is whole",
        || drop(is_whole(&Case { arguments: "user 20000 20", ..Case::NEW }, 20_000));
    a_worker_has_a_title: "Ray and torchrun",
        "https://github.com/ray-project/ray/issues/15061",
        "a title is written over the arguments and the environment, as far as the last variable seems to reach; later the \
         environment is cleared",
        "the record is whole",
        || drop(is_whole(&Case { arguments: "title 200 20", ..Case::NEW }, 200));
    a_worker_is_restarted: "Ray and torchrun",
        "https://github.com/pytorch/pytorch/issues/108158",
        "a worker aborts within the window and is started again, with the same rank",
        "each has a record of that rank: the first is unfinished, the second whole",
        || {
            let case = Case {
                arguments: "fails 200 20",
                prepare: "printf 'TORCHELASTIC_RESTART_COUNT=0 \"$@\"; TORCHELASTIC_RESTART_COUNT=1 \"$@\"\\n' > agent; \
                          inside='sh agent'",
                variables: &[("RANK", "3"), ("TLLMPROF_TRACE", "records/%r-%p.tllmprof")],
                ..Case::NEW
            };
            let Some(ran) = case.compare() else { return };
            ran.says(&[OPENED, OPENED, CLOSED, CAPTURED]);
            let [first, second] = &ran.records[..] else {
                panic!("{} records\n{}", ran.records.len(), ran.output.err());
            };
            assert_eq!((first.state(), second.state()), (State::Unfinished, State::Whole));
            assert_eq!((numbers(first).len(), numbers(second).len()), (19, 200));
            for record in [first, second] {
                let name = record.file.file_name().unwrap().to_str().unwrap();
                assert!(name.starts_with("3-"), "{name}");
            }
        };
    a_job_is_preempted: "Ray and torchrun",
        "https://github.com/NVIDIA-NeMo/Automodel/issues/405",
        "Slurm's `SIGTERM` ends the process within the window",
        "the record is unfinished, and has all iterations until then",
        || is_unfinished(&Case { arguments: "terminated 200 20", ..Case::NEW }, 20);
    a_ring_is_cut_off: "Ray and torchrun",
        "https://github.com/siderolabs/talos/issues/11895",
        "`SIGKILL` after the flight recorder has written over its iterations many times",
        "the record is unfinished, and has the latest iterations without a gap",
        || {
            let case = Case {
                arguments: "killed 60000 50000",
                variables: &[("TLLM_PROFILE_START_STOP", ""), ("TLLMPROF_FLIGHT", "1000")],
                ..Case::NEW
            };
            let Some(ran) = case.compare() else { return };
            let [record] = &ran.records[..] else {
                panic!("{} records\n{}", ran.records.len(), ran.output.err());
            };
            assert_eq!(record.state(), State::Unfinished, "{}", record.record.damage);
            let kept = numbers(record);
            assert_eq!(kept.last(), Some(&49_998));
            assert!(kept.len() >= 1000, "{}", kept.len());
            let missing = 49_999 - kept[0] - kept.len() as u64;
            assert!(missing <= record.record.dropped, "{missing}");
        };
    a_host_is_called_like_a_path: "names",
        "https://github.com/elastic/beats/issues/18118",
        "the host's name has a `/` in it, and the record's path `%h`",
        "the record is whole, and called with `_`",
        || {
            let case = Case {
                arguments: "nothing 200 20",
                namespaces: "--uts",
                prepare: "echo rack/../7 > /proc/sys/kernel/hostname || exit 98",
                variables: &[("TLLMPROF_TRACE", "records/%h-%q{JOB}-%p.tllmprof"), ("JOB", "a/b\nc")],
                ..Case::NEW
            };
            let Some(ran) = is_whole(&case, 200) else { return };
            let name = ran.records[0].file.file_name().unwrap().to_str().unwrap();
            assert!(name.starts_with("rack_.._7-a_b_c-"), "{name}");
        };
    a_runtime_folder_is_too_long: "names",
        "https://github.com/anthropic-experimental/sandbox-runtime/issues/213",
        "`XDG_RUNTIME_DIR` is longer than the path of a socket may be",
        "the socket is in the user's folder in `/tmp`, and goes with the process",
        || {
            let case = Case {
                arguments: "nothing 200 20",
                // A file system over all of /tmp would hide a checkout that is there.
                prepare: "mkdir -p -m 700 /tmp/tllmprof-0 && mount -t tmpfs -o mode=700 tmpfs /tmp/tllmprof-0 || exit 98; \
                          long=$(printf '%0120d' 0); mkdir $long; export XDG_RUNTIME_DIR=$PWD/$long",
                after: "ls -A /tmp/tllmprof-0 2>/dev/null",
                variables: &[("TLLMPROF_CONTROL", "1"), ("TLLMPROF_LOG", "debug"), ("STANDIN_WAIT_US", "2000")],
                ..Case::NEW
            };
            let Some(ran) = case.compare() else { return };
            assert!(
                ran.output.err().contains("the control socket is /tmp/tllmprof-0/"),
                "{}",
                ran.output.err()
            );
        };
    a_child_shares_the_memory: "processes and threads",
        "https://github.com/linux-test-project/ltp/pull/208",
        "a child by `clone(CLONE_VM)`, in the program's memory, ends by `_exit` within the window",
        "the record is whole",
        || drop(is_whole(&Case { arguments: "cloned 200 20", ..Case::NEW }, 200));
    a_child_skips_the_handlers_of_fork: "processes and threads",
        "https://github.com/koute/bytehound/issues/80",
        "a child by the system call alone, without the C library's handlers of `fork`, ends by `exit` within the window",
        "the record is whole, and the child leaves none",
        || drop(is_whole(&Case { arguments: "forked 200 20", ..Case::NEW }, 200));
    a_child_executes_nothing: "processes and threads",
        "https://github.com/gperftools/gperftools/issues/601",
        "a forked child executes no program and ends by `exit`, so that the parent's handlers run in it, within the window",
        "the record is whole, and the child leaves none",
        || drop(is_whole(&Case { arguments: "child 200 20", ..Case::NEW }, 200));
    a_helper_is_spawned: "processes and threads",
        "https://github.com/aether-lang-dev/aether/pull/667",
        "`posix_spawn` and `vfork` within the window",
        "the record is whole",
        || drop(is_whole(&Case { arguments: "spawned 200 20", ..Case::NEW }, 200));
    a_program_is_executed_by_a_thread: "processes and threads",
        "https://github.com/aquasecurity/tracee/issues/3478",
        "`execve` by another thread than the main one, within the window: the same process runs a program anew",
        "both have a record: the first is unfinished, and kept under another name",
        || {
            let case = Case { arguments: "execed 200 20", ..Case::NEW };
            let Some(ran) = case.compare() else { return };
            ran.says(&[OPENED, "an earlier record had this name, and is kept as", OPENED, CLOSED, CAPTURED]);
            let states: Vec<_> = ran.records.iter().map(Process::state).collect();
            assert_eq!(states, [State::Unfinished, State::Whole]);
            let kept: Vec<_> = ran.records.iter().map(|record| numbers(record).len()).collect();
            assert_eq!(kept, [19, 200]);
        };
    a_thread_is_cancelled_after_each_step: "processes and threads",
        "https://github.com/rr-debugger/rr/issues/693",
        "each step is made by a thread of its own, which is cancelled then",
        "the record is whole",
        || drop(is_whole(&Case { arguments: "cancelled 200 20", ..Case::NEW }, 200));
    steps_are_made_in_a_coroutine: "processes and threads",
        "https://github.com/namhyung/uftrace/issues/1848",
        "each step is made on the stack of a coroutine (`swapcontext`)",
        "the record is whole",
        || drop(is_whole(&Case { arguments: "coroutine 200 20", ..Case::NEW }, 200));
    signals_come_all_the_time: "signals",
        "https://github.com/plasma-umass/scalene/pull/1062",
        "a timer's signal each 200 µs within the window, whose handler does not ask for calls to be restarted",
        "the record is whole",
        || drop(is_whole(&Case { arguments: "storm 20000 20", ..Case::NEW }, 20_000));
    no_file_may_grow: "limits of files",
        "https://github.com/nodejs/node/pull/27798",
        "`RLIMIT_FSIZE` is 0 from within the window on, and standard error is a file: the kernel ends who writes to one",
        "the record ends there, and what is missing is counted; the line about it cannot be written",
        || {
            let case = Case { arguments: "files 40000 20", ..Case::NEW };
            let Some(ran) = case.compare() else { return };
            ran.says(&USUAL);
            is_cut_off(&ran, 40_000);
        };
    all_rights_are_masked: "limits of files",
        "https://github.com/apptainer/singularity/issues/139",
        "`umask 0777`",
        "the record is whole",
        || drop(is_whole(&Case { arguments: "masked 200 20", ..Case::NEW }, 200));
    a_path_is_too_long: "names",
        "https://github.com/hpc/mpifileutils/pull/423",
        "the path of the record is longer than a path may be, and than a line",
        "a line says so at its end, and leaves the path's middle out; there is no record, and no file in its place",
        || has_none(&Case {
            arguments: "nothing 200 20",
            prepare: "mkdir left; export TLLMPROF_TRACE=$PWD/$(printf '%05000d' 0).tllmprof",
            ..Case::NEW
        }, "…");
    files_are_not_shared_any_more: "descriptors",
        "https://github.com/containers/bubblewrap/issues/776",
        "`unshare` of descriptors, of the working directory and of mounts, within the window",
        "the record is whole",
        || drop(is_whole(&Case { arguments: "unshared 20000 20", ..Case::NEW }, 20_000));
    standard_error_is_another_file: "descriptors",
        "https://github.com/rsyslog/rsyslog/issues/1526",
        "standard error is closed within the window, and the program's own file gets its number",
        "the program's file stays empty; the record is whole",
        || {
            let case = Case { arguments: "reused 20000 20", ..Case::NEW };
            let Some(ran) = case.compare() else { return };
            assert!(ran.output.out().contains("own file has 0 bytes"), "{}", ran.output.out());
            ran.says(&[OPENED]).record(State::Whole, 20_000);
        };
    standard_streams_are_closed: "descriptors",
        "https://github.com/rust-lang/rust/issues/57728",
        "descriptors 0, 1 and 2 are closed when the program starts, and its files get the numbers",
        "the record is whole, and nothing is said",
        || {
            let case = Case {
                arguments: "nothing 200 20",
                prepare: "printf 'exec \"$@\" <&- >&- 2>&-\\n' > bare; before='sh bare'",
                ..Case::NEW
            };
            let Some(ran) = case.compare() else { return };
            ran.says(&[]).record(State::Whole, 200);
        };
}

/// Runs the program. Asserts that all iterations are recorded, and that iteration 19, during which the process was
/// stopped, took at least 400 ms.
#[track_caller]
fn is_held(case: &Case<'_>) {
    let Some(ran) = is_whole(case, 200) else {
        return;
    };
    let windows = ran.records[0].windows.iter();
    let mut iterations = windows.flat_map(|window| &window.iterations);
    let held = iterations.find(|iteration| iteration.n == 19);
    let duration = held.map(|iteration| iteration.duration);
    assert!(duration >= Some(400_000_000), "{duration:?}");
}
