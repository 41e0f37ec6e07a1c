//! Reports settings that need Python, in a process that uses CUDA but in which no Python was
//! hooked.

use core::fmt;

use tllmprof_config::{PerfectRouter, Settings, variable};
use tllmprof_platform::log;

use crate::attached::{self, Presence};
use crate::stacks;

/// Logs one line with the settings that need Python, unless Python was found and hooked. Allocates
/// nothing.
pub(crate) fn report() {
    let Some(settings) = tllmprof_session::activity::settings() else {
        return;
    };
    let wishes = Wishes::new(settings);
    if !wishes.are_any() {
        return;
    }
    match attached::presence() {
        Presence::There => {}
        Presence::OutOfReach(why) => log::say!(
            Warn,
            "Python in this process could not be profiled ({why}): {wishes} had no effect"
        ),
        Presence::NotFound => log::say!(
            Warn,
            "no Python from 3.8 on was found in this process: {wishes} had no effect"
        ),
    }
}

/// The names of the settings that are set and need Python. The value `auto` does not count as set.
struct Wishes([Option<&'static str>; 5]);

impl Wishes {
    fn new(settings: &Settings) -> Self {
        let asked_for =
            |is: bool, variable| Some(variable).filter(|_| is && !settings.is_auto(variable));
        let router = settings.perfect_router != PerfectRouter::Off;
        Self([
            asked_for(settings.record_gc, variable::record_gc),
            asked_for(settings.gil, variable::gil),
            asked_for(
                stacks::are_asked_for(settings) && !settings.native_stacks,
                variable::stacks,
            ),
            (settings.torch_trace.is_some()).then_some("TLLM_TORCH_PROFILE_TRACE"),
            router.then_some("the perfect router"),
        ])
    }

    fn are_any(&self) -> bool {
        self.0.iter().any(Option::is_some)
    }
}

impl fmt::Display for Wishes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, name) in self.0.iter().flatten().enumerate() {
            let before = if index == 0 { "" } else { ", " };
            write!(f, "{before}{name}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_for_is_named() {
        let of = |set: &[&str]| {
            let get = |name: &str| set.contains(&name).then(|| "1".into());
            Wishes::new(&Settings::from_env(get).unwrap())
        };
        assert!(!of(&["TLLMPROF_START_STOP", "TLLM_NVTX_DEBUG"]).are_any());
        assert_eq!(of(&["TLLMPROF_GIL"]).to_string(), "TLLMPROF_GIL");
        let auto = Settings::from_env(|name| {
            let is_auto =
                ["TLLMPROF_GIL", "TLLMPROF_STACKS", "TLLM_PROFILE_RECORD_GC"].contains(&name);
            is_auto.then(|| "auto".into())
        });
        assert!(!Wishes::new(&auto.unwrap()).are_any());
        let all = of(&[
            "TLLM_PROFILE_RECORD_GC",
            "TLLMPROF_GIL",
            "TLLM_TORCH_PROFILE_TRACE",
            "ENABLE_PERFECT_ROUTER",
        ]);
        assert_eq!(
            all.to_string(),
            "TLLM_PROFILE_RECORD_GC, TLLMPROF_GIL, TLLM_TORCH_PROFILE_TRACE, the perfect router"
        );
    }
}
