//! Detects misspelled variables: their names begin with `TLLMPROF`, but no code reads them.

use core::fmt;

use crate::nearest;
use crate::settings::{options, other_names, variable_names};

/// Prefix of variables that only the project's tests use.
const TESTS: &str = "TLLMPROF_TEST_";

/// The name of an unknown variable that begins with `TLLMPROF`. It is displayed as a sentence that suggests the
/// variable that the user may have meant.
#[derive(Clone, Copy, Debug)]
pub struct Unknown<'a>(&'a str);

impl<'a> Unknown<'a> {
    /// Checks the name of a variable. Returns `None` for a variable that tllmprof knows, and for a variable whose name
    /// does not begin with `TLLMPROF`.
    pub fn from_name(name: &'a str) -> Option<Self> {
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
        let meant = find_by_option(name).or_else(|| nearest(name, variable_names()));
        match meant {
            Some(near) => write!(f, "; {near} does"),
            None => Ok(()),
        }
    }
}

/// Returns the variable that an option sets, if `name` spells that option in capitals. For example, `TLLMPROF_GC`
/// spells `--gc`.
fn find_by_option(name: &str) -> Option<&'static str> {
    let name = name.strip_prefix("TLLMPROF_")?;
    let is_spelled = |option: &str| {
        let option = option.trim_start_matches('-');
        option.len() == name.len()
            && option
                .bytes()
                .zip(name.bytes())
                .all(|(of_option, of_name)| {
                    of_name.eq_ignore_ascii_case(&of_option) || (of_name, of_option) == (b'_', b'-')
                })
    };
    let mut options = options();
    options.find_map(|(variable, option)| is_spelled(option).then_some(variable))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_have_been_meant_is_named() {
        let of = |name| Unknown::from_name(name).map(|unknown| unknown.to_string());
        assert_eq!(
            of("TLLMPROF_STEPP").as_deref(),
            Some("TLLMPROF_STEPP means nothing; TLLMPROF_STEP does")
        );
        // No variable has one of these names, but each name spells an option in capitals. The second name of each pair
        // is the variable that this option sets.
        for (named, meant) in [
            ("TLLMPROF_GC", "TLLM_PROFILE_RECORD_GC"),
            ("TLLMPROF_WINDOW", "TLLMPROF_START_STOP"),
            ("TLLMPROF_TORCH_TRACE", "TLLM_TORCH_PROFILE_TRACE"),
        ] {
            assert_eq!(
                of(named),
                Some(format!("{named} means nothing; {meant} does"))
            );
        }
        assert_eq!(
            of("TLLMPROF_COFFEE_MACHINE").as_deref(),
            Some("TLLMPROF_COFFEE_MACHINE means nothing")
        );
        for known in variable_names() {
            assert_eq!(of(known), None);
        }
        // Variables of other programs and known variables are not reported. Variables of TensorRT-LLM begin with
        // `TLLM_`, too, but tllmprof does not read them.
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
