//! Checks programs in which the library's hooks run before it is safe to make some calls. There are three reasons: the
//! called function belongs to another preload and looks up the C library's function at its first call, a sanitizer is
//! still starting, or a system call filter forbids the call.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::common::{
    Output, built_command, can_exec, clang, command, compiler, cpp_compiler, repo, run, shim,
    skipped, standin,
};
use super::twice::{Situation, start, stop};
use super::{NO_CUDA, RUNTIME, Workshop, assert_switches};

const TIMEOUT: Duration = Duration::from_secs(300);

/// Functions of the C library that [`functions_that_are_looked_up_at_their_first_call`] replaces in addition to those
/// that the library imports. The compiler may call the memory functions and `strlen` from any code. The library defines
/// these itself, so it does not import them. The library looks `dl_iterate_phdr` up without `dlsym`.
const DOORS_OWN: [&str; 7] = [
    "memcpy",
    "memmove",
    "memset",
    "memcmp",
    "bcmp",
    "strlen",
    "dl_iterate_phdr",
];

/// Returns the names of the functions that the library imports, without their version suffixes.
fn imported() -> BTreeSet<String> {
    let mut readelf = Command::new("readelf");
    let listed = run(readelf.args(["-W", "--dyn-syms"]).arg(shim()), TIMEOUT);
    assert!(listed.status.success(), "{}", listed.err());
    let name = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, _, _, "FUNC", "GLOBAL", _, "UND", name, ..] = words[..] else {
            return None;
        };
        Some(name.split('@').next()?.to_owned())
    };
    listed.out().lines().filter_map(name).collect()
}

/// Builds an object with the functions `names`. Each of them looks up the C library's function of its name at its
/// first call. [`lazy_library`] links the object.
fn lazy_object(shop: &Workshop, names: &[String], options: &[&str]) -> PathBuf {
    let list = names
        .iter()
        .fold(String::from("-DNAMES="), |mut list, name| {
            let _ = write!(list, "X({name}) ");
            list
        });
    let object = shop.0.path("lazy.o");
    let mut cc = compiler();
    // The source declares the functions with the wrong types, so the compiler must not use its own knowledge about
    // them.
    cc.args([
        "-c",
        "-fPIC",
        "-O1",
        "-fno-builtin",
        "-fno-stack-protector",
        "-w",
        "-o",
    ])
    .arg(&object)
    .args(options)
    .arg(list)
    .arg(repo().join("tests/hostile/lazy.c"));
    let built = run(&mut cc, TIMEOUT);
    assert!(built.status.success(), "{}", built.err());
    object
}

/// Builds a library that exports only these functions of the object.
fn lazy_library(shop: &Workshop, object: &Path, name: &str, shown: &[String]) -> PathBuf {
    let script = shop.0.path(&format!("{name}.map"));
    let shown = shown.join("; ");
    fs::write(&script, format!("{{ global: {shown}; local: *; }};\n")).expect("a script");
    let library = shop.0.path(&format!("{name}.so"));
    let mut cc = compiler();
    cc.args(["-shared", "-nostdlib", "-Wl,-z,lazy", "-o"])
        .arg(&library)
        .arg(object)
        .arg(format!("-Wl,--version-script={}", script.display()));
    let built = run(&mut cc, TIMEOUT);
    assert!(built.status.success(), "{name}: {}", built.err());
    library
}

/// Calls `act` for each element, on four threads.
fn for_each<T: Sync>(all: &[T], act: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some(one) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                    act(one);
                }
            });
        }
    });
}

/// For each function that the library imports, an earlier preload defines a function of the same name. At its first
/// call, that function looks up the original function with `dlsym`. The library's hook of `dlsym` must find the
/// original function without calling the preload's function.
#[test]
fn functions_that_are_looked_up_at_their_first_call() {
    let shop = Workshop::new();
    let names: BTreeSet<String> = imported()
        .into_iter()
        .chain(DOORS_OWN.map(str::to_owned))
        .collect();
    assert!(names.len() > 40, "{names:?}");
    let names: Vec<String> = names.into_iter().collect();
    let object = lazy_object(&shop, &names, &[]);
    let library = |name: &String| lazy_library(&shop, &object, name, std::slice::from_ref(name));
    let libraries: Vec<PathBuf> = names.iter().map(library).collect();
    let program = shop.build("sanitized", "sanitized", RUNTIME);
    let wrong = Mutex::new(Vec::new());
    let cases: Vec<(&String, &PathBuf)> = names.iter().zip(&libraries).collect();
    for_each(&cases, |(name, library)| {
        let ran = |shim: Option<&Path>, variables: &[(&str, &str)]| {
            let mut preload = library.display().to_string();
            if let Some(shim) = shim {
                let _ = write!(preload, ":{}", shim.display());
            }
            let trace = shop.0.path(&format!("{name}.trace"));
            let mut command = built_command(&program);
            command
                .arg("cuda")
                .env("LD_LIBRARY_PATH", standin())
                .env("LD_PRELOAD", preload)
                .envs(variables.iter().copied());
            if !variables.is_empty() {
                command.env("TLLMPROF_TRACE", trace);
            }
            run(&mut command, TIMEOUT)
        };
        let plain = ran(None, &[]);
        assert_eq!(plain.status.code(), Some(3), "{name}: {}", plain.err());
        let armed = [
            ("TLLMPROF_START_STOP", "2-4"),
            ("TLLMPROF_STEP", "sym:^cudaGraphLaunch$"),
            ("TLLMPROF_LOG", "off"),
        ];
        for (how, variables) in [("preloaded", &[][..]), ("armed", &armed)] {
            let with = ran(Some(&shim()), variables);
            if (with.status, &with.stdout, &with.stderr)
                != (plain.status, &plain.stdout, &plain.stderr)
            {
                let line = format!("{name}, {how}: {}\n{}", with.status, with.err());
                wrong.lock().expect("no panic meanwhile").push(line);
            }
        }
    });
    let wrong = wrong.into_inner().expect("no panic meanwhile");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Functions of an earlier preloaded library that tllmprof may call before that library's constructors have run.
/// tllmprof needs them to identify the process and its own folder. Libraries that replace time, processes or
/// descriptors do not replace these functions.
const BEFORE_START: [&str; 6] = [
    "__errno_location",
    "__register_atfork",
    "free",
    "getauxval",
    "malloc",
    "realpath",
];

/// The library that comes first in `LD_PRELOAD` runs its constructors after tllmprof's. If tllmprof called a function
/// in which that library initializes itself, that library would be initialized twice.
#[test]
fn functions_of_a_library_that_has_not_been_started() {
    let shop = Workshop::new();
    let names: Vec<String> = imported().into_iter().collect();
    let object = lazy_object(&shop, &names, &["-DEARLY"]);
    let front = lazy_library(&shop, &object, "front", &names);
    let program = shop.build("sanitized", "sanitized", RUNTIME);
    let early = |shim: Option<PathBuf>, variables: &[(&str, &str)]| {
        let mut preload = front.display().to_string();
        if let Some(shim) = shim {
            let _ = write!(preload, ":{}", shim.display());
        }
        let mut command = built_command(&program);
        command
            .arg("cuda")
            .env("LD_LIBRARY_PATH", standin())
            .env("LD_PRELOAD", preload)
            .envs(variables.iter().copied());
        let ran = run(&mut command, TIMEOUT);
        assert_eq!(ran.status.code(), Some(3), "{}", ran.err());
        let name = |line: &str| Some(line.strip_prefix("early: ")?.to_owned());
        ran.err().lines().filter_map(name).collect::<BTreeSet<_>>()
    };
    let plain = early(None, &[]);
    assert!(!plain.contains("getpid"), "{plain:?}");
    let armed = [
        ("TLLMPROF_START_STOP", "2-4"),
        ("TLLMPROF_STEP", "cudaGraphLaunch"),
        ("TLLMPROF_TRACE", "/dev/null/none"),
    ];
    for variables in [&[][..], &armed] {
        let ours = early(Some(shim()), variables);
        let more: BTreeSet<&str> = ours.difference(&plain).map(String::as_str).collect();
        let more: Vec<&&str> = more
            .iter()
            .filter(|name| !BEFORE_START.contains(name))
            .collect();
        assert!(more.is_empty(), "with {variables:?}: {more:?}");
    }
}

#[test]
fn real_functions_in_function_local_statics() {
    let shop = Workshop::new();
    let program = shop.0.path("function_local");
    let mut cpp = cpp_compiler();
    // Without `-fno-builtin`, the compiler could compute the length of a constant text itself, and would emit no call
    // of `strlen`.
    cpp.args(["-O1", "-fno-builtin", "-Wall", "-Wextra", "-rdynamic", "-o"])
        .arg(&program)
        .arg(repo().join("tests/hostile/function_local.cpp"));
    let built = run(&mut cpp, TIMEOUT);
    assert!(built.status.success(), "{}", built.err());
    let situation = Situation::new(program.display().to_string());
    for situation in [
        situation.clone(),
        situation.window("2-3", "cudaGraphLaunch"),
    ] {
        let both = situation.run();
        assert_eq!(both.output.status.code(), Some(5));
        assert_eq!(both.output.out(), "modules, a name\n");
        assert_eq!(both.output.err(), "");
    }
}

/// Sanitizers to test: the compiler's name for each, link options, and an environment variable with its value.
const SANITIZERS: [(&str, &[&str], (&str, &str)); 7] = [
    ("thread", &[], ("TSAN_OPTIONS", "")),
    ("thread", &["-static-libtsan"], ("TSAN_OPTIONS", "")),
    ("undefined", &[], ("UBSAN_OPTIONS", "halt_on_error=1")),
    (
        "undefined",
        &["-static-libubsan"],
        ("UBSAN_OPTIONS", "halt_on_error=1"),
    ),
    // By default, the address sanitizer refuses to run if its library is not the first one, as with any preload. This
    // option disables the check.
    (
        "address",
        &[],
        ("ASAN_OPTIONS", "verify_asan_link_order=0:detect_leaks=0"),
    ),
    (
        "address",
        &["-static-libasan"],
        ("ASAN_OPTIONS", "detect_leaks=0"),
    ),
    ("leak", &[], ("LSAN_OPTIONS", "detect_leaks=0")),
];

#[test]
fn programs_with_sanitizers() {
    if !can_exec() {
        return skipped("not under qemu");
    }
    let shop = Workshop::new();
    for_each(&SANITIZERS, |(sanitizer, options, variable)| {
        let name = format!("{sanitizer}{}", options.concat());
        let sanitize = format!("-fsanitize={sanitizer}");
        let options = [RUNTIME, &[&sanitize], options].concat();
        let program = shop.build("sanitized", &name, &options);
        check_sanitized(&program, *variable);
    });
}

/// Runs the program without the library, with the library but without windows, and with windows.
fn check_sanitized(program: &Path, (name, value): (&str, &str)) {
    let program = Situation::new(program.display().to_string()).env(name, value);
    for program in [program.clone(), program.clone().args("cuda")] {
        let both = program.run();
        assert_eq!(both.output.status.code(), Some(3), "{}", both.output.err());
        both.assert_untouched();
    }
    // With an NVTX rule (`nvtx:step`), the library changes the process's environment, which the sanitizer must
    // accept.
    for step in ["cudaGraphLaunch", "auto", "nvtx:step"] {
        let both = program.clone().args("cuda").window("2-3", step);
        let both = both.env("TLLMPROF_WARMUP", "0").run();
        assert_eq!(both.output.status.code(), Some(3), "{}", both.output.err());
        if step == "cudaGraphLaunch" {
            assert_switches(&both, &[start(2, 2), stop(4, 4)]);
        }
    }
}

/// Only clang has the memory sanitizer. The sanitizer does not see writes by code that was compiled without it, so
/// the fixtures initialize their variables before CUDA sets them.
#[test]
fn a_program_with_the_memory_sanitizer() {
    if !can_exec() {
        return skipped("not under qemu");
    }
    let Some(clang) = clang() else {
        return;
    };
    let shop = Workshop::new();
    let options = [RUNTIME, &["-fsanitize=memory"]].concat();
    let program = shop.build_with(Command::new(clang), "sanitized", "memory", &options);
    check_sanitized(&program, ("MSAN_OPTIONS", "halt_on_error=1"));
}

#[test]
fn a_look_up_before_the_c_library_is_initialised() {
    let shop = Workshop::new();
    let program = shop.program("before_libc", RUNTIME);
    program.run().assert_untouched();
    let both = program.window("2-3", "cudaGraphLaunch").run();
    assert_eq!(both.total(), 8);
    assert_switches(&both, &[start(2, 2), stop(4, 4)]);
}

/// Without settings, the library makes only system calls that the loader makes, too. So a filter that allows only the
/// program's and the loader's calls does not kill the process.
#[test]
fn a_filter_that_fits_the_program() {
    if !can_exec() {
        return skipped("qemu would start the program without the filter");
    }
    let shop = Workshop::new();
    let program = shop.build("fitted", "fitted", NO_CUDA);
    let run = |shim: Option<PathBuf>| -> Output {
        run(command(&program).arg(&program).args(shim), TIMEOUT)
    };
    let plain = run(None);
    if plain.status.code() == Some(77) {
        return skipped("no filter may be set here");
    }
    assert_eq!(
        plain.status.code(),
        Some(6),
        "the filter fits: {}",
        plain.status
    );
    let preloaded = run(Some(shim()));
    assert_eq!(preloaded.status, plain.status, "{}", preloaded.err());
    assert_eq!(
        (preloaded.out(), preloaded.err()),
        (plain.out(), plain.err())
    );
}

/// Valgrind reads the unwind data of each library and counts allocations. Its output with the library must be the same
/// as without.
#[test]
fn valgrind_has_nothing_to_say() {
    if !can_exec() {
        return skipped("not under qemu");
    }
    let valgrind = |shim: Option<PathBuf>| -> Option<String> {
        let mut valgrind = command("valgrind");
        valgrind.arg("/bin/true");
        if let Some(shim) = shim {
            valgrind.env("LD_PRELOAD", shim);
        }
        valgrind.output().ok()?;
        let said = run(&mut valgrind, TIMEOUT);
        assert_eq!(said.status.code(), Some(0), "{}", said.err());
        // Each line of valgrind's output begins with the process number, which differs between runs.
        let text = |line: &str| {
            line.trim_start_matches(|c: char| "=-".contains(c) || c.is_ascii_digit())
                .to_owned()
        };
        let err = said.err();
        Some(err.lines().map(text).collect::<Vec<_>>().join("\n"))
    };
    let Some(plain) = valgrind(None) else {
        return skipped("valgrind is not installed");
    };
    assert!(plain.contains("ERROR SUMMARY: 0 errors"), "{plain}");
    assert_eq!(valgrind(Some(shim())).as_deref(), Some(&*plain));
}
