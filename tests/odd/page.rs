//! Checks that `docs/harmless.md` has a row for each situation in which a program was run under the library.

use std::fs;

use crate::common::{repo, skipped};
use crate::situations::{ALL, Situation};

const BEGINS: &str = "<!-- situations: BLESS=1 cargo test --test odd page -->\n";
const ENDS: &str = "<!-- end of situations -->\n";

/// Situations that the tests' machines cannot produce. Each entry has the situations, and a text that says what is
/// tested instead or why nothing is.
const NOT_HERE: [(&str, &str); 3] = [
    (
        "a checkpoint and a restore by CRIU, whose packages do not know the kernel",
        "an image by `gcore`, and a time namespace as after a restore",
    ),
    (
        "`vm.overcommit_memory=2`, a clock that is set, suspend",
        "they are the whole machine's",
    ),
    (
        "NFS",
        "a file system without `fallocate`, and one in user space without shared mappings",
    ),
];

/// Situations that tests in other folders cover: kind, public report, event and result.
const ELSEWHERE: [Situation; 4] = [
    Situation {
        kind: "lost variables",
        report: "https://github.com/rizsotto/Bear/issues/609",
        happens: "a worker is started without `LD_PRELOAD`, by `env -i` or with variables that the program has chosen",
        then: "at the end `tllmprof run` names the process, if it loaded the CUDA driver \
               (`crates/cli/tests/unreached.rs`)",
    },
    Situation {
        kind: "limits of threads",
        report: "https://github.com/opencontainers/runc/issues/831",
        happens: "no process may be started beside the program, or no descriptor is left (`ulimit -u`, `ulimit -n`)",
        then: "the program takes the place of `tllmprof run`, with a line (`crates/cli/tests/duties.rs`)",
    },
    Situation {
        kind: "containers without tools",
        report: "https://github.com/libkrun/libkrun/pull/749",
        happens: "a standard stream is closed, and there is no `/dev/null`",
        then: "the program starts, and has the stream closed (`crates/cli/tests/duties.rs`)",
    },
    Situation {
        kind: "Python",
        report: "https://github.com/coveragepy/coveragepy/issues/310",
        happens: "a process ends by `os._exit`, as children of `multiprocessing` do, after a plugin replaced the step's method",
        then: "the last line says that replacements were not checked, and not that the method was never called \
               (`tests/python_rules/hidden.rs`)",
    },
];

/// Situations that no test covers because they were only tried by hand: their kind and their events.
const TRIED: [(&str, &str); 9] = [
    (
        "environment",
        "cron's variables; none at all; no `PATH`; `HOME`, `XDG_RUNTIME_DIR` and `TMPDIR` missing or empty; an unknown locale; \
         `MALLOC_CHECK_`, `MALLOC_PERTURB_`; `GLIBC_TUNABLES` without rseq or with huge pages; `LD_BIND_NOW`, `LD_BIND_NOT`, \
         `LD_DEBUG`, `LD_PROFILE`; a preload that is missing",
    ),
    (
        "launchers",
        "`timeout` outside and inside, also when it kills; `nohup`, `setsid`, `flock`, `xargs -P`, `script`, `strace -f`, `nice`, \
         `chrt`, `taskset`, `setarch -R`, `-X`, `-L`, `-Z` and `--uname-2.6`; an empty `argv[0]`; `#!/usr/bin/env -S`",
    ),
    (
        "names",
        "a working directory deeper than `PATH_MAX`; names with a line feed, a `%` or bytes that are no UTF-8; an empty host \
         name",
    ),
    (
        "standard streams",
        "each of them closed; `/dev/full`; a pipe without a reader, `SIGPIPE` ignored or not; a full pipe as standard error",
    ),
    (
        "limits",
        "`ulimit` `-n` 4 to 16, `-u`, `-v`, `-s` 64 KiB and unlimited, `-c`, `-f`, `-t`, `-i`, \
         `-l`; all descriptors taken before the first CUDA call; `mlockall`; `PR_SET_TSC`",
    ),
    (
        "rights",
        "setuid programs and file capabilities (the command says that nothing is captured); a program that may only be \
         executed; no capability at all; another user; user namespaces with and without a mapping; all namespaces; `hidepid=2`; \
         a new process namespace with the old `/proc`",
    ),
    (
        "file systems",
        "a read-only root or folder; `tmpfs` with `noexec`, with 8 KiB, and without inodes; `/dev/shm` of 64 KiB; no `/dev`",
    ),
    (
        "programs",
        "static PIE, static, without a C library; Go, Rust (also a panic) and Node with workers",
    ),
    (
        "Python 3.11 and 3.12",
        "`multiprocessing` by `fork`, `spawn` and `forkserver`, pools, `terminate`; a daemon thread in CUDA at the end; \
         `faulthandler` with a time limit and with `SIGSEGV`; `os.execv`; a double fork; `os.closerange`; `tracemalloc`, \
         `cProfile`, `sys.settrace`, an audit hook; `gc.freeze`; sub-interpreters; `asyncio` subprocesses; `preexec_fn`; `-I`, \
         `-S -E`, `-X dev`, `-W error`; `PYTHONMALLOC=debug`",
    ),
];

fn table() -> String {
    let mut page = String::from(BEGINS);
    page += "| kind | what happens | what then is so | from |\n|---|---|---|---|\n";
    for row in ALL.iter().chain(&ELSEWHERE) {
        let name = row.report.trim_start_matches("https://github.com/");
        let name = name.replace("/issues/", " #").replace("/pull/", " #");
        page += &format!(
            "| {} | {} | {} | [{name}]({}) |\n",
            row.kind, row.happens, row.then, row.report
        );
    }
    page += "\nTried by hand on 2026-11-28, each by itself, with the library preloaded and a window, and under `tllmprof run`: the output and \
             the status were the same.\n\n";
    for (kind, events) in TRIED {
        page += &format!("- {kind}: {events}\n");
    }
    page += "\nNot made, and why, or what stands in for it:\n\n";
    for (what, instead) in NOT_HERE {
        page += &format!("- {what}: {instead}\n");
    }
    page + ENDS
}

#[test]
fn the_page_has_the_situations() {
    let path = repo().join("docs/harmless.md");
    let page = fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(BEGINS).expect("the table's beginning");
    let (_, after) = rest.split_once(ENDS).expect("the table's end");
    let made = format!("{before}{}{after}", table());
    if std::env::var_os("BLESS").is_some() {
        fs::write(&path, &made).unwrap();
    }
    assert_eq!(
        fs::read_to_string(&path).unwrap(),
        made,
        "BLESS=1 cargo test --test odd page"
    );
}

#[test]
fn there_are_more_than_twenty_of_eight_kinds() {
    let kinds: std::collections::BTreeSet<_> = ALL.iter().map(|row| row.kind).collect();
    assert!(
        ALL.len() >= 20 && kinds.len() >= 8,
        "{} of {kinds:?}",
        ALL.len()
    );
}

#[test]
fn what_is_not_made_here_is_named() {
    for (what, instead) in NOT_HERE {
        skipped(&format!("{what} ({instead})"));
    }
}
