//! Tests the commands in README.md and docs/, which `scripts/doc-commands` runs on the stand-in for
//! CUDA.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::plain;

fn repo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn target() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap()
}

#[test]
fn the_commands_of_all_pages_run() {
    let made = Command::new("make")
        .args(["-s", "-C", "tests/standin"])
        .arg(format!("OUT={}", target().join("standin").display()))
        .current_dir(repo())
        .env_remove("MAKEFLAGS")
        .env_remove("MAKELEVEL")
        .status();
    assert!(made.unwrap().success(), "make -C tests/standin");
    let library = std::env::var_os("TLLMPROF_LIB").map_or_else(
        || target().join("release/libtllmprof.so"),
        |library| library.into(),
    );
    let ended = plain(Path::new("python3"))
        .arg("scripts/doc-commands")
        .current_dir(repo())
        .env("TLLMPROF_COMMAND", env!("CARGO_BIN_EXE_tllmprof"))
        .env("TLLMPROF_LIB", library)
        .env("TLLMPROF_STANDIN", target().join("standin"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ended.stdout);
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{said}\n{errors}");
    assert!(!said.contains("\n0 commands ran"), "{said}");
}
