//! The `doctor` section on variables: the tllmprof variables of this environment, and their effect.

use std::env;
use std::path::Path;

use tllmprof_config::error::shown;
use tllmprof_config::{RANK_VARIABLES, Ranked, Settings, Unknown, variable_names};

use super::finding::Section;

pub(crate) fn describe(section: &mut Section) {
    for name in variable_names() {
        if let Some(value) = env::var_os(name) {
            section.note(format_args!("{name}={}", shown(&value)));
        }
    }
    match Settings::from_env(|name| env::var_os(name)) {
        Err(error) => section.bad(format_args!("{error}: the library stays out of the way")),
        Ok(settings) => {
            if settings.windows.is_empty() {
                section.note(
                    "no window is set: tllmprof run takes one of steady iterations; with the preload alone iterations \
                     are marked in NVTX, and no profiler is switched",
                );
            } else {
                let windows = match settings.windows.steady_iterations() {
                    Some(count) => format!("a window of {count} steady iterations"),
                    None if settings.windows.is_auto() => "a window of steady iterations".into(),
                    None => format!("windows {} of iterations", settings.windows.listed()),
                };
                section.good(format_args!(
                    "{windows} by {}, warm-up {}",
                    settings.step, settings.warmup
                ));
            }
            kernels(section, &settings);
            ranks(section, &settings);
        }
    }
    misspelled(section);
    preloaded(section);
}

/// If the user requested kernels, reports each setting that prevents their recording. Kernels are recorded only into a
/// record. `tllmprof run` sets the path of the record itself, so a missing path is only a problem without `tllmprof
/// run`.
fn kernels(section: &mut Section, settings: &Settings) {
    if settings.kernels.is_none() {
        return;
    }
    let against = [
        (
            settings.trace.is_none(),
            "no kernels without a record (TLLMPROF_TRACE); tllmprof run makes one",
        ),
        (!settings.may_open_windows(), "no kernels without a window"),
        (
            settings.torch_trace.is_some(),
            "no kernels beside the PyTorch profiler (TLLM_TORCH_PROFILE_TRACE)",
        ),
        (
            env::var_os("CUDA_INJECTION64_PATH").is_some_and(|path| !path.is_empty()),
            "no kernels beside another tool that traces CUDA (CUDA_INJECTION64_PATH)",
        ),
    ];
    for (_, why) in against.iter().filter(|(is_so, _)| *is_so) {
        section.note(format_args!("TLLMPROF_KERNELS: {why}"));
    }
}

fn ranks(section: &mut Section, settings: &Settings) {
    let Some(ranks) = &settings.ranks else {
        return;
    };
    let opens = |rank| {
        if ranks.contains(rank) {
            "opens windows"
        } else {
            "opens no windows"
        }
    };
    match Ranked::by_variables(&|name| env::var_os(name)) {
        Some(Ranked { rank, .. }) => section.note(format_args!(
            "as rank {rank} a process here {}",
            opens(rank)
        )),
        None => section.note(format_args!(
            "no rank is set here ({}): launchers set it, or torch.distributed, an engine or NCCL has it",
            RANK_VARIABLES.join(", ")
        )),
    }
}

/// Reports variables that no part of tllmprof reads although their names begin with a prefix of tllmprof's variables.
/// They are probably misspelled.
fn misspelled(section: &mut Section) {
    let set = env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for name in set {
        if let Some(unknown) = Unknown::from_name(&name) {
            section.note(format_args!("{unknown}"));
        }
    }
}

fn preloaded(section: &mut Section) {
    let Ok(list) = env::var("LD_PRELOAD") else {
        return;
    };
    for entry in list.split([':', ' ']).filter(|entry| !entry.is_empty()) {
        if entry.contains('/') && !Path::new(entry).exists() {
            section.note(format_args!("LD_PRELOAD names {entry}, which is not there"));
        } else {
            section.note(format_args!("LD_PRELOAD names {entry}"));
        }
    }
}
