//! The library's answers to `tllmprof attach`: the number that its function in the process returns.

/// The result of attaching the library, or of detaching one that does not listen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub enum Answer {
    /// The library is attached, or detached if that was requested.
    Done,
    /// The library was preloaded when the process started.
    Preloaded,
    /// A variable has an unknown value.
    BadVariable,
    /// Nothing has changed: the library was already attached, or detached if that was requested.
    DoneBefore,
    Failed,
    /// Attached; another thread has held Python's GIL for too long.
    PythonWaits,
    /// Attached; the process has no Python.
    NoPython,
    /// The library was detached, and is attached again.
    AttachedAgain,
}

impl Answer {
    const ALL: [Self; 8] = [
        Self::Done,
        Self::Preloaded,
        Self::BadVariable,
        Self::DoneBefore,
        Self::Failed,
        Self::PythonWaits,
        Self::NoPython,
        Self::AttachedAgain,
    ];

    /// Returns the answer for a number, or `Failed` for an unknown one.
    #[must_use]
    pub fn from_number(number: i32) -> Self {
        let mut all = Self::ALL.into_iter();
        all.find(|answer| *answer as i32 == number)
            .unwrap_or(Self::Failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_answer_has_its_number() {
        for (number, answer) in (0..).zip(Answer::ALL) {
            assert_eq!(
                (answer as i32, Answer::from_number(number)),
                (number, answer)
            );
        }
        assert_eq!([-1, 8].map(Answer::from_number), [Answer::Failed; 2]);
    }
}
