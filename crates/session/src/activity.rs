//! Decides whether the library has anything to do in this process, and holds its settings.

use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use tllmprof_config::{BadValue, Settings, Step, Unknown};
use tllmprof_platform::{environment, lifecycle};
use tllmprof_sync::Published;

use crate::refusal;
use crate::wiring::sink;
use tllmprof_platform::{injection, log};

/// The value of `STATE` before the settings have been examined.
const UNDECIDED: u8 = 0;
/// The value of `STATE` if the library has nothing to do: every hook only passes its call on.
const IDLE: u8 = 1;
/// The value of `STATE` while the library counts calls.
const ACTIVE: u8 = 2;
/// The value of `STATE` if an environment variable is invalid. The error is logged when the process first looks up or
/// calls a CUDA function, and no call is counted.
const COMPLAINING: u8 = 3;

lifecycle::global! {
    #[fork(keep = "the settings are the same")]
    static STATE: AtomicU8 = AtomicU8::new(UNDECIDED);
    /// The settings that the environment variables define, or the variable whose value is invalid.
    #[fork(keep = "the variables are the same")]
    static READ: Published<Result<Settings, BadValue>> = Published::none();
    /// True if the process was started without any environment variable that the library reads.
    #[fork(keep = "the variables are the same")]
    static ASKS_NOTHING: AtomicBool = AtomicBool::new(false);
    /// True if the settings come from `tllmprof attach` and not from the environment.
    #[fork(keep = "the variables are the same")]
    static IS_ATTACHED: AtomicBool = AtomicBool::new(false);
    /// True if the messages about the library's environment variables have been logged.
    #[fork(keep = "the parent has said it")]
    static HAS_SAID: AtomicBool = AtomicBool::new(false);
}

lifecycle::global! {
    stage: Session;

    /// True if the process uses CUDA. The session's state has the same flag, but a thread must lock the state to read
    /// that flag.
    #[fork(reset)]
    pub static USES_CUDA: AtomicBool = AtomicBool::new(false);
}

/// Returns true if the library has to count NVTX ranges: the rule for a step names a range, and a window, the
/// record or a tool needs iterations.
pub fn counts_ranges(settings: &Settings) -> bool {
    matches!(settings.step, Step::Nvtx { .. }) && has_work(settings)
}

/// Returns true if the record is to contain the program's NVTX ranges.
pub fn records_ranges(settings: &Settings) -> bool {
    settings.nvtx && sink().wants_record() && settings.may_open_windows()
}

/// Returns true if iterations have to be counted: for windows, for the record, or for a tool that receives NVTX ranges
/// of iterations. Also returns true if a warning has to be logged: the settings ask for a check whether the process is
/// stuck, but the process was not started by `tllmprof run`, which makes this check.
pub fn has_work(settings: &Settings) -> bool {
    settings.may_open_windows()
        || settings.is_unwatched
        || sink().wants_record()
        || (settings.nvtx && injection::has_tool())
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

/// Replaces the settings with those that `get` returns, as if the process had been started with them.
#[cfg(test)]
pub fn assume(get: impl Fn(&str) -> Option<std::ffi::OsString>) {
    READ.set(Some(Box::leak(Box::new(Settings::from_env(get)))));
    STATE.store(UNDECIDED, Ordering::Relaxed);
    HAS_SAID.store(false, Ordering::Relaxed);
}

/// Returns the settings; `None` if a variable is invalid.
pub fn settings() -> Option<&'static Settings> {
    read().as_ref().ok()
}

fn state() -> u8 {
    let state = STATE.load(Ordering::Relaxed);
    if state == UNDECIDED { decide() } else { state }
}

/// Returns true if the process was started with a variable that the library reads, or if `tllmprof attach` has set
/// variables. Otherwise the library does nothing that the program could notice: it makes no system call and no
/// allocation.
pub fn is_asked() -> bool {
    !ASKS_NOTHING.load(Ordering::Relaxed)
        && (IS_ATTACHED.load(Ordering::Relaxed) || environment::has(is_read))
}

/// Called when the library is attached to a running process. From then on, the variables that `get` returns are used
/// in place of the environment.
///
/// # Errors
/// Returns the variable that is invalid. The settings then stay as they were.
pub fn attach(get: impl Fn(&str) -> Option<std::ffi::OsString>) -> Result<(), BadValue> {
    let settings = Settings::from_env(get)?;
    READ.set(Some(Box::leak(Box::new(Ok(settings)))));
    IS_ATTACHED.store(true, Ordering::Relaxed);
    ASKS_NOTHING.store(false, Ordering::Relaxed);
    STATE.store(UNDECIDED, Ordering::Release);
    Ok(())
}

/// Notes that the process was started without any variable of this library. If the program itself sets such a variable
/// later, the library ignores it. Called when the library is loaded.
pub fn asks_nothing() {
    ASKS_NOTHING.store(true, Ordering::Relaxed);
}

/// A variable of another program that the library reads as well. Its name does not begin with `TLLM`.
const OTHERS_NAME: &str = "ENABLE_PERFECT_ROUTER";

fn is_read(name: &[u8]) -> bool {
    let others = [OTHERS_NAME, injection::VARIABLE];
    name.starts_with(b"TLLM") || others.iter().any(|other| name == other.as_bytes())
}

/// Decides whether the library has work to do. Called when a CUDA function is first looked up or called. If another
/// profiler is preloaded, it has set its environment variables by then.
#[cold]
fn decide() -> u8 {
    let has_tool = || environment::has(|name| name == injection::VARIABLE.as_bytes());
    if READ.get().is_none() && !is_asked() && !has_tool() {
        // As long as the C library is not initialised, the process has no environment. Then the decision is not
        // stored, and is made again at the next call.
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

/// Returns true if the library counts calls in this process.
pub fn is_active() -> bool {
    state() == ACTIVE
}

/// Called when the process looks up or calls a CUDA function. On the first call, logs the messages about the
/// environment variables.
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

/// Returns true if the process has looked up or called a CUDA function.
pub fn is_touched() -> bool {
    HAS_SAID.load(Ordering::Relaxed)
}

/// Stops counting calls in this process. From then on, every hook only passes its call on.
pub fn stop() {
    STATE.store(IDLE, Ordering::Release);
}

/// Returns true if the process has made a CUDA call, or if a window was about to open or close after the process had
/// loaded the driver.
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
