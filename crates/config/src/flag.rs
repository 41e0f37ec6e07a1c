//! Flags: settings that are either on or off, and the words that users can type for on and off.

use crate::error::Problem;

/// Returns the value of a flag, or `None` if the text is not one of the words for on and off. An empty text means off.
pub(crate) fn recognised(text: &str) -> Option<bool> {
    let text = text.trim();
    let is = |word: &&str| text.eq_ignore_ascii_case(word);
    if ["1", "true", "yes", "on"].iter().any(is) {
        Some(true)
    } else if ["", "0", "false", "no", "off"].iter().any(is) {
        Some(false)
    } else {
        None
    }
}

/// The word that enables a setting if the machine and the program allow it. If they do not, the setting has no effect
/// and no warning is logged; with `1`, a warning would be logged.
pub(crate) const AUTO: &str = "auto";

/// Parses a flag like [`parse`], but also accepts `auto`, which means on.
///
/// # Errors
/// Returns an error for all other texts.
pub fn parse_or_auto(text: &str) -> Result<bool, Problem> {
    match recognised(text) {
        Some(is_on) => Ok(is_on),
        None if is_auto(text) => Ok(true),
        None => Err(Problem::new(
            "it is neither on nor off",
            "1, true, yes or on; 0, false, no or off; or auto",
        )),
    }
}

pub(crate) fn is_auto(text: &str) -> bool {
    text.trim().eq_ignore_ascii_case(AUTO)
}

/// Parses a flag: on for `1 true yes on`, off for `0 false no off` and an empty text.
///
/// # Errors
/// Returns an error for all other texts.
pub fn parse(text: &str) -> Result<bool, Problem> {
    recognised(text).ok_or_else(|| {
        Problem::new(
            "it is neither on nor off",
            "1, true, yes or on; 0, false, no or off",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_and_off() {
        for on in ["1", "true", "YES", " On "] {
            assert_eq!(parse(on), Ok(true), "{on:?}");
        }
        for off in ["0", "False", "no", "off", "", "  "] {
            assert_eq!(parse(off), Ok(false), "{off:?}");
        }
        for neither in ["2", "01", "enable", "1 1", "-"] {
            assert!(parse(neither).is_err(), "{neither:?}");
            assert!(parse_or_auto(neither).is_err(), "{neither:?}");
        }
        assert!(parse("auto").is_err());
        for (text, is_on) in [(" Auto ", true), ("1", true), ("off", false), ("", false)] {
            assert_eq!(parse_or_auto(text), Ok(is_on), "{text:?}");
        }
    }
}
