//! Text on garbage collections and the GIL: up to two lines.

use super::Python;
use crate::numbers::units::Time;
use crate::print::lines::Lines;

/// Returns the number of lines that [`python`] adds.
pub(crate) fn fixed(python: &Python) -> usize {
    usize::from(!python.gc.is_empty()) + usize::from(python.gil_wait.count > 0)
}

/// Adds the lines on garbage collections and on waits for the GIL.
pub(crate) fn python(python: &Python, lines: &mut Lines) {
    if !python.gc.is_empty() {
        let longest = python.gc.iter().map(|gc| gc.longest).max().unwrap_or(0);
        let total = python
            .gc
            .iter()
            .fold(0_u64, |sum, gc| sum.saturating_add(gc.total));
        let each: Vec<_> = python
            .gc
            .iter()
            .map(|gc| format!("{} {}", gc.count, gc.name))
            .collect();
        lines.add(format_args!(
            "GC: {} in {}, longest {}",
            each.join(" + "),
            Time(total),
            Time(longest)
        ));
    }
    let wait = &python.gil_wait;
    if wait.count > 0 {
        lines.add(format_args!(
            "GIL: {} wait{} in {}, longest {}",
            wait.count,
            if wait.count == 1 { "" } else { "s" },
            Time(wait.total),
            Time(wait.longest)
        ));
    }
}
