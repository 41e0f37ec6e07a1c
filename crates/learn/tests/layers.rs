//! Tests of two kinds of streams that are hard to distinguish. The first are mixture-of-experts models that
//! read the chosen experts back in each layer, with more or fewer layers than were recorded. The second are
//! requests that all have the same number of tokens, and therefore resemble layers.

mod judged;
mod recorded;

use judged::{assert_holds, take};
use recorded::Record;
use tllmprof_learn::{Call, Learner, Trails};

/// The last kernel of the router (the network that chooses the experts). After it, the program reads the chosen
/// experts back.
const ROUTER: Call = Call::Launch((1 << 32) + 0x2f);

type Records = Vec<Record>;

/// Returns the records before the first true iteration, and the records of each iteration.
fn iterations(name: &str) -> (Records, Vec<Records>) {
    let streams = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/streams");
    let records = recorded::read(&format!("{streams}/{name}.csv.gz"));
    let mut parts = vec![Records::new()];
    for record in records {
        if record == Record::Mark {
            parts.push(Records::new());
        }
        parts.last_mut().unwrap().push(record);
    }
    let before = parts.remove(0);
    (before, parts)
}

/// Splits an iteration into layers: cuts it after each wait that follows the router. Returns the records up to the
/// first such wait, the records of each layer, and the records after the last such wait.
fn cut(iteration: &Records) -> (Records, Vec<Records>, Records) {
    let mut parts = vec![Records::new()];
    let mut routed = false;
    for &record in iteration {
        parts.last_mut().unwrap().push(record);
        match record {
            Record::Call(_, call @ Call::Launch(_), _) => routed = call == ROUTER,
            Record::Call(_, Call::Returned(_), _) if routed => {
                routed = false;
                parts.push(Records::new());
            }
            _ => {}
        }
    }
    let last = parts.pop().unwrap();
    let first = parts.remove(0);
    (first, parts, last)
}

/// Pseudo-random numbers, the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) as usize % limit
    }
}

/// Replaces the times of records so that time never runs backward. The records were assembled from pieces of a
/// recording, so their recorded times are not in order.
fn in_time(records: Records) -> Records {
    /// The time that is put between two pieces, in nanoseconds. `MAX_APART` is the longest time between two records
    /// of the same piece.
    const BETWEEN: u64 = 10_000;
    const MAX_APART: u64 = 1_000_000_000;
    let (mut now, mut before) = (0, None);
    let in_time = |record| match record {
        Record::Call(thread, call, time) => {
            let apart = before.map_or(0, |before| time.wrapping_sub(before));
            now += if apart < MAX_APART { apart } else { BETWEEN };
            before = Some(time);
            Record::Call(thread, call, now)
        }
        record => record,
    };
    records.into_iter().map(in_time).collect()
}

/// Returns a stream of `count` iterations like those of the recording `name`, but with `layers` layers in each. The
/// layers after the first are picked at random from the recording.
fn with_layers(name: &str, layers: usize, count: usize) -> Records {
    let (mut records, iterations) = iterations(name);
    let parts: Vec<_> = iterations.iter().map(cut).collect();
    let between: Vec<_> = parts.iter().skip(1).flat_map(|part| &part.1).collect();
    let mut random = Random(layers as u64);
    for n in 0..count {
        let (first, _, last) = &parts[n % parts.len()];
        records.extend(first);
        for _ in 1..layers {
            records.extend(between[random.below(between.len())]);
        }
        records.extend(last);
    }
    in_time(records)
}

const MODELS: [&str; 2] = ["hf_mixtral_eager", "hf_mixtral_eager_5_layers"];

#[test]
fn as_many_layers_as_can_be_overlooked() {
    for name in MODELS {
        for layers in [2, 3, 4, 5, 6, 8] {
            let name = format!("{layers} layers of {name}");
            let records = with_layers(name.rsplit(' ').next().unwrap(), layers, 200);
            assert_holds(&name, &records);
            let taken = take(&records, (50, 99)).expect(&name);
            assert!(taken.first <= 64, "{name}: at {}", taken.first);
            let marks = &taken.marks[..taken.marks.len() - 1];
            assert!(marks.iter().all(|&marks| marks == 1), "{name}: {marks:?}");
        }
    }
}

/// With many layers, the learner sees only few passes over them and does not recognize them as layers. In that case it
/// must not open a window (a recorded interval) at a call that occurs in each layer.
#[test]
fn no_window_opens_on_a_layer() {
    for name in MODELS {
        for layers in [12, 16, 24, 32, 48, 61] {
            let trails = Trails::new();
            let mut learner = Box::new(Learner::new());
            for record in with_layers(name, layers, 72) {
                if let Record::Call(thread, call, time) = record {
                    learner.event(&trails, thread, call, &|| time);
                    assert!(!learner.understands(), "{layers} layers of {name}");
                }
            }
        }
    }
}

/// Returns the requests of the recording `name`, in which each request has `recorded` tokens. Request n is shortened to
/// `tokens(n)` tokens: it keeps its first tokens and its last token, which includes the work between requests.
fn requests(name: &str, recorded: usize, tokens: impl Fn(usize) -> usize) -> Records {
    let (mut records, iterations) = iterations(name);
    let requests = iterations.len() / recorded;
    let mut total = 0;
    for n in 0.. {
        let tokens = tokens(n);
        let first = n % requests * recorded;
        records.extend(iterations[first..first + tokens - 1].iter().flatten());
        records.extend(&iterations[first + recorded - 1]);
        total += tokens;
        if total >= 300 {
            break;
        }
    }
    in_time(records)
}

#[test]
fn requests_of_equally_many_tokens() {
    for (name, recorded) in [
        ("hf_beam", 48),
        ("hf_bart_beam", 50),
        ("hf_greedy", 48),
        ("hf_mixtral_eager_5_layers", 48),
    ] {
        for tokens in [5, 6, 8, 12, 16, 32] {
            let named = format!("{tokens} tokens of {name}");
            assert_holds(&named, &requests(name, recorded, |_| tokens));
            let varied = |n| tokens - tokens / 2 + n * 7 % tokens;
            assert_holds(&named, &requests(name, recorded, varied));
        }
    }
}
