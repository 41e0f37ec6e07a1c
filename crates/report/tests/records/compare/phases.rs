//! Tests of comparisons of runs with different batches.

use tllmprof_record::Batch;
use tllmprof_report::Outcome;

use super::{Run, compare, fits, json};

/// Returns a batch with a prompt of 4000 tokens for one in `MANY` iterations, and a batch of 16
/// decodes for the other iterations.
fn every<const MANY: u64>(n: u64) -> Option<Batch> {
    match n.is_multiple_of(MANY) {
        true => Batch::new(1, 4000, 4000),
        false => Batch::new(16, 16, 0),
    }
}

#[test]
fn a_different_mix_of_phases_is_named_and_each_phase_compared() {
    let run = |batch, seed| Run {
        batch,
        seed,
        ..Run::default()
    };
    let comparison = compare(&run(every::<10>, 1), &run(every::<3>, 2));
    let text = comparison.text();
    fits(&text);
    let note = "batches differ, so times may: 10.0 % and 33.5 % are prefill";
    assert!(text.lines().any(|line| line == note), "{text}");
    assert!(!text.contains("tokens a step"), "{text}");
    // An iteration takes 10 ms, and about 4 ms more with a prompt. In one run 10 % of iterations
    // have a prompt, in the other 33.5 %.
    let alone = "with the batches of OTHER, steps of BASE would be ";
    let alone = text.lines().find_map(|line| line.strip_prefix(alone));
    let (part, rest) = alone.unwrap().split_once(' ').unwrap();
    assert_eq!(rest, "% longer in the mean");
    let part: f64 = part.parse().unwrap();
    assert!((part - 9.0).abs() < 1.0, "{part}");
    // The runs differ in their mean time, but each phase (prefill, decode) takes the same time in
    // both.
    assert!(matches!(comparison.verdict, Outcome::Slower(..)), "{text}");
    let json = json(&comparison);
    let measures = json["measures"].as_array().unwrap();
    for name in ["prefill, mean", "decode, mean"] {
        let measure = measures.iter().find(|measure| measure["name"] == name);
        let measure = measure.unwrap();
        let relative = measure["change"]["relative"].as_f64().unwrap();
        assert!(relative.abs() < 0.04, "{measure}");
    }
    let prefill = text
        .lines()
        .filter(|line| line.starts_with("prefill, mean "));
    assert_eq!(prefill.count(), 1, "{text}");
}

#[test]
fn different_sizes_of_batches_are_named() {
    let run = |batch, seed| Run {
        batch,
        seed,
        ..Run::default()
    };
    let small: fn(u64) -> _ = |n| Batch::new(1, 2 + n as i64 % 3, 0);
    let large: fn(u64) -> _ = |n| Batch::new(1, 2 + n as i64 % 30, 0);
    let text = compare(&run(small, 1), &run(large, 2)).text();
    let note = "decode batches differ, so times may: 3.00 and 16.0 tokens a step";
    assert!(text.lines().any(|line| line == note), "{text}");
    // There is no estimate of the effect of batches, because most of the other run's batches belong
    // to size classes that the base does not have.
    assert!(!text.contains("with the batches of OTHER"), "{text}");
    // If all batches are in one phase, there is no separate row for the phase.
    assert!(!text.contains("decode, mean"), "{text}");
}

#[test]
fn runs_of_the_same_mix_have_no_note_of_it() {
    let mut noted = 0;
    for seed in 1..=50 {
        // Both functions return pseudo-random batches of the same mix: about one batch in ten is a prompt, and the
        // other batches are decodes with 11 to 97 tokens.
        let batch: [fn(u64) -> _; 2] = [
            |n| match n * 7919 % 97 {
                0..10 => Batch::new(1, 900, 900),
                size => Batch::new(1, 1 + size as i64, 0),
            },
            |n| match (n + 31) * 104_729 % 97 {
                0..10 => Batch::new(1, 900, 900),
                size => Batch::new(1, 1 + size as i64, 0),
            },
        ];
        let run = |side: usize| Run {
            seed: seed + 100 * side as u64,
            iterations: 30 + seed * 3,
            batch: batch[side],
            ..Run::default()
        };
        noted += u32::from(compare(&run(0), &run(1)).text().contains("batches differ"));
    }
    assert!(noted <= 2, "{noted}");
    // For one of the two runs, the batches are not known.
    let known = Run {
        batch: every::<10>,
        ..Run::default()
    };
    assert!(!compare(&known, &Run::default()).text().contains("differ, "));
}
