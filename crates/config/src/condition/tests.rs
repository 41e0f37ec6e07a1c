//! Tests that parse conditions on iterations and evaluate them.

use super::*;

fn facts(requests: u32, tokens: u32, prefill_tokens: u32) -> BatchFacts {
    BatchFacts {
        requests: Some(requests),
        tokens: Some(tokens),
        prefill_tokens: Some(prefill_tokens),
        is_draft: Some(false),
    }
}

#[test]
fn a_draft_is_known_to_be_one_where_nothing_else_is() {
    let of = |is_draft| BatchFacts {
        is_draft,
        ..BatchFacts::default()
    };
    for (text, draft, another) in [
        ("phase=draft", Some(true), Some(false)),
        ("phase!=draft", Some(false), Some(true)),
        ("phase=decode", Some(false), None),
        ("phase!=decode", Some(true), None),
        ("tokens>0", None, None),
    ] {
        assert_eq!(holds(text, of(Some(true))), draft, "{text}");
        assert_eq!(holds(text, of(Some(false))), another, "{text}");
        assert_eq!(holds(text, of(None)), None, "{text}");
    }
    assert_eq!(holds("phase=draft", facts(4, 10, 7)), Some(false));
}

fn holds(text: &str, facts: BatchFacts) -> Option<bool> {
    let condition = Condition::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
    condition.holds(facts)
}

#[test]
fn every_fact_is_compared_in_every_way() {
    let mixed = facts(4, 10, 7);
    for text in [
        "requests=4",
        "requests==4",
        "requests!=5",
        "tokens<11",
        "tokens<=10",
        "prefill_tokens>6",
        "decode_tokens >= 3",
        "phase=mixed",
        "phase != decode",
    ] {
        assert_eq!(holds(text, mixed), Some(true), "{text}");
        assert_eq!(holds(&format!("not {text}"), mixed), Some(false), "{text}");
    }
    for (phase, batch) in [
        ("idle", facts(0, 0, 0)),
        ("prefill", facts(1, 5, 5)),
        ("decode", facts(5, 5, 0)),
    ] {
        assert_eq!(holds(&format!("phase={phase}"), batch), Some(true));
    }
}

#[test]
fn and_binds_before_or_and_brackets_before_both() {
    let batch = facts(1, 1, 0);
    assert_eq!(
        holds("requests=1 or requests=2 and tokens=9", batch),
        Some(true)
    );
    assert_eq!(
        holds("(requests=1 or requests=2) and tokens=9", batch),
        Some(false)
    );
    assert_eq!(holds("not requests=2 and tokens=9", batch), Some(false));
    assert_eq!(holds("not(requests=2 and tokens=9)", batch), Some(true));
}

#[test]
fn what_is_not_known_decides_nothing() {
    let batch = BatchFacts {
        tokens: Some(8),
        ..BatchFacts::default()
    };
    assert_eq!(holds("requests=1", batch), None);
    assert_eq!(holds("not phase=idle", batch), None);
    assert_eq!(holds("requests=1 or tokens=8", batch), Some(true));
    assert_eq!(holds("tokens=9 and requests=1", batch), Some(false));
    assert_eq!(holds("requests=1 and tokens=8", batch), None);
}

#[test]
fn says_how_often_each_part_held() {
    struct Shown<'a>(&'a Held, &'a Condition);
    impl fmt::Display for Shown<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0.show(self.1, f)
        }
    }
    let condition = Condition::parse(" requests >= 64 and phase=decode ").unwrap();
    assert_eq!(condition.to_string(), "requests >= 64 and phase=decode");
    let mut held = Held::default();
    for n in 0..300 {
        let prefill = if n < 20 { 5 } else { 0 };
        assert!(!held.count(&condition, facts(5, 5, prefill)));
    }
    let line = "requests>=64 held in 0 of 300 iterations, phase=decode in 280";
    assert_eq!(Shown(&held, &condition).to_string(), line);
    assert!(held.count(&condition, facts(64, 64, 0)));
    held.count(&condition, BatchFacts::default());
    assert_eq!((held.held, held.unknown), (1, 1));
    let line = "requests>=64 held in 1 of 302 iterations, phase=decode in 281; in 1 the batch was not known";
    assert_eq!(Shown(&held, &condition).to_string(), line);
}

#[test]
fn what_is_no_condition_is_refused_where_it_goes_wrong() {
    for (text, problem) in [
        ("", "at character 0: a comparison is missing"),
        ("request>1", "at character 0: \"request\" is not known"),
        ("requests", "at character 8: requests is not compared"),
        ("requests>x", "at character 9: \"x\" is not a number"),
        ("requests>-1", "at character 9: \"\" is not a number"),
        (
            "tokens=99999999999",
            "at character 7: \"99999999999\" is not a number",
        ),
        (
            "phase<decode",
            "at character 5: a phase has no order, = and != compare it",
        ),
        ("phase=dekode", "at character 6: \"dekode\" is not a phase"),
        ("(tokens=1", "at character 9: a bracket is not closed"),
        (
            "tokens=1 tokens=2",
            "at character 9: and, or, or the end should stand",
        ),
        ("tokens=1 and", "at character 12: a comparison is missing"),
        ("é=1", "at character 0: \"é\" is not known"),
    ] {
        let found = Condition::parse(text).unwrap_err();
        assert_eq!(found.problem, problem, "{text}");
        assert!(found.wanted.contains("prefill_tokens"));
    }
    let deep = format!("{}tokens=1", "not ".repeat(99));
    assert!(Condition::parse(&deep).is_err());
    let many = vec!["tokens=1"; PARTS + 1].join(" or ");
    assert!(Condition::parse(&many).is_err());
    assert!(Condition::parse(&many[12..]).is_ok());
}

fn in_times(text: &str, times: IterationDurations) -> Option<bool> {
    let condition = Condition::parse_with_times(text).unwrap_or_else(|e| panic!("{text}: {e}"));
    condition.holds_for(facts(4, 10, 7), &times)
}

#[test]
fn times_are_compared_with_times_and_with_the_median() {
    let times = IterationDurations {
        iteration: Some(25_000_000),
        gc: Some(12_000_000),
        gil: Some(0),
        wait: None,
        stuck: None,
        p50: Some(10_000_000),
    };
    for (text, holds) in [
        ("iteration > 2*p50", Some(true)),
        ("iteration > 2.5 * p50", Some(false)),
        ("iteration >= 2.5*p50", Some(true)),
        ("iteration > p50 and gc > 10ms", Some(true)),
        ("gc>p50", Some(true)),
        ("gc > 0.5s or gil > 5000us", Some(false)),
        ("gc<=12ms", Some(true)),
        ("wait > 1ns", None),
        (
            "wait > 1ms or iteration > 20ms and phase=mixed and requests<5",
            Some(true),
        ),
        ("not (iteration > 20ms)", Some(false)),
    ] {
        assert_eq!(in_times(text, times), holds, "{text}");
    }
    let early = IterationDurations { p50: None, ..times };
    assert_eq!(in_times("iteration > 2*p50", early), None);
    let condition = Condition::parse_with_times("gc > 1ms or tokens>4").unwrap();
    assert!(condition.names("gc") && !condition.names("gil") && condition.names_batch());
    assert!(
        !Condition::parse_with_times("iteration>p50")
            .unwrap()
            .names_batch()
    );
}

#[test]
fn times_that_are_none_are_refused_where_they_go_wrong() {
    for (text, problem) in [
        (
            "iteration > 10",
            "at character 12: \"10\" is no time: a number and ns, us, ms or s, or a multiple of p50",
        ),
        (
            "iteration > 2*p99",
            "at character 12: \"2*p99\" is not a multiple of p50",
        ),
        (
            "gc = 5ms",
            "at character 3: no time is exactly another, < <= > >= compare it",
        ),
        (
            "gpu > 5ms",
            "at character 0: gpu is measured inside windows only, and does not open them",
        ),
        ("gcc > 5ms", "at character 0: \"gcc\" is not known"),
        (
            "wait >",
            "at character 6: \"\" is no time: a number and ns, us, ms or s, or a multiple of p50",
        ),
    ] {
        let found = Condition::parse_with_times(text).unwrap_err();
        assert_eq!(found.problem, problem, "{text}");
        assert!(found.wanted.contains("2*p50"));
    }
    assert_eq!(
        Condition::parse("iteration > 5ms").unwrap_err().problem,
        "at character 0: \"iteration\" is not known"
    );
}

#[test]
fn batches_are_alike_where_phase_and_size_are() {
    let kind = |requests, tokens, prefill| facts(requests, tokens, prefill).kind();
    assert_eq!(kind(33, 33, 0), kind(63, 63, 0));
    assert_ne!(kind(33, 33, 0), kind(64, 64, 0));
    assert_ne!(kind(1, 33, 33), kind(33, 33, 0));
    assert_eq!(kind(33, 33, 0).to_string(), "decode, 32 to 63 requests");
    assert_eq!(
        kind(1, 1000, 1000).to_string(),
        "prefill, 512 to 1023 tokens"
    );
    assert_eq!(kind(1, 1, 1).to_string(), "prefill, 1 of tokens");
    assert_eq!(BatchFacts::default().kind().to_string(), "batch unknown");
    let all = [
        BatchFacts::default().kind(),
        kind(0, 0, 0),
        kind(u32::MAX, u32::MAX, 0),
        kind(1, u32::MAX, 1),
    ];
    assert!(all.iter().all(|kind| kind.place() < BatchClass::COUNT));
}

#[test]
fn stuck_decides_alone_or_beside_what_iterations_decide() {
    let parse = Condition::parse_with_times;
    for (text, has_others) in [
        ("stuck > 30s", false),
        ("not stuck <= 30s", false),
        ("(stuck > 30s) or gc > 10ms and requests > 4", true),
    ] {
        let condition = parse(text).unwrap();
        assert_eq!(condition.names_iterations(), has_others, "{text}");
        assert!(condition.holds_if_stuck(30_000_000_001), "{text}");
        assert!(!condition.holds_if_stuck(30_000_000_000), "{text}");
        assert_eq!(
            condition.holds(facts(5, 5, 0)),
            None,
            "no iteration decides it: {text}"
        );
    }
    assert!(!parse("gc > 10ms").unwrap().holds_if_stuck(u64::MAX));
    for text in [
        "stuck < 30s",
        "stuck > 2*p50",
        "stuck > 30s and gc > 10ms",
        "stuck > 3",
    ] {
        assert!(parse(text).is_err(), "{text}");
    }
    assert!(
        Condition::parse("stuck > 30s").is_err(),
        "a condition on batches"
    );
}
