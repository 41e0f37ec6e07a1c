//! Whatever a record says, its exports are what they claim to be: JSON in which events that share a line
//! nest, a Perfetto trace, Parquet tables.

#![no_main]

use std::collections::BTreeMap;
use std::env::temp_dir;
use std::fs;
use std::io;
use std::process;
use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use tllmprof_export::{Record, chrome, parquet, perfetto};
use tllmprof_fuzz::unpack;
use tllmprof_record::Source;

struct Bytes(Vec<u8>);

impl Source for Bytes {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        (&self.0[..]).read_at(buffer, offset)
    }
}

fuzz_target!(|packed: &[u8]| {
    let record = || {
        let bytes = Box::new(Bytes(unpack(packed)));
        Record::new("record".into(), bytes, Arc::new(|_| Ok(())))
    };
    let (Ok(one), Ok(other)) = (record(), record()) else {
        return;
    };
    let records = [one, other];
    let mut json = Vec::new();
    assert!(chrome(&records, &mut json, false).is_ok());
    nest(&serde_json::from_slice(&json).expect("JSON"));
    assert!(perfetto(&records, io::sink(), false).is_ok());
    // Files take longer than all the rest.
    if packed.len().is_multiple_of(16) {
        let folder = temp_dir().join(format!("tllmprof-fuzz-{}", process::id()));
        let _ = fs::remove_dir_all(&folder);
        assert!(parquet(&records, &folder).is_ok());
        let _ = fs::remove_dir_all(&folder);
    }
});

/// On each line of the trace.
fn nest(trace: &Value) {
    let mut lines: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for event in trace["traceEvents"].as_array().into_iter().flatten() {
        if event["ph"] != "X" {
            continue;
        }
        let line = (event["pid"].as_u64(), event["tid"].as_u64());
        let (start, long) = (ns(&event["ts"]), ns(&event["dur"]));
        lines.entry(line).or_default().push((start, start + long));
    }
    for line in lines.values_mut() {
        line.sort_by_key(|(start, end)| (*start, u128::MAX - end));
        let mut open: Vec<u128> = Vec::new();
        for (start, end) in line {
            while open.last().is_some_and(|outer| outer <= start) {
                open.pop();
            }
            assert!(open.last().is_none_or(|outer| &*end <= outer));
            open.push(*end);
        }
    }
}

/// Nanoseconds from a number of microseconds with three decimals, as it is written.
fn ns(number: &Value) -> u128 {
    let text = number.to_string().replace('.', "");
    text.parse().expect("a number with three decimals")
}
