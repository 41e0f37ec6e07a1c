//! Tests of `tllmprof symbols`, on programs in several languages, linked and stripped in several
//! ways.

mod common;
#[path = "../../../tests/common/skipped.rs"]
mod skipped;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Ended, Scratch, finish};
use skipped::skipped;

const PROGRAM: &str = r#"
#include <string>
#define KEEP __attribute__((noinline, used))
extern "C" int puts(const char *);
extern "C" int engine_step(int);
namespace ns {
template <class T> struct Class { KEEP int f(int x, char c) { return puts("f") + x + c; } };
KEEP int step(int x) { return puts("i") + x; }
KEEP int step(double x) { return puts("d") + int(x); }
template <class T> KEEP T twice(T x) { return puts("t") + 2 * x; }
}
static KEEP int hidden(int x) { return puts("h") + x; }
int main() {
    ns::Class<int> c;
    return c.f(1, 'c') + ns::step(1) + ns::step(1.0) + ns::twice(2) + hidden(1) + engine_step(1);
}
"#;

const LIBRARY: &str = "int puts(const char *);\n\
    static __attribute__((noinline)) int inner(int x) { return puts(\"in\") + x; }\n\
    int engine_step(int x) { return inner(x) + 1; }\n\
    int engine_stop(int x) { return inner(x) + 2; }\n";

fn build(scratch: &Scratch, words: &[&str]) {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).current_dir(scratch.path(""));
    let ended = finish(&mut command);
    assert!(ended.status.success(), "{command:?}: {}", ended.stderr);
}

/// Compiles a library, and a program that is linked against this library.
fn program(scratch: &Scratch, flags: &[&str]) -> PathBuf {
    scratch.compile("libengine.so", LIBRARY, &["-shared", "-fPIC", "-O1"]);
    scratch.write("program.cc", PROGRAM);
    let words = [
        "c++",
        "-O1",
        "-o",
        "program",
        "program.cc",
        "-L.",
        "-lengine",
    ];
    build(scratch, &[&words[..], flags].concat());
    scratch.path("program")
}

fn symbols(scratch: &Scratch, arguments: &[&str]) -> Ended {
    let mut command = scratch.tllmprof();
    command.arg("symbols").args(arguments);
    finish(command.current_dir(scratch.path("")))
}

/// Returns the first column of a function's lines in the output of `symbols`. This column says how calls of the
/// function are counted.
fn means<'a>(listing: &'a str, name: &str) -> Vec<&'a str> {
    let lines = listing
        .lines()
        .filter(|line| line.ends_with(&format!("  {name}")));
    lines.map(|line| line.split("  ").next().unwrap()).collect()
}

#[test]
fn a_program_and_its_library() {
    for flags in [&["-pie", "-fPIE"][..], &["-no-pie", "-fno-PIE"]] {
        let scratch = Scratch::new();
        program(&scratch, flags);
        let ended = symbols(&scratch, &["program", "libengine.so"]);
        assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
        assert_eq!(ended.stderr, "");
        let (program, library) = ended.stdout.split_once("libengine.so:\n").unwrap();
        assert!(program.starts_with("program:\n"), "{program}");
        for name in [
            "ns::Class<int>::f(int, char)",
            "ns::step(int)",
            "ns::step(double)",
            "ns::twice<int>(int)",
            "hidden(int)",
            "main",
        ] {
            assert_eq!(means(program, name), ["entry"], "{name}: {program}");
        }
        assert_eq!(means(program, "engine_step"), ["import"]);
        assert_eq!(means(program, "puts"), ["import"]);
        assert_eq!(means(program, "_start"), ["no: where the process begins"]);
        assert_eq!(means(library, "engine_step"), ["exported"]);
        assert_eq!(means(library, "inner"), ["entry"]);
    }
}

#[test]
fn matches_come_by_name_with_the_rule_for_one() {
    let scratch = Scratch::new();
    program(&scratch, &[]);
    let ended = symbols(&scratch, &["program", "^ns::(step|twice)"]);
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    let lines: Vec<_> = ended.stdout.lines().collect();
    let names = ["ns::step(double)", "ns::step(int)", "ns::twice<int>(int)"];
    assert_eq!(lines.len(), 4, "{}", ended.stdout);
    for (line, name) in lines.iter().zip(names) {
        assert!(
            line.starts_with("entry  ") && line.ends_with(name),
            "{line}"
        );
    }
    assert_eq!(lines[3], "only ns::step(double): sym:^_ZN2ns4stepEd$");
    // The last line suggests a rule for the first function of the list. This rule must match exactly that function.
    let ended = symbols(&scratch, &["program", "sym:^_ZN2ns4stepEd$"]);
    assert_eq!(ended.stdout.lines().count(), 2, "{}", ended.stdout);
    assert_eq!(means(&ended.stdout, "ns::step(double)"), ["entry"]);
}

#[test]
fn a_library_regex_chooses_among_the_files() {
    let scratch = Scratch::new();
    program(&scratch, &[]);
    let ended = symbols(
        &scratch,
        &["program", "libengine.so", "engine_step@engine\\.so"],
    );
    assert_eq!(means(&ended.stdout, "engine_step"), ["exported"]);
    let ended = symbols(&scratch, &["program", "libengine.so", "engine_step"]);
    assert_eq!(means(&ended.stdout, "engine_step"), ["import", "exported"]);
    assert!(
        ended
            .stdout
            .ends_with("only engine_step: sym:^engine_step$\n")
    );
}

#[test]
fn a_json_line_for_each_function() {
    let scratch = Scratch::new();
    program(&scratch, &[]);
    let ended = symbols(
        &scratch,
        &["--json", "program", "^engine_step$|^ns::step\\(int"],
    );
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    let lines: Vec<_> = ended.stdout.lines().collect();
    assert_eq!(lines.len(), 2, "{}", ended.stdout);
    assert_eq!(
        lines[0],
        "{\"file\": \"program\", \"reach\": \"import\", \"reason\": null, \"address\": null, \
         \"size\": null, \"sources\": [\"import\"], \"debug_file\": null, \"ifunc\": false, \
         \"go\": false, \"names\": [\"engine_step\"], \"demangled\": \"engine_step\", \
         \"rule\": \"sym:^engine_step$\"}"
    );
    assert!(
        lines[1].starts_with(
            "{\"file\": \"program\", \"reach\": \"entry\", \"reason\": null, \"address\": \"0x"
        ) && lines[1].ends_with(
            "\"sources\": [\"table\"], \"debug_file\": null, \"ifunc\": false, \"go\": false, \
             \"names\": [\"_ZN2ns4stepEi\"], \"demangled\": \"ns::step(int)\", \
             \"rule\": \"sym:^_ZN2ns4stepEi$\"}"
        ),
        "{}",
        lines[1]
    );
}

#[test]
fn addresses_and_sizes_are_those_of_nm() {
    let scratch = Scratch::new();
    program(&scratch, &[]);
    let ended = symbols(&scratch, &["program", "^ns::step\\(int"]);
    let line: Vec<_> = ended.stdout.split_whitespace().take(3).collect();
    let nm = finish(Command::new("nm").arg("-S").arg(scratch.path("program")));
    let truth = nm.stdout.lines().find(|l| l.ends_with(" _ZN2ns4stepEi"));
    let truth: Vec<_> = truth.unwrap().split_whitespace().collect();
    let number = |text: &str| u64::from_str_radix(text, 16).unwrap();
    assert_eq!(line[1], format!("{:#x}", number(truth[0])));
    assert_eq!(line[2], number(truth[1]).to_string());
}

#[test]
fn stripped_and_with_a_debug_file_beside_it() {
    let scratch = Scratch::new();
    program(&scratch, &[]);
    build(
        &scratch,
        &["objcopy", "--only-keep-debug", "program", "program.debug"],
    );
    build(&scratch, &["strip", "program"]);
    let ended = symbols(&scratch, &["program", "^ns::step"]);
    assert_eq!(ended.code(), Some(1));
    assert_eq!(ended.stdout, "");
    assert!(
        ended
            .stderr
            .contains("program: no function matches \"^ns::step\"")
            && ended.stderr.contains("stripped, and no debug file"),
        "{}",
        ended.stderr
    );
    build(
        &scratch,
        &["objcopy", "--add-gnu-debuglink=program.debug", "program"],
    );
    let ended = symbols(&scratch, &["program", "^ns::step"]);
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    let debug = scratch.path("program.debug");
    assert!(
        ended
            .stdout
            .starts_with(&format!("(symbols of {})\n", debug.display()))
    );
    assert_eq!(means(&ended.stdout, "ns::step(int)"), ["entry"]);
    assert!(ended.stdout.contains("  debug  "), "{}", ended.stdout);
    let ended = symbols(&scratch, &["--json", "program", "^ns::step"]);
    let field = format!("\"debug_file\": \"{}\"", debug.display());
    assert!(ended.stdout.contains(&field), "{}", ended.stdout);
}

#[test]
fn two_functions_of_one_name_have_no_rule() {
    let scratch = Scratch::new();
    let source = "int puts(const char *);\n\
        static __attribute__((noinline, used)) int twin(int x) { return puts(\"\") + x; }\n";
    scratch.write("a.c", source);
    scratch.write("b.c", source);
    build(
        &scratch,
        &["cc", "-shared", "-fPIC", "-o", "twins.so", "a.c", "b.c"],
    );
    let ended = symbols(&scratch, &["twins.so", "^twin$"]);
    assert_eq!(means(&ended.stdout, "twin"), ["entry", "entry"]);
    let last = ended.stdout.lines().last();
    assert_eq!(
        last,
        Some("no rule names only twin: others have the same name")
    );
    let ended = symbols(&scratch, &["--json", "twins.so", "^twin$"]);
    assert_eq!(ended.stdout.matches("\"rule\": null}").count(), 2);
}

#[test]
fn rust_functions_by_their_paths() {
    for version in ["legacy", "v0"] {
        let scratch = Scratch::new();
        scratch.write(
            "engine.rs",
            "pub mod core { #[inline(never)] pub fn step(x: u32) -> u32 { println!(\"{x}\"); x + 1 } }\n\
             #[inline(never)] fn run<T: Into<u64>>(x: T) -> u64 { println!(\"run\"); x.into() }\n\
             fn main() { core::step(1); run(1_u32); }\n",
        );
        let mangling = format!("-Csymbol-mangling-version={version}");
        let mut rustc = Command::new(option_env!("RUSTC").unwrap_or("rustc"));
        rustc
            .args([
                "--edition=2021",
                "-Cdebuginfo=0",
                "-Copt-level=1",
                "-Zunstable-options",
            ])
            .args([&mangling, "engine.rs"])
            .env("RUSTC_BOOTSTRAP", "1")
            .current_dir(scratch.path(""));
        let ended = finish(&mut rustc);
        assert!(ended.status.success(), "{}", ended.stderr);
        let ended = symbols(&scratch, &["engine", "^engine::(core::step$|run)"]);
        assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
        assert_eq!(means(&ended.stdout, "engine::core::step"), ["entry"]);
        let runs = ended
            .stdout
            .lines()
            .filter(|line| line.contains("  engine::run"));
        assert_eq!(runs.count(), 1, "{}", ended.stdout);
    }
}

#[test]
fn go_functions_are_distinguished_from_c_functions_beside_them() {
    if Command::new("go").arg("version").output().is_err() {
        return skipped("there is no go");
    }
    let scratch = Scratch::new();
    scratch.write("go.mod", "module engine\n\ngo 1.19\n");
    scratch.write(
        "main.go",
        "package main\n\n\
         // int decode(int);\n\
         import \"C\"\n\n\
         //go:noinline\n\
         func step(x int) int { return int(C.decode(C.int(x))) + 1 }\n\n\
         func main() { println(step(1)) }\n",
    );
    let c = "#include <stdio.h>\n\
        __attribute__((noinline)) int decode(int x) { return puts(\"decode\") + x; }\n";
    scratch.write("decode.c", c);
    for flags in ["", "-s -w"] {
        let mut go = Command::new("go");
        go.args(["build", "-o", "engine", "-ldflags", flags, "."])
            .env("GOCACHE", concat!(env!("CARGO_TARGET_TMPDIR"), "/go"))
            .env("GOFLAGS", "-mod=mod")
            .env("GOTOOLCHAIN", "local")
            .env("CGO_ENABLED", "1")
            .current_dir(scratch.path(""));
        let ended = finish(&mut go);
        assert!(ended.status.success(), "{}", ended.stderr);
        let ended = symbols(&scratch, &["engine"]);
        assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
        if flags.is_empty() {
            assert_eq!(means(&ended.stdout, "main.step"), ["no: Go function"]);
            assert_eq!(means(&ended.stdout, "decode"), ["exported"]);
        } else {
            // In a stripped program nothing marks the end of Go's code, so all functions count as
            // Go functions.
            let reached = ended
                .stdout
                .lines()
                .filter(|line| !line.starts_with("import"));
            assert!(
                reached
                    .clone()
                    .all(|line| line.starts_with("no: Go function"))
            );
        }
    }
}

#[test]
fn what_is_wrong_is_said() {
    let scratch = Scratch::new();
    program(&scratch, &[]);
    let ended = symbols(&scratch, &["program", "ns::stepp"]);
    assert_eq!(ended.code(), Some(1));
    assert!(ended.stdout.is_empty());
    let (_, nearest) = ended.stderr.split_once("; the nearest: ").unwrap();
    assert!(nearest.starts_with("ns::step("), "{nearest}");

    let ended = symbols(&scratch, &["program", "(ns"]);
    assert_eq!(ended.code(), Some(2));
    assert!(ended.stderr.contains("does not compile: unclosed group"));
    assert_eq!(symbols(&scratch, &[]).code(), Some(2));

    let ended = symbols(&scratch, &["absent"]);
    assert_eq!(ended.code(), Some(1));
    assert!(
        ended
            .stderr
            .starts_with("tllmprof: absent: there is no such file")
    );
    // The first file is not an ELF file, which is reported. The functions of the second file are still listed.
    let ended = symbols(&scratch, &["program.cc", "program", "^main$"]);
    assert_eq!(ended.code(), Some(1));
    assert_eq!(ended.stderr, "tllmprof: program.cc: no ELF file\n");
    assert_eq!(means(&ended.stdout, "main"), ["entry"]);
    let ended = symbols(&scratch, &["/dev/null", "x"]);
    assert_eq!(ended.stderr, "tllmprof: /dev/null: no regular file\n");
}

#[test]
fn more_than_a_rule_may_match_are_listed_with_a_warning() {
    let scratch = Scratch::new();
    let source: String = (0..70)
        .map(|n| format!("int part_{n}(int x) {{ return x * {n} + {n}; }}\n"))
        .collect();
    scratch.compile("many.so", &source, &["-shared", "-fPIC"]);
    let ended = symbols(&scratch, &["many.so", "part_"]);
    assert_eq!(ended.code(), Some(0));
    assert_eq!(ended.stdout.lines().count(), 71);
    assert!(ended.stderr.starts_with("tllmprof: 70 functions match: "));
    let ended = symbols(&scratch, &["many.so", "part_[1-6][0-9]"]);
    assert_eq!((ended.stdout.lines().count(), &*ended.stderr), (61, ""));
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let scratch = Scratch::new();
    let source: String = (0..3000)
        .map(|n| format!("int a_long_name_for_a_function_{n}(int x) {{ return x + {n}; }}\n"))
        .collect();
    scratch.compile("many.so", &source, &["-shared", "-fPIC"]);
    // The output is larger than a pipe's buffer, and the reader of the pipe ends early.
    let mut bash = common::plain(Path::new("/bin/bash"));
    let pipe = "set -o pipefail; \"$0\" symbols many.so | head -n 1";
    bash.args(["-c", pipe, env!("CARGO_BIN_EXE_tllmprof")]);
    let ended = finish(bash.current_dir(scratch.path("")));
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert_eq!(ended.stdout.lines().count(), 1);
    assert_eq!(ended.stderr, "");
}
