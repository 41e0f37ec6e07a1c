//! Checks programs that `python` runs: the ways to start Python, the work that the program does, and the ways in which
//! it ends.

use std::process::Command;

use super::host::{Both, sources, with_each};
use crate::common::python::Python;
use crate::common::pythons::name;
use crate::common::{command, skipped};

/// Returns the command `python FLAGS… tests/python/hosts/SCRIPT ARGS…`.
fn program(python: &Python, flags: &[&str], script: &str, args: &[&str]) -> Command {
    let mut command = command(&python.path);
    command
        .args(flags)
        .arg(sources().join("hosts").join(script))
        .args(args);
    command
}

fn run(python: &Python, flags: &[&str], script: &str, args: &[&str]) -> Both {
    let name = format!("{}: {flags:?} {script} {args:?}", name(python));
    Both::run(name, || program(python, flags, script, args))
}

#[test]
fn started_with_any_flags() {
    const FLAGS: [&[&str]; 8] = [
        &[],
        &["-I", "-S", "-E"],
        &["-X", "dev"],
        &["-X", "faulthandler"],
        &["-X", "tracemalloc"],
        &["-OO", "-u", "-b"],
        &["-W", "error"],
        &["-X", "utf8", "-s"],
    ];
    with_each(|python| {
        for flags in FLAGS {
            let both = run(python, flags, "plain.py", &[]);
            both.same()?.collections(1)?.gil(python)?;
        }
        Ok(())
    });
}

#[test]
fn started_with_any_allocator() {
    with_each(|python| {
        for allocator in ["debug", "malloc", "malloc_debug", "pymalloc_debug"] {
            if !python.has_gil && allocator.contains("malloc") {
                // A Python without a GIL has its own allocator, and accepts neither malloc nor pymalloc.
                continue;
            }
            let name = format!("{}: PYTHONMALLOC={allocator}", name(python));
            let both = Both::run(name, || {
                let mut command = program(python, &[], "plain.py", &[]);
                command.env("PYTHONMALLOC", allocator);
                command
            });
            both.same()?.collections(1)?.gil(python)?;
        }
        Ok(())
    });
}

#[test]
fn in_a_venv() {
    with_each(|python| {
        let folder = crate::common::Scratch::new("venv");
        let venv = folder.path("venv");
        let mut make = command(&python.path);
        make.args(["-m", "venv", "--without-pip"]).arg(&venv);
        let made = crate::common::run(&mut make, std::time::Duration::from_secs(300));
        if !made.status.success() {
            skipped(&format!("{} makes no venv", name(python)));
            return Ok(());
        }
        let both = Both::run(format!("{}: a venv", name(python)), || {
            let mut command = command(venv.join("bin/python"));
            command.arg(sources().join("hosts/plain.py"));
            command
        });
        both.same()?.collections(1)?.gil(python)?;
        Ok(())
    });
}

#[test]
fn with_descriptors_closed() {
    with_each(|python| {
        for closed in ["<&-", ">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"] {
            let both = Both::run(format!("{}: {closed}", name(python)), || {
                let mut shell = command("sh");
                shell
                    .args(["-c", &format!("exec \"$@\" {closed}"), "sh"])
                    .arg(&python.path)
                    .arg(sources().join("hosts/plain.py"));
                shell
            });
            both.same()?.collections(1)?.gil(python)?;
        }
        Ok(())
    });
}

/// The program lists its modules, hooks, threads and monitoring tools. The list must not contain anything of the
/// library.
#[test]
fn looked_at_from_inside() {
    with_each(|python| {
        run(python, &["-I", "-S"], "modules.py", &[]).same()?;
        run(python, &[], "modules.py", &[]).same()?;
        Ok(())
    });
}

#[test]
fn with_audit_hooks_of_its_own() {
    with_each(|python| {
        let both = run(python, &[], "audit.py", &[]);
        both.same()?.collections(1)?.gil(python)?;
        Ok(())
    });
}

#[test]
fn with_many_threads() {
    with_each(|python| {
        let both = run(python, &[], "threads.py", &[]);
        both.same()?.collections(1)?.gil(python)?;
        Ok(())
    });
}

#[test]
fn with_sub_interpreters() {
    with_each(|python| {
        let both = run(python, &["-W", "ignore"], "interpreters.py", &[]);
        both.same()?.collections_of_all(python)?.gil(python)?;
        Ok(())
    });
}

#[test]
fn with_children() {
    with_each(|python| {
        // Each entry: the way in which the program starts processes, and the number of processes that count their
        // garbage collections.
        for (kind, processes) in [
            ("os.fork", 4),
            ("fork-in-thread", 2),
            ("subprocess", 5),
            ("fork", 4),
            ("spawn", 4),
            ("forkserver", 4),
        ] {
            let both = run(python, &["-W", "ignore"], "children.py", &[kind]);
            both.same()?.collections(processes)?.gil(python)?;
        }
        Ok(())
    });
}

#[test]
fn that_end_in_any_way() {
    with_each(|python| {
        // Each entry: the way in which the program ends, and the number of processes that count their garbage
        // collections.
        for (end, processes) in [
            ("returns", 0),
            ("daemons", 0),
            ("thread-exits", 1),
            ("late-thread", 0),
            ("atexit", 0),
            ("atexit-cleared", 0),
            ("_exit", 1),
            ("_exit-in-thread", 1),
            ("exit", 1),
            ("raises", 1),
            ("interrupted", 0),
            ("killed", 1),
            ("aborts", 0),
        ] {
            if end == "daemons" && python.version.1 == 10 {
                skipped(&format!(
                    "{}: it crashes under daemon threads by itself",
                    name(python)
                ));
                continue;
            }
            let both = run(python, &[], "ends.py", &[end]);
            both.same()?
                .collections(processes)?
                .gil(python)?
                .at_least(3)?;
        }
        // The program makes three garbage collections, like the programs above. Then it replaces itself by a second
        // program (exec), which makes one more. So at least four collections must be recorded.
        run(python, &[], "ends.py", &["execs"])
            .same()?
            .at_least(4)?;
        Ok(())
    });
}
