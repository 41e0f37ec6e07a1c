//! Helpers that the unit tests of this crate share: they make settings and a record of the test process.

use std::fs::File;

use tllmprof_config::Settings;
use tllmprof_record::contents::Record;
use tllmprof_recorder as recorder;
use tllmprof_session::SessionFacts;

/// Returns the settings that result from these environment variables.
pub(crate) fn settings(variables: &[(&str, &str)]) -> Settings {
    let value = |name: &str| {
        let found = variables.iter().find(|(is, _)| *is == name);
        found.map(|(_, value)| (*value).into())
    };
    Settings::from_env(value).unwrap()
}

/// Returns the record of the test process. The first call creates the record, and all later calls return the same one.
pub(crate) fn record() -> Record {
    Record::of_process(begin_here)
}

/// Creates the record in a temporary folder. Returns its open file, which stays usable although the folder is removed.
fn begin_here() -> File {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("record.tlm");
    let settings = settings(&[("TLLMPROF_TRACE", path.to_str().unwrap())]);
    let facts = SessionFacts {
        rank: None,
        python: None,
        rule: &"auto",
        why: None,
        engine: None,
        is_span: false,
    };
    recorder::start(&settings);
    recorder::begin(&settings, &facts);
    File::open(path).unwrap()
}
