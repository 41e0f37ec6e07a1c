//! Tests of the option `--lib`, which prints the path of the library, and of the generated files that packages contain:
//! completions and manual pages.

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;

use common::{Scratch, finish, plain};

fn tllmprof(arguments: &[&str]) -> Command {
    let mut command = plain(Path::new(env!("CARGO_BIN_EXE_tllmprof")));
    command.args(arguments);
    command
}

/// Returns the subcommands that are not hidden, from the command's help.
fn verbs() -> Vec<String> {
    let help = finish(&mut tllmprof(&["--help"])).stdout;
    let (_, verbs) = help.split_once("Commands:\n").unwrap();
    let (verbs, _) = verbs.split_once("\n\n").unwrap();
    let names = verbs
        .lines()
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .map(|line| line.split_whitespace().next().unwrap().to_owned());
    names.filter(|name| name != "help").collect()
}

#[test]
fn each_shell_completes_every_verb() {
    let scratch = Scratch::new();
    assert!(verbs().contains(&"completions".to_owned()));
    for shell in ["bash", "zsh", "fish"] {
        let ended = finish(&mut tllmprof(&["completions", shell]));
        assert_eq!((ended.code(), ended.stderr.as_str()), (Some(0), ""));
        for verb in verbs() {
            assert!(ended.stdout.contains(&verb), "{shell}: {verb}");
        }
        // If the shell is installed, it must be able to parse the completions. Status 127 means that the shell is not
        // installed.
        let file = scratch.write(shell, &ended.stdout);
        let mut reads = plain(Path::new("/usr/bin/env"));
        reads.args([shell, "-n"]).arg(file);
        let ended = finish(&mut reads);
        assert!(matches!(ended.code(), Some(0 | 127)), "{shell}: {ended:?}");
    }
    assert_eq!(
        finish(&mut tllmprof(&["completions", "sh"])).code(),
        Some(2)
    );
}

#[test]
fn each_verb_has_a_page() {
    let scratch = Scratch::new();
    let folder = scratch.path("man/man1");
    let ended = finish(tllmprof(&["manual"]).arg(&folder));
    assert_eq!(ended.code(), Some(0), "{ended:?}");
    let entries = fs::read_dir(&folder).unwrap();
    let mut pages: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    pages.sort();
    let mut wanted: Vec<_> = verbs().iter().map(|v| format!("tllmprof-{v}.1")).collect();
    wanted.push("tllmprof.1".to_owned());
    wanted.sort();
    assert_eq!(pages, wanted);
    let page = fs::read_to_string(folder.join("tllmprof-run.1")).unwrap();
    assert!(
        page.contains(".SH SYNOPSIS\n\\fBtllmprof run\\fR"),
        "{page}"
    );
    assert!(page.contains("\\-\\-window"), "{page}");
    let page = fs::read_to_string(folder.join("tllmprof.1")).unwrap();
    assert!(!page.contains("streams"), "{page}");
}

#[test]
fn the_path_of_the_library_fits_ld_preload() {
    let scratch = Scratch::new();
    let ended = finish(scratch.tllmprof().arg("--lib"));
    let path = format!("{}\n", scratch.path("libtllmprof.so").display());
    assert_eq!((ended.code(), ended.stdout), (Some(0), path));
    let ended = finish(tllmprof(&["--lib"]).env("TLLMPROF_LIB", "/none"));
    assert_eq!((ended.code(), ended.stdout.as_str()), (Some(2), ""));
    let ended = finish(&mut tllmprof(&["--lib", "demo"]));
    assert_eq!((ended.code(), ended.stdout.as_str()), (Some(2), ""));
}

#[test]
fn a_package_has_the_library_beside_the_commands_folder() {
    for folder in ["lib", "libexec"] {
        let scratch = Scratch::new();
        let library = scratch.compile(
            &format!("{folder}/tllmprof/libtllmprof.so"),
            "int l;",
            &["-shared", "-fPIC"],
        );
        let command = scratch.copy_of_the_command("bin/tllmprof");
        let ended = finish(plain(&command).arg("--lib"));
        assert_eq!(
            ended.stdout,
            format!("{}\n", library.display()),
            "{ended:?}"
        );
    }
}
