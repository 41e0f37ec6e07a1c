//! Checks that a record contains the host functions that a program enqueues in streams, and the number of times that
//! each was enqueued.

use std::collections::BTreeMap;
use std::time::Duration;

use tllmprof_record::What;

use crate::common::{Scratch, build, built_command, run, shim, standin};
use crate::read::Read;

const ITERATIONS: u32 = 6;

#[test]
fn host_functions_are_recorded_with_their_code_and_run_with_their_data() {
    let scratch = Scratch::new("host-functions");
    let program = scratch.path("program");
    build("record/host_functions.c", &program, ["-l:libcuda.so.1"]);
    let mut command = built_command(&program);
    command
        .env("LD_LIBRARY_PATH", standin())
        .env("LD_PRELOAD", shim())
        .env("TLLMPROF_START_STOP", "3-8")
        .env("TLLMPROF_STEP", "cuStreamSynchronize")
        .env("TLLMPROF_STACKS", "1000")
        .env("TLLMPROF_TRACE", "x.tllmprof")
        .current_dir(scratch.folder());
    let output = run(&mut command, Duration::from_secs(300));
    assert_eq!(output.status.code(), Some(7), "{}", output.err());
    let record = Read::open(&scratch.path("x.tllmprof"));
    let rows = record
        .events
        .iter()
        .filter_map(|(_, event)| match event.what {
            What::CallName { row, name, .. } => Some((row, record.strings.get(name))),
            _ => None,
        });
    let rows: BTreeMap<_, _> = rows.collect();
    let mut calls = BTreeMap::new();
    let mut functions = BTreeMap::new();
    for (_, event) in &record.events {
        match event.what {
            What::Call {
                row,
                capturing,
                stream,
            } if rows[&row] == "cuLaunchHostFunc" => {
                assert_ne!(stream, 0);
                *calls.entry(capturing).or_insert(0) += 1;
            }
            What::HostFunction { name, count } => {
                let code = record.strings.get(name).rsplit_once('+').unwrap();
                assert_eq!(code.0, program.to_str().unwrap());
                *functions.entry(code.1.to_owned()).or_insert(0) += count;
            }
            _ => (),
        }
    }
    assert_eq!(
        calls,
        BTreeMap::from([(false, 3 * ITERATIONS), (true, ITERATIONS)])
    );
    let printed = String::from_utf8(output.stdout).unwrap();
    let places: BTreeMap<_, _> = printed
        .lines()
        .filter_map(|line| line.split_once(' '))
        .collect();
    let expected = [("adds", 2 * ITERATIONS), ("subtracts", ITERATIONS)];
    let expected = expected.map(|(name, count)| (places[name].to_owned(), count));
    assert_eq!(functions, expected.into());
}
