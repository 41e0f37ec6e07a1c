//! The answers of the library to `tllmprof attach`, as the number that its function returns in the process.

/// What came of attaching the library, or of detaching one that does not listen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub enum Answer {
    /// It is attached; or detached, if that was asked for.
    Done,
    /// It was preloaded when the process started.
    Preloaded,
    /// A variable has a value that it does not know.
    BadVariable,
    /// Nothing has changed: it was attached already, or detached, if that was asked for.
    DoneBefore,
    Failed,
    /// Attached; Python's GIL is held for long.
    PythonWaits,
    /// Attached; the process has no Python.
    NoPython,
    /// It was detached, and is attached again.
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

    /// A number that is no answer is that of a failure.
    #[must_use]
    pub fn of(number: i32) -> Self {
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
            assert_eq!((answer as i32, Answer::of(number)), (number, answer));
        }
        assert_eq!([-1, 8].map(Answer::of), [Answer::Failed; 2]);
    }
}
