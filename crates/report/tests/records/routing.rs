//! Tests of the load balance of learned routers, in text and JSON.

use crate::common::process;
use crate::common::server::Server;
use serde_json::{Value, json};
use tllmprof_record::{Event, Info, What};
use tllmprof_report::{Report, Style};

/// Returns a server's record with the loads of eight experts in each of two layers, as distributed
/// by learned routers.
pub(crate) fn record(rank: u64) -> Vec<u8> {
    let server = Server::rank(rank);
    let (mut builder, truths) = server.record();
    let pid = server.pid();
    let name = builder.string(pid, "MixtralSparseMoeBlock.gate 0");
    let at = truths.last().unwrap().start;
    let mut push = |what| builder.push(pid, &Event::new(at, 0, what));
    push(What::Info {
        key: Some(Info::Router),
        value: u64::from(name),
    });
    for (layer, loads) in [
        (0, [1_u64, 0, 1, 1, 0, 0, 0, 0]),
        (0, [8, 0, 4, 4, 0, 0, 0, 0]),
        (1, [2, 2, 2, 2, 2, 2, 2, 2]),
    ] {
        for (expert, tokens) in (0..).zip(loads) {
            push(What::ExpertLoad {
                layer,
                expert,
                tokens,
            });
        }
    }
    builder.bytes()
}

fn json(report: &Report) -> Value {
    let mut bytes = Vec::new();
    report.json(&mut bytes).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

#[test]
fn the_latest_loads_of_each_layer() {
    let report = Report::new(vec![process("a", &record(0))]);
    let whole = report.styled(Style::whole());
    for line in [
        "learned router, busiest against mean         expert   8 GPUs    idle      tokens",
        "  mean of 2 layers                             2.50     2.50",
        "  MixtralSparseMoeBlock.gate 0                 4.00     4.00       5          16",
        "  layer 1                                      1.00     1.00       0          16",
    ] {
        assert!(whole.lines().any(|found| found == line), "{line}\n{whole}");
    }
    // The text that fits a screen also shows the mean over the layers.
    let text = report.text();
    assert!(text.contains("\n  mean of 2 layers  "), "{text}");
    assert!(text.lines().count() <= 44, "{text}");

    let routing = &json(&report)["processes"][0]["routing"];
    assert_eq!(routing["mean"], 2.5);
    let layer = &routing["layers"][0];
    assert_eq!(layer["name"], "MixtralSparseMoeBlock.gate 0");
    assert_eq!(layer["experts"], json!([8, 0, 4, 4, 0, 0, 0, 0]));
    assert_eq!((&layer["idle"], &layer["tokens"]), (&json!(5), &json!(16)));
    // Each GPU has consecutive experts: for two GPUs, the first four experts are on the first one.
    let gpus = json!([
        {"gpus": 2, "max_of_mean": 2.0},
        {"gpus": 4, "max_of_mean": 2.0},
        {"gpus": 8, "max_of_mean": 4.0}
    ]);
    assert_eq!(layer["gpus"], gpus);
    assert_eq!(routing["layers"][1]["name"], Value::Null);
}

#[test]
fn experts_of_several_ranks_are_on_as_many_gpus() {
    let ranks = [0, 1].map(|rank| process(&rank.to_string(), &record(rank)));
    let text = Report::new(ranks.into()).text();
    let line = "  MixtralSparseMoeBlock.gate 0                 4.00     2.00       5          32";
    assert!(text.lines().any(|found| found == line), "{text}");
    assert!(text.contains(" 2 GPUs"), "{text}");
}

#[test]
fn nothing_is_shown_where_nothing_was_counted() {
    let report = Report::new(vec![process("a", &Server::rank(0).record().0.bytes())]);
    assert!(!report.text().contains("router"), "{}", report.text());
    assert_eq!(json(&report)["processes"][0]["routing"], Value::Null);
}
