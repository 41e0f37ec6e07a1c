//! Variables that look like ours and that nothing reads: most are misspelt.

use core::fmt;

use crate::nearest;
use crate::settings::{other_names, variable_names};

/// What the variables of the project's tests begin with.
const TESTS: &str = "TLLMPROF_TEST_";

/// The name of a variable that begins as ours do and is none of ours. It is shown as a sentence that names the one that
/// may have been meant.
#[derive(Clone, Copy, Debug)]
pub struct Unknown<'a>(&'a str);

impl<'a> Unknown<'a> {
    /// Nothing for a name that something reads, and for one that is not of our kind.
    pub fn of(name: &'a str) -> Option<Self> {
        let is_known = || {
            variable_names()
                .chain(other_names())
                .any(|known| known == name)
                || name.starts_with(TESTS)
        };
        (name.starts_with("TLLMPROF") && !is_known()).then_some(Self(name))
    }
}

impl fmt::Display for Unknown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(name) = self;
        write!(f, "{name} means nothing")?;
        match nearest(name, variable_names()) {
            Some(near) => write!(f, "; {near} does"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_have_been_meant_is_named() {
        let of = |name| Unknown::of(name).map(|unknown| unknown.to_string());
        assert_eq!(
            of("TLLMPROF_STEPP").as_deref(),
            Some("TLLMPROF_STEPP means nothing; TLLMPROF_STEP does")
        );
        assert_eq!(
            of("TLLMPROF_COFFEE_MACHINE").as_deref(),
            Some("TLLMPROF_COFFEE_MACHINE means nothing")
        );
        for known in variable_names() {
            assert_eq!(of(known), None);
        }
        // Those of TensorRT-LLM begin so, and are its own.
        for other in [
            "TLLM_LOG_LEVEL",
            "HOME",
            "",
            "TLLMPROF_LIB",
            "TLLMPROF_TEST_MANY",
        ] {
            assert_eq!(of(other), None);
        }
    }
}
