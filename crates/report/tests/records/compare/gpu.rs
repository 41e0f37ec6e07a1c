//! Tests of comparisons of GPU times and other figures that are known only for some iterations.

use tllmprof_record::Batch;
use tllmprof_report::Comparison;

use super::{Run, compare, json};

/// Returns the figures of a comparison of GPU times: the means of both runs, the relative change,
/// and the numbers of iterations of both runs.
fn gpu(comparison: &Comparison) -> [f64; 5] {
    let json = json(comparison);
    let measures = json["measures"].as_array().unwrap();
    let mean = measures.iter().find(|one| one["name"] == "GPU time, mean");
    let mean = mean.unwrap();
    [
        &mean["base"],
        &mean["other"],
        &mean["change"]["relative"],
        &mean["base_iterations"],
        &mean["other_iterations"],
    ]
    .map(|value| value.as_f64().unwrap())
}

#[test]
fn gpu_times_are_compared_of_iterations_that_both_runs_have_them_of() {
    // The run is divided into blocks of eight iterations. The GPU time of an iteration is 1 ms in every third block,
    // beginning with the first block, and 5 ms in the other blocks.
    const fn time(n: u64) -> u64 {
        if n % 24 < 8 { 1_000_000 } else { 5_000_000 }
    }
    let of = |gpu| Run {
        gpu,
        ..Run::default()
    };
    let all = of(|n| Some(time(n)));
    let some = of(|n| (n % 24 < 8).then(|| time(n)));
    let comparison = compare(&all, &some);
    assert_eq!(gpu(&comparison), [1e6, 1e6, 0.0, 72.0, 72.0]);
    let text = comparison.text();
    assert!(text.contains("\nGPU time, mean (72)  "), "{text}");
    assert!(!text.contains("not the same ones"), "{text}");
    // No iteration has a GPU time in both runs. So all GPU times are compared, and a note says that they are not from
    // the same iterations.
    let others = of(|n| (n % 24 >= 8 && n % 24 < 16).then(|| time(n)));
    let comparison = compare(&some, &others);
    assert_eq!(gpu(&comparison), [1e6, 5e6, 4.0, 72.0, 64.0]);
    let text = comparison.text();
    assert!(text.contains("\nGPU time, mean (72, 64)  "), "{text}");
    let note = "GPU times were taken in some iterations, not the same ones\n";
    assert!(text.contains(note), "{text}");
    // If all iterations have GPU times, there is no note.
    let text = compare(&all, &all).text();
    assert!(text.contains("\nGPU time, mean  "), "{text}");
}

#[test]
fn batches_of_iterations_with_gpu_times_may_differ_where_all_do_not() {
    const fn is_prefill(n: u64) -> bool {
        n.is_multiple_of(4)
    }
    let of = |gpu| Run {
        batch: |n| match is_prefill(n) {
            true => Batch::new(1, 100, 100),
            false => Batch::new(4, 4, 0),
        },
        gpu,
        ..Run::default()
    };
    let prefill = of(|n| is_prefill(n).then_some(1000));
    let decode = of(|n| (!is_prefill(n)).then_some(10));
    let text = compare(&prefill, &decode).text();
    let note = "GPU times: batches differ, so times may: 0.0 % and 100 % are decode\n";
    assert!(text.contains(note), "{text}");
}

#[test]
fn figures_of_fewer_iterations_say_of_how_many() {
    let of = |iterations| Run {
        kernel: Some(1e6),
        iterations,
        ..Run::default()
    };
    let text = compare(&of(200), &of(100)).text();
    assert!(text.contains("\nGPU busy, mean (20)  "), "{text}");
    assert!(text.contains("\nkernel, time a step (20)  "), "{text}");
    let found = json(&compare(&of(200), &of(100)));
    assert_eq!(found["kernels_of"], serde_json::json!([20, 20]));
}
