//! Checks the records of programs that do what a recorder does not expect. The library must not disturb these programs,
//! and must count lost events.

use tllmprof_record::{CallKind, Counter, Ended};

use crate::common::{self, Fixture};
use crate::ranges::Program;
use crate::read::Read;

/// Runs `hostile.c` with a window over its whole run.
fn run(what: &str, more: &[(&str, &str)]) -> (Program, common::Output, Vec<Read>) {
    let program = Program::new("record/hostile.c");
    let mut command = program.command("cudaDeviceSynchronize", "0-", &["counts", what], more);
    let output = common::run(&mut command, crate::ranges::TEST_TIMEOUT);
    assert_eq!(output.status.code(), Some(7), "{what}: {}", output.err());
    assert_eq!(output.out(), "done\n", "{what}");
    let records = program.records();
    for record in &records {
        assert!(record.damage.is_none(), "{what}: {}", record.damage);
    }
    (program, output, records)
}

fn launches(record: &Read) -> u64 {
    record.calls(CallKind::GraphLaunch).len() as u64
}

/// Returns the number of calls and the number of ranges that all threads of the program made together, as the program
/// counted them.
fn made(program: &Program) -> (u64, u64) {
    let made = program.made();
    let sum = |of: fn(&crate::counts::Made) -> u64| made.iter().map(of).sum();
    (sum(|made| made.calls), sum(|made| made.pushed))
}

/// Asserts that the event of each call and range is either recorded or counted as dropped. Also asserts that the record
/// does not report more missing events than it counts as dropped.
fn assert_kept_and_dropped(program: &Program, record: &Read) {
    let (calls, pushed) = made(program);
    let dropped = record.header.counter(Counter::EventsDropped);
    let (launches, ranges) = (launches(record), record.ranges().len() as u64);
    assert!(
        launches + ranges + dropped >= calls + pushed,
        "{launches} of {calls} calls, {ranges} of {pushed} ranges, {dropped} dropped"
    );
    assert!(record.reported_missing() <= dropped);
}

#[test]
fn events_in_signal_handlers_are_kept_or_counted() {
    let (program, _, records) = run("signals", &[]);
    let [record] = &records[..] else {
        panic!("{} records", records.len());
    };
    assert_kept_and_dropped(&program, record);
    let (calls, pushed) = made(&program);
    assert!(launches(record) <= calls && launches(record) > calls / 2);
    let ranges = record.ranges().len() as u64;
    assert!(
        ranges <= pushed && ranges > pushed / 2,
        "{ranges} of {pushed}"
    );
}

#[test]
fn handlers_that_jump_away_do_not_end_the_record() {
    let (program, _, records) = run("jumps", &[]);
    let record = &records[0];
    assert_kept_and_dropped(&program, record);
    // After all its jumps, the program makes 20000 steps. If the program jumps out of the recording of an event, later
    // events are lost only for a short time. So most of these steps must be recorded.
    assert!(launches(record) > 14_000, "{}", launches(record));
}

/// The program copies its process by the system call clone, so no fork handler runs. Such a copy must write nothing
/// into its parent's record, and has no record of its own.
#[test]
fn a_copy_that_nobody_is_notified_of_leaves_the_record_alone() {
    let (program, output, records) = run("clone", &[]);
    assert_eq!(records.len(), 1);
    assert_eq!(made(&program), (2000, 2000));
    assert_eq!(launches(&records[0]), 2000);
    assert_eq!(records[0].ranges().len(), 2000);
    assert!(!output.err().contains("as large as"), "{}", output.err());
}

#[test]
fn forks_in_the_middle_of_everything_lose_nothing() {
    let (program, _, records) = run("forks", &[]);
    assert_eq!(records.len(), 1);
    assert_eq!(made(&program), (120_000, 120_000));
    assert_eq!(launches(&records[0]), 120_000);
    let ranges = records[0].ranges();
    assert_eq!(ranges.len(), 120_000);
    assert!(ranges.iter().all(|range| range.name == "step"));
}

/// If the program renames or removes the record's file, the library continues to write to that file.
#[test]
fn a_file_that_is_moved_away_is_written_to_the_end() {
    let (program, _, records) = run("moves", &[]);
    assert_eq!(records.len(), 1);
    assert_eq!(launches(&records[0]), made(&program).0);
    assert_eq!(records[0].header.ended, Some(Ended::InOrder));
}

/// A process executes another program by exec, which keeps the process number. The second program must not overwrite
/// the first one's record.
#[test]
fn a_program_that_becomes_another_leaves_its_record() {
    let (_, _, mut records) = run("exec", &[]);
    records.sort_by_key(|record| record.header.anchors[0].monotonic_ns);
    let ends: Vec<_> = records.iter().map(|record| record.header.ended).collect();
    assert_eq!(ends, [Some(Ended::Not), Some(Ended::InOrder)]);
    for record in &records {
        assert_eq!(launches(record), 1000);
        assert_eq!(record.ranges().len(), 1000);
    }
    assert_eq!(records[0].header.pid, records[1].header.pid);
}

#[test]
fn descriptors_that_are_closed_are_opened_again() {
    let (program, _, records) = run("closes", &[]);
    assert_eq!(launches(&records[0]), made(&program).0);
    assert_eq!(records[0].header.counter(Counter::EventsDropped), 0);
}

#[test]
fn children_that_share_the_memory_leave_the_record_alone() {
    let (program, _, records) = run("spawns", &[]);
    assert_eq!(records.len(), 1);
    assert_eq!(launches(&records[0]), made(&program).0);
    assert_eq!(records[0].ranges().len() as u64, made(&program).1);
}

/// A thousand threads record at once. Each of them needs its own chunk of the record's file, but the size limit of
/// 16 MiB allows fewer chunks than threads.
#[test]
fn a_crowd_of_threads_stays_within_the_bound() {
    let (program, _, records) = run("crowd", &[("TLLMPROF_TRACE_MAX", "16M")]);
    let record = &records[0];
    assert!(record.bytes <= 16 << 20);
    let (calls, pushed) = made(&program);
    assert_eq!(calls, 3000);
    let dropped = record.header.counter(Counter::EventsDropped);
    let kept = launches(record) + record.ranges().len() as u64;
    assert!(
        kept + dropped >= calls + pushed && kept > 600,
        "{kept} {dropped}"
    );
    // With a limit of 100 MiB, the file has room for all threads. A thread then loses events only if other threads take
    // too long to extend the file. On a busy machine, some hundred of the 3000 calls may be lost.
    let (program, _, records) = run("crowd", &[("TLLMPROF_TRACE_MAX", "100M")]);
    assert_kept_and_dropped(&program, &records[0]);
    assert!(launches(&records[0]) > 2000, "{}", launches(&records[0]));
}

#[test]
fn coroutines_push_and_pop_across_each_other() {
    let (program, _, records) = run("contexts", &[]);
    let (calls, pushed) = made(&program);
    assert_eq!(launches(&records[0]), calls);
    // NVTX identifies a range's stack by the thread, so both coroutines share one stack. A pop ends the range that was
    // pushed last, even by the other coroutine.
    assert_eq!(records[0].ranges().len() as u64, pushed);
}

#[test]
fn a_runtime_that_comes_and_goes_is_recorded() {
    let fixture = Fixture::new("dlclose_caller")
        .window("0-", "cudaGraphLaunch")
        .args("--times 60 --steps 3")
        .env("TLLMPROF_TRACE", "x-%p.tllmprof")
        .env("TLLMPROF_DRAIN", "0");
    let folder = fixture.folder().to_owned();
    let (ran, records) = fixture.run_and(|| Read::all(&folder));
    assert_eq!(ran.output.status.code(), Some(0), "{}", ran.output.err());
    assert_eq!(records.len(), 1);
    assert_eq!(launches(&records[0]), 180);
}
