//! Checks that tllmprof reads the same windows, iterations and batches from an nsys export as from its own record of
//! the same run.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use tllmprof_record::Reader;
use tllmprof_report::Process;

use crate::common::python::pythons;
use crate::common::{Scratch, repo, standin};
use crate::profile::{REPEAT_2, STOP, UNGATED, engine_is_done, nsys, profile, reports};

/// A window's first iteration, its last iteration, and the numbers of all its iterations.
type Window = (u64, u64, Vec<u64>);

fn windows(process: &Process) -> Vec<Window> {
    let all = process.windows.iter().map(|window| {
        let iterations = window.iterations.iter().map(|iteration| iteration.n);
        (window.first, window.last, iterations.collect())
    });
    all.collect()
}

#[test]
fn exports_hold_the_iterations_of_records() {
    let Some(nsys) = nsys() else { return };
    let engine = standin().join("bin/engine");
    let program = [engine.as_os_str(), OsStr::new("--steps"), OsStr::new("40")];
    for (options, asked) in [
        (STOP, "5-9"),
        (REPEAT_2, "5-9,20-22"),
        (UNGATED, "5-9,20-22"),
    ] {
        let scratch = Scratch::new("record");
        let path = scratch.path("run.tllmprof");
        let variables = [
            ("TLLMPROF_STEP", "cudaGraphLaunch"),
            ("TLLM_PROFILE_START_STOP", asked),
            ("TLLMPROF_TRACE", path.to_str().expect("a path of ours")),
        ];
        let run = profile(nsys, options, &variables, &program);
        engine_is_done(&run);
        let reader = Reader::open(&path).expect("a record");
        let record = Process::read(path.clone(), &reader).expect("a record");

        let exports = reports(run.scratch.folder())
            .into_iter()
            .map(|report| report.with_extension("sqlite"));
        let mut found: Vec<Window> = Vec::new();
        for export in exports {
            let recorded =
                tllmprof_nsys::open(&export, Path::new("nsys"), None).expect("an export");
            let [recorded] = &recorded[..] else {
                panic!("{} processes", recorded.len())
            };
            let process = Process::read(PathBuf::from("export"), recorded).expect("an export");
            assert_eq!(process.pid, record.pid);
            assert_eq!(process.facts.command, record.facts.command);
            assert_eq!(process.facts.rule, "cudaGraphLaunch");
            assert!(process.record.damage.is_none(), "{}", process.record.damage);
            if options == UNGATED {
                assert_eq!(
                    process.others.outside.all.iterations,
                    record.others.outside.all.iterations
                );
            }
            found.extend(windows(&process));
        }
        assert_eq!(found, windows(&record), "{asked}: {}", run.program.err());
    }
}

#[test]
fn exports_have_what_was_in_each_batch() {
    let Some(nsys) = nsys() else { return };
    let Some(python) = pythons().last() else {
        return;
    };
    let folder = repo().join("tests/batch");
    let program = folder.join("main.py");
    let paths = [folder.join("engines"), repo().join("tests/fixtures")];
    let paths = std::env::join_paths(paths).unwrap();
    let scratch = Scratch::new("record");
    let record = scratch.path("run.tllmprof");
    let batch = "mine:Runner.step=requests:len(batch.requests),tokens:batch.total,\
                 prefill_tokens:sum(n for n in batch.prompts)";
    let variables = [
        ("PYTHONPATH", paths.to_str().unwrap()),
        ("PYTHONDONTWRITEBYTECODE", "1"),
        ("TLLMPROF_BATCH", batch),
        ("TLLM_PROFILE_START_STOP", "1-9"),
        ("TLLMPROF_TRACE", record.to_str().unwrap()),
    ];
    let program = [
        python.path.as_os_str(),
        program.as_os_str(),
        OsStr::new("mine"),
        OsStr::new(""),
    ];
    let run = profile(nsys, STOP, &variables, &program);
    let batches = |process: &Process| -> Vec<_> {
        let iterations = process.windows[0].iterations.iter();
        iterations
            .map(|iteration| (iteration.n, iteration.batch))
            .collect()
    };
    let reader = Reader::open(&record).expect("a record");
    let record = batches(&Process::read(record, &reader).expect("a record"));
    let export = &reports(run.scratch.folder())[0].with_extension("sqlite");
    let recorded = tllmprof_nsys::open(export, Path::new("nsys"), None).expect("an export");
    let export = Process::read(PathBuf::from("export"), &recorded[0]).expect("an export");
    assert!(record.iter().all(|(_, batch)| batch.is_some()));
    assert_eq!(record.len(), 9);
    assert_eq!(batches(&export), record, "{}", run.program.err());
}
