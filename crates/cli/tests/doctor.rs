//! Tests of `tllmprof doctor`: with CUDA programs, with setuid and damaged programs, and with programs for another
//! machine or C library.

mod common;
#[path = "../../../tests/common/skipped.rs"]
mod skipped;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::process::Command;

use common::{Ended, Scratch, finish};
use skipped::skipped;

const MAIN: &str = "int main(void) { return 0; }";

fn doctor(scratch: &Scratch, command: impl AsRef<OsStr>) -> Ended {
    finish(scratch.tllmprof().args(["doctor", "--"]).arg(command))
}

fn good(ended: &Ended, line: &str) {
    assert_eq!(ended.code(), Some(0), "{ended:?}");
    assert!(
        ended.stdout.contains(line),
        "no {line:?} in {}",
        ended.stdout
    );
    assert!(
        ended.stdout.ends_with("will be intercepted.\n"),
        "{}",
        ended.stdout
    );
}

fn bad(ended: &Ended, reason: &str) {
    assert_eq!(ended.code(), Some(1), "{ended:?}");
    let mut reasons = ended
        .stdout
        .lines()
        .filter(|line| line.starts_with("  NO "));
    assert!(
        reasons.any(|line| line.contains(reason)),
        "no {reason:?} in {}",
        ended.stdout
    );
    assert!(
        ended.stdout.ends_with("will NOT be intercepted.\n"),
        "{}",
        ended.stdout
    );
}

#[test]
fn an_ordinary_program() {
    let scratch = Scratch::new();
    good(&doctor(&scratch, "ls"), "no CUDA library is linked");
}

#[test]
fn a_static_program() {
    let scratch = Scratch::new();
    let program = scratch.compile("still", MAIN, &["-static"]);
    bad(&doctor(&scratch, program), "statically linked");
}

#[test]
fn a_setuid_program() {
    let scratch = Scratch::new();
    let program = scratch.compile("setuid", MAIN, &[]);
    good(&doctor(&scratch, &program), "");
    // A setuid program of the same user gives no further rights, so the loader still preloads the
    // library.
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
    good(&doctor(&scratch, &program), "");
    if chown(&program, Some(65534), None).is_ok() {
        // Changing a file's owner clears the file's setuid bit, so the bit is set again.
        fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
        bad(&doctor(&scratch, &program), "setuid");
    } else {
        let su = fs::metadata("/usr/bin/su")
            .ok()
            .filter(|m| m.mode() & 0o4000 != 0);
        match su {
            Some(_) => bad(&doctor(&scratch, "/usr/bin/su"), "setuid"),
            None => skipped("this user can make no setuid program, and there is no su"),
        }
    }
}

#[test]
fn another_processor() {
    let scratch = Scratch::new();
    let program = scratch.compile("foreign", MAIN, &[]);
    let mut bytes = fs::read(&program).unwrap();
    // The field `e_machine` of the ELF header becomes RISC-V. Our library is not built for that
    // machine.
    bytes[18..20].copy_from_slice(&243_u16.to_le_bytes());
    fs::write(&program, bytes).unwrap();
    bad(&doctor(&scratch, program), "it is riscv64");
}

#[test]
fn another_c_library() {
    let scratch = Scratch::new();
    let flag = "-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1";
    let program = scratch.compile("musl", MAIN, &[flag]);
    bad(&doctor(&scratch, program), "musl");
}

#[test]
fn a_library_from_the_future() {
    let scratch = Scratch::new();
    scratch.write("map", "GLIBC_9.99 { global: future; };");
    scratch.compile(
        "libc.so.6",
        "void future(void) {}",
        &[
            "-shared",
            "-fPIC",
            "-nostdlib",
            "-Wl,-soname,libc.so.6",
            "-Wl,--version-script=map",
        ],
    );
    scratch.compile(
        "libtllmprof.so",
        "void future(void); void uses(void) { future(); }",
        &["-shared", "-fPIC", "-nostdlib", "libc.so.6"],
    );
    bad(&doctor(&scratch, "ls"), "the library requires glibc 9.99");
}

#[test]
fn a_library_that_is_none() {
    let scratch = Scratch::new();
    scratch.write("libtllmprof.so", "not an ELF file");
    bad(&doctor(&scratch, "ls"), "it is not an ELF file");
}

#[test]
fn shared_cuda_libraries() {
    let scratch = Scratch::new();
    scratch.compile(
        "lib/libcuda.so.1",
        "int cuInit(unsigned f) { return (int)f; }",
        &["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"],
    );
    scratch.compile(
        "lib/libcudart.so.12",
        "int cudaFree(void *p) { return !p; }",
        &[
            "-shared",
            "-fPIC",
            "-Wl,-soname,libcudart.so.12",
            "-Wl,--no-as-needed",
            "lib/libcuda.so.1",
            "-Wl,-rpath,$ORIGIN",
        ],
    );
    scratch.compile(
        "lib/libengine.so",
        "int cudaFree(void *p); int engine(void) { return cudaFree(0); }",
        &[
            "-shared",
            "-fPIC",
            "lib/libcudart.so.12",
            "-Wl,-rpath,$ORIGIN",
        ],
    );
    // The program needs libengine.so, which needs libcudart.so. Only the RUNPATH of libengine.so
    // leads to libcudart.so.
    let program = scratch.compile(
        "shared",
        "int engine(void); int main(void) { return engine(); }",
        &[
            "-Llib",
            "-lengine",
            "-Wl,-rpath,$ORIGIN/lib",
            "-Wl,--allow-shlib-undefined",
        ],
    );
    let ended = doctor(&scratch, &program);
    let runtime = scratch.path("lib/libcudart.so.12");
    good(&ended, &format!("libcudart.so.12 is {}", runtime.display()));

    assert!(ended.stdout.contains("libcuda.so.1 is "), "{ended:?}");

    fs::remove_file(runtime).unwrap();
    good(
        &doctor(&scratch, &program),
        "libengine.so needs libcudart.so.12, which is not found here",
    );
    // `LD_LIBRARY_PATH` names a folder with another libcudart.so, which the loader finds in place of the removed one.
    let elsewhere = scratch.compile(
        "else/libcudart.so.12",
        "int cudaFree(void *p) { return !p; }",
        &["-shared", "-fPIC"],
    );
    let mut command = scratch.tllmprof();
    command.args(["doctor", "--"]).arg(&program);
    command.env("LD_LIBRARY_PATH", elsewhere.parent().unwrap());
    good(
        &finish(&mut command),
        &format!("libcudart.so.12 is {}", elsewhere.display()),
    );
}

#[test]
fn a_static_cuda_runtime() {
    let scratch = Scratch::new();
    let source = "#include <string.h>\n\
        static const char *const names[] = {\"libcuda.so.1\", \"cuGetProcAddress_v2\"};\n\
        static int __attribute__((noinline, used)) cudaGraphLaunch(int n) {\n\
            return (int)strlen(names[n & 1]);\n\
        }\n\
        int main(int argc, char **argv) { (void)argv; return cudaGraphLaunch(argc) == 0; }\n";
    let program = scratch.compile("static-runtime", source, &[]);
    good(
        &doctor(&scratch, program),
        "static-runtime has a static CUDA runtime",
    );
    let program = scratch.compile("stripped", source, &["-s"]);
    good(
        &doctor(&scratch, program),
        "stripped asks libcuda.so.1 for its functions",
    );
}

#[test]
fn scripts_are_followed() {
    let scratch = Scratch::new();
    let shell = scratch.script("shell", "#!/bin/sh -e\ntrue\n");
    good(&doctor(&scratch, &shell), "is a script for /bin/sh");
    let by_env = scratch.script("by-env", "#!/usr/bin/env -S A=1 sh -e\ntrue\n");
    good(&doctor(&scratch, &by_env), "is a script for /usr/bin/sh");
    let nested = scratch.script("nested", format!("#!{}\n", shell.display()));
    good(
        &doctor(&scratch, &nested),
        &format!("is a script for {}", shell.display()),
    );
    // The kernel runs a program through five scripts, each the interpreter of the one before it.
    let mut chained = nested;
    for number in 3..=5 {
        let line = format!("#!{}\n", chained.display());
        chained = scratch.script(&format!("chained{number}"), &line);
    }
    assert!(Command::new(&chained).status().unwrap().success());
    good(&doctor(&scratch, &chained), "chained4");
    let still = scratch.compile("still", MAIN, &["-static"]);
    let of_static = scratch.script("of-static", format!("#!{}\n", still.display()));
    bad(&doctor(&scratch, &of_static), "statically linked");
    let lost = scratch.script("lost", "#!/no/such/interpreter\n");
    bad(&doctor(&scratch, &lost), "/no/such/interpreter");
    let endless = scratch.path("endless");
    scratch.script("endless", format!("#!{}\n", endless.display()));
    bad(&doctor(&scratch, &endless), "too many interpreters");
}

#[test]
fn python_in_a_virtual_environment() {
    let scratch = Scratch::new();
    let python = scratch.compile("venv/bin/python3", MAIN, &[]);
    scratch.write("venv/pyvenv.cfg", "home = /usr/bin\n");
    let home = scratch.path("venv");
    good(
        &doctor(&scratch, python),
        &format!("virtual environment {}", home.display()),
    );
}

#[test]
fn python_that_can_be_seen_into() {
    const HOOK: &str = "int PySys_AddAuditHook(void) { return 0; }";
    const CALL: &str = "#include <pthread.h>\nint main(void) { static pthread_cond_t c; \
                        return pthread_cond_init(&c, 0); }";
    let scratch = Scratch::new();
    let version = "const char *Py_GetVersion(void) { return \"3.12.1\"; }";
    let python =
        |name: &str, source: &[&str]| scratch.compile(name, &source.join("\n"), &["-rdynamic"]);
    let whole = python("python3", &[version, HOOK, CALL]);
    good(&doctor(&scratch, &whole), "python3 exports CPython's C API");
    scratch.write("serve", format!("#!{}\n", whole.display()));
    let script = scratch.path("serve");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    good(&doctor(&scratch, script), "python3 exports CPython's C API");
    let old = python("python3.7", &[version, CALL]);
    good(&doctor(&scratch, old), "is a CPython before 3.8");
    let closed = python("python3-closed", &[version, HOOK, MAIN]);
    good(&doctor(&scratch, closed), "has the C library inside it");
    good(
        &doctor(&scratch, python("python3-none", &[MAIN])),
        "it exports no C API",
    );
    let ordinary = doctor(&scratch, python("ordinary", &[MAIN]));
    assert!(!ordinary.stdout.contains("Python\n"), "{}", ordinary.stdout);
}

#[test]
fn what_is_no_program() {
    let scratch = Scratch::new();
    bad(&doctor(&scratch, "no-such-program"), "no-such-program");
    bad(&doctor(&scratch, "/etc/passwd"), "is not executable");
    // The program's file is cut off, at first inside its headers.
    let program = scratch.compile("damaged", MAIN, &[]);
    let bytes = fs::read(&program).unwrap();
    for length in [4, 16, 63, 64, 100, 500, 1000, 4000] {
        fs::write(&program, &bytes[..length]).unwrap();
        let ended = doctor(&scratch, &program);
        assert!(matches!(ended.code(), Some(0 | 1)), "{length}: {ended:?}");
    }
    let ended = finish(scratch.tllmprof().arg("doctor"));
    assert_eq!(ended.code(), Some(2), "{ended:?}");
}

#[test]
fn variables_are_read() {
    let scratch = Scratch::new();
    let with = |name: &str, value: &str| {
        finish(scratch.tllmprof().args(["doctor", "ls"]).env(name, value))
    };
    bad(
        &with("TLLM_PROFILE_START_STOP", "9-5"),
        "TLLM_PROFILE_START_STOP=\"9-5\": ",
    );
    bad(&with("TLLMPROF_STEP", "py:f"), "TLLMPROF_STEP=\"py:f\": ");
    good(
        &with("TLLM_PROFILE_START_STOP", "3,5-9"),
        "windows 3,5-9 of iterations by auto",
    );
    good(
        &with("TLLMPROF_STRAT_STOP", "5"),
        "TLLMPROF_START_STOP does",
    );
    good(
        &with("NVTX_INJECTION64_PATH", "/x.so"),
        "NVTX_INJECTION64_PATH is taken by /x.so",
    );
    good(
        &with("LD_PRELOAD", "/not/there.so"),
        "LD_PRELOAD names /not/there.so, which is not there",
    );
}

#[test]
fn cupti_is_found_where_the_library_would_find_it() {
    let scratch = Scratch::new();
    let folder = scratch.write("cupti/libcupti.so.13", "");
    let folder = folder.parent().unwrap();
    let mut command = scratch.tllmprof();
    command
        .args(["doctor", "ls"])
        .env("LD_LIBRARY_PATH", folder);
    let line = format!("CUPTI is {}/libcupti.so.13", folder.display());
    good(&finish(&mut command), &line);
    let mut command = scratch.tllmprof();
    command
        .args(["doctor", "ls"])
        .env("LD_LIBRARY_PATH", folder)
        .env("TLLMPROF_KERNELS", "1");
    good(
        &finish(&mut command),
        "TLLMPROF_KERNELS: no kernels without a record (TLLMPROF_TRACE)",
    );
}

#[test]
fn profilers_are_found_with_their_version() {
    let scratch = Scratch::new();
    let nsys = scratch.script(
        "nsys",
        "#!/bin/sh\necho NVIDIA Nsight Systems version 2023.4.1\n",
    );
    let mut command = scratch.tllmprof();
    let ended = finish(command.args(["doctor", "ls"]).env("TLLMPROF_NSYS", &nsys));
    good(&ended, "NVIDIA Nsight Systems version 2023.4.1");
}
