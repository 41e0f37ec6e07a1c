//! Checks that `docs/format.md` states, for each kind of event, the kind of item that it is
//! exported as.

use std::path::PathBuf;

use tllmprof_record::builder::Builder;
use tllmprof_record::{ClockKind, Event, EventKind, Reader};
use tllmprof_report::Process;
use tllmprof_timeline::Interpreter;

const DOCS: &str = include_str!("../../../docs/format.md");

/// Returns one event of the kind `kind` for each value of the code (byte 14) that such an event may have. All its other
/// fields are 0.
fn events(kind: EventKind) -> Vec<Event> {
    let event = |code: u8| {
        let mut bytes = [0; 24];
        (bytes[12], bytes[14]) = (kind as u8, code);
        Event::decode(&bytes).ok()
    };
    (0..=u8::MAX).filter_map(event).collect()
}

#[test]
fn each_kind_of_event_is_exported_as_the_page_says() {
    let bytes = Builder::new(1, ClockKind::Monotonic).bytes();
    let reader = Reader::new(&bytes[..]).unwrap();
    let process = Process::read(PathBuf::new(), &reader).unwrap();
    let interpreter = Interpreter::read(&process, &reader, |_, _, _| ()).unwrap();
    for kind in EventKind::ALL {
        let begin = format!("| {} | {kind:?}", *kind as u8);
        let mut rows = DOCS.lines().filter(|line| line.starts_with(&begin));
        let row = rows.next().unwrap_or_else(|| panic!("no row {begin}"));
        let exported = row.rsplit('|').nth(1).unwrap();
        let events = events(*kind);
        assert!(!events.is_empty(), "{kind:?}");
        for item in events.iter().filter_map(|event| interpreter.item(1, event)) {
            let row = item.kind.row();
            if let Some(category) = row.category {
                let category = format!("`{}`", category.text());
                assert!(exported.contains(&category), "{kind:?}: {exported}");
            }
            let Some((table, word)) = row.table else {
                continue;
            };
            assert!(exported.contains(table), "{kind:?}: {exported}");
            if table == "events" {
                let word = format!("`{word}`");
                assert!(exported.contains(&word), "{kind:?}: {exported}");
            }
        }
    }
}
