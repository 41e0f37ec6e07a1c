//! Decides if the library has anything to do in this process.

use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use tllmprof_config::{BadValue, Settings, Step, Unknown};
use tllmprof_platform::{environment, lifecycle};
use tllmprof_sync::Published;

use crate::refusal;
use crate::wiring::sink;
use tllmprof_platform::{injection, log};

/// The state before it is decided.
const UNDECIDED: u8 = 0;
/// Nothing to do: every door passes calls on.
const IDLE: u8 = 1;
/// Calls are counted.
const ACTIVE: u8 = 2;
/// A variable is wrong, which is reported once the process uses CUDA. Nothing is counted.
const COMPLAINING: u8 = 3;

lifecycle::global! {
    #[fork(keep = "the settings are the same")]
    static STATE: AtomicU8 = AtomicU8::new(UNDECIDED);
    /// The settings that the variables give, or the variable that is wrong.
    #[fork(keep = "the variables are the same")]
    static READ: Published<Result<Settings, BadValue>> = Published::none();
    /// True if the process was started without any of the variables.
    #[fork(keep = "the variables are the same")]
    static ASKS_NOTHING: AtomicBool = AtomicBool::new(false);
    /// True if the variables came with `tllmprof attach`.
    #[fork(keep = "the variables are the same")]
    static IS_ATTACHED: AtomicBool = AtomicBool::new(false);
    /// True if messages about the variables have been logged.
    #[fork(keep = "the parent has said it")]
    static HAS_SAID: AtomicBool = AtomicBool::new(false);
}

lifecycle::global! {
    stage: Session;

    /// True if the process uses CUDA. For code that must not wait for the lock of the state.
    #[fork(reset)]
    pub static USES_CUDA: AtomicBool = AtomicBool::new(false);
}

/// Returns true if NVTX ranges have to be counted, for windows or for a tool that listens.
pub fn counts_ranges(settings: &Settings) -> bool {
    matches!(settings.step, Step::Nvtx { .. }) && has_work(settings)
}

/// Returns true if the record should have the program's NVTX ranges.
pub fn records_ranges(settings: &Settings) -> bool {
    settings.nvtx && sink().wants_record() && settings.may_open_windows()
}

/// Returns true if iterations matter: for windows, for the record, or for a tool that listens to their
/// ranges.
pub fn has_work(settings: &Settings) -> bool {
    settings.may_open_windows() || sink().wants_record() || (settings.nvtx && injection::has_tool())
}

pub fn read() -> &'static Result<Settings, BadValue> {
    READ.get().unwrap_or_else(|| {
        let get = |name: &str| {
            let is_asked = !ASKS_NOTHING.load(Ordering::Relaxed);
            is_asked.then(|| std::env::var_os(name)).flatten()
        };
        loop {
            if let Some(read) = READ.publish(None, Settings::from_env(get)) {
                return read;
            }
        }
    })
}

/// Restarts the process's activity with the variables that `get` returns.
#[cfg(test)]
pub fn assume(get: impl Fn(&str) -> Option<std::ffi::OsString>) {
    READ.set(Some(Box::leak(Box::new(Settings::from_env(get)))));
    STATE.store(UNDECIDED, Ordering::Relaxed);
    HAS_SAID.store(false, Ordering::Relaxed);
}

/// Returns the settings; `None` if a variable is wrong.
pub fn settings() -> Option<&'static Settings> {
    read().as_ref().ok()
}

fn state() -> u8 {
    let state = STATE.load(Ordering::Relaxed);
    if state == UNDECIDED { decide() } else { state }
}

/// Returns true if the process was started with a variable that the library reads. Without one, nothing is
/// done that the host could notice: no system call, no allocation.
pub fn is_asked() -> bool {
    !ASKS_NOTHING.load(Ordering::Relaxed)
        && (IS_ATTACHED.load(Ordering::Relaxed) || environment::has(is_read))
}

/// Called when the library was attached to a running process: these variables replace those of the
/// environment.
///
/// # Errors
/// The variable that is wrong; then nothing has changed.
pub fn attach(get: impl Fn(&str) -> Option<std::ffi::OsString>) -> Result<(), BadValue> {
    let settings = Settings::from_env(get)?;
    READ.set(Some(Box::leak(Box::new(Ok(settings)))));
    IS_ATTACHED.store(true, Ordering::Relaxed);
    ASKS_NOTHING.store(false, Ordering::Relaxed);
    STATE.store(UNDECIDED, Ordering::Release);
    Ok(())
}

/// Notes that the process was started without our variables: those that the program sets itself come too
/// late. Called by the constructor.
pub fn asks_nothing() {
    ASKS_NOTHING.store(true, Ordering::Relaxed);
}

/// The only variable whose name does not begin like ours or TensorRT-LLM's.
const OTHERS_NAME: &str = "ENABLE_PERFECT_ROUTER";

fn is_read(name: &[u8]) -> bool {
    let others = [OTHERS_NAME, injection::VARIABLE];
    name.starts_with(b"TLLM") || others.iter().any(|other| name == other.as_bytes())
}

/// Decides when a door first sees a CUDA name: by then a profiler that is also preloaded has set its
/// variables.
#[cold]
fn decide() -> u8 {
    let has_tool = || environment::has(|name| name == injection::VARIABLE.as_bytes());
    if READ.get().is_none() && !is_asked() && !has_tool() {
        // A library that runs before the C library has been initialised asks too early.
        if environment::is_there() {
            STATE.store(IDLE, Ordering::Relaxed);
        }
        return IDLE;
    }
    let state = match read() {
        Err(_) => COMPLAINING,
        Ok(settings) if has_work(settings) => ACTIVE,
        Ok(_) => IDLE,
    };
    STATE.store(state, Ordering::Relaxed);
    state
}

/// Returns true if calls are counted.
pub fn is_active() -> bool {
    state() == ACTIVE
}

/// Called when the process uses CUDA: logs messages about the variables.
pub fn touched() {
    if HAS_SAID.load(Ordering::Relaxed)
        || !environment::is_there()
        || HAS_SAID.swap(true, Ordering::AcqRel)
    {
        return;
    }
    if READ.get().is_none() && !is_asked() {
        return;
    }
    if lifecycle::is_filtered() {
        if let Ok(settings) = read() {
            refusal::say_under_filter(settings);
        }
        return;
    }
    if state() == COMPLAINING {
        STATE.store(IDLE, Ordering::Relaxed);
    }
    match read() {
        Err(bad) => log::say!(Error, "{bad}"),
        Ok(settings) => log::set_level(settings.log),
    }
    environment::has(|name| {
        if let Some(unknown) = str::from_utf8(name).ok().and_then(Unknown::from_name) {
            log::say!(Warn, "{unknown}");
        }
        false
    });
}

/// Returns true if a CUDA name has been seen.
pub fn is_touched() -> bool {
    HAS_SAID.load(Ordering::Relaxed)
}

/// Stops counting.
pub fn stop() {
    STATE.store(IDLE, Ordering::Release);
}

/// Returns true if the process uses CUDA.
pub fn uses_cuda() -> bool {
    USES_CUDA.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_any_of_the_variables_asks_for_something() {
        for name in tllmprof_config::variable_names() {
            assert!(is_read(name.as_bytes()), "{name}");
        }
        assert!(is_read(b"NVTX_INJECTION64_PATH") && is_read(b"TLLMPROF_NVTX_CHAIN"));
        for other in [
            "",
            "HOME",
            "LD_PRELOAD",
            "XTLLMPROF_TRACE",
            "ENABLE_PERFECT",
        ] {
            assert!(!is_read(other.as_bytes()), "{other}");
        }
    }
}
