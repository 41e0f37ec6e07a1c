//! Checks native functions as scopes (`TLLMPROF_SCOPES`): the report names, for each kernel, the functions that it was
//! launched in.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::OnceLock;

use crate::common::{
    Scratch, built_command, cpp_compiler, is_x86_64, repo, run, shim, skipped, standin,
};
use crate::{Ran, TEST_TIMEOUT, ran_by};

const RULE: (&str, &str) = ("TLLMPROF_SCOPES", "sym:^op_,sym:Engine::op_");

struct Built {
    _scratch: Scratch,
    program: PathBuf,
    plugin: PathBuf,
    many: PathBuf,
}

fn built() -> &'static Built {
    static BUILT: OnceLock<Built> = OnceLock::new();
    BUILT.get_or_init(|| {
        let scratch = Scratch::new("layers-native");
        let build = |source: &str, output: &str, options: &[&str]| {
            let built = scratch.path(output);
            let mut cc = cpp_compiler();
            cc.args([
                "-O2",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-std=gnu++17",
                "-pthread",
            ])
            .arg(format!("-I{}", repo().join("tests/standin").display()))
            .arg("-o")
            .arg(&built)
            .arg(repo().join("tests/layers").join(source))
            .args(options);
            let output = run(&mut cc, TEST_TIMEOUT);
            assert!(output.status.success(), "{}", output.err());
            built
        };
        let folder = format!("-L{}", standin().display());
        Built {
            program: build(
                "native.cpp",
                "native",
                &[&folder, "-l:libcuda.so.1", "-ldl"],
            ),
            many: build("many.cpp", "many", &[&folder, "-l:libcuda.so.1"]),
            plugin: build("plugin.cpp", "libplugin.so", &["-shared", "-fPIC"]),
            _scratch: scratch,
        }
    })
}

fn ran(mode: &str, more: &[(&str, &str)]) -> Ran {
    let mut command = built_command(&built().program);
    command.args([mode, "20"]).arg(&built().plugin);
    let all = [&[RULE, ("TLLMPROF_LOG", "debug")][..], more].concat();
    ran_by(command, mode, &all)
}

/// Returns true if function entries cannot be patched because the processor is not x86-64, and reports the running
/// test as skipped then.
fn is_left_out() -> bool {
    if !is_x86_64() {
        skipped("native functions are scopes on x86-64 only");
    }
    !is_x86_64()
}

impl Ran {
    /// Returns what the report must contain, according to the kernels' own names: the number of kernels in each scope
    /// (a native function), and the number of kernels named `unknown`, whose scope the report cannot know.
    fn expected(&self) -> (BTreeMap<&str, u64>, u64) {
        let mut launched = self.launched();
        let unknown = launched.remove("unknown").unwrap_or(0);
        if let Some(none) = launched.remove("none") {
            launched.insert("", none);
        }
        (launched, unknown)
    }

    /// Asserts that the report names the right functions for every kernel, and no function for kernels named `unknown`.
    fn assert_known(&self, mode: &str) {
        let (launched, unknown) = self.expected();
        assert_eq!(
            self.known(),
            launched,
            "{mode}: {:?} {}",
            self.unknown(),
            self.output.err()
        );
        assert_eq!(self.unknown().values().sum::<u64>(), unknown, "{mode}");
        let said = self.output.err();
        assert!(!said.contains("TLLMPROF_SCOPES"), "{mode}: {said}");
    }
}

#[test]
fn a_kernel_has_the_functions_that_it_was_launched_in() {
    if is_left_out() {
        return;
    }
    for mode in ["plain", "graph", "library"] {
        let ran = ran(mode, &[]);
        ran.assert_known(mode);
        let known = ran.known();
        assert_eq!(known["op_outer/op_inner"], 10, "{mode}");
        assert_eq!(known["op_recursive"], 80, "{mode}");
        assert_eq!(known["op_tail/op_end"], 10, "{mode}");
        assert_eq!(known["Engine::op_template"], 20, "{mode}");
        assert_eq!(
            known.get("op_plugin/op_hidden").copied(),
            (mode == "library").then_some(30)
        );
    }
}

/// In the program, calls of scope functions (to which kernels are assigned) are left by an exception or longjmp, or the
/// calling thread or forked child ends within the call. If a scope stayed open after that, later kernels would be
/// assigned to it.
#[test]
fn a_call_that_is_left_is_open_no_more() {
    if is_left_out() {
        return;
    }
    for mode in ["throws", "jumps", "cancelled", "forks"] {
        ran(mode, &[]).assert_known(mode);
    }
}

/// A kernel's scope (the native function that launched it) is unknown if calls nest too deep, or if the function runs
/// on another stack. Kernels of later calls have a known scope again.
#[test]
fn what_cannot_be_followed_is_not_known() {
    if is_left_out() {
        return;
    }
    let deep = ran("deep", &[]);
    deep.assert_known("deep");
    assert_eq!(deep.known()["op_every/op_alternate"], 10);
    let coroutine = ran("coroutine", &[]);
    let (launched, unknown) = coroutine.expected();
    assert!(unknown > 0 && coroutine.unknown().values().sum::<u64>() >= unknown);
    let signals = ran("signals", &[]);
    for (ran, launched) in [(&coroutine, launched), (&signals, signals.expected().0)] {
        for (name, kernels) in ran.known() {
            assert!(kernels <= launched[name], "{name}: {kernels}");
        }
    }
}

#[test]
fn threads_have_scopes_of_their_own() {
    if is_left_out() {
        return;
    }
    let ran = ran("threads", &[]);
    let (launched, _) = ran.expected();
    let known = ran.known();
    for (name, kernels) in &known {
        assert!(*kernels <= launched[name], "{name}: {kernels}");
    }
    assert!(known["op_outer/op_inner"] > 0 && known["op_recursive"] > 0);
}

#[test]
fn rules_that_match_nothing_or_too_much_say_so() {
    if is_left_out() {
        return;
    }
    let said = |rules| {
        let scopes = ("TLLMPROF_SCOPES", rules);
        ran("plain", &[scopes, ("TLLMPROF_LOG", "info")])
            .output
            .err()
    };
    let nothing = said("sym:^op_outre$@native$");
    let line =
        "TLLMPROF_SCOPES: its rules matched no function in 1 modules; nearest: op_outer(int)";
    assert_eq!(nothing.matches(line).count(), 1, "{nothing}");
    let much = said("sym:.@libstdc");
    let found = much.split("TLLMPROF_SCOPES: its rules match ").nth(1);
    let count = found.and_then(|rest| rest.split(' ').next()?.parse::<u64>().ok());
    assert!(count.is_some_and(|count| count > 256), "{much}");
    assert!(
        much.contains("functions, and at most 256 can be scopes: none is."),
        "{much}"
    );
    // A function cannot be patched if it begins with a call or reads its return address.
    let refused = said("sym:pop_back@libstdc");
    assert!(
        refused.contains("functions cannot be scopes: "),
        "{refused}"
    );
    assert!(
        refused.contains("(it may look at its return address)"),
        "{refused}"
    );
}

/// If a rule for steps names the same functions as the setting for scopes (functions to which kernels are assigned),
/// the rule still counts every call.
#[test]
fn functions_may_be_steps_and_scopes() {
    if is_left_out() {
        return;
    }
    let ran = ran("plain", &[("TLLMPROF_STEP", "sym:^op_tail")]);
    let said = ran.output.err();
    assert!(
        said.contains("captured: 20 iterations by sym:^op_tail"),
        "{said}"
    );
    assert_eq!(ran.known()["op_tail/op_end"], 10);
}

/// Exceptions leave calls of scope functions (to which kernels are assigned) in twelve threads. Each thread gets the
/// same result as without the library, and no scope stays open.
#[test]
fn many_calls_at_once_do_what_they_do_without_the_library() {
    if is_left_out() {
        return;
    }
    let scratch = Scratch::new("layers-many");
    let output = |variables: &[(&str, PathBuf)]| {
        let mut command = built_command(&built().many);
        command
            .env("LD_LIBRARY_PATH", standin())
            .current_dir(scratch.folder())
            .envs(variables.iter().cloned());
        let output = run(&mut command, TEST_TIMEOUT);
        assert_eq!(output.status.code(), Some(0), "{}", output.err());
        output
    };
    let plain = output(&[]);
    let scoped = output(&[
        ("LD_PRELOAD", shim()),
        ("TLLMPROF_SCOPES", "sym:^op_".into()),
        ("TLLMPROF_TRACE", "many.tllmprof".into()),
        ("TLLMPROF_START_STOP", "1000".into()),
        ("TLLMPROF_STEP", "cudaEventSynchronize".into()),
    ]);
    assert_eq!(scoped.out(), plain.out());
    let said = scoped.err();
    assert!(!said.contains("TLLMPROF_SCOPES"), "{said}");
}
