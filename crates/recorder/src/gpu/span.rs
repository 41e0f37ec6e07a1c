//! The state of a stream's span, and the ways in which the span ends. A span is the work of one stream in one
//! iteration.
//!
//! | state        | `Begins(n)` | `Fails(n)`  | `Ends`    | `Forgotten` |
//! |--------------|-------------|-------------|-----------|-------------|
//! | `Nothing`    | `Open(n)`   | `Missed(n)` |           |             |
//! | `Open(m)`    |             |             | `Nothing` | `Nothing`   |
//! | `Missed(m)`  | `Open(n)`   | `Missed(n)` |           | `Nothing`   |
//!
//! Each row shows the state after each event. In an empty field the state does not change. The code that begins a span
//! first ends the open one.

const MISSED: u64 = 1 << 63;

/// The state of a stream's span (the stream's work in one iteration).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Has {
    /// The stream has no open span.
    Nothing,
    /// A span of the iteration with this number is open.
    Open(u64),
    /// A span of the iteration with this number could not begin. No further attempt is made in this iteration.
    Missed(u64),
}

/// An occurrence that changes the state of a stream's span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpanEvent {
    /// A span of the iteration with this number begins.
    Begins(u64),
    /// A span of the iteration with this number could not begin.
    Fails(u64),
    /// The open span ends: no later work belongs to it.
    Ends,
    /// The stream is removed from the table of streams: the program destroys the stream or its context, or the window
    /// is over.
    Forgotten,
}

impl Has {
    /// Returns the state of the stream's span after `event`.
    pub(crate) const fn next(self, event: SpanEvent) -> Self {
        match (self, event) {
            (Self::Nothing | Self::Missed(_), SpanEvent::Begins(iteration)) => {
                Self::Open(iteration)
            }
            (Self::Nothing | Self::Missed(_), SpanEvent::Fails(iteration)) => {
                Self::Missed(iteration)
            }
            (Self::Open(_), SpanEvent::Ends) | (_, SpanEvent::Forgotten) => Self::Nothing,
            (unchanged, _) => unchanged,
        }
    }

    /// Returns the state as a word, for an atomic variable; 0 for `Nothing`.
    pub(crate) const fn to_bits(self) -> u64 {
        match self {
            Self::Nothing => 0,
            Self::Open(iteration) => iteration + 1,
            Self::Missed(iteration) => (iteration + 1) | MISSED,
        }
    }

    /// Returns the state that the word `bits` encodes; the inverse of [`Self::to_bits`].
    #[inline]
    pub(crate) const fn from_bits(bits: u64) -> Self {
        match (bits & !MISSED).checked_sub(1) {
            None => Self::Nothing,
            Some(iteration) if bits & MISSED == 0 => Self::Open(iteration),
            Some(iteration) => Self::Missed(iteration),
        }
    }

    /// Returns true if the word `bits` encodes `Open` or `Missed` for `iteration`. A launch in this iteration then
    /// begins no span. Checked at each launch.
    #[inline]
    pub(crate) const fn is_of(bits: u64, iteration: u64) -> bool {
        bits & !MISSED == iteration + 1
    }
}

/// The reason why a span (the work of one stream in one iteration) ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// The program is about to wait for GPU work, which may include the work of the span.
    Wait,
    /// Work of another iteration is about to be launched into the same stream.
    Next,
    /// Another iteration has begun, and the thread that launched the span's work now ends its spans of
    /// earlier iterations.
    Iteration,
    /// The window has closed, or the stream is destroyed.
    End,
    /// The window has closed, or the stream is destroyed, while any stream is being captured. No CUDA event is
    /// recorded then.
    Capture,
}

/// A span that is about to end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ending {
    pub why: Why,
    pub launches: u32,
    /// The number of the span's launches that come before its last CUDA event. That event may be recorded several
    /// times; the latest recording counts. 0 if it was not recorded yet.
    pub covered: u32,
    pub iteration: u64,
    /// The number of the latest iteration that has begun.
    pub latest: u64,
    /// True if the stream is the legacy default stream, in which a CUDA event would make other streams wait.
    pub is_legacy: bool,
}

/// The result of ending a span: its time can be read, is lost, or needs one more CUDA event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The span stays open although it has no launch yet: another thread has begun it and is about to make its first
    /// launch.
    Stays,
    /// The span has no work, so its CUDA events can be reused.
    Empty,
    /// The span's last CUDA event comes after all of its work, so its time can be read later.
    Whole,
    /// The span's second CUDA event has to be recorded now. If the driver refuses to record it, the span is lost. `cut`
    /// is true if work outside the span may have run before that event.
    GiveLast { cut: bool },
    /// The span's end can no longer be determined, so its time is lost.
    Lost,
}

impl Ending {
    /// Returns the result of ending the span for the reason `why`.
    pub(crate) const fn fate(&self) -> Fate {
        let why = self.why;
        if self.launches == 0 {
            return match why {
                Why::Wait | Why::Iteration => Fate::Stays,
                Why::Next | Why::End | Why::Capture => Fate::Empty,
            };
        }
        if self.covered == self.launches {
            return Fate::Whole;
        }
        // More than one iteration has begun since the span's iteration. A CUDA event recorded now would come long
        // after the span's work, so the measured time would be much too long.
        let is_past = self.iteration + 1 < self.latest;
        let may_give = match why {
            Why::Wait => true,
            // The program is about to launch work into this stream. If this is the legacy stream, that work makes
            // other streams wait anyway, so a CUDA event adds no further delay.
            Why::Next => !is_past,
            // A CUDA event on the legacy stream would make other streams wait, so none is recorded there now.
            Why::Iteration | Why::End => !is_past && !self.is_legacy,
            Why::Capture => false,
        };
        if may_give {
            let cut = !matches!(why, Why::Wait);
            Fate::GiveLast { cut }
        } else {
            Fate::Lost
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Has::{self, Missed, Nothing, Open};
    use super::SpanEvent::{self, Begins, Ends, Fails, Forgotten};
    use super::{Ending, Fate, Why};

    const SPAN: Ending = Ending {
        why: Why::Wait,
        launches: 3,
        covered: 2,
        iteration: 7,
        latest: 7,
        is_legacy: false,
    };

    fn after(events: &[SpanEvent]) -> Vec<Has> {
        let mut has = Nothing;
        let on = |event: &SpanEvent| {
            has = has.next(*event);
            has
        };
        events.iter().map(on).collect()
    }

    #[test]
    fn a_word_holds_each_state() {
        for has in [Nothing, Open(0), Open(41), Missed(0), Missed(41)] {
            assert_eq!(Has::from_bits(has.to_bits()), has);
            let is_of_41 = matches!(has, Open(41) | Missed(41));
            assert_eq!(Has::is_of(has.to_bits(), 41), is_of_41);
        }
    }

    #[test]
    fn spans_follow_each_other() {
        assert_eq!(
            after(&[Begins(0), Ends, Begins(0), Ends, Begins(1)]),
            [Open(0), Nothing, Open(0), Nothing, Open(1)]
        );
    }

    #[test]
    fn one_that_could_not_begin_is_tried_in_the_next_iteration() {
        assert_eq!(
            after(&[Fails(3), Ends, Begins(4)]),
            [Missed(3), Missed(3), Open(4)]
        );
    }

    #[test]
    fn a_span_is_not_lost_by_another_that_begins() {
        assert_eq!(after(&[Begins(1), Begins(2), Fails(2)]), [Open(1); 3]);
    }

    #[test]
    fn a_stream_that_is_destroyed_has_nothing() {
        assert_eq!(after(&[Begins(1), Forgotten, Ends])[1..], [Nothing; 2]);
        assert_eq!(after(&[Fails(1), Forgotten])[1], Nothing);
    }

    #[test]
    fn an_event_behind_the_last_launch_makes_it_whole_whatever_ends_it() {
        for why in [Why::Wait, Why::Next, Why::Iteration, Why::End, Why::Capture] {
            let (covered, latest, is_legacy) = (3, 99, true);
            let ending = Ending {
                why,
                covered,
                latest,
                is_legacy,
                ..SPAN
            };
            assert_eq!(ending.fate(), Fate::Whole, "{why:?}");
        }
    }

    #[test]
    fn a_launch_that_is_under_way_keeps_it_open_only_while_the_window_is() {
        let of = |why| {
            Ending {
                why,
                launches: 0,
                covered: 0,
                ..SPAN
            }
            .fate()
        };
        assert_eq!([Why::Wait, Why::Iteration].map(of), [Fate::Stays; 2]);
        assert_eq!(
            [Why::Next, Why::End, Why::Capture].map(of),
            [Fate::Empty; 3]
        );
    }

    #[test]
    fn a_late_event_is_given_where_it_still_says_something() {
        let cut = Fate::GiveLast { cut: true };
        let of = |why, latest, is_legacy| {
            Ending {
                why,
                latest,
                is_legacy,
                ..SPAN
            }
            .fate()
        };
        assert_eq!(of(Why::Wait, 99, true), Fate::GiveLast { cut: false });
        assert_eq!(of(Why::Next, 8, true), cut);
        assert_eq!(of(Why::Next, 9, true), Fate::Lost);
        for why in [Why::Iteration, Why::End] {
            assert_eq!(of(why, 8, false), cut);
            assert_eq!(of(why, 9, false), Fate::Lost);
            assert_eq!(of(why, 8, true), Fate::Lost);
        }
        assert_eq!(of(Why::Capture, 7, false), Fate::Lost);
    }
}
