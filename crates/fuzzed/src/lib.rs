//! What reads foreign bytes, each as a function of bytes that panics where a promise is broken.
//!
//! `scripts/fuzz` runs these under cargo-fuzz, for as long as it is given; `tests/replay.rs` runs the seeds
//! (`fuzz/corpus/seeds`) and a fixed number of changed ones. The platform layer's reading of loaded modules is
//! tested in its own crate (`elf/damaged.rs`): it reads addresses, not files.

#![forbid(unsafe_code)]

pub mod mutate;
pub mod packed;

mod elf;
mod nsys;
mod records;
mod settings;
mod streams;

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

/// All of them. Each has a file of its name in `fuzz/fuzz_targets`.
pub const TARGETS: &[Target] = &[
    target("reader", "records", records::reader),
    target("report", "records", records::report),
    target("export", "records", records::export),
    target("settings", "settings", settings::settings),
    target("symbols", "symbols", elf::symbols),
    target("nsys", "nsys", nsys::nsys),
    target("streams", "streams", streams::streams),
];

/// Runs the target of that name.
///
/// # Panics
/// Where there is none, and where it finds something.
pub fn run(name: &str, bytes: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name);
    (target.expect("a target of that name").run)(bytes);
}
