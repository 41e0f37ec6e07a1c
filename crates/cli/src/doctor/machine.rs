//! The `doctor` section on the machine: its driver, devices and profilers.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::elf::Elf;
use super::finding::Section;
use super::search::Search;
use crate::profiler::{NCU, NSYS, Profiler};

/// Adds findings on the machine to `section`. Returns true if the machine has an NVIDIA driver. `runtimes` are the
/// folders of the CUDA runtimes that the program is linked to.
pub(crate) fn describe(
    section: &mut Section,
    search: &Search,
    program: &Elf,
    runtimes: &[PathBuf],
) -> bool {
    let driver = search.by_name("libcuda.so.1", program);
    match &driver {
        Some(path) => section.good(format_args!("the driver library is {}", path.display())),
        None => section.note("there is no libcuda.so.1: no CUDA program runs here"),
    }
    match (devices(), driver_version()) {
        (0, _) => section.note("no NVIDIA device is visible"),
        (devices, Some(version)) => {
            section.good(format_args!("NVIDIA devices: {devices}; driver {version}"));
        }
        (devices, None) => section.good(format_args!("NVIDIA devices: {devices}")),
    }
    cupti(section, search, program, runtimes);
    profiler(section, &NSYS);
    profiler(section, &NCU);
    taken(
        section,
        "NVTX_INJECTION64_PATH",
        "it receives the NVTX ranges, ours among them",
    );
    taken(
        section,
        "CUDA_INJECTION64_PATH",
        "it is loaded into the driver, too",
    );
    driver.is_some()
}

/// Adds a finding on the CUPTI library that `--kernels` would load. If the program itself loads a CUPTI, as PyTorch
/// does, libtllmprof.so uses the program's CUPTI.
fn cupti(section: &mut Section, search: &Search, program: &Elf, runtimes: &[PathBuf]) {
    let library_path = env::var_os("LD_LIBRARY_PATH");
    let folders =
        tllmprof_cupti::folders(library_path.as_deref(), runtimes, Path::new("/usr/local"));
    let found = tllmprof_cupti::find(&folders, tllmprof_cupti::NEWEST).or_else(|| {
        tllmprof_cupti::names(tllmprof_cupti::NEWEST)
            .find_map(|name| search.by_name(&name, program))
    });
    match found {
        Some(path) => section.good(format_args!(
            "CUPTI is {}: --kernels takes GPU kernels with it, unless the program brings its own",
            path.display()
        )),
        None => section.note(format_args!(
            "no CUPTI of CUDA {} or later was found (LD_LIBRARY_PATH, beside the CUDA runtime, \
             /usr/local/cuda*): --kernels takes none, unless the program brings its own, as PyTorch \
             does",
            tllmprof_cupti::OLDEST
        )),
    }
}

fn taken(section: &mut Section, name: &str, meaning: &str) {
    if let Some(path) = env::var_os(name).filter(|path| !path.is_empty()) {
        section.note(format_args!(
            "{name} is taken by {}: {meaning}",
            path.display()
        ));
    }
}

/// Returns the number of GPUs, from their device files: `/dev/nvidia0` and so on. On WSL, which has a single file for
/// all GPUs, the number is at most 1.
pub(crate) fn devices() -> usize {
    let numbered = fs::read_dir("/dev")
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| {
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("nvidia"));
            number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
        });
    match numbered.count() {
        0 => usize::from(Path::new("/dev/dxg").exists()),
        count => count,
    }
}

fn driver_version() -> Option<String> {
    let text = fs::read_to_string("/proc/driver/nvidia/version").ok()?;
    let is_version =
        |word: &&str| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.');
    text.lines()
        .next()?
        .split_whitespace()
        .find(is_version)
        .map(str::to_owned)
}

fn profiler(section: &mut Section, profiler: &Profiler) {
    let name = profiler.name;
    match profiler.find() {
        Ok(Some(path)) => {
            let version = version(&path).unwrap_or_else(|| "unknown version".to_owned());
            section.good(format_args!("{name} is {}: {version}", path.display()));
        }
        Ok(None) => section.note(format_args!("{name} was not found: run --{name} needs it")),
        Err(error) => section.note(error),
    }
}

/// Returns the first line of a profiler's `--version` output that contains the word "version". Returns `None` if the
/// profiler cannot be run, takes longer than 10 s, or prints no such line.
fn version(path: &Path) -> Option<String> {
    let child = Command::new(path)
        .arg("--version")
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let text = output_within(child, Duration::from_secs(10))?;
    let has_number = |line: &&str| line.to_lowercase().contains("version");
    text.lines()
        .find(has_number)
        .map(|line| line.trim().to_owned())
}

/// Returns the output of a child, or `None` if the child does not end within `limit`. The output must fit into a pipe's
/// buffer, because the pipe is read only after the child has ended.
fn output_within(mut child: Child, limit: Duration) -> Option<String> {
    let started = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(_)) => break,
            Ok(None) if started.elapsed() < limit => sleep(Duration::from_millis(10)),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                return None;
            }
        }
    }
    let output = child.wait_with_output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}
