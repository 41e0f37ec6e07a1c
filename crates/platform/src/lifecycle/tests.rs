use core::sync::atomic::AtomicUsize;
use std::sync::Mutex;

use super::*;

/// A lock that lets only one test at a time fork the process. The hooks of all tests run at each fork, and count their
/// calls in the same statics.
pub(crate) static FORKS: Mutex<()> = Mutex::new(());

global! {
    stage: Last;

    #[fork(by = ends)]
    static ENDS: AtomicUsize = AtomicUsize::new(0);
    #[fork(with = ENDS)]
    static ENDED: AtomicUsize = AtomicUsize::new(0);
}
global! {
    stage: Doors;

    #[fork(by = goes_on)]
    static GOES_ON: AtomicUsize = AtomicUsize::new(0);
    #[fork(reset)]
    static COUNTS: [AtomicU64; 2] = [const { AtomicU64::new(7) }; 2];
    #[fork(keep = "to be seen")]
    #[restart(reset)]
    static KEPT: AtomicU64 = AtomicU64::new(0);
    #[fork(reset)]
    #[restart(keep)]
    static TEXT: Lock<Vec<u8>> = Lock::new(Vec::new());
    #[fork(free)]
    static FREE: Lock<u8> = Lock::new(0);
    #[fork(hold)]
    static HELD_KEPT: Lock<u8> = Lock::new(0);
    #[fork(hold, reset)]
    static HELD: Lock<u8> = Lock::new(0);
    #[fork(reset)]
    static LOCKS: [Lock<u8>; 2] = [const { Lock::new(0) }; 2];
}
global! {
    stage: Session;

    #[fork(by = begins)]
    static BEGINS: AtomicUsize = AtomicUsize::new(0);
    #[fork(keep = "counts what has been called")]
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    #[fork(with = BEGINS)]
    static WERE_HELD: AtomicBool = AtomicBool::new(false);
    #[fork(in_child)]
    static OWN: Own = Own(AtomicBool::new(false));
    #[fork(keep = "only the test uses it")]
    #[restart(by = count_restart)]
    static RESTARTS: AtomicUsize = AtomicUsize::new(0);
}

struct Own(AtomicBool);

impl Own {
    fn in_child(&self, _: &OnlyThread) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Stores the number of this call of `note` at `place`. Calls are numbered from 1.
fn note(place: &AtomicUsize) {
    place.store(CALLS.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
}

fn begins(_: &OnlyThread) {
    note(&BEGINS);
    // This function runs in an earlier stage of the fork handlers than the stage that releases the two locks. So both
    // locks must still be held.
    let were_held = HELD.try_lock().is_none() && HELD_KEPT.try_lock().is_none();
    WERE_HELD.store(were_held, Ordering::Relaxed);
}

fn goes_on(_: &OnlyThread) {
    note(&GOES_ON);
    // SAFETY: there is no such descriptor, so the call fails and sets errno.
    unsafe { libc::close(-1) };
}

fn ends(_: &OnlyThread) {
    note(&ENDS);
    ENDED.store(1, Ordering::Relaxed);
}

fn count_restart() {
    RESTARTS.fetch_add(1, Ordering::Relaxed);
}

/// Returns the number, counted from 1, of the first of the conditions below that does not hold in the child.
/// Returns 0 if all of them hold.
fn wrong_in_child() -> i32 {
    let is_right = [
        [&BEGINS, &GOES_ON, &ENDS].map(|place| place.load(Ordering::Relaxed)) == [1, 2, 3],
        ENDED.load(Ordering::Relaxed) == 1 && OWN.0.load(Ordering::Relaxed),
        COUNTS.each_ref().map(|count| count.load(Ordering::Relaxed)) == [7, 7],
        KEPT.load(Ordering::Relaxed) == 3,
        TEXT.try_lock().is_some_and(|text| text.is_empty()),
        LOCKS[1].try_lock().is_some_and(|value| *value == 0),
        FREE.try_lock().is_some_and(|value| *value == 5),
        WERE_HELD.load(Ordering::Relaxed),
        HELD_KEPT.try_lock().is_some_and(|value| *value == 6),
        HELD.try_lock().is_some_and(|value| *value == 0),
    ];
    let first_wrong = (1..).zip(is_right).find(|(_, is_right)| !is_right);
    first_wrong.map_or(0, |(number, _)| number)
}

/// Checks that the hooks do not change the program's `errno`.
#[test]
fn errno_is_the_programs_after_a_fork() {
    let _forks = FORKS.lock();
    register();
    let mine = 1234;
    // SAFETY: the child only reads its errno and exits.
    let (of_child, of_parent) = unsafe {
        *libc::__errno_location() = mine;
        let child = libc::fork();
        if child == 0 {
            libc::_exit((crate::errno::now() != mine).into());
        }
        let of_parent = crate::errno::now();
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        (status, of_parent)
    };
    assert_eq!((of_child, of_parent), (0, mine));
}

#[test]
fn a_child_has_what_the_statics_declare() {
    let _forks = FORKS.lock();
    register();
    COUNTS[1].store(8, Ordering::Relaxed);
    KEPT.store(3, Ordering::Relaxed);
    *HELD.lock() = 4;
    *HELD_KEPT.lock() = 6;
    // This test holds the locks during the fork, as another thread might.
    let mut text = TEXT.lock();
    text.push(1);
    let mut free = FREE.lock();
    *free = 5;
    let mut one = LOCKS[1].lock();
    *one = 2;
    let forks = || {
        // SAFETY: the child only reads atomics, tries locks and exits.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::_exit(wrong_in_child());
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            status
        }
    };
    let status = std::thread::scope(|scope| scope.spawn(forks).join())
        .expect("the child has been waited for");
    assert!(libc::WIFEXITED(status), "{status:#x}");
    assert_eq!(libc::WEXITSTATUS(status), 0, "see `wrong_in_child`");
    // The fork must not have changed the parent's state.
    assert_eq!(*text, [1]);
    assert_eq!(CALLS.load(Ordering::Relaxed), 0);
    assert_eq!(COUNTS[1].load(Ordering::Relaxed), 8);
    assert_eq!(HELD.try_lock().map(|value| *value), Some(4));
    assert!(HELD_KEPT.try_lock().is_some());
    drop((text, free, one));

    restart();
    assert_eq!(KEPT.load(Ordering::Relaxed), 0);
    assert_eq!(*TEXT.lock(), [1]);
    assert_eq!(RESTARTS.load(Ordering::Relaxed), 1);
    assert_eq!(COUNTS[1].load(Ordering::Relaxed), 8);
}
