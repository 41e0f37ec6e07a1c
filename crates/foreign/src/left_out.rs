//! The reasons why events of a trace are left out, and the number of events for each reason.

use std::collections::BTreeMap;

/// The longest possible event of a trace, in nanoseconds: a day. A longer event has a wrong start or end, because no
/// profiler records for so long.
pub const LONGEST_EVENT_NS: u64 = 86_400_000_000_000;

/// The reason why an event of a trace is left out.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LeftOutReason {
    /// The event has no start, or it has no duration or end.
    NoTime,
    /// The event's end is before its start.
    EndsBeforeStart,
    /// The event lasts longer than [`LONGEST_EVENT_NS`].
    TooLong,
    /// The event's start is further than [`LONGEST_EVENT_NS`] from the median start of all events.
    FarAway,
    /// The data about the GPU work contain no GPU or no stream.
    NoStream,
    /// The trace does not say to which of several processes the GPU work belongs.
    NoProcess,
    /// The number of the GPU is larger than 255, the largest number that tllmprof's data format can store.
    UnknownGpu,
    /// There are more streams than tllmprof's data format can distinguish (16 bits for each).
    TooManyStreams,
    /// The event's kind is not known.
    UnknownKind,
    /// An iteration, or a window (a recorded interval), has no number.
    NoNumber,
    /// There are more events than are kept in memory.
    TooMany,
}

impl LeftOutReason {
    /// Returns the words between "1 event" or "3 events" and "left out" in a message: first the words for one event,
    /// then those for several events.
    const fn clause(self) -> [&'static str; 2] {
        match self {
            Self::NoTime => ["without a time is", "without a time are"],
            Self::EndsBeforeStart => [
                "that ends before it begins is",
                "that end before they begin are",
            ],
            Self::TooLong => ["that lasts over a day is", "that last over a day are"],
            Self::FarAway => [
                "that is over a day away from the others is",
                "that are over a day away from the others are",
            ],
            Self::NoStream => [
                "of the GPU without a GPU or a stream is",
                "of the GPU without a GPU or a stream are",
            ],
            Self::NoProcess => [
                "of a process that is not always named is",
                "of processes that are not always named are",
            ],
            Self::UnknownGpu => [
                "of a GPU with a number over 255 is",
                "of GPUs with numbers over 255 are",
            ],
            Self::TooManyStreams => [
                "of a stream beyond those that can be distinguished is",
                "of streams beyond those that can be distinguished are",
            ],
            Self::UnknownKind => ["of an unknown kind is", "of unknown kinds are"],
            Self::NoNumber => [
                "of an iteration or a window without a number is",
                "of iterations or windows without numbers are",
            ],
            Self::TooMany => [
                "beyond those that fit into memory is",
                "beyond those that fit into memory are",
            ],
        }
    }
}

/// Numbers of events of a trace that are left out, by reason.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct LeftOut(BTreeMap<LeftOutReason, u64>);

impl LeftOut {
    /// Counts an event that is left out.
    pub fn add(&mut self, reason: LeftOutReason) {
        self.add_all(reason, 1);
    }

    /// Counts `events` events that are left out for the same reason.
    pub fn add_all(&mut self, reason: LeftOutReason, events: u64) {
        if events > 0 {
            *self.0.entry(reason).or_default() += events;
        }
    }

    /// Adds the events that `other` has counted.
    pub fn merge(&mut self, other: &Self) {
        for (reason, events) in &other.0 {
            self.add_all(*reason, *events);
        }
    }

    /// Returns the number of all events that are left out.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// Returns a text for each reason, such as `3 events without a time are left out`.
    pub fn texts(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(|(reason, events)| {
            let [one, several] = reason.clause();
            match events {
                1 => format!("1 event {one} left out"),
                _ => format!("{events} events {several} left out"),
            }
        })
    }
}

/// Checks the start and the end of an event, which are in nanoseconds. Returns its duration.
///
/// # Errors
/// Returns the reason why the event must be left out.
pub fn check_times(start: Option<i64>, end: Option<i64>) -> Result<u64, LeftOutReason> {
    let (Some(start), Some(end)) = (start, end) else {
        return Err(LeftOutReason::NoTime);
    };
    match end.abs_diff(start) {
        _ if end < start => Err(LeftOutReason::EndsBeforeStart),
        long if long > LONGEST_EVENT_NS => Err(LeftOutReason::TooLong),
        duration => Ok(duration),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_that_is_left_out_has_a_reason() {
        let day = LONGEST_EVENT_NS as i64;
        assert_eq!(check_times(Some(-5), Some(7)), Ok(12));
        assert_eq!(check_times(Some(0), Some(day)), Ok(LONGEST_EVENT_NS));
        assert_eq!(check_times(Some(1), None), Err(LeftOutReason::NoTime));
        assert_eq!(
            check_times(Some(1), Some(0)),
            Err(LeftOutReason::EndsBeforeStart)
        );
        for end in [day + 1, i64::MAX] {
            assert_eq!(check_times(Some(0), Some(end)), Err(LeftOutReason::TooLong));
        }
        assert_eq!(
            check_times(Some(i64::MIN), Some(i64::MAX)),
            Err(LeftOutReason::TooLong)
        );
    }

    #[test]
    fn each_reason_has_a_text_with_its_number() {
        let mut left_out = LeftOut::default();
        left_out.add_all(LeftOutReason::TooMany, 0);
        assert_eq!(left_out.texts().count(), 0);
        left_out.add(LeftOutReason::TooLong);
        left_out.add_all(LeftOutReason::NoTime, 3);
        let mut all = left_out.clone();
        all.merge(&left_out);
        assert_eq!((left_out.total(), all.total()), (4, 8));
        let texts: Vec<_> = left_out.texts().collect();
        assert_eq!(
            texts,
            [
                "3 events without a time are left out",
                "1 event that lasts over a day is left out"
            ]
        );
    }
}
