//! Tests of `tllmprof env`: its output is parsed as a shell, a container engine or another launcher would parse it.

mod common;

use std::path::Path;
use std::process::Command;

use common::{Ended, Scratch, finish, plain};

/// A text with characters that a shell expands, removes or splits words at if they are not quoted.
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
    env.current_dir(scratch.path(""))
        .env("TLLMPROF_NVTX_NAME", NAME)
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

    // A library that the user had already put into `LD_PRELOAD` stays in that variable.
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
    let rest = |flag: &str, trace: &str| {
        format!(
            "{flag}|TLLMPROF_START_STOP=2-3, 7|{flag}|TLLMPROF_STEP=cudaGraphLaunch/4|\
             {flag}|TLLMPROF_NVTX_NAME={NAME}|{flag}|TLLMPROF_TRACE={trace}|{flag}|TLLMPROF_RUN=a-run|"
        )
    };
    let folder = scratch.path("").display().to_string();
    let docker = printed(&scratch, "docker", &other).stdout;
    assert_eq!(
        finish(&mut sh(script, &docker)).stdout,
        format!(
            "-v|{library}:{library}:ro|-e|LD_PRELOAD={library}|-v|{folder}tllmprof-records:/tllmprof-records|{}",
            rest("-e", "/tllmprof-records/%h-%r-%p.tllmprof")
        )
    );
    let mpirun = printed(&scratch, "mpirun", &other).stdout;
    assert_eq!(
        finish(&mut sh(script, &mpirun)).stdout,
        format!(
            "-x|LD_PRELOAD={library}:{other}|{}",
            rest("-x", &format!("{folder}tllmprof-%h-%r-%p.tllmprof"))
        )
    );
}

#[test]
fn a_shell_is_warned_and_finds_back() {
    let scratch = Scratch::new();
    let ended = printed(&scratch, "shell", "");
    assert_eq!(ended.stderr.lines().count(), 1, "{ended:?}");
    let way_back = ended.stderr.split('"').nth(1).unwrap();
    assert_eq!(way_back, "$(tllmprof env --unset)");

    let tllmprof = env!("CARGO_BIN_EXE_tllmprof");
    let script = format!(
        "eval \"$1\"; eval \"$({tllmprof} env --unset)\"; \
         echo \"${{LD_PRELOAD-none}} ${{TLLMPROF_STEP-none}} $(env | grep -c TLLMPROF)\""
    );
    assert_eq!(
        finish(&mut sh(&script, &ended.stdout)).stdout,
        "none none 0\n"
    );
    let other = scratch.compile("other.so", "int other;", &["-shared", "-fPIC"]);
    let ended = finish(sh(&script, &ended.stdout).env("LD_PRELOAD", &other));
    assert_eq!(ended.stdout, format!("{} none 0\n", other.display()));

    // With `--log off` there are no warnings. A format for a launcher does not change the environment of the user's
    // shell, so there is no warning for it either.
    let mut quiet = scratch.tllmprof();
    assert_eq!(finish(quiet.args(["env", "--log", "off"])).stderr, "");
    assert_eq!(printed(&scratch, "mpirun", "").stderr, "");
}

#[test]
fn launchers_start_env_which_starts_the_program() {
    let scratch = Scratch::new();
    let library = scratch.library().display().to_string();
    for (format, option) in [("slurm", "--export=ALL"), ("torchrun", "--no-python")] {
        let words = printed(&scratch, format, "").stdout;
        let program =
            "printf \"%s|\" \"$LD_PRELOAD\" \"$TLLMPROF_START_STOP\" \"$TLLMPROF_NVTX_NAME\"";
        let script =
            format!("eval \"set -- $1\"; echo \"$1\"; shift; exec \"$@\" sh -c '{program}'");
        assert_eq!(
            finish(&mut sh(&script, &words)).stdout,
            format!("{option}\n{library}|2-3, 7|{NAME}|"),
            "{format}"
        );
    }
}

#[test]
fn ray_gets_json() {
    let scratch = Scratch::new();
    let name = NAME.replace("$HOME", "$(X)");
    let mut env = scratch.tllmprof();
    env.args(["env", "--run", "a-run", "--format", "ray"]);
    let text = finish(env.env("TLLMPROF_NVTX_NAME", &name)).stdout;
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let library = scratch.library().display().to_string();
    assert_eq!(json["env_vars"]["LD_PRELOAD"], library.as_str());
    assert_eq!(json["env_vars"]["TLLMPROF_NVTX_NAME"], name);
    assert_eq!(json["env_vars"]["TLLMPROF_RUN"], "a-run");
}

#[test]
fn files_name_who_gets_the_library_and_where_records_go() {
    let scratch = Scratch::new();
    let env = |arguments: &[&str]| finish(scratch.tllmprof().arg("env").args(arguments));
    for (format, what) in [("k8s", "CONTAINER"), ("compose", "SERVICE")] {
        let ended = env(&["--format", format]);
        assert_eq!((ended.code(), ended.stdout.as_str()), (Some(2), ""));
        assert!(
            ended
                .stderr
                .ends_with(&format!("(wanted: --name {what})\n")),
            "{ended:?}"
        );
        let yaml = env(&["--format", format, "--name", "engine"]).stdout;
        assert!(yaml.contains("engine\""), "{yaml}");
        assert!(
            yaml.contains("\"/tllmprof-records/%h-%r-%p.tllmprof\"\n"),
            "{yaml}"
        );
        let yaml = env(&["--format", format, "--name", "e", "--no-trace"]).stdout;
        assert!(!yaml.contains("tllmprof-records"), "{yaml}");
    }
    // For Kubernetes the library is copied from the image that `--image` names, so it need not exist on this machine.
    let mut k8s = scratch.tllmprof();
    k8s.args(["env", "--format", "k8s", "--name", "engine"]);
    assert_eq!(finish(k8s.env("TLLMPROF_LIB", "/none")).code(), Some(0));

    let unit = env(&["--format", "systemd"]).stdout;
    assert!(
        unit.contains("=/var/log/tllmprof/%%h-%%r-%%p.tllmprof\"\n"),
        "{unit}"
    );
}

#[test]
fn kubernetes_gets_strings() {
    let scratch = Scratch::new();
    let mut env = scratch.tllmprof();
    env.args([
        "env", "--window", "2-3, 7", "--format", "k8s", "--name", "engine",
    ]);
    let yaml = finish(env.env("TLLMPROF_NVTX_NAME", NAME)).stdout;
    let wanted = "        - name: TLLMPROF_START_STOP\n          value: \"2-3, 7\"\n";
    assert!(yaml.contains(wanted), "{yaml}");
    let wanted = "          value: \"it's \\\"{n}\\\" `id` $$HOME \\\\ *\\u000anext\"\n";
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
    // The first line is the warning about `--gpu-metrics`, and the second line is the warning about this shell's
    // environment.
    assert_eq!(ended.stderr.lines().count(), 2, "{ended:?}");
}
