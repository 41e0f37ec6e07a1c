//! What was in batches, in text and JSON.

use crate::common::server::{Server, ticks};
use crate::common::{fits, json, process};
use serde_json::{Value, json};
use tllmprof_record::{Batch, Event, What};
use tllmprof_report::Report;

/// A server's record in which the batches of all iterations but the last two are known: at first prompts,
/// then prompts beside decodes, then decodes.
fn record() -> (Vec<u8>, usize) {
    let server = Server::rank(0);
    let (mut builder, truths) = server.record();
    let known = truths.len() - 2;
    for (place, truth) in truths.iter().take(known).enumerate() {
        let batch = match place {
            0 => Batch::new(1, 900, 900),
            1..4 => Batch::new(3, 102, 100),
            _ => Batch::new(4, 4, 0),
        };
        let what = What::Batch {
            iteration: truth.n as u16,
            batch: batch.unwrap(),
        };
        builder.push(server.pid(), &Event::new(ticks(truth.start), 0, what));
    }
    (builder.bytes(), known)
}

#[test]
fn each_iteration_has_its_batch() {
    let (bytes, known) = record();
    let json = json(&Report::new(vec![process("a", &bytes)]));
    let process = &json["processes"][0];
    let iterations = process["windows"][0]["iterations"].as_array().unwrap();
    let batch = |place: usize| &iterations[place]["batch"];
    let prefill = json!({
        "requests": 1, "tokens": 900, "prefill_tokens": 900, "decode_tokens": 0, "phase": "prefill"
    });
    let mixed = json!({
        "requests": 3, "tokens": 102, "prefill_tokens": 100, "decode_tokens": 2, "phase": "mixed"
    });
    let decode = json!({
        "requests": 4, "tokens": 4, "prefill_tokens": 0, "decode_tokens": 4, "phase": "decode"
    });
    assert_eq!((batch(0), batch(3)), (&prefill, &mixed));
    assert_eq!(
        (batch(4), batch(known - 1), batch(known)),
        (&decode, &decode, &Value::Null)
    );
    let phases = process["phases"].as_array().unwrap();
    let counts: Vec<_> = phases
        .iter()
        .map(|phase| {
            (
                phase["phase"].as_str().unwrap(),
                phase["iterations"].as_u64(),
            )
        })
        .collect();
    let decodes = (known - 4) as u64;
    assert_eq!(
        counts,
        [
            ("prefill", Some(1)),
            ("decode", Some(decodes)),
            ("mixed", Some(3))
        ]
    );
    assert_eq!(phases[2]["prefill_tokens"], 300);
    assert_eq!(phases[1]["tokens"], 4 * decodes);
    assert_eq!(phases[0]["time"]["p50_ns"], iterations[0]["dur_ns"]);
}

#[test]
fn phases_have_lines() {
    let (bytes, known) = record();
    let text = Report::new(vec![process("a", &bytes)]).text();
    fits(&text, 44);
    let decodes = format!("  decode ({})", known - 4);
    for start in ["  prefill (1) ", "  mixed (3) ", &decodes] {
        assert!(text.lines().any(|line| line.starts_with(start)), "{text}");
    }
    // (1 + 3 × 3 + 45 × 4) requests, (900 + 3 × 102 + 45 × 4) tokens and 1200 of prompts in 49 steps.
    let batches = "3.88 requests and 28.3 tokens a step, 86.6 % of these prefill";
    assert!(text.lines().any(|line| line == batches), "{text}");
}

#[test]
fn a_record_without_batches_reports_none() {
    let bytes = Server::rank(0).record().0.bytes();
    let report = Report::new(vec![process("a", &bytes)]);
    assert!(!report.text().contains("a step, "), "{}", report.text());
    let json = json(&report);
    let process = &json["processes"][0];
    assert_eq!(process["phases"], json!([]));
    assert_eq!(process["windows"][0]["iterations"][0]["batch"], Value::Null);
}
