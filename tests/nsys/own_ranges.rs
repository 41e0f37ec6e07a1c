//! Checks programs under nsys whose own NVTX ranges do not count as iterations.

use std::ffi::OsStr;
use std::path::PathBuf;

use crate::common::{Scratch, nvtx};
use crate::profile::{Profile, STOP, UNGATED, holds_exactly, nsys, profile};

/// Builds the program `own_ranges.c`, which opens NVTX ranges.
fn own_ranges(scratch: &Scratch) -> PathBuf {
    nvtx::program(scratch, "nsys/own_ranges.c")
}

#[test]
fn own_ranges_are_left_alone() {
    let Some(nsys) = nsys() else { return };
    let scratch = Scratch::new("own");
    let program = own_ranges(&scratch);
    let step = ("TLLMPROF_STEP", "cudaGraphLaunch");
    let window = ("TLLM_PROFILE_START_STOP", "5-9");
    let gated = profile(nsys, STOP, &[step, window], &[program.as_os_str()]);
    let plain = profile(nsys, UNGATED, &[("LD_PRELOAD", "")], &[program.as_os_str()]);

    holds_exactly(&gated.reports[0], 5..=9);
    assert_eq!(gated.program.status, plain.program.status);
    let levels = |profile: &Profile| -> Vec<String> {
        let said = profile.program.out();
        let own =
            |line: &&str| line.starts_with(|c: char| c.is_ascii_digit()) && line.contains(": ");
        said.lines().filter(own).map(str::to_owned).collect()
    };
    assert_eq!(levels(&plain).len(), 40, "{}", plain.program.out());
    assert_eq!(levels(&gated), levels(&plain));

    let count = |profile: &Profile, domain: &str, text: &str| {
        profile.reports[0]
            .iter()
            .filter(|range| range.domain == domain && range.text == text)
            .count()
    };
    for (domain, text) in [
        ("own", "own in domain"),
        ("", "own inner"),
        ("", "own step"),
    ] {
        assert_eq!(count(&plain, domain, text), 40, "{text}");
    }
    // The window opens at step 5's launch, within that step's ranges, and closes within step 10's ranges. nsys keeps
    // only the ranges that begin during the window.
    assert_eq!(count(&gated, "own", "own in domain"), 5);
    assert_eq!(count(&gated, "", "own inner"), 5);
}

#[test]
fn waits_on_another_thread() {
    let Some(nsys) = nsys() else { return };
    let scratch = Scratch::new("own");
    let program = own_ranges(&scratch);
    for step in ["cudaGraphLaunch", "cudaStreamSynchronize"] {
        let profile = profile(
            nsys,
            STOP,
            &[("TLLMPROF_STEP", step), ("TLLM_PROFILE_START_STOP", "5-9")],
            &[program.as_os_str(), OsStr::new("--waits-elsewhere")],
        );
        assert!(
            profile.program.status.success(),
            "{}",
            profile.program.err()
        );
        profile.holds_one_window(5..=9);
    }
}

/// The process ends by `_exit` while a window is open. The library must first close the window's range `capture`,
/// because nsys drops all its data if this range does not end.
#[test]
fn open_window_at_quick_exit() {
    let Some(nsys) = nsys() else { return };
    let scratch = Scratch::new("own");
    let program = own_ranges(&scratch);
    let profile = profile(
        nsys,
        STOP,
        &[
            ("TLLMPROF_STEP", "cudaGraphLaunch"),
            ("TLLM_PROFILE_START_STOP", "30-"),
        ],
        &[program.as_os_str(), OsStr::new("--quick-exit")],
    );
    assert_eq!(profile.program.status.code(), Some(7));
    profile.holds_one_window(30..=39);
}
