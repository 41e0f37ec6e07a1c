//! Fuzzes the readers of records. Each input is read twice: as it is, and with checksums that were recomputed to match
//! its contents.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use serde::de::IgnoredAny;
use tllmprof_export::{Record, chrome, parquet, perfetto};
use tllmprof_record::{Clock, EVENT_BYTES, Entry, Event, Reader, Source, Strings, repair};
use tllmprof_report::{Comparison, Process, Report};

use crate::packed::unpack;
use crate::scratch;

fn both(packed: &[u8], look: impl Fn(&[u8])) {
    let mut record = unpack(packed);
    look(&record);
    repair(&mut record);
    look(&record);
}

/// Reads a record that may be damaged. The reader returns either an error or the undamaged part.
pub fn reader(packed: &[u8]) {
    both(packed, |record| {
        let Ok(reader) = Reader::new(record) else {
            return;
        };
        let header = reader.header();
        let clock = Clock::new(header.clock, &header.anchors);
        let mut strings = Strings::default();
        let mut entries = 0;
        let mut latest = 0;
        let damage = reader.read(|entry| {
            entries += 1;
            match entry {
                Entry::String { id, bytes } => strings.add(id, bytes),
                Entry::Event { event, .. } => {
                    let again = Event::decode(&event.encode());
                    assert_eq!(again.map(|event| event.duration), Ok(event.duration));
                    latest = latest.max(event.start);
                }
            }
        });
        assert!(damage.is_ok(), "a slice can be read");
        assert!(entries <= record.len() / EVENT_BYTES);
        assert!(
            clock.ns(latest / 2) <= clock.ns(latest),
            "the clock goes forward"
        );
        let _ = (strings.get(1), header.outside.quantile(0.5));
    });
}

/// Makes a report of a record with any content. Its text must fit a screen, and it must be possible to write it as
/// JSON.
pub fn report(packed: &[u8]) {
    both(packed, |record| {
        let Ok(reader) = Reader::new(record) else {
            return;
        };
        let process = || Process::read("record".into(), &reader).ok();
        fits(&Report::new(process().into_iter().collect()));
        // A comparison of two reports draws thousands of samples and takes longer than everything else in this
        // function. So only inputs whose length is a multiple of 8 are compared.
        if packed.len().is_multiple_of(8) {
            let two = Report::new(process().into_iter().chain(process()).collect());
            fits(&two);
            narrow(&Comparison::compare(&two.processes, &two.processes).text());
        }
    });
}

/// Asserts that the report's text fits a screen and that its JSON can be written.
pub(crate) fn fits(report: &Report) {
    let text = report.text();
    assert!(text.lines().count() <= 44, "{text}");
    narrow(&text);
    assert!(report.json(&mut Vec::new()).is_ok());
}

fn narrow(text: &str) {
    let is_narrow = |line: &str| line.chars().count() <= 80;
    assert!(text.lines().all(is_narrow), "{text}");
}

struct Bytes(Vec<u8>);

impl Source for Bytes {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        (&self.0[..]).read_at(buffer, offset)
    }
}

/// Exports a record with any content. The exports must be valid: JSON in which the events of each thread nest, a
/// Perfetto trace, and Parquet tables.
pub fn export(packed: &[u8]) {
    both(packed, |record| {
        let read = || {
            let bytes = Box::new(Bytes(record.to_vec()));
            Record::new("record".into(), bytes, Arc::new(|_| Ok(())))
        };
        let count = 1 + usize::from(packed.len().is_multiple_of(4));
        let Ok(records) = (0..count).map(|_| read()).collect::<Result<Vec<_>, _>>() else {
            return;
        };
        let mut json = Vec::new();
        assert!(chrome(&records, &mut json, false).is_ok());
        assert!(serde_json::from_slice::<IgnoredAny>(&json).is_ok());
        nest(std::str::from_utf8(&json).expect("UTF-8"));
        assert!(perfetto(&records, io::sink(), false).is_ok());
        // Writing the Parquet files takes longer than the other exports. So only inputs whose length is a multiple of
        // 16 are exported to Parquet.
        if packed.len().is_multiple_of(16) {
            let folder = tempfile::tempdir_in(scratch()).expect("a folder");
            assert!(parquet(&records, &folder.path().join("tables")).is_ok());
        }
    });
}

/// Asserts that of any two events of a thread in the trace, one lies within the other or they do not overlap. Times are
/// compared by their decimal digits, because a float cannot hold them exactly.
fn nest(trace: &str) {
    let mut lines: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for event in trace.split("{\"ph\":\"X\",").skip(1) {
        let (number, ns) = (
            |key| after(event, key),
            |key| thousandths(after(event, key)),
        );
        let line = (number(",\"pid\":"), number(",\"tid\":"));
        let (start, long) = (ns(",\"ts\":"), ns(",\"dur\":"));
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

/// Returns the number after a key of an event's JSON. A text search is enough: in a string value, the key's quotes
/// would be escaped.
fn after<'a>(event: &'a str, key: &str) -> &'a str {
    let (_, rest) = event.split_once(key).expect("a complete event");
    let end = rest.find([',', '}']).expect("an end");
    &rest[..end]
}

/// Converts a number of microseconds, written with three decimals, to nanoseconds.
fn thousandths(number: &str) -> u128 {
    let (_, decimals) = number.split_once('.').expect("decimals");
    assert_eq!(decimals.len(), 3, "{number}");
    number.replace('.', "").parse().expect("a number")
}
