//! What tllmprof reads in an export of nsys's is what its own record of the same run holds.

use std::ffi::OsStr;
use std::path::PathBuf;

use tllmprof_record::Reader;
use tllmprof_report::Process;

use crate::common::{Scratch, standin};
use crate::profile::{REPEAT_2, STOP, UNGATED, engine_is_done, nsys, profile, reports};

/// A window's first iteration, its last, and all that it has.
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
            let recorded = tllmprof_nsys::open(&export).expect("an export");
            let [recorded] = &recorded[..] else {
                panic!("{} processes", recorded.len())
            };
            let process = Process::read(PathBuf::from("export"), recorded).expect("an export");
            assert_eq!(process.pid, record.pid);
            assert_eq!(process.facts.command, record.facts.command);
            assert_eq!(process.facts.rule, "cudaGraphLaunch");
            assert!(process.damage.is_none(), "{}", process.damage);
            if options == UNGATED {
                assert_eq!(process.outside.iterations, record.outside.iterations);
            }
            found.extend(windows(&process));
        }
        assert_eq!(found, windows(&record), "{asked}: {}", run.program.err());
    }
}
