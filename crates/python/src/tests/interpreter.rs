//! An interpreter from its start to its end.

use super::hosted::in_each;
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
        // With it, without it, and on a thread that is none of Python's.
        assert_eq!(two(), Some(2));
        host.without_gil(|| {
            assert_eq!(two(), Some(2));
            let other = std::thread::spawn(move || (two(), entry::has_gil()));
            assert_eq!(other.join().unwrap(), (Some(2), false));
        });
        // Within such a call there is no other, and what is raised in it stays in it.
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
        // Ours is there once, whether the list is the interpreter's own or that of all.
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
