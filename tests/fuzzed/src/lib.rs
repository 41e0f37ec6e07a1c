//! The readers of foreign bytes, each as a function of bytes that panics if a promise is broken.
//!
//! `scripts/fuzz` runs these under cargo-fuzz, for a given time. `tests/replay.rs` runs the seeds
//! (`fuzz/corpus/seeds`) and a fixed number of changed ones. The platform layer's reading of loaded modules
//! is tested in its own crate (`elf/damaged.rs`): it reads addresses, not files.

#![forbid(unsafe_code)]

pub mod mutate;
pub mod packed;

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

mod control;
mod elf;
mod nsys;
mod records;
mod settings;
mod streams;

pub use control::control;
pub use elf::symbols;
pub use nsys::nsys;
pub use records::{export, reader, report};
pub use settings::settings;
pub use streams::streams;

/// One reader.
#[derive(Debug)]
pub struct Target {
    pub name: &'static str,
    /// The folder of its seeds in `fuzz/corpus/seeds`.
    pub seeds: &'static str,
    pub run: fn(&[u8]),
}

const fn target(name: &'static str, seeds: &'static str, run: fn(&[u8])) -> Target {
    Target { name, seeds, run }
}

/// Returns a folder for the files of one input, in memory if possible.
fn scratch() -> &'static Path {
    static SCRATCH: LazyLock<PathBuf> = LazyLock::new(|| {
        let memory = PathBuf::from("/dev/shm");
        match memory.is_dir() {
            true => memory,
            false => std::env::temp_dir(),
        }
    });
    &SCRATCH
}

/// All readers. Each has a file of its name in `fuzz/fuzz_targets`, which calls its function by name. So a
/// fuzzer only has its own target's code, and does not read the counters of others after each input.
pub const TARGETS: &[Target] = &[
    target("reader", "records", reader),
    target("report", "records", report),
    target("export", "records", export),
    target("settings", "settings", settings),
    target("symbols", "symbols", symbols),
    target("nsys", "nsys", nsys),
    target("streams", "streams", streams),
    target("control", "control", control),
];
