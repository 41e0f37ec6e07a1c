//! Tests in which calls of a patched function are scopes, that is, GPU work that they launch is attributed to them. The
//! function of these tests launches none.

use core::sync::atomic::{AtomicUsize, Ordering};

use tllmprof_platform::maps::Maps;
use tllmprof_platform::thread::Inside;

use super::pool::{AWAITED, RETURNS};
use super::tests::{candidate, tllmprof_made_named, us};
use super::*;
use crate::made::alone;

const LAYERS: [(&str, &str); 3] = [
    ("TLLMPROF_SCOPES", "sym:^tllmprof_made_named$"),
    ("TLLMPROF_START_STOP", "3"),
    ("TLLMPROF_TRACE", "/dev/null"),
];

fn patched(is_step: bool) {
    processor::start();
    tllmprof_session::new_thread(true);
    tllmprof_session::entered(tllmprof_calls::Call::MemAlloc);
    report();
    let (us, maps): (_, Maps) = us();
    let mut candidate = candidate();
    (candidate.is_step, candidate.is_scope) = (is_step, true);
    with_followed(|followed| followed.patch(vec![candidate], &[us], &maps)).unwrap();
}

fn start_scopes() {
    let settings = tllmprof_session::activity::settings().unwrap();
    tllmprof_scopes::start(settings);
    assert!(tllmprof_scopes::are_on());
    follow_scopes(&settings.scopes);
}

/// Returns the number of calls in progress that are scopes (GPU work is attributed to them) and that will return to a
/// return stub (code of this library).
fn awaited() -> usize {
    let scopes = AWAITED[RETURNS..].iter();
    scopes
        .filter(|awaited| awaited.address.load(Ordering::Relaxed) != 0)
        .count()
}

#[test]
fn a_call_that_is_a_scope_returns_what_it_returns_and_leaves_nothing_behind() {
    alone(&LAYERS, || {
        let registers =
            || crate::made::registers::after(tllmprof_made_named as *mut core::ffi::c_void);
        let expected = is_x86_feature_detected!("avx").then(registers);
        start_scopes();
        patched(false);
        for number in 0..3 * pool::SCOPES {
            assert_eq!(tllmprof_made_named(number), 3 * number + 0x101);
            assert_eq!(awaited(), 0);
        }
        if let Some(expected) = expected {
            assert_eq!(registers(), expected);
        }
    });
}

#[test]
fn a_function_may_be_a_step_and_a_scope() {
    let variables = [
        &LAYERS[..],
        &[("TLLMPROF_STEP", "sym:^tllmprof_made_named$")],
    ]
    .concat();
    alone(&variables, || {
        start_scopes();
        patched(true);
        for number in 0..9 {
            assert_eq!(tllmprof_made_named(number), 3 * number + 0x101);
            let slot = tllmprof_session::slot().unwrap();
            let count = slot
                .live(tllmprof_steps::step::counted::Counted::Named)
                .count();
            assert_eq!(count, 1 + number as u64);
            let address = &AWAITED[0].address;
            assert_eq!((awaited(), address.load(Ordering::Relaxed)), (0, 0));
        }
    });
}

#[test]
fn a_rule_of_steps_may_come_when_the_function_is_patched_already() {
    alone(&LAYERS, || {
        start_scopes();
        patched(false);
        let known = with_followed(|followed| {
            let (us, maps) = us();
            followed.patch(vec![candidate()], &[us], &maps);
            (followed.functions.len(), followed.functions[0].is_step)
        });
        assert_eq!(known, Some((1, true)));
        let slot = || tllmprof_session::slot().unwrap();
        let count = || {
            slot()
                .live(tllmprof_steps::step::counted::Counted::Named)
                .count()
        };
        let before = count();
        assert_eq!(tllmprof_made_named(1), 0x104);
        assert_eq!(count(), before + 1);
    });
}

/// Checks that a call runs unchanged in two cases: no return stub (code to which the call could return) is free, or the
/// library's own code makes the call.
#[test]
fn a_call_that_is_no_scope_goes_on() {
    alone(&LAYERS, || {
        start_scopes();
        patched(false);
        let inside = Inside::enter();
        assert_eq!(tllmprof_made_named(1), 0x104);
        drop(inside);
        for awaited in &AWAITED[RETURNS..] {
            awaited.address.store(1, Ordering::Relaxed);
        }
        assert_eq!(tllmprof_made_named(2), 0x107);
        let place = AtomicUsize::new(7);
        assert_eq!(ends::await_scope(&place), None);
        assert_eq!(place.into_inner(), 7);
        AWAITED[RETURNS + 5].address.store(0, Ordering::Relaxed);
        let place = AtomicUsize::new(7);
        assert_eq!(ends::await_scope(&place), Some(RETURNS + 5));
        let stub = pool::return_stub(RETURNS + 5);
        assert_eq!(place.load(Ordering::Relaxed), stub);
        // The return address is now that of a return stub. If the function of the first scope ends in a jump to another
        // scope function, the second scope finds this address as its return address. The second scope must then use the
        // same stub, and so must an iteration that ends with the call.
        assert_eq!(ends::await_scope(&place), Some(RETURNS + 5));
        ends::await_end(&place, 9);
        assert_eq!(place.into_inner(), stub);
        assert_eq!(ends::ended(RETURNS + 5), Some(9));
    });
}

#[test]
fn what_a_scope_costs() {
    alone(&LAYERS, || {
        start_scopes();
        let time = || {
            let begun = std::time::Instant::now();
            for number in 0..100_000 {
                core::hint::black_box(tllmprof_made_named(core::hint::black_box(number)));
            }
            begun.elapsed().as_secs_f64() / 100_000.0 * 1e9
        };
        let before = time();
        patched(false);
        let after = time();
        println!("a call takes {before:.1} ns, and {after:.1} ns as a scope");
        // A call takes about 0.2 µs on a fast machine. The limit is far higher, so that the test passes on any machine.
        assert!(after < 20_000.0, "{after} ns");
    });
}
