//! Logs panics of this library.

use std::panic::{PanicHookInfo, set_hook};

use crate::log;

/// Installs a panic hook that logs the first panic as a normal log line, and ignores further ones. Called
/// when the library is loaded.
pub fn start() {
    set_hook(Box::new(report));
}

fn report(panic: &PanicHookInfo<'_>) {
    let place = panic.location().map_or("?", |place| place.file());
    let line = panic.location().map_or(0, |place| place.line());
    let what = panic.payload_as_str().unwrap_or("no message");
    log::once!(
        Error,
        "internal error: {what} ({place}, line {line}). The program goes on; what is recorded may be \
         incomplete. Please report this"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::tests::{Stderr, file, text};
    use crate::panics::contained;

    #[test]
    fn panics_become_one_line() {
        let file = file();
        let _stderr = Stderr::is(&file);
        log::redirected(2);
        let before = std::panic::take_hook();
        start();
        for number in [1, 2] {
            contained((), || panic!("{number} of two"));
        }
        set_hook(before);
        let text = text(&file);
        assert!(
            text.starts_with("tllmprof: internal error: 1 of two (crates/"),
            "{text}"
        );
        assert_eq!(text.lines().count(), 1, "{text}");
    }
}
