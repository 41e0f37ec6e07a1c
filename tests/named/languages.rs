//! Checks rules that name functions of programs in languages other than C and C++.

use std::process::Command;

use crate::common::{repo, run, skipped, standin, target};
use crate::seen::{assert_exact, is_left_out, lines_with};
use crate::twice::{self, Situation};
use crate::workshop::{BUILDING, Workshop};

#[test]
fn a_rust_program() {
    if is_left_out() {
        return;
    }
    let shop = Workshop::new();
    let program = shop.0.path("engine");
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut rustc = Command::new(rustc);
    rustc
        .args(["--edition", "2024", "-O"])
        .arg(format!("-L{}", standin().display()))
        .arg("-o")
        .arg(&program)
        .arg(repo().join("tests/named/engine.rs"));
    let built = run(&mut rustc, BUILDING);
    assert!(built.status.success(), "{}", built.err());
    let both = Situation::new(program.to_str().expect("cargo's folders have UTF-8 names"))
        .window("5-9", "sym:^engine::serving::Engine<.*>::decode$")
        .run();
    assert_exact(&both);
}

#[test]
fn a_go_program() {
    if is_left_out() {
        return;
    }
    let version = Command::new("go").arg("version").output();
    if !version.is_ok_and(|output| output.status.success()) {
        return skipped("there is no Go here");
    }
    let shop = Workshop::new();
    let program = shop.0.path("steps");
    let mut go = Command::new("go");
    go.args(["build", "-o"])
        .arg(&program)
        .arg(repo().join("tests/named/steps.go"))
        .env("GOCACHE", target().join("tmp/go"))
        .env("GO111MODULE", "off")
        .env("CGO_ENABLED", "1")
        .env("CGO_LDFLAGS_ALLOW", "-l:.*")
        .env("CGO_LDFLAGS", format!("-L{}", standin().display()));
    let built = run(&mut go, BUILDING);
    assert!(built.status.success(), "{}", built.err());
    let program = Situation::new(program.to_str().expect("cargo's folders have UTF-8 names"));
    // A Go program ends without calling the C library's exit, so the library cannot log anything at the end. Only the
    // driver's log shows if a window opened.
    for (last_call, opened) in [("999", 1), ("1000", 0)] {
        let both = program.clone().window(last_call, "sym:^served_step$").run();
        assert_eq!(
            twice::count(&both.log, "cuProfilerStart"),
            opened,
            "{last_call}"
        );
    }
    let both = program.window("5-9", r"sym:^main\.goStep$").run();
    let refusal = "main.goStep in steps cannot be followed: it is Go's own";
    assert_eq!(lines_with(&both, refusal), 1, "{:#?}", both.said());
}
