//! `tllmprof env`: what launchers make of it.

mod common;

use std::path::Path;
use std::process::Command;

use common::{Ended, Scratch, finish, plain};

/// Text that every shell would like to get hold of.
const NAME: &str = "it's \"{n}\" `id` $HOME \\ *\nnext";

fn printed(scratch: &Scratch, format: &str, existing: &str) -> Ended {
    let mut env = scratch.tllmprof();
    env.args([
        "env",
        "--window",
        "2-3, 7",
        "--step",
        "cudaGraphLaunch/4",
        "--run",
        "a-run",
        "--format",
        format,
    ]);
    env.env("TLLMPROF_NVTX_NAME", NAME)
        .env("LD_PRELOAD", existing);
    let ended = finish(&mut env);
    assert_eq!(ended.code(), Some(0), "{ended:?}");
    ended
}

fn sh(script: &str, text: &str) -> Command {
    let mut sh = plain(Path::new("/bin/sh"));
    sh.args(["-c", script, "sh", text]);
    sh
}

#[test]
fn a_shell_gets_the_same_values() {
    let scratch = Scratch::new();
    let library = scratch.library();
    let text = printed(&scratch, "shell", "").stdout;
    let script = "eval \"$1\"; printf '%s|' \"$TLLMPROF_START_STOP\" \"$TLLMPROF_STEP\" \
                  \"$TLLMPROF_NVTX_NAME\" \"$LD_PRELOAD\"";
    let wanted = format!("2-3, 7|cudaGraphLaunch/4|{NAME}|{}|", library.display());
    assert_eq!(finish(&mut sh(script, &text)).stdout, wanted);

    // What the reader has preloaded stays.
    let other = scratch.compile("other.so", "int other;", &["-shared", "-fPIC"]);
    let script = "eval \"$1\"; printf '%s' \"$LD_PRELOAD\"";
    let wanted = format!("{}:{}", library.display(), other.display());
    assert_eq!(
        finish(sh(script, &text).env("LD_PRELOAD", &other)).stdout,
        wanted
    );
}

#[test]
fn docker_and_mpirun_get_the_same_words() {
    let scratch = Scratch::new();
    let library = scratch.library().display().to_string();
    let other = scratch.compile("other.so", "int other;", &["-shared", "-fPIC"]);
    let other = other.display().to_string();
    let script = "eval \"set -- $1\"; printf '%s|' \"$@\"";
    let rest = |flag: &str| {
        format!(
            "{flag}|TLLMPROF_START_STOP=2-3, 7|{flag}|TLLMPROF_STEP=cudaGraphLaunch/4|\
             {flag}|TLLMPROF_NVTX_NAME={NAME}|{flag}|TLLMPROF_RUN=a-run|"
        )
    };
    let docker = printed(&scratch, "docker", &other).stdout;
    assert_eq!(
        finish(&mut sh(script, &docker)).stdout,
        format!(
            "-v|{library}:{library}:ro|-e|LD_PRELOAD={library}|{}",
            rest("-e")
        )
    );
    let mpirun = printed(&scratch, "mpirun", &other).stdout;
    assert_eq!(
        finish(&mut sh(script, &mpirun)).stdout,
        format!("-x|LD_PRELOAD={library}:{other}|{}", rest("-x"))
    );
}

#[test]
fn kubernetes_gets_a_list() {
    let scratch = Scratch::new();
    let yaml = printed(&scratch, "k8s", "").stdout;
    let wanted = "- name: TLLMPROF_START_STOP\n  value: \"2-3, 7\"\n\
                  - name: TLLMPROF_STEP\n  value: \"cudaGraphLaunch/4\"\n\
                  - name: TLLMPROF_NVTX_NAME\n  value: \"it's \\\"{n}\\\" `id` $$HOME \\\\ *\\u000anext\"\n";
    assert!(yaml.contains(wanted), "{yaml}");
}

#[test]
fn the_rank_of_one_process_is_not_given_to_all() {
    let scratch = Scratch::new();
    let mut env = scratch.tllmprof();
    let ended = finish(env.args(["env", "--ranks", "0"]).env("TLLMPROF_RANK", "3"));
    assert!(ended.stdout.contains("TLLMPROF_RANKS='0'"), "{ended:?}");
    assert!(!ended.stdout.contains("TLLMPROF_RANK="), "{ended:?}");
}

#[test]
fn a_bad_value_prints_nothing() {
    let scratch = Scratch::new();
    let ended = finish(scratch.tllmprof().args(["env", "--window", "9-5"]));
    assert_eq!((ended.code(), ended.stdout.as_str()), (Some(2), ""));
    assert!(
        ended.stderr.starts_with("tllmprof: --window \"9-5\": "),
        "{ended:?}"
    );
    let ended = finish(scratch.tllmprof().args(["env", "--format", "toml"]));
    assert_eq!((ended.code(), ended.stdout.as_str()), (Some(2), ""));
}

#[test]
fn what_has_no_variable_is_said() {
    let scratch = Scratch::new();
    let mut env = scratch.tllmprof();
    let ended = finish(env.args(["env", "--window", "5", "--gpu-metrics"]));
    assert_eq!(ended.code(), Some(0), "{ended:?}");
    assert!(
        ended.stdout.contains("TLLMPROF_START_STOP='5'"),
        "{ended:?}"
    );
    assert!(
        ended.stderr.starts_with("tllmprof: --gpu-metrics: "),
        "{ended:?}"
    );
    assert_eq!(ended.stderr.lines().count(), 1, "{ended:?}");
}
