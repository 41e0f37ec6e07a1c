//! Whatever a record says, there is a report on it that fits a screen and is JSON.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tllmprof_fuzz::unpack;
use tllmprof_record::Reader;
use tllmprof_report::{Comparison, Process, Report};

fuzz_target!(|packed: &[u8]| {
    let record = unpack(packed);
    let Ok(reader) = Reader::new(&record[..]) else {
        return;
    };
    let process = || Process::read("record".into(), &reader).ok();
    let two = Report::new(process().into_iter().chain(process()).collect());
    look_at(&two);
    let text = Comparison::of(&two.processes, &two.processes).text();
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    look_at(&Report::new(two.processes.into_iter().take(1).collect()));
});

fn look_at(report: &Report) {
    let text = report.text();
    assert!(text.lines().count() <= 40, "{text}");
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    let mut json = Vec::new();
    assert!(report.json(&mut json).is_ok());
}
