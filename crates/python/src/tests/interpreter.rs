//! Tests the library's hooks during the life of a Python interpreter, from its start to its end.

use std::fs::File;
use std::os::fd::AsRawFd;

use tllmprof_platform::{internal_error, log};

use super::hosted::in_each;
use crate::broken::{panic_next, panics_left};
use crate::method::{MethodDef, call_on_main_thread};
use crate::{attached, entry, gc, threads, totals};

const EVERYTHING: &[(&str, &str)] = &[
    ("TLLM_PROFILE_RECORD_GC", "1"),
    ("TLLMPROF_GIL", "1"),
    ("TLLMPROF_LOG", "debug"),
];

#[test]
fn collections_and_the_gil_are_counted_from_the_start() {
    in_each(EVERYTHING, |host| {
        let before = gc::TOTALS.to_string();
        host.run("import gc\nfor _ in range(3): gc.collect()");
        assert_ne!(gc::TOTALS.to_string(), before);
        host.run(
            "
import threading, time
def works():
    until = time.monotonic() + 0.05
    while time.monotonic() < until: pass
workers = [threading.Thread(target=works, name='worker-%d' % n) for n in range(2)]
for worker in workers: worker.start()
for worker in workers: worker.join()
",
        );
        let waits = || threads::all().map(|thread| thread.holds.waits.count());
        assert!(totals::gil_handoffs().unwrap() > 2);
        assert!(waits().sum::<u64>() > 0);
        host.end();
        assert_eq!(threads::known().unwrap().name().to_string(), "MainThread");
        assert!(entry::is_closed());
    });
}

#[test]
fn a_thread_without_the_gil_takes_it_to_run_python() {
    in_each(EVERYTHING, |host| {
        let two = || entry::run(|py| py.int(2).unwrap().as_int()).flatten();
        // `entry::run` works with the GIL, without it, and on a thread that is not a Python thread.
        assert_eq!(two(), Some(2));
        host.without_gil(|| {
            assert_eq!(two(), Some(2));
            let other = std::thread::spawn(move || (two(), entry::has_gil()));
            assert_eq!(other.join().unwrap(), (Some(2), false));
        });
        // A call of `entry::run` inside another one is refused. An exception that is raised inside a call does not
        // leave the call.
        let inner = entry::run(|py| {
            assert!(py.import(c"nowhere").is_none());
            two()
        });
        assert_eq!(inner, Some(None));
        host.run("import sys; assert sys.exc_info() == (None, None, None)");
        host.end();
        assert_eq!(two(), None);
    });
}

#[test]
fn an_interpreter_that_starts_anew_is_come_into_again() {
    in_each(EVERYTHING, |host| {
        let version = attached::api().unwrap().version_text;
        host.run(&format!(
            "import sys; assert sys.version.startswith({version:?})"
        ));
        for _ in 0..2 {
            assert!(!entry::is_closed());
            let before = gc::TOTALS.to_string();
            host.run("import gc; gc.collect()");
            assert_ne!(gc::TOTALS.to_string(), before);
            host.end();
            assert!(entry::is_closed() && !entry::has_gil());
            host.start();
            host.run("pass");
        }
        host.end();
    });
}

#[test]
fn a_sub_interpreter_is_come_into_too() {
    in_each(EVERYTHING, |host| {
        assert!(!attached::has_sub_interpreters());
        // `gc.callbacks` contains the library's callback once, also in versions in which all interpreters share one
        // list.
        let counts = "
import gc
ours = [one for one in gc.callbacks if getattr(one, '__name__', '') == 'tllmprof_gc']
assert len(ours) == 1, gc.callbacks
";
        host.in_another(counts);
        assert!(attached::has_sub_interpreters());
        host.run(counts);
        host.end();
    });
}

/// Makes the library's functions that CPython calls panic, one after another. The test expects that the Python program
/// continues each time as if nothing had happened, and that only one of the panics is logged.
#[test]
fn no_panic_reaches_the_interpreter() {
    in_each(EVERYTHING, |host| {
        static BREAKS: MethodDef = MethodDef::without_args(c"breaks", |py| {
            py.sys(c"stdout");
            panic!("a function does")
        });
        static BREAKS_FAST: MethodDef =
            MethodDef::fast(c"breaks_fast", |_, _| panic!("a fast function does"));
        let lines = File::create_new("lines").unwrap();
        log::start();
        // SAFETY: both descriptors are open, and descriptor 2 stays open.
        assert!(unsafe { libc::dup2(lines.as_raw_fd(), 2) } == 2);
        log::redirected(2);
        internal_error::start();
        host.run("import threading");

        // Each of these Python lines causes audit events, or calls of the hooks for the GIL.
        for source in [
            "import sys; sys.audit('tllmprof.test')",
            "one = threading.Thread(target=print); one.start(); one.join()",
            "try: raise KeyError('kept')\nexcept KeyError: sys.audit('tllmprof.test')",
        ] {
            panic_next(3);
            host.run(source);
            assert!(panics_left() < 3, "{source}: it did not panic");
        }
        panic_next(0);

        // Test C functions of the library that Python calls, and a pending call on its main thread.
        host.with(|py| {
            for function in [&BREAKS, &BREAKS_FAST] {
                let function = py.function(function).unwrap();
                assert!(function.call(&[]).is_some_and(|it| it.is_none()));
                assert!(!py.has_raised());
            }
            let act = |_: crate::object::Python<'_>| panic!("a pending call does");
            assert!(call_on_main_thread(py.api, act).is_ok());
        });
        host.run("for _ in range(1000000): pass");

        // A panic in code that the library runs with the GIL (`entry::run`) leaves the state of the GIL unchanged.
        host.without_gil(|| {
            let broken = std::panic::catch_unwind(|| entry::run(|_| panic!("at an edge")));
            assert!(broken.is_err());
            assert_eq!(entry::run(|_| 7), Some(7));
        });
        host.run("assert 1 + 1 == 2");
        let logged = std::fs::read_to_string("lines").unwrap();
        let panics = logged
            .lines()
            .filter(|line| line.contains("internal error"));
        assert_eq!(panics.count(), 1, "{logged}");
        host.end();
    });
}
