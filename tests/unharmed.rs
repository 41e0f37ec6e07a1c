//! Checks that programs without CUDA do the same with the library preloaded as without it: same standard output,
//! standard error and exit status.
//!
//! Each test is a shell script in `tests/unharmed/`, which bash runs in an empty folder that always has the same name.
//! A script that exits with 77 is skipped, and its last line is `skipped: …`.

mod common;

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use common::{Output, Scratch, command, repo, run, shim, skipped};

const TIMEOUT: Duration = Duration::from_secs(600);
const SKIPPED: i32 = 77;

/// The environments in which each script runs with the library. Each entry: a name, and the value of the variable
/// `TLLM_PROFILE_START_STOP`, if that is set.
const ENVIRONMENTS: [(&str, Option<&str>); 3] = [
    ("preload", None),
    ("preload and a window", Some("0-1")),
    ("preload and a bad value", Some("one-two")),
];

#[derive(Clone, Copy, PartialEq)]
enum Presence {
    Required,
    IfPresent,
}
use Presence::{IfPresent, Required};

macro_rules! hosts {
    ($($name:ident: $presence:expr,)*) => {
        const HOSTS: &[&str] = &[$(stringify!($name)),*];
        $(#[test]
        fn $name() {
            let script = repo().join(concat!("tests/unharmed/", stringify!($name), ".sh"));
            match compare(&script, &shim()) {
                Verdict::Same => {}
                Verdict::Skipped(why) => {
                    assert!($presence == IfPresent, "this one has to run: {why}");
                    skipped(why.trim_start_matches("skipped: "));
                }
                Verdict::Differs(how) => panic!("{how}"),
            }
        })*
    };
}

hosts! {
    bash: Required,
    cargo: IfPresent,
    closed_fds: Required,
    env_i: Required,
    environment: Required,
    gcc: Required,
    git: IfPresent,
    killed_by_signal: Required,
    make: IfPresent,
    node: IfPresent,
    perl: IfPresent,
    python: Required,
    python_own_tests: IfPresent,
    setuid: IfPresent,
    sigpipe: Required,
    static_binary: Required,
    tools: Required,
}

/// The script that runs CPython's own tests, some of which depend on timing. On a busy machine a test may fail by
/// chance, so this script may fail once, but not twice in a row.
const BY_THE_CLOCK: &str = "python_own_tests.sh";

#[derive(Debug)]
enum Verdict {
    Same,
    Skipped(String),
    Differs(String),
}

/// Runs the script without the library, and then with the library in each of `ENVIRONMENTS`. Compares the results.
fn compare(script: &Path, library: &Path) -> Verdict {
    let scratch = Scratch::new("unharmed");
    let folder = scratch.path("work");
    let plain = run_script(script, &folder, |_| ());
    if plain.status.code() == Some(SKIPPED) {
        let said = plain.out();
        return Verdict::Skipped(said.lines().last().unwrap_or("skipped").to_owned());
    }
    for (environment, window) in ENVIRONMENTS {
        let preloaded = || {
            run_script(script, &folder, |command| {
                command.env("LD_PRELOAD", library);
                if let Some(window) = window {
                    command.env("TLLM_PROFILE_START_STOP", window);
                }
            })
        };
        let mut how = difference(&plain, &preloaded());
        if how.is_some() && script.ends_with(BY_THE_CLOCK) {
            how = difference(&plain, &preloaded());
        }
        if let Some(how) = how {
            // The results differ. A second run without the library shows if the script's own output varies from run to
            // run.
            let again = difference(&plain, &run_script(script, &folder, |_| ()));
            let itself = match again {
                Some(_) => "\n(and so did a second run without the library)",
                None => "",
            };
            return Verdict::Differs(format!("with {environment}, {how}{itself}"));
        }
    }
    Verdict::Same
}

fn run_script(script: &Path, folder: &Path, set: impl FnOnce(&mut Command)) -> Output {
    let _ = fs::remove_dir_all(folder);
    fs::create_dir(folder).expect("make the script's folder");
    let mut bash = command("bash");
    bash.args([OsStr::new("--norc"), script.as_os_str()])
        .current_dir(folder)
        .env("PWD", folder)
        .env("LC_ALL", "C");
    if std::env::var("TLLMPROF_TEST_OWN").is_ok_and(|own| own == "all") {
        bash.env("LONG_TESTS", "test_gc test_threading test_subprocess");
    }
    set(&mut bash);
    run(&mut bash, TIMEOUT)
}

fn difference(plain: &Output, preloaded: &Output) -> Option<String> {
    if plain.status != preloaded.status {
        return Some(format!(
            "it ended with {} instead of {}; standard error: {}",
            preloaded.status,
            plain.status,
            preloaded.err()
        ));
    }
    let streams = [
        ("output", &plain.stdout, &preloaded.stdout),
        ("error", &plain.stderr, &preloaded.stderr),
    ];
    streams
        .into_iter()
        .find(|(_, before, after)| before != after)
        .map(|(name, before, after)| {
            format!(
                "standard {name} differs:\n--- without\n{}--- with\n{}",
                String::from_utf8_lossy(before),
                String::from_utf8_lossy(after)
            )
        })
}

#[test]
fn every_script_is_run() {
    let mut scripts: Vec<String> = fs::read_dir(repo().join("tests/unharmed"))
        .expect("list the scripts")
        .map(|entry| entry.expect("list the scripts").path())
        .filter(|path| path.extension() == Some(OsStr::new("sh")))
        .map(|path| {
            path.file_stem()
                .expect("a name")
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    scripts.sort();
    assert_eq!(scripts, HOSTS);
}

/// Tests the comparison itself: each of these libraries does a little harm, and the comparison has to notice it.
#[test]
fn a_harmful_library_is_noticed() {
    let harms = [
        ("writes", "(void)!write(1, \"!\", 1);"),
        ("complains", "(void)!write(2, \"!\", 1);"),
        ("ends", "_exit(1);"),
        ("ignores", "signal(SIGPIPE, SIG_IGN);"),
        ("opens", "(void)!open(\"/dev/null\", O_RDONLY);"),
    ];
    let scratch = Scratch::new("harmful");
    let script = scratch.path("host.sh");
    fs::write(
        &script,
        "ls /proc/self/fd\ngrep SigIgn /proc/self/status\necho done\n",
    )
    .expect("write a script");
    let build = |name: &str, body: &str| {
        let (source, library) = (
            scratch.path(&format!("{name}.c")),
            scratch.path(&format!("{name}.so")),
        );
        fs::write(
            &source,
            format!(
                "#include <fcntl.h>\n#include <signal.h>\n#include <unistd.h>\n\
                 __attribute__((constructor)) static void harm(void) {{ {body} }}\n"
            ),
        )
        .expect("write a library's source");
        let mut gcc = Command::new("gcc");
        gcc.args(["-shared", "-fPIC", "-o"])
            .arg(&library)
            .arg(&source);
        let built = run(&mut gcc, Duration::from_secs(300));
        assert!(built.status.success(), "{}", built.err());
        library
    };
    let harmless = compare(&script, &build("nothing", ""));
    assert!(matches!(harmless, Verdict::Same), "{harmless:?}");
    for (name, body) in harms {
        let verdict = compare(&script, &build(name, body));
        assert!(
            matches!(verdict, Verdict::Differs(_)),
            "{name}: {verdict:?}"
        );
    }
}
