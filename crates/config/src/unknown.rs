//! Variables that look like ours and that nothing reads: most are misspelt.

use core::fmt;

use crate::nearest;
use crate::variables::VARIABLES;

/// Read by the command or by the project's scripts, or set by the library for its children.
const OTHERS: [&str; 6] = [
    "TLLMPROF_LIB",
    "TLLMPROF_NSYS",
    "TLLMPROF_NCU",
    "TLLMPROF_ENGINE",
    "TLLMPROF_NVTX_CHAIN",
    "TLLMPROF_CACHE",
];
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
            VARIABLES.iter().any(|variable| variable.name == name)
                || OTHERS.contains(&name)
                || name.starts_with(TESTS)
        };
        (name.starts_with("TLLMPROF") && !is_known()).then_some(Self(name))
    }
}

impl fmt::Display for Unknown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(name) = self;
        write!(f, "{name} means nothing")?;
        match nearest(name, VARIABLES.iter().map(|variable| variable.name)) {
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
        for variable in VARIABLES {
            assert_eq!(of(variable.name), None);
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
