//! Iterations in which torch.compile compiles, according to sampled stacks.

use std::collections::{BTreeSet, HashMap};

use crate::events::iteration::Iteration;
use crate::events::samples::Frames;
use crate::events::window::Window;
use crate::process::Process;

/// Number of iterations at the beginning of a process in which compilation counts as part of the program's start and
/// gives no finding.
pub(super) const START_UP: u64 = 32;

/// Functions of torch that compile: the end of the path of their file, and their names. A function that is defined
/// inside one of these counts, too. Other functions in these files are not listed, because they also run in steps in
/// which nothing is compiled.
const COMPILING: [(&str, &[&str]); 2] = [
    ("/torch/_dynamo/convert_frame.py", &["_compile"]),
    (
        "/torch/_inductor/compile_fx.py",
        &[
            "compile_fx",
            "compile_fx_inner",
            "_compile_fx_inner",
            "fx_codegen_and_compile",
        ],
    ),
];

/// A part of the paths of torch's files. Functions of torch are not reported as callers of compiled code, because they
/// only lead to the compiler.
const TORCH: &str = "/torch/";

/// The iterations in which samples of the iteration's thread lie in torch.compile's compiler.
#[derive(Debug, Default)]
pub(super) struct Recompiles {
    /// The numbers of these iterations.
    pub iterations: BTreeSet<u64>,
    /// The function outside torch whose call of torch.compile's code led to the compiler, in iterations from
    /// [`START_UP`] on; the one with the most samples if there are several.
    pub caller: Option<String>,
    /// The share of samples in the compiler among all Python samples that were taken on iterations' threads during
    /// iterations, as a fraction. Samples in the compiler count from iteration [`START_UP`] on.
    pub share: f64,
}

impl Recompiles {
    /// Returns the iterations in which torch.compile compiles.
    pub(super) fn find(process: &Process) -> Self {
        let sampled = &process.stacks.sampled;
        let mut threads: HashMap<u32, Vec<&Iteration>> = HashMap::new();
        for iteration in process.windows.iter().flat_map(Window::qualified) {
            threads.entry(iteration.thread).or_default().push(iteration);
        }
        for iterations in threads.values_mut() {
            iterations.sort_by_key(|iteration| iteration.start);
        }
        let mut found = Self::default();
        let (mut all, mut compiling) = (0_u64, 0_u64);
        let mut stacks: HashMap<u32, Option<Compiling>> = HashMap::new();
        let mut callers: HashMap<u32, u64> = HashMap::new();
        for sample in &sampled.samples {
            let is_python = sampled.seen(sample).is_some_and(|seen| !seen.is_native());
            let Some(iterations) = threads.get(&sample.thread).filter(|_| is_python) else {
                continue;
            };
            let after = iterations.partition_point(|iteration| iteration.start <= sample.at);
            let last = after.checked_sub(1).and_then(|last| iterations.get(last));
            let Some(iteration) = last.filter(|iteration| sample.at < iteration.end()) else {
                continue;
            };
            all += 1;
            let stack = stacks
                .entry(sample.frame)
                .or_insert_with(|| Compiling::find(&sampled.frames, sample.frame));
            let Some(stack) = stack.as_ref() else {
                continue;
            };
            found.iterations.insert(iteration.n);
            if iteration.n >= START_UP {
                compiling += 1;
                if let Some(caller) = stack.caller {
                    *callers.entry(caller).or_default() += 1;
                }
            }
        }
        let caller = callers
            .into_iter()
            .max_by_key(|(function, count)| (*count, *function));
        found.caller = caller.map(|(function, _)| sampled.frames.label(function).to_owned());
        found.share = compiling as f64 / all.max(1) as f64;
        found
    }
}

/// A stack that lies in torch.compile's compiler.
struct Compiling {
    /// The innermost function outside torch that leads to the compiler.
    caller: Option<u32>,
}

impl Compiling {
    /// Returns the compiling stack whose innermost frame is `frame`; `None` if the stack does not lie in the compiler.
    fn find(frames: &Frames, frame: u32) -> Option<Self> {
        let stack = frames.stack(frame);
        let compiler = (stack.iter()).position(|function| compiles(frames.name(*function)))?;
        let mut callers = stack[..compiler].iter().rev();
        let caller = callers.find(|function| !frames.name(**function).contains(TORCH));
        Some(Self {
            caller: caller.copied(),
        })
    }
}

/// Returns true if a function compiles. `name` has the form `QUALNAME (FILE:LINE)`.
fn compiles(name: &str) -> bool {
    let Some((qualified, place)) = name.rsplit_once(" (") else {
        return false;
    };
    let outermost = qualified.split('.').next().unwrap_or(qualified);
    let file = place.rsplit_once(':').map_or(place, |(file, _)| file);
    let mut known = COMPILING.iter();
    known.any(|(end, names)| file.ends_with(end) && names.contains(&outermost))
}

#[cfg(test)]
mod tests {
    use super::compiles;

    #[test]
    fn only_functions_that_compile_count() {
        let torch = "/x/site-packages/torch";
        for name in [
            "_compile (TORCH/_dynamo/convert_frame.py:1690)",
            "_compile.<locals>.compile_inner (TORCH/_dynamo/convert_frame.py:800)",
            "fx_codegen_and_compile (TORCH/_inductor/compile_fx.py:2127)",
            "compile_fx.<locals>.fw_compiler_base (TORCH/_inductor/compile_fx.py:9)",
        ] {
            assert!(compiles(&name.replace("TORCH", torch)), "{name}");
        }
        // These functions run in each step, only check if code has to be compiled, or are not in torch's files.
        for name in [
            "cudagraphify.<locals>.run (TORCH/_inductor/compile_fx.py:2288)",
            "CatchErrorsWrapper.__call__ (TORCH/_dynamo/convert_frame.py:1500)",
            "_TorchDynamoContext.__call__.<locals>._fn (TORCH/_dynamo/eval_frame.py:400)",
            "_compile (/srv/model.py:3)",
            "_compile",
        ] {
            assert!(!compiles(&name.replace("TORCH", torch)), "{name}");
        }
    }
}
