//! Builds C programs and libraries that use NVTX, with NVIDIA's headers from the crate `nvtx-sys`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use super::{Scratch, repo, run, standin};

const TIMEOUT: Duration = Duration::from_secs(300);

/// Builds the program `source` of `tests/` against the stand-in for CUDA. Returns the program's path.
pub(crate) fn program(scratch: &Scratch, source: &str) -> PathBuf {
    program_with(scratch, source, "", &[])
}

/// Like [`program`], but passes further arguments to the compiler. These may include further source files, as paths
/// relative to `tests/`. `name` distinguishes programs built from one source.
pub(crate) fn program_with(
    scratch: &Scratch,
    source: &str,
    name: &str,
    options: &[&str],
) -> PathBuf {
    let standin = standin();
    let runtime = ["-L", &standin.to_string_lossy(), "-l:libcudart.so.12"].map(str::to_owned);
    build(
        scratch,
        source,
        name,
        &[with_sources(options), runtime.to_vec()].concat(),
    )
}

/// Builds the library `source` of `tests/`, which does not use CUDA. `name` distinguishes libraries
/// built from one source.
pub(crate) fn library(scratch: &Scratch, source: &str, name: &str) -> PathBuf {
    library_with(scratch, source, name, &[])
}

/// Like [`library`], but passes further arguments to the compiler. These may include further source files, as paths
/// relative to `tests/`.
pub(crate) fn library_with(
    scratch: &Scratch,
    source: &str,
    name: &str,
    options: &[&str],
) -> PathBuf {
    let shared = ["-shared", "-fPIC"].map(str::to_owned).to_vec();
    build(
        scratch,
        source,
        name,
        &[shared, with_sources(options)].concat(),
    )
}

fn with_sources(options: &[&str]) -> Vec<String> {
    let path = |option: &&str| match option.ends_with(".c") {
        true => repo().join("tests").join(option).display().to_string(),
        false => (*option).to_owned(),
    };
    options.iter().map(path).collect()
}

fn build(scratch: &Scratch, source: &str, name: &str, more: &[String]) -> PathBuf {
    let source = repo().join("tests").join(source);
    let stem = source.file_stem().expect("a source has a name");
    let built = scratch.path(&format!("{}{name}", stem.to_string_lossy()));
    let mut gcc = super::compiler();
    gcc.args(["-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-I"])
        .arg(headers())
        .arg("-I")
        .arg(repo().join("tests/standin"))
        .arg(&source)
        .arg("-o")
        .arg(&built)
        .args(more)
        .arg("-ldl");
    let output = run(&mut gcc, TIMEOUT);
    assert!(output.status.success(), "{}", output.err());
    built
}

/// Returns the folder of NVIDIA's headers. The first call runs cargo to find it.
fn headers() -> &'static Path {
    static HEADERS: OnceLock<PathBuf> = OnceLock::new();
    HEADERS.get_or_init(find_headers)
}

fn find_headers() -> PathBuf {
    // The list of packages is limited to this platform, because the sources of other platforms' crates may be
    // missing.
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut metadata = Command::new(env!("CARGO"));
    metadata
        .args(["metadata", "--offline", "--format-version", "1"])
        .args(["--filter-platform", &platform, "--manifest-path"])
        .arg(repo().join("Cargo.toml"));
    let metadata = run(&mut metadata, TIMEOUT);
    assert!(metadata.status.success(), "{}", metadata.err());
    // The JSON is not parsed: a text search is enough to find the path of the crate `nvtx-sys`.
    let text = metadata.out();
    let path = text
        .split('"')
        .find(|word| word.contains("/nvtx-sys-") && word.ends_with("/Cargo.toml"))
        .expect("nvtx-sys is among the dependencies");
    Path::new(path).with_file_name("c/include")
}
