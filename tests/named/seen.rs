//! Helpers for tests of rules that name functions: parts of the library's messages about the way in which it hooks a
//! function, and numbers of calls.

use crate::common::{is_x86_64, skipped};
use crate::twice::Both;

/// Part of the debug message that says that the library hooks a function by patching its entry.
pub(crate) const BY_ENTRY: &str = "is followed by its entry";

/// Part of the debug message that says that the library hooks a function through the GOT slots of its callers.
pub(crate) const BY_NAME: &str = "is followed where other modules call it";

/// Returns [`BY_ENTRY`] or [`BY_NAME`], depending on how the library usually hooks functions on this processor.
pub(crate) fn usual() -> &'static str {
    if is_x86_64() { BY_ENTRY } else { BY_NAME }
}

/// Returns true if function entries cannot be patched on this processor, and reports the running test as skipped
/// then.
pub(crate) fn is_left_out() -> bool {
    if !is_x86_64() {
        skipped("entries are patched on x86-64 only");
    }
    !is_x86_64()
}

/// Returns the number of calls of the named function, as the program printed it.
#[track_caller]
pub(crate) fn calls(both: &Both) -> u64 {
    number_behind(both, "calls ")
}

#[track_caller]
pub(crate) fn number_behind(both: &Both, word: &str) -> u64 {
    let output = both.plain.output.out();
    let number = output
        .rsplit_once(word)
        .map(|(_, rest)| rest.split_whitespace().next().unwrap_or_default().parse());
    number
        .and_then(Result::ok)
        .unwrap_or_else(|| panic!("{output}"))
}

/// Asserts that the library counted as many calls as the program made.
#[track_caller]
pub(crate) fn assert_exact(both: &Both) {
    assert_eq!(both.total(), calls(both), "{}", both.output.err());
}

/// Returns the number of the library's messages that contain `what`.
pub(crate) fn lines_with(both: &Both, what: &str) -> usize {
    both.said()
        .iter()
        .filter(|line| line.contains(what))
        .count()
}
