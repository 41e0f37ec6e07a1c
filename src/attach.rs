//! The library's part of `tllmprof attach`, the command that loads the library into a running process.
//!
//! The command creates a thread in the process. This thread loads the library and calls `tllmprof_attach`. The thread
//! holds none of the program's locks, and ends when `tllmprof_attach` has returned.

use core::ffi::{CStr, c_char, c_int};
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::time::Instant;

use tllmprof_control::Answer;
use tllmprof_control::jumps::Jumps;
use tllmprof_intercept::attached::{self, Entries, Hook};
use tllmprof_intercept::jumps;
use tllmprof_platform::entry::jumps::JUMPS;
use tllmprof_platform::own_threads::OwnThread;
use tllmprof_platform::panics::contained;
use tllmprof_platform::system::thread_name;
use tllmprof_platform::thread::uncounted;
use tllmprof_platform::{lifecycle, resolve};
use tllmprof_python::{self as python, InstallProgress};
use tllmprof_session::{activity, live};

/// The name that the command gives to the thread that loads the library.
const THREAD_NAME: &CStr = c"tllmprof-attach";

/// Text that the command passes to `tllmprof_attach` in place of variables, to detach the library. The command uses
/// this text if the library has no control socket, through which it otherwise requests the detach.
const DETACH: &[u8] = b"detach";

/// GOT slots are patched twice, with this delay in between. While they are patched the first time, the loader may be
/// writing the address of a function into some of them, and may overwrite a patch.
const SECOND_LOOK_DELAY: Duration = Duration::from_millis(20);

/// The type of the exported variable [`tllmprof_jumps`]: a reference to the table of jumps.
#[repr(transparent)]
struct JumpsAt(#[allow(dead_code, reason = "the command reads it")] &'static Jumps);

/// The table of jumps at the entries of the driver's functions. The command finds the table by this symbol. It writes
/// those jumps that the library itself cannot write while the program's threads run.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "the name of a symbol")]
static tllmprof_jumps: JumpsAt = JumpsAt(&JUMPS);

lifecycle::global! {
    /// True once the settings of the command are in use and the library's parts have been started. The flag stays set
    /// if the GOT slots could not be patched. Then the command may try again.
    #[fork(keep = "the child's library is its parent's")]
    static HAS_STARTED: AtomicBool = AtomicBool::new(false);
    /// True once the library was attached, even if it has been detached since.
    #[fork(keep = "the child's library is its parent's")]
    static IS_ATTACHED: AtomicBool = AtomicBool::new(false);
}

/// Returns true if the calling thread is the one with which `tllmprof attach` loads the library. The library's
/// variables are then those that the command passes, not those of the environment.
pub(crate) fn is_under_way() -> bool {
    CStr::from_bytes_until_nul(&thread_name()) == Ok(THREAD_NAME)
}

/// Attaches or detaches the library. Called by the thread that the command has created. Returns an [`Answer`] as a
/// number.
///
/// # Safety
/// `variables` must point to zero-terminated strings, one directly after the other, followed by an empty string. The
/// strings are variables `NAME=VALUE`, or only [`DETACH`].
#[unsafe(no_mangle)]
unsafe extern "C" fn tllmprof_attach(variables: *const c_char) -> c_int {
    let mut given = Vec::new();
    let mut next = variables;
    loop {
        // SAFETY: `next` points to a string of the list, because the empty string at the list's end has not been
        // reached.
        let text = unsafe { CStr::from_ptr(next) };
        if text.is_empty() {
            break;
        }
        given.push(text.to_bytes().to_vec());
        // SAFETY: after each string of the list, another string or the final empty string follows.
        next = unsafe { next.add(text.count_bytes() + 1) };
    }
    contained(Answer::Failed, || {
        let _own = OwnThread::passing();
        let mut answer = Answer::Failed;
        uncounted(&mut || answer = start(&given));
        answer
    }) as c_int
}

fn start(variables: &[Vec<u8>]) -> Answer {
    let is_to_go = variables == [DETACH];
    if IS_ATTACHED.load(Ordering::Acquire) {
        let (done, answer) = match (is_to_go, live::is_detached()) {
            (true, false) => (live::detach(), Answer::Done),
            (false, true) => (live::attach(), Answer::AttachedAgain),
            _ => return Answer::DoneBefore,
        };
        return done.map_or(Answer::Failed, |()| answer);
    }
    if HAS_STARTED.load(Ordering::Acquire) {
        // An earlier try has started the library, but could not patch the GOT slots. The settings of that try stay in
        // use. The command says so if it gets the answer `AttachedAgain`.
        return match is_to_go {
            true => Answer::DoneBefore,
            false if patch_slots() == Answer::Failed => Answer::Failed,
            false => Answer::AttachedAgain,
        };
    }
    if is_to_go || !resolve::is_late() || activity::is_active() {
        return Answer::Preloaded;
    }
    let get = |name: &str| -> Option<OsString> {
        let mut values = variables.iter().filter_map(|variable| {
            variable
                .strip_prefix(name.as_bytes())
                .and_then(|rest| rest.strip_prefix(b"="))
        });
        values
            .next()
            .map(|value| OsStr::from_bytes(value).to_owned())
    };
    if activity::attach(get).is_err() {
        return Answer::BadVariable;
    }
    HAS_STARTED.store(true, Ordering::Release);
    jumps::prepare();
    crate::starting::start(true);
    patch_slots()
}

/// Patches the GOT slots and attaches to Python. Returns `Failed` if another thread holds the lock of the slots for too
/// long: then no slot was patched.
fn patch_slots() -> Answer {
    let entries = Entries {
        lead: jumps::lead,
        release: jumps::release,
    };
    if !attached::attach(hooks(), entries) {
        return Answer::Failed;
    }
    IS_ATTACHED.store(true, Ordering::Release);
    let since = Instant::now();
    let python = python::attach();
    std::thread::sleep(SECOND_LOOK_DELAY.saturating_sub(since.elapsed()));
    attached::look_again();
    match python {
        InstallProgress::Done => Answer::Done,
        InstallProgress::Waits => Answer::PythonWaits,
        InstallProgress::NotThere => Answer::NoPython,
    }
}

fn hooks() -> Vec<Hook> {
    let all = tllmprof_intercept::look_ups().into_iter();
    let all = all.chain(crate::libc_hooks::all());
    let all = all.chain(crate::filter_hooks::all());
    all.filter_map(|(name, real)| Hook::own(name, real.addr()))
        .collect()
}
