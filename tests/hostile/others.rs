//! Checks programs that have another preload which replaces CUDA's functions, and situations in which such preloads are
//! known to fail.

use std::time::Duration;

use super::common::{Switch, command, run, standin, tllmprof};
use super::twice::{Both, Situation, of_process, processes, start, stop, switches};
use super::{NO_CUDA, Workshop, assert_switches};

const TIMEOUT: Duration = Duration::from_secs(180);

/// Some of the program's libraries define functions with CUDA's names. A look-up of such a name through a library's
/// handle must return that library's function instead of a hook. A look-up without a handle must return the function of
/// the first library that defines the name.
#[test]
fn libraries_whose_functions_are_called_like_cudas() {
    let shop = Workshop::new();
    let program = dispatched(&shop);
    let armed = program.clone().window("2-3", "cudaGraphLaunch");
    for situation in [
        program.clone(),
        armed.clone(),
        armed.clone().env("TLLMPROF_KERNELS", "1"),
        armed.env("TLLMPROF_TRACE", shop.0.path("trace")),
        program.clone().window("2-3", "auto"),
        program.clone().window("2-3", "sym:^cudnnCreate$"),
        program.window("2-3", "sym:^cu"),
    ] {
        let both = situation.run();
        assert_eq!(both.output.status.code(), Some(5), "{}", both.output.err());
        let out = both.output.out();
        let line = "cudnnCreate: linked: 111 default: 111 next: 111 all: 111 its library: 111 \
                    another library: none, with a reason another version: none, with a reason \
                    the library behind it: 11\n";
        assert_eq!(out.matches(line).count(), 3, "{out}");
        assert_eq!(out.lines().count(), 27, "{out}");
    }
}

/// Builds a program that is linked to `dispatcher.c`. The program finds this library by its own search path (`-rpath`).
fn dispatched(shop: &Workshop) -> Situation {
    for name in ["dispatcher_engine", "dispatcher"] {
        shop.library(name, &[&format!("-Wl,-soname,{name}.so")]);
    }
    let folder = shop.0.folder().display().to_string();
    let library = shop.0.path("dispatcher.so").display().to_string();
    shop.program("dispatched", &[&library, &format!("-Wl,-rpath,{folder}")])
}

/// While one thread is in a CUDA call, the library must let other threads and processes make calls. In this test,
/// launches return only after all ranks have launched.
#[test]
fn ranks_whose_launches_wait_for_each_other() {
    let shop = Workshop::new();
    let runtime = standin().join("libcudart_static.a");
    let runtime = runtime.to_str().expect("cargo's folders have UTF-8 names");
    shop.library("ranks_library", &[runtime]);
    let program = shop.program("ranks", NO_CUDA);
    for (processes, variables) in [
        ("1", &[][..]),
        ("3", &[]),
        ("3", &[("TLLMPROF_TRACE", "%p.tllmprof")]),
        ("3", &[("TLLM_NVTX_DEBUG", "1")]),
    ] {
        let program = program.clone().args(processes);
        let mut armed = program.clone().window("2-5,8-", "cudaGraphLaunch");
        for (name, value) in variables {
            let value = value.replace("%p", &shop.0.path("%p").display().to_string());
            armed = armed.env(name, value);
        }
        program.run();
        assert_ranks(&armed.run(), processes);
    }
}

/// Asserts that there are `count` processes, and that the two windows of each contain the launches 2 to 5 and 8 to 15.
#[track_caller]
fn assert_ranks(both: &Both, count: &str) {
    let said = both.output.err();
    assert_eq!(both.output.status.code(), Some(6), "{said}");
    let pids = processes(&both.log);
    assert_eq!(pids.len().to_string(), count, "{said}");
    for pid in pids {
        let launches: Vec<usize> = switches(&of_process(&both.log, pid))
            .into_iter()
            .map(|switch| match switch {
                Switch::Start { launches, .. } | Switch::Stop { launches, .. } => launches,
            })
            .collect();
        assert_eq!(launches, [2, 6, 8, 16], "{said}");
    }
}

/// On a thread without a current context, the driver refuses queries about the context. Such refusals of the library's
/// own queries must not affect the program.
#[test]
fn threads_without_a_context_beside_eight_devices() {
    let shop = Workshop::new();
    let program = shop
        .program("no_context", &["-Wl,--no-as-needed", "-l:libcuda.so.1"])
        .env("STANDIN_DEVICES", "8");
    let record = ("TLLMPROF_TRACE", "%p.tllmprof");
    for variables in [
        &[][..],
        &[record],
        &[record, ("TLLMPROF_KERNELS", "2")],
        &[("TLLM_NVTX_DEBUG", "1")],
    ] {
        let mut armed = program.clone().window("16-31", "cudaGraphLaunch");
        for (name, value) in variables {
            let value = value.replace("%p", &shop.0.path("%p").display().to_string());
            armed = armed.env(name, value);
        }
        let both = armed.run();
        let out = both.output.out();
        assert!(
            out.starts_with("before: 0\n") && out.ends_with("in between: 0\n"),
            "{out}"
        );
        assert_eq!(both.output.status.code(), Some(6));
        assert_eq!(both.total(), 64);
        let launches: Vec<Switch> = switches(&both.log);
        assert!(
            matches!(
                launches[..],
                [
                    Switch::Start { launches: 16, .. },
                    Switch::Stop { launches: 32, .. }
                ]
            ),
            "{launches:?}"
        );
    }
    assert_eq!(program.run().said(), Vec::<String>::new());
}

/// The driver looks up its own functions when the program's first CUDA call initializes it. Windows must be exact all
/// the same.
#[test]
fn a_driver_that_looks_its_own_functions_up_in_the_first_call() {
    for program in [
        "steps_static",
        "steps_shared13",
        "steps_rtld_local",
        "steps_driver",
        "steps_driver_dlsym",
        "steps_driver_gpa1",
        "steps_driver_gpa2",
    ] {
        for (windows, wanted) in [
            ("0-1", [start(0, 0), stop(2, 2)]),
            ("5-9", [start(5, 5), stop(10, 10)]),
        ] {
            let program = Situation::new(program).env("STANDIN_LOOKS_UP", "1");
            let both = program.window(windows, "cudaGraphLaunch").run();
            both.assert_same_calls();
            assert_eq!(both.total(), 40);
            assert_switches(&both, &wanted);
        }
    }
}

#[test]
fn a_driver_that_looks_its_own_functions_up_before_main() {
    let program = Situation::new("steps_early_ctor")
        .env("STANDIN_LOOKS_UP", "1")
        .env("EARLY_STEPS", "3");
    program.run().assert_untouched();
    for step in ["cudaGraphLaunch", "cudaStreamSynchronize"] {
        let both = program.clone().window("1,5-9", step).run();
        both.assert_same_calls();
        assert_eq!(both.total(), 43, "by {step}");
        let wanted = [start(1, 1), stop(2, 2), start(5, 5), stop(10, 10)];
        assert_switches(&both, &wanted);
    }
}

/// Programs that get CUDA's functions in different ways, for example by linking or by a look-up.
const PROGRAMS: [&str; 9] = [
    "steps_shared12",
    "steps_shared13",
    "steps_static",
    "steps_rtld_local",
    "steps_dlsym",
    "steps_driver",
    "steps_driver_dlsym",
    "steps_driver_gpa1",
    "steps_driver_gpa2",
];

/// Returns each program of `PROGRAMS` twice, with the other preload `vgpu.c` before the library in `LD_PRELOAD` and
/// after it. Each step has two kernels.
fn beside_vgpu(shop: &Workshop) -> Vec<(String, Situation)> {
    let vgpu = shop.library("vgpu", NO_CUDA).display().to_string();
    let both_orders = |program: &str| {
        let situation = Situation::new(program).args("--kernels 2");
        [
            (
                format!("{program} behind it"),
                situation.clone().preload_before_shim(&vgpu),
            ),
            (
                format!("{program} in front of it"),
                situation.preload_after_shim(&vgpu),
            ),
        ]
    };
    PROGRAMS.into_iter().flat_map(both_orders).collect()
}

/// The preload `vgpu.c` counts CUDA calls and prints the counts on standard error. With the library, it must print the
/// same counts as without.
#[test]
fn a_preload_that_looks_up_all_of_cuda_itself() {
    let shop = Workshop::new();
    for (name, situation) in beside_vgpu(&shop) {
        let line = "vgpu: 83 kernels, 1 allocations\n";
        let both = situation.run();
        assert!(
            both.output.err().contains(line),
            "{name}: {}",
            both.output.err()
        );
        both.assert_untouched();
        // The preload `vgpu.c` replaces `cudaLaunchKernel`, but not `cudaStreamSynchronize`. So the test makes
        // windows by a rule for each of the two functions.
        for step in ["cudaLaunchKernel/2", "cudaStreamSynchronize"] {
            let both = situation.clone().window("5-9", step).run();
            let said = both.output.err();
            assert!(said.contains(line), "{name}: {said}");
            both.assert_same_calls();
            assert_eq!(both.total(), 40, "{name} by {step}: {said}");
            assert_eq!(
                switches(&both.log),
                [start(5, 5), stop(10, 10)],
                "{name} by {step}"
            );
        }
    }
}

/// A call that passes through both preloads is recorded once, and so are its kernels.
#[test]
fn records_beside_a_preload_that_looks_up_all_of_cuda_itself() {
    let shop = Workshop::new();
    for (name, situation) in beside_vgpu(&shop) {
        let record = shop.0.path(&format!("{name}.tllmprof"));
        let both = situation
            .window("5-9", "cudaGraphLaunch")
            .env("TLLMPROF_TRACE", &record)
            .env("TLLMPROF_KERNELS", "2")
            .env("LD_LIBRARY_PATH", libraries())
            .run();
        assert_eq!(both.total(), 40, "{name}");
        let report = run(command(tllmprof()).arg("report").arg(&record), TIMEOUT);
        let text = report.out();
        for (function, count) in [
            ("cuLaunchKernel", "2.00"),
            ("cuGraphLaunch", "1.00"),
            ("cuStreamSynchronize", "1.00"),
        ] {
            let lines = text.lines().map(|line| line.split_whitespace());
            let mut counts =
                lines.filter_map(|mut words| (words.next()? == function).then_some(words.next()));
            assert_eq!(
                counts.next(),
                Some(Some(count)),
                "{name}, {function}: {text}"
            );
        }
        assert!(text.contains("5.00 kernels a step"), "{name}: {text}");
    }
}

/// Returns the library path of the stand-ins for the driver and for CUPTI.
fn libraries() -> String {
    let standin = standin().display().to_string();
    format!("{standin}:{standin}/cupti")
}

/// The library that is preloaded first defines `dlsym` and never calls the next library's `dlsym`, which is tllmprof's.
/// The program's calls of `dlsym` are bound to the first library. So tllmprof patches the GOT slots of these calls.
/// Then the calls reach tllmprof.
#[test]
fn a_preload_in_front_that_finds_dlsym_by_itself() {
    let shop = Workshop::new();
    let front = shop.library("table_dlsym", &[]).display().to_string();
    for program in [
        "steps_dlsym",
        "steps_static",
        "steps_driver_dlsym",
        "steps_driver_gpa2",
        "steps_rtld_local",
    ] {
        let program = Situation::new(program).window("5-9", "cudaGraphLaunch");
        let both = program.preload_before_shim(front.clone()).run();
        assert_switches(&both, &[start(5, 5), stop(10, 10)]);
        assert_eq!(both.total(), 40);
    }
}

/// A preload does not see calls from libraries in another linker namespace, or calls that `RTLD_DEEPBIND` binds
/// directly to a library. The library reports that there are such calls.
#[test]
fn calls_that_come_past_the_library_are_reported() {
    let shop = Workshop::new();
    let runtime = ["-Wl,--no-as-needed", "-l:libcudart.so.12"];
    let plugin = shop
        .library("bypass_plugin", &runtime)
        .display()
        .to_string();
    let program = shop
        .program("bypass", &["-ldl"])
        .window("5-9", "cudaLaunchKernel");
    let said = |arguments: &str| {
        let both = program.clone().args(arguments).run();
        assert_eq!(both.output.status.code(), Some(0), "{}", both.output.err());
        both.said()
    };
    let elsewhere = said(&format!("dlmopen {plugin}"));
    let driver = standin().join("libcuda.so.1").display().to_string();
    assert_eq!(
        elsewhere,
        [format!(
            "CUDA calls to {driver} bypass the library: dlmopen has loaded it into a namespace of its own, which LD_PRELOAD \
             does not reach. Load it without dlmopen"
        )]
    );
    let direct = said(&format!("deepbind {plugin}"));
    let runtime = standin().join("libcudart.so.12").display().to_string();
    assert_eq!(
        direct,
        [format!(
            "CUDA calls of {plugin} bypass the library: they are bound to {runtime} directly, as RTLD_DEEPBIND does. Load it \
             without RTLD_DEEPBIND"
        )]
    );
    // These programs load or initialize the driver but launch nothing, so the library reports nothing.
    for idle in ["loads", "initialises"] {
        assert_eq!(said(idle), [""; 0], "{idle}");
    }
}
