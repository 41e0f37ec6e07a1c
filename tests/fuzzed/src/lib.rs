//! Fuzz targets for the code that reads files and messages of unknown origin. Each target is a function of bytes. It
//! panics if the code under test violates a property that must hold for any input.
//!
//! `scripts/fuzz` runs the targets under cargo-fuzz for a given time. `tests/replay.rs` runs the seeds
//! (`fuzz/corpus/seeds`) and a fixed number of changed seeds. The reader of loaded modules, in the crate `platform`,
//! takes addresses instead of files. It is tested in that crate (`elf/damaged.rs`).

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

/// A fuzz target: a function that reads bytes, with its name.
#[derive(Debug)]
pub struct Target {
    pub name: &'static str,
    /// The name of the folder in `fuzz/corpus/seeds` with the target's seeds.
    pub seeds: &'static str,
    pub run: fn(&[u8]),
}

const fn target(name: &'static str, seeds: &'static str, run: fn(&[u8])) -> Target {
    Target { name, seeds, run }
}

/// Returns the folder in which targets create their temporary files. It is in memory if possible.
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

/// All fuzz targets. Each has a file of its name in `fuzz/fuzz_targets`, which calls the target's function directly. So
/// a fuzzer contains the code, and the coverage counters, of one target only.
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
