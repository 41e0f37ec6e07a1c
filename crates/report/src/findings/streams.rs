//! The finding `serial-streams`: two streams with much work take turns instead of running at once, because an event
//! wait, the legacy default stream or a wait of the host orders their work.

use super::Judgement;
use super::evidence::Evidence;
use crate::kernels::streams::{
    MAX_AT_ONCE, MIN_EXPLAINED, MIN_STREAM_SHARE, StreamOrder, StreamPair, StreamSearch,
};
use crate::ledger::LedgerKind;
use crate::numbers::units::{Rate, Share};

/// Name of the finding `serial-streams`.
pub(crate) const SERIAL_RULE: &str = "serial-streams";

/// Minimum share of the time in which at least one of the two streams has to run, as a fraction. If it is less, the
/// GPU is mostly idle or busy with other work, and the order of these streams matters little.
const MIN_TOGETHER: f64 = 0.5;
/// Minimum share of the time, as a fraction, that overlap of the two streams could save in the best case, for a
/// finding.
const MIN_SAVED: f64 = 0.05;
/// Minimum share of the time in which the GPU is busy, as a fraction, for this finding to have a loss although other
/// causes hold. The loss of this finding is only an upper bound. If the GPU is busy for less time, the finding has no
/// loss, so that the other causes come first.
pub(crate) const MIN_BUSY: f64 = 0.8;

pub(crate) fn serial_when() -> String {
    format!(
        "two streams with over {} of the GPU's work each, together over {} of the time, run at once for under {} of the \
         time of the one with less work; at least {} of the changes between them have one of these causes: an event \
         wait, the legacy default stream, a wait of the host between their launches; overlap would save over {}. Not \
         judged for streams with graphs or collectives",
        Share(MIN_STREAM_SHARE),
        Share(MIN_TOGETHER),
        Share(MAX_AT_ONCE),
        Share(MIN_EXPLAINED),
        Share(MIN_SAVED),
    )
}

pub(crate) fn serial(one: &Evidence<'_>) -> Judgement {
    let kernels = &one.process.kernels;
    let Some(taken) = kernels.window.as_ref().filter(|sum| sum.has_times()) else {
        return Judgement::Unknown("kernels and copies were not recorded".to_owned());
    };
    if !one.process.facts.origin.is_own() {
        return Judgement::Unknown("the trace does not have the streams of calls".to_owned());
    }
    if one.process.record.dropped > 0 {
        return Judgement::Unknown("events are missing in the record".to_owned());
    }
    let pair = match &kernels.streams {
        StreamSearch::Pair(pair) => pair,
        StreamSearch::TooMuch => {
            return Judgement::Unknown("there are too many kernels, copies or calls".to_owned());
        }
        StreamSearch::Nothing => {
            return Judgement::No(format!(
                "no two streams have over {} of the GPU's work each in most iterations, outside graphs and collectives",
                Share(MIN_STREAM_SHARE)
            ));
        }
    };
    let [more, less] = pair.streams.map(|one| one.stream);
    let at_once = Share(pair.at_once_share());
    if !pair.takes_turns() {
        return Judgement::No(format!(
            "streams {more} and {less} run at once {at_once} of the time of stream {less}"
        ));
    }
    let turns = match pair.at_once {
        0 => format!("streams {more} and {less} never run at once"),
        _ => format!(
            "streams {more} and {less} run at once only {at_once} of the time of stream {less}"
        ),
    };
    let (together, saved) = (taken.share(pair.together()), taken.share(pair.at_most));
    let Some(order) = order(one, pair) else {
        return Judgement::No(format!("{turns}; what orders them is not known"));
    };
    let measured = one.measured_in(taken.iterations);
    let evidence = format!(
        "{turns}: {order}; if this order is not needed, overlap would save at most {} of the time{measured}",
        Share(saved)
    );
    match together >= MIN_TOGETHER && saved >= MIN_SAVED {
        true => Judgement::yes(evidence, saved),
        false => Judgement::No(evidence),
    }
}

/// Returns a description of the mechanism that orders two streams, or `None` if the mechanism is not known.
fn order(one: &Evidence<'_>, pair: &StreamPair) -> Option<String> {
    let streams = pair.streams.map(|one| one.stream);
    let call = pair.call.as_deref().unwrap_or_default();
    let calls = Rate(pair.calls as f64 / pair.iterations.max(1) as f64);
    let other = |waits| {
        if streams[0] == waits {
            streams[1]
        } else {
            streams[0]
        }
    };
    Some(match (pair.order?, pair.waits) {
        (StreamOrder::Event, Some(waits)) => {
            format!(
                "each step stream {waits} waits for an event ({calls} {call} a step) and continues when stream {}'s work has ended",
                other(waits)
            )
        }
        (StreamOrder::Event, None) => {
            format!(
                "each step both wait for events ({calls} {call} a step), and each continues when the other's work has ended"
            )
        }
        (StreamOrder::Legacy, _) => {
            "one of them is the legacy default stream (7), whose work waits for that of other blocking streams, and theirs \
             for its own"
                .to_owned()
        }
        (StreamOrder::Host, waits) => {
            let place = waiting_function(one, call);
            let place = place.map_or_else(String::new, |name| format!(" in {name}"));
            let which = match waits {
                Some(waits) => format!(
                    "for stream {} before it launches on stream {waits}",
                    other(waits)
                ),
                None => "for one before it launches on the other".to_owned(),
            };
            format!("the host waits {which} ({calls} {call} a step{place})")
        }
    })
}

/// Returns the function of the program that makes the waits with the CUDA function `call`, as stack samples or marked
/// functions show it. Returns `None` if the function is not known, or if several functions make these waits.
fn waiting_function<'a>(one: &Evidence<'a>, call: &str) -> Option<&'a str> {
    let rows = one.process.ledger.host.iter();
    let rows = rows.filter(|row| row.kind == LedgerKind::Wait && row.cause.contains(call));
    let mut functions = rows.map(|row| row.location.as_ref().map(|place| place.function.as_str()));
    let first = functions.next()??;
    functions.all(|other| other == Some(first)).then_some(first)
}
