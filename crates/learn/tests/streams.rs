//! Replays call streams of real processes, recorded on an NVIDIA H200. Marks in the streams show where the true
//! iterations begin; the learner never receives them.

mod judged;
mod recorded;

use judged::{assert_holds, replay, replay_level, share, take};
use recorded::Record;
use tllmprof_learn::Call;

fn stream(name: &str) -> Vec<Record> {
    let streams = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/streams");
    recorded::read(&format!("{streams}/{name}.csv.gz"))
}

fn holds(name: &str) {
    let mut records = stream(name);
    assert_holds(name, &records);
    assert_windows_open_on_true_iterations(name, &records);
    // The library does not always report copies to the device. So the learner must also find the iterations in the
    // stream without these copies.
    records.retain(|record| !matches!(record, Record::Call(_, Call::CopyToDevice, _)));
    assert_holds(name, &records);
}

macro_rules! streams {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            holds(stringify!($name));
        })*
    };
}

// In most of these streams a wait or a copy to the host recurs in each true iteration, and the learner finds it. In
// `nested_nowait` and `tp_leader_rank1` there are hardly any, and the learner finds the iterations by their launches.
streams! {
    async_engine_eager async_engine_graph c_graph_recapture cb_async cb_graphs compiled_default
    compiled_reduce_overhead diffusion engine_full engine_piecewise hf_assisted hf_bart_beam
    hf_beam hf_cb hf_graphdecode hf_greedy hf_mixtral_eager hf_mixtral_eager_5_layers
    hf_prompt_lookup hf_static_compiled hf_static_compiled_5_layers hf_two hf_whisper jax jax_decode jax_long jax_scan jax_train llamacpp_graphs llamacpp_nograph
    llamacpp_parallel llamacpp_parallel_nograph server_batches server_pool server_threads
    nested_nowait nested_requests16 nested_requests40
    tp_leader_rank0 tp_leader_rank1 train_accumulate train_amp train_ddp_rank0 train_every1
}

/// In these streams a step has equal parts. The learner recognizes the whole step only after about nine steps. A
/// window (a recorded interval) that opens earlier captures parts, so windows are not checked.
#[test]
fn equal_parts_are_counted_together() {
    for name in [
        "c_waits_in_the_midst",
        "nested_graph_parts",
        "nested_items8",
    ] {
        assert_holds(name, &stream(name));
    }
}

/// In this stream other threads read each token several steps late. An early window (a recorded interval) opens and
/// closes wherever those threads happen to read, so windows are not checked.
#[test]
fn late_reads_give_way_to_launches() {
    assert_holds("jax_late", &stream("jax_late"));
}

/// In this stream every ninth step has more work. The learner understands the step only late, and windows (recorded
/// intervals) open only then. So this test does not check windows.
#[test]
fn two_streams_tied_by_events() {
    assert_holds("nested_tied", &stream("nested_tied"));
}

/// In these streams each image ends with a wait and consists of several passes of the network. The images are the
/// iterations, and the passes are the inner level.
#[test]
fn passes_are_the_inner_level() {
    for (name, images, passes) in [
        ("nested_passes20", 24, 480),
        ("nested_passes8", 24, 192),
        ("nested_uneven", 30, 429),
    ] {
        let records = stream(name);
        let (detected, _) = replay(&records);
        assert_eq!(detected, images, "{name}");
        let (learner, boundaries) = replay_level(&records, true);
        let inner = learner.inner().unwrap_or_else(|| panic!("{name}: none"));
        assert!(inner.rule.is_pass() && !inner.outer.is_pass(), "{name}");
        assert!(inner.each > 3, "{name}: {}", inner.each);
        let share = share(&boundaries);
        assert!(share >= 0.98, "{name}: share {share:.3}");
        assert!(learner.detected().abs_diff(passes) <= 4, "{name}");
    }
}

/// The learner must report no inner level (equal parts of which each step consists) for these streams: their steps do
/// not consist of equal passes of a network.
#[test]
fn no_inner_level_is_offered_where_there_is_none() {
    for name in [
        "diffusion",
        "hf_assisted",
        "hf_greedy",
        "hf_mixtral_eager",
        "llamacpp_parallel_nograph",
        "nested_nowait",
        "nested_tied",
        "server_batches",
        "train_every1",
    ] {
        let (learner, _) = replay_level(&stream(name), true);
        assert_eq!(learner.inner(), None, "{name}");
    }
}

/// A stream that has neither waits nor a stable period. The learner must find no iterations in it.
#[test]
fn no_period_is_made_up() {
    let (learner, boundaries) = replay_level(&stream("nested_varying_free"), false);
    assert_eq!(learner.rule(), None);
    assert!(boundaries.iter().all(|&count| count == 0));
}

/// Known limits of the learner: streams whose true iterations it does not find.
mod limits {
    use super::*;

    /// The program reads the loss only in every tenth step. The stream has too few reads to show that they recur, so
    /// the learner must find no iterations. If the stream is repeated three times, the learner takes ten steps for one
    /// iteration.
    #[test]
    fn train_every10() {
        let records = stream("train_every10");
        let (detected, boundaries) = replay(&records);
        assert_eq!(detected, 0);
        assert!(boundaries.iter().all(|&count| count == 0));
        let thrice: Vec<_> = (0..3).flat_map(|_| stream("train_every10")).collect();
        let (detected, boundaries) = replay(&thrice);
        let reads = thrice
            .iter()
            .filter(|record| matches!(record, Record::Call(_, Call::CopyToHost, _)))
            .count() as u64;
        assert!(detected.abs_diff(reads) <= 2, "{detected} of {reads}");
        assert!(boundaries.iter().all(|&count| count <= 1));
    }
}

/// Asserts that the learner finds the iterations of stream `second` if the process has made the calls of stream `first`
/// before.
fn follows(first: &str, second: &str) {
    let mut records = stream(first);
    let (_, before) = replay(&records);
    records.extend(stream(second));
    let (_, boundaries) = replay(&records);
    let share = share(&boundaries[before.len()..]);
    assert!(share >= 0.98, "{second} after {first}: share {share:.3}");
}

#[test]
fn another_engine_follows() {
    follows("hf_greedy", "engine_full");
    follows("engine_full", "hf_beam");
    follows("engine_piecewise", "hf_assisted");
    follows("llamacpp_nograph", "jax");
}

#[test]
fn the_first_iterations_were_missed() {
    for name in [
        "engine_full",
        "hf_greedy",
        "llamacpp_nograph",
        "hf_two",
        "jax",
    ] {
        let mut records = stream(name);
        let mut marks = 0;
        records.retain(|record| {
            marks += u32::from(matches!(record, Record::Mark));
            marks > 5
        });
        let (_, boundaries) = replay(&records);
        let share = share(&boundaries);
        assert!(share >= 0.98, "{name}: share {share:.3}");
    }
}

/// Streams with fewer than 50 iterations.
const SHORT: [&str; 2] = ["hf_cb", "train_accumulate"];
/// Streams with so little work in an iteration that the iteration could be a layer of a model. The learner understands
/// the step later in these streams, and windows (recorded intervals) open only then.
const LITTLE: [&str; 10] = [
    "async_engine_eager",
    "compiled_default",
    "diffusion",
    "hf_whisper",
    "server_batches",
    "server_pool",
    "server_threads",
    "tp_leader_rank0",
    "tp_leader_rank1",
    "nested_nowait",
];
fn assert_windows_open_on_true_iterations(name: &str, records: &[Record]) {
    for asked in [(0, 2), (5, 9), (20, 29), (50, 99)] {
        let Some(taken) = take(records, asked) else {
            let ends = asked.0 == 50 && SHORT.contains(&name);
            assert!(ends, "{name}: {asked:?} never opens");
            continue;
        };
        let late = if LITTLE.contains(&name) { 128 } else { 64 };
        assert!(
            taken.first <= asked.0.max(late),
            "{name}: {asked:?} at {}",
            taken.first
        );
        // The last iteration of a stream may be incomplete, so it is not checked.
        let marks = &taken.marks[..taken.marks.len() - 1];
        let amiss = marks.iter().filter(|&&marks| marks != 1).count();
        assert!(
            marks.first().is_none_or(|&marks| marks == 1) && amiss * 20 <= marks.len(),
            "{name}: {asked:?} at {}: {marks:?}",
            taken.first
        );
    }
}
