//! Tests of a page's contents, which are read back from the page's text.

mod common;
#[path = "common/engine/mod.rs"]
mod engine;
#[path = "common/shares.rs"]
mod shares;

use std::io::Read;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use common::{TestPage, damaged, element, engine};
use flate2::read::DeflateDecoder;
use serde_json::Value;
use tllmprof_config::printable;
use tllmprof_config::printable::is_hidden;

/// Returns the first `count` numbers of the columns in the page's element with the given ID.
fn numbers(html: &str, id: &str, count: usize) -> Vec<u64> {
    let deflated = BASE64_STANDARD.decode(element(html, id)).unwrap();
    let mut bytes = Vec::new();
    DeflateDecoder::new(&deflated[..])
        .read_to_end(&mut bytes)
        .unwrap();
    let mut bytes = bytes.into_iter();
    let mut number = || {
        let (mut value, mut shift) = (0, 0);
        loop {
            let byte = bytes.next().unwrap();
            value |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                return value;
            }
        }
    };
    (0..count).map(|_| number()).collect()
}

fn page(shown: &TestPage) -> String {
    String::from_utf8(shown.html()).unwrap()
}

#[test]
fn the_report_is_in_it_without_lists_of_iterations() {
    let mut engine = engine(0);
    engine.windows = vec![(100, 150), (400, 409)];
    let shown = TestPage::from_engines(&[engine], 1 << 20);
    let html = page(&shown);
    let mut whole = Vec::new();
    shown.report.json(&mut whole).unwrap();
    let mut whole: Value = serde_json::from_slice(&whole).unwrap();
    for window in whole["processes"][0]["windows"].as_array_mut().unwrap() {
        assert!(!window["iterations"].as_array().unwrap().is_empty());
        window["iterations"] = Value::Array(Vec::new());
    }
    let there: Value = serde_json::from_str(element(&html, "data")).unwrap();
    assert_eq!(there["report"], whole);
    assert_eq!(numbers(&html, "iterations-0", 4), [2, 51, 10, 200]);
}

#[test]
fn page_text_and_json_have_one_figure_for_each_share() {
    let of = |kernels, layers| {
        let mut engine = engine(0);
        engine.windows = vec![(100, 150), (400, 409)];
        engine.scopes = layers > 2;
        (engine.kernels, engine.layers) = (kernels, layers);
        TestPage::from_engines(&[engine], 1 << 20)
    };
    for shown in [of(20, 4), of(1, 2), of(500, 2)] {
        shares::are_the_same(&shown);
    }
}

#[test]
fn page_text_and_json_have_one_figure_for_samples_of_stacks() {
    // In the simulated records, one of 41 samples is rejected at every sampling rate.
    let ranks = |hertz: &[u64]| {
        let ranks = hertz.iter().zip(0..).map(|(hertz, rank)| {
            let mut engine = engine(rank);
            engine.windows = vec![(100, 150 + 10 * rank)];
            engine.stacks = *hertz;
            engine
        });
        TestPage::from_engines(&ranks.collect::<Vec<_>>(), 1 << 20)
    };
    for hertz in [&[1000][..], &[1000, 1000], &[1000, 1000, 1000, 1000]] {
        shares::samples_are_the_same(&ranks(hertz));
    }
    let text = ranks(&[0, 0]).report.text();
    assert!(
        !text.lines().any(|line| line.starts_with("stacks")),
        "{text}"
    );
}

#[test]
fn all_events_are_in_it_where_there_is_room() {
    let mut engine = engine(0);
    engine.windows = vec![(100, 150)];
    let (_, events) = engine.record();
    let shown = TestPage::from_engines(&[engine], events);
    assert_eq!(numbers(&page(&shown), "timeline-0", 2), [events, events]);
    assert_eq!(
        shown.timelines[0].as_ref().unwrap().events(),
        (events, events)
    );
}

#[test]
fn where_there_is_no_room_the_slowest_iterations_are_shown_and_the_rest_is_counted() {
    let mut engine = engine(0);
    engine.windows = vec![(100, 1099)];
    let (_, events) = engine.record();
    let room = events / 10;
    let shown = TestPage::from_engines(&[engine], room);
    let timeline = shown.timelines[0].as_ref().unwrap();
    let (kept, all) = timeline.events();
    assert_eq!(all, events);
    assert!(kept <= room && kept > room / 2, "{kept} of {room}");
    let process = &shown.report.processes[0];
    assert_eq!(process.slowest[0].n, 117);
    for slow in &process.slowest {
        assert!(timeline.shows(slow.start), "{}", slow.n);
    }
    let iterations = &process.windows[0].iterations;
    let count = iterations
        .iter()
        .filter(|iteration| timeline.shows(iteration.start))
        .count();
    assert!((50..200).contains(&count), "{count}");
    assert!(timeline.shows(iterations[0].start));
    assert!(!timeline.shows(iterations[999].start));
}

#[test]
fn an_iteration_with_more_events_than_there_is_room_for_is_cut() {
    let mut engine = engine(0);
    engine.windows = vec![(100, 100)];
    let (_, events) = engine.record();
    let shown = TestPage::from_engines(&[engine], 10);
    let (kept, all) = shown.timelines[0].as_ref().unwrap().events();
    assert_eq!((kept, all), (0, events));
}

#[test]
fn names_from_records_stay_text_and_nothing_is_fetched() {
    let mut engine = engine(0);
    engine.windows = vec![(100, 110)];
    engine.hostile = true;
    let html = page(&TestPage::from_engines(&[engine], 1 << 20));
    assert!(!html.contains("alert(1)</script>"));
    // A page of one process has four script elements: the data, the iterations, the script and the timeline. The
    // kernel's name must add none and end none.
    assert_eq!(html.matches("<script").count(), 4);
    assert_eq!(html.matches("</script").count(), 4);
    let data: Value = serde_json::from_str(element(&html, "data")).unwrap();
    let kernels = data["report"]["processes"][0]["kernels"]
        .as_array()
        .unwrap();
    assert!(
        kernels
            .iter()
            .any(|kernel| kernel["name"] == printable(engine::HOSTILE))
    );
    assert!(!html.contains(|c: char| c != '\n' && c != '\t' && is_hidden(c)));
    assert!(html.contains("default-src 'none'"));
    for fetched in [" src=", "<link", "@import", "url("] {
        assert!(!html.contains(fetched), "{fetched}");
    }
}

#[test]
fn a_record_of_nothing_has_a_page() {
    let shown = TestPage::from_engines(&[engine(0)], 1000);
    let html = page(&shown);
    assert_eq!(numbers(&html, "iterations-0", 1), [0]);
    assert_eq!(numbers(&html, "timeline-0", 2), [0, 0]);
}

#[test]
fn damaged_records_have_a_page() {
    for seed in 0..100 {
        let html = page(&TestPage::from_records(&[damaged(seed)], 4000));
        let data: Value = serde_json::from_str(element(&html, "data")).unwrap();
        assert_eq!(
            data["report"]["processes"].as_array().unwrap().len(),
            1,
            "{seed}"
        );
        let [kept, all] = numbers(&html, "timeline-0", 2).try_into().unwrap();
        assert!(kept <= 4000 && kept <= all, "{seed}: {kept} of {all}");
    }
}
