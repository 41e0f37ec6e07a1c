//! The results of `tllmprof attach`: the number that the attach function of the library returns to the
//! command.

/// The result of attaching the library, or of detaching a library that has no control socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub enum Answer {
    /// The request was carried out: the library was attached or, if the command requested this, detached.
    Done,
    /// Nothing was changed, because the library was preloaded when the process started.
    Preloaded,
    /// Nothing was changed, because an environment variable of the library has an invalid value.
    BadVariable,
    /// The library was already attached or, if detaching was requested, already detached. Nothing has
    /// changed.
    DoneBefore,
    Failed,
    /// The library is attached, but its hooks in Python are not installed: another thread has held the GIL
    /// for too long.
    PythonWaits,
    /// The library is attached, in a process without a Python interpreter.
    NoPython,
    /// The library had been detached, and is attached again.
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

    /// Returns the answer with this number, or `Failed` if the number is unknown.
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
