//! Tests of `scripts/tllmprof.sh`, which starts programs on hosts that have the library but not the
//! command.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Scratch, finish, plain};

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../scripts/tllmprof.sh")
        .canonicalize()
        .unwrap()
}

fn wrapper(scratch: &Scratch) -> Command {
    let mut command = plain(&script());
    command.env("TLLMPROF_LIB", scratch.library());
    command
}

#[test]
fn the_program_has_library_and_variables() {
    let scratch = Scratch::new();
    let mut run = wrapper(&scratch);
    run.args([
        "--window",
        "2-3, 7",
        "--step=cudaGraphLaunch/4",
        "--warmup",
        "3",
        "--ranks",
        "0",
    ])
    .args(["--", "sh", "-c", "env; exit 37"])
    .env("SAY_LOADED", "1");
    let ended = finish(&mut run);
    assert_eq!(
        (ended.code(), ended.stderr.as_str()),
        (Some(37), "loaded\nloaded\n")
    );
    for line in [
        "TLLMPROF_START_STOP=2-3, 7",
        "TLLMPROF_STEP=cudaGraphLaunch/4",
        "TLLMPROF_WARMUP=3",
        "TLLMPROF_RANKS=0",
        &format!("LD_PRELOAD={}", scratch.path("libtllmprof.so").display()),
    ] {
        assert!(
            ended.stdout.lines().any(|l| l == line),
            "no {line} in {}",
            ended.stdout
        );
    }
}

#[test]
fn arguments_arrive_as_they_were() {
    let scratch = Scratch::new();
    let words = ["a b", "", "*", "--window", "$HOME", "it's"];
    let ended = finish(wrapper(&scratch).args(["printf", "%s|"]).args(words));
    assert_eq!(ended.stdout, "a b||*|--window|$HOME|it's|");
}

#[test]
fn the_library_is_found_beside_it_and_in_lib() {
    let scratch = Scratch::new();
    let library = scratch.library();
    let copy = scratch.script(
        "prefix/bin/tllmprof.sh",
        fs::read_to_string(script()).unwrap(),
    );
    let link = scratch.path("link");
    std::os::unix::fs::symlink(&copy, &link).unwrap();
    let preloaded = || finish(plain(&link).args(["sh", "-c", "echo $LD_PRELOAD"]));
    assert_eq!(preloaded().code(), Some(2));
    for folder in ["target/release", "lib", "bin"] {
        let place = scratch.path("prefix").join(folder).join("libtllmprof.so");
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        fs::copy(&library, &place).unwrap();
        assert_eq!(preloaded().stdout, format!("{}\n", place.display()));
    }
}

#[test]
fn nsys_captures_the_windows() {
    let scratch = Scratch::new();
    let nsys = scratch.script("tools/nsys", "#!/bin/sh\nprintf '%s|' \"$@\"\n");
    let path = format!("{}:/usr/bin:/bin", nsys.parent().unwrap().display());
    let run =
        |arguments: &[&str]| finish(wrapper(&scratch).args(arguments).env("PATH", &path)).stdout;
    let common = "profile|--trace=cuda,nvtx,osrt|--trace-fork-before-exec=true|";
    let range = "--capture-range=cudaProfilerApi|--capture-range-end=";
    assert_eq!(
        run(&["--window", "5-9", "--nsys", "--", "true"]),
        format!("{common}{range}stop|true|")
    );
    assert_eq!(
        run(&["--window", "5-9,20", "--nsys=-o x", "--", "true"]),
        format!("{common}{range}repeat:2|-o|x|true|")
    );
    assert_eq!(run(&["--nsys", "--", "true"]), format!("{common}true|"));
    assert_eq!(
        run(&["--window", "none", "--nsys", "true"]),
        format!("{common}true|")
    );
    // An option that the user gives replaces the same option of the script, because nsys refuses an option that is
    // given twice.
    let theirs = "-t nvtx -c nvtx -p capture@tllmprof --trace-fork-before-exec=false";
    assert_eq!(
        run(&["--window", "5-9", &format!("--nsys={theirs}"), "true"]),
        format!(
            "profile|--capture-range-end=stop|{}|true|",
            theirs.replace(' ', "|")
        )
    );
}

#[test]
fn mistakes_are_reported() {
    let scratch = Scratch::new();
    for arguments in [
        &["--no-such-option", "true"][..],
        &["--window"],
        &["--nsys", "--", "true"],
    ] {
        let ended = finish(
            wrapper(&scratch)
                .args(arguments)
                .env("PATH", "/usr/bin:/bin"),
        );
        assert_eq!(
            (ended.code(), ended.stderr.lines().count()),
            (Some(2), 1),
            "{ended:?}"
        );
    }
    assert_eq!(finish(&mut wrapper(&scratch)).code(), Some(2));
    assert_eq!(
        finish(wrapper(&scratch).arg("no-such-program")).code(),
        Some(127)
    );
    let ended = finish(
        wrapper(&scratch)
            .arg("true")
            .env("TLLMPROF_LIB", "/none.so"),
    );
    assert_eq!(
        (ended.code(), ended.stderr.lines().count()),
        (Some(2), 1),
        "{ended:?}"
    );
    assert!(
        ended
            .stderr
            .starts_with("tllmprof: TLLMPROF_LIB=\"/none.so\": "),
        "{ended:?}"
    );
}
