//! On and off.

use crate::error::Problem;

/// The value of a flag, or nothing where the text is no flag.
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

/// On for `1 true yes on`, off for `0 false no off` and for nothing at all.
///
/// # Errors
/// Any other text.
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
        }
    }
}
