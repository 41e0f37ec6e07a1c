//! Tests of programs that `tllmprof run` and `env` refuse, because the loader or a sanitizer would end them if the
//! library were preloaded.

mod common;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;

use common::{Scratch, finish};

const PRINTS: &str = "#include <stdio.h>\nint main(void) { puts(\"started\"); return 0; }";

/// Checks with `run` and with `env` that the program does not start, and that one line gives the reason.
fn refused(scratch: &Scratch, program: impl AsRef<OsStr>, limit: Option<u64>, why: &str) {
    for verb in ["run", "env"] {
        let mut command = scratch.tllmprof();
        command.args([verb, "--"]).arg(program.as_ref());
        if let Some(limit) = limit {
            limit_memory(&mut command, limit);
        }
        let ended = finish(&mut command);
        assert_eq!(
            (ended.code(), ended.stdout.as_str()),
            (Some(2), ""),
            "{ended:?}"
        );
        let start = format!("tllmprof: {}: ", program.as_ref().display());
        assert!(ended.stderr.starts_with(&start), "{ended:?}");
        assert!(ended.stderr.contains(why), "no {why:?} in {ended:?}");
        assert_eq!(ended.stderr.lines().count(), 1, "{ended:?}");
    }
}

/// Limits the address space of a command to `bytes` bytes, as `ulimit -v` does.
fn limit_memory(command: &mut Command, bytes: u64) {
    let limit = libc::rlimit {
        rlim_cur: bytes,
        rlim_max: bytes,
    };
    // SAFETY: setrlimit may be called between fork and exec, and reads its copy of the limit.
    unsafe {
        command.pre_exec(
            move || match libc::setrlimit(libc::RLIMIT_AS, &raw const limit) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            },
        );
    }
}

/// Compiles a stand-in for `libtllmprof.so` that needs the library `name`, and then removes the library `name`.
fn library_that_needs(scratch: &Scratch, name: &str, arguments: &[&str]) {
    let shared = ["-shared", "-fPIC", "-nostdlib"];
    let soname = format!("-Wl,-soname,{name}");
    let other = [&shared[..], &[&soname], arguments].concat();
    scratch.compile(name, "int other(void) { return 0; }", &other);
    let source = "int other(void); int uses(void) { return other(); }";
    scratch.compile("libtllmprof.so", source, &[&shared[..], &[name]].concat());
    fs::remove_file(scratch.path(name)).unwrap();
}

#[test]
fn a_program_of_another_c_library_is_not_started() {
    let scratch = Scratch::new();
    let flag = "-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1";
    let program = scratch.compile("musl", PRINTS, &[flag]);
    let why = "it uses musl (/lib/ld-musl-x86_64.so.1)";
    refused(&scratch, &program, None, why);
    let script = scratch.script("serve", format!("#!{}\n", program.display()));
    refused(&scratch, script, None, why);
}

#[test]
fn a_program_of_an_older_c_library_is_not_started() {
    let scratch = Scratch::new();
    scratch.write("map", "GLIBC_9.99 { global: other; };");
    library_that_needs(&scratch, "libc.so.6", &["-Wl,--version-script=map"]);
    let program = scratch.compile("program", PRINTS, &[]);
    refused(&scratch, program, None, "the library requires glibc 9.99");
}

/// A dynamic linker that the command line names is checked in the same way as a dynamic linker that the program
/// requests.
#[test]
fn a_program_of_an_older_dynamic_linker_on_the_command_line_is_not_started() {
    let scratch = Scratch::new();
    scratch.write("map", "GLIBC_9.99 { global: other; };");
    library_that_needs(&scratch, "libc.so.6", &["-Wl,--version-script=map"]);
    let program = scratch.compile("program", PRINTS, &[]);
    let loader = loader();
    let started = |verb: &str, arguments: &[&OsStr]| {
        finish(
            scratch
                .tllmprof()
                .args([verb, "--"])
                .arg(loader)
                .args(arguments),
        )
    };
    let path = scratch.path("lib");
    for options in [
        &[][..],
        &[
            "--library-path".as_ref(),
            path.as_os_str(),
            "--inhibit-cache".as_ref(),
        ],
    ] {
        for verb in ["run", "env"] {
            let ended = started(verb, &[options, &[program.as_os_str()]].concat());
            assert_eq!(
                (ended.code(), ended.stdout.as_str()),
                (Some(2), ""),
                "{ended:?}"
            );
            let start = format!("tllmprof: {loader}: {}: its glibc (", program.display());
            assert!(ended.stderr.starts_with(&start), "{ended:?}");
            assert!(
                ended.stderr.contains("the library requires glibc 9.99"),
                "{ended:?}"
            );
        }
    }
}

#[test]
fn doctor_knows_what_a_dynamic_linker_on_the_command_line_runs() {
    let scratch = Scratch::new();
    let program = scratch.compile("program", PRINTS, &[]);
    let loader = loader();
    let mut doctor = scratch.tllmprof();
    doctor
        .args(["doctor", "--", loader, "--argv0", "name"])
        .arg(&program);
    let said = finish(&mut doctor).stdout;
    let line = format!(
        "{loader} is the dynamic linker, which runs {}\n",
        program.display()
    );
    assert!(said.contains(&line), "{said}");
    assert!(
        said.contains("CUDA calls of this program will be intercepted."),
        "{said}"
    );
    let mut run = scratch.tllmprof();
    run.args(["run", "--log", "warn", "--", loader])
        .arg(&program);
    let ended = finish(run.env("SAY_LOADED", "1"));
    assert_eq!(
        (ended.stdout.as_str(), ended.stderr.as_str()),
        ("started\n", "loaded\n")
    );
}

/// Returns the path of this machine's dynamic linker.
fn loader() -> &'static str {
    let all = ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"];
    all.into_iter()
        .find(|path| std::path::Path::new(path).exists())
        .unwrap()
}

/// If a shell evaluated the lines of `env`, and the library needed a newer C library than this machine has, the shell
/// could start no more programs. So `env` prints no lines in this case. For other machines, `env` prints its lines,
/// because those machines may have a newer C library.
#[test]
fn a_shell_of_an_older_c_library_gets_no_lines() {
    let scratch = Scratch::new();
    scratch.write("map", "GLIBC_9.99 { global: other; };");
    library_that_needs(&scratch, "libc.so.6", &["-Wl,--version-script=map"]);
    let ended = finish(scratch.tllmprof().arg("env"));
    assert_eq!(
        (ended.code(), ended.stdout.as_str()),
        (Some(2), ""),
        "{ended:?}"
    );
    assert!(ended.stderr.starts_with("tllmprof: /bin/sh: "), "{ended:?}");
    assert!(
        ended.stderr.contains("the library requires glibc 9.99"),
        "{ended:?}"
    );
    assert_eq!(ended.stderr.lines().count(), 1, "{ended:?}");
    let ended = finish(scratch.tllmprof().args(["env", "--format", "docker"]));
    assert_eq!(ended.code(), Some(0), "{ended:?}");
}

#[test]
fn a_program_without_what_the_library_needs_is_not_started() {
    let scratch = Scratch::new();
    library_that_needs(&scratch, "libnobody_has.so.1", &[]);
    let program = scratch.compile("program", PRINTS, &[]);
    let why = "the library needs libnobody_has.so.1, which is not found here";
    refused(&scratch, &program, None, why);
    // With `LD_LIBRARY_PATH` set, the program's loader finds the missing library.
    let source = "int other(void) { return 0; }";
    let there = scratch.compile("lib/libnobody_has.so.1", source, &["-shared", "-fPIC"]);
    let mut run = scratch.tllmprof();
    run.args(["run", "--log", "warn", "--"]).arg(&program);
    let ended = finish(run.env("LD_LIBRARY_PATH", there.parent().unwrap()));
    assert_eq!(ended.stdout, "started\n", "{ended:?}");
}

#[test]
fn a_program_whose_address_space_is_too_small_is_not_started() {
    const LIMIT: u64 = 1 << 30;
    let scratch = Scratch::new();
    let program = scratch.compile("program", PRINTS, &[]);
    let run_within_limit = || {
        let mut run = scratch.tllmprof();
        run.args(["run", "--log", "warn", "--"]).arg(&program);
        limit_memory(&mut run, LIMIT);
        finish(&mut run)
    };
    let ended = run_within_limit();
    assert_eq!(ended.stdout, "started\n", "{ended:?}");
    // With this size, the library fits into the limited address space, but the C library no longer fits.
    let source = "char large[(1 << 30) - (1280 << 10)];";
    scratch.compile("libtllmprof.so", source, &["-shared", "-fPIC"]);
    let why = "its address space is limited to 1048576 kB (ulimit -v)";
    refused(&scratch, &program, Some(LIMIT), why);
    // With this size, the preloaded library itself does not fit into the limited address space, so the loader continues
    // without it.
    let source = "char large[1 << 30];";
    scratch.compile("libtllmprof.so", source, &["-shared", "-fPIC"]);
    let ended = run_within_limit();
    assert_eq!(ended.stdout, "started\n", "{ended:?}");
    assert!(ended.stderr.contains(why), "{ended:?}");
}

#[test]
fn a_program_whose_sanitizer_has_to_be_loaded_first_is_not_started() {
    let scratch = Scratch::new();
    scratch.library();
    let options = [
        ("libasan.so.8", None),
        ("libclang_rt.asan-x86_64.so", Some("detect_leaks=0")),
    ];
    for (name, set) in options {
        let source = "int runtime(void) { return 0; }";
        let soname = format!("-Wl,-soname,{name}");
        let runtime = scratch.compile(name, source, &["-shared", "-fPIC", &soname]);
        let source = PRINTS.replace("return 0", "extern int runtime(void); return runtime()");
        let path = format!("-Wl,-rpath,{}", scratch.path("").display());
        let program = scratch.compile("program", &source, &[runtime.to_str().unwrap(), &path]);
        let run = |options: Option<&str>| {
            let mut run = scratch.tllmprof();
            run.args(["run", "--log", "warn", "--"]).arg(&program);
            run.env_remove("ASAN_OPTIONS");
            if let Some(options) = options {
                run.env("ASAN_OPTIONS", options);
            }
            finish(&mut run)
        };
        let ended = run(set);
        assert_eq!(ended.code(), Some(2), "{ended:?}");
        assert!(
            ended.stderr.contains(&format!("it needs {name}, ")),
            "{ended:?}"
        );
        let ended = run(Some("detect_leaks=0:verify_asan_link_order=0"));
        assert_eq!(ended.stdout, "started\n", "{ended:?}");
    }
}

#[test]
fn a_library_that_cannot_be_preloaded() {
    let scratch = Scratch::new();
    let library = scratch.library();
    for folder in ["a b", "a:b"] {
        let there = scratch.path(folder).join("libtllmprof.so");
        fs::create_dir(there.parent().unwrap()).unwrap();
        fs::copy(&library, &there).unwrap();
        let ended = finish(
            scratch
                .tllmprof()
                .args(["run", "true"])
                .env("TLLMPROF_LIB", &there),
        );
        assert_eq!(
            (ended.code(), ended.stderr.lines().count()),
            (Some(2), 1),
            "{ended:?}"
        );
        assert!(ended.stderr.contains("TLLMPROF_LIB"), "{ended:?}");
    }
    let ended = finish(
        scratch
            .tllmprof()
            .args(["run", "true"])
            .env("TLLMPROF_LIB", "/none.so"),
    );
    assert_eq!(
        (ended.code(), ended.stderr.lines().count()),
        (Some(2), 1),
        "{ended:?}"
    );
    assert!(
        ended
            .stderr
            .starts_with("tllmprof: TLLMPROF_LIB=\"/none.so\": "),
        "{ended:?}"
    );
}

#[test]
fn a_file_that_is_no_library() {
    let scratch = Scratch::new();
    let ended = finish(
        scratch
            .tllmprof()
            .args(["run", "--", "true"])
            .env("TLLMPROF_LIB", "/etc/passwd"),
    );
    assert_eq!(ended.code(), Some(2), "{ended:?}");
    assert!(
        ended.stderr.starts_with("tllmprof: /etc/passwd: "),
        "{ended:?}"
    );
}
