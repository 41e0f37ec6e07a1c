//! Compilation according to sampled stacks: the iterations in which a compiler runs, and the function of the program
//! that leads to it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::events::iteration::Iteration;
use crate::events::origin::Data;
use crate::events::samples::{
    Compiler, CompilerStack, Function, SampledState, StackSample, has_compiler_process,
    is_of_compiler,
};
use crate::events::window::Window;
use crate::numbers::units::Share;
use crate::process::Process;

/// Maximum number of iterations at the beginning of a process in which compilation counts as part of the program's
/// start and gives no finding.
pub(super) const START_UP: u64 = 32;

/// Minimum and maximum share of the compilers' samples, as fractions, that must lie in a function or a child process
/// for the text to name it. If a function has a larger share than the maximum, nothing is named, because the function
/// says no more than the compiler's name. The maximum does not apply to a child process.
const NAMED_PARTS: [f64; 2] = [0.1, 0.9];
/// Beginning of the words for a child process, such as `child process ptxas`.
const CHILD: &str = "child process";
/// Maximum number of functions and child processes that are named.
const MAX_PARTS: usize = 2;
/// Minimum share of the additional samples, as a fraction, in which a function of the program must be on the stack to
/// be named as the function that leads to the compiler. The additional samples are those that iterations that compile
/// have and other iterations do not.
const MIN_ADDITIONAL: f64 = 0.5;

/// The iterations in which samples of the iteration's thread lie in a compiler.
#[derive(Debug, Default)]
pub(super) struct Recompiles {
    /// The number of the first iteration that does not count as part of the program's start.
    pub from: u64,
    /// The numbers of the iterations in which samples lie in a compiler.
    pub iterations: BTreeSet<u64>,
    /// The compiler with the most samples, in iterations from `from` on; `None` if no sample lies in a compiler.
    pub compiler: Option<CompilerName>,
    /// The function whose call led to that compiler; the one with the most samples if there are several. A native
    /// function is named only if no Python function is known.
    pub caller: Option<String>,
    /// Text about the functions and child processes in which the compilers spend their time; empty if no function
    /// stands out.
    pub parts: String,
    /// The share of the samples that lie in a compiler, as a fraction of the samples of the iterations' threads during
    /// iterations. Samples of native stacks do not count. Samples in a compiler count only from iteration `from` on.
    pub share: f64,
    /// The share of the iterations' time in which native stacks lie in a compiler, as a fraction. It is estimated from
    /// the samples of native stacks. Compilers that run in CUDA calls do not count.
    pub native_share: f64,
    /// The share of the samples in a compiler in which the thread sleeps, as a fraction. Samples of native stacks do
    /// not count. `None` if there are no samples.
    asleep: Option<f64>,
}

/// The name of a compiler in the text of the finding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct CompilerName {
    /// The compiler and what it does, as a sentence such as `NVRTC compiles`.
    pub activity: &'static str,
    /// Words for the code that the program calls.
    pub code: &'static str,
}

/// Words for compilers that run as child processes.
const CHILD_PROCESS: CompilerName = CompilerName {
    activity: "a child process compiles",
    code: "it",
};

impl From<&Compiler> for CompilerName {
    fn from(compiler: &Compiler) -> Self {
        Self {
            activity: compiler.activity,
            code: compiler.code,
        }
    }
}

/// The qualifying iterations of each thread, in the order of their starts.
struct IterationsByThread<'a>(HashMap<u32, Vec<&'a Iteration>>);

impl<'a> IterationsByThread<'a> {
    fn new(process: &'a Process) -> Self {
        let mut threads: HashMap<u32, Vec<&Iteration>> = HashMap::new();
        for iteration in process.windows.iter().flat_map(Window::qualified) {
            threads.entry(iteration.thread).or_default().push(iteration);
        }
        for iterations in threads.values_mut() {
            iterations.sort_by_key(|iteration| iteration.start);
        }
        Self(threads)
    }

    /// Returns the iteration in which a sample was taken on the iteration's thread; `None` if there is none.
    fn find(&self, sample: &StackSample) -> Option<&'a Iteration> {
        let iterations = self.0.get(&sample.thread)?;
        let after = iterations.partition_point(|iteration| iteration.start <= sample.at);
        let last = iterations.get(after.checked_sub(1)?)?;
        (sample.at < last.end()).then_some(*last)
    }
}

/// Numbers of samples in iterations, while these are counted.
#[derive(Default)]
struct SampleTally {
    all: u64,
    /// Number of samples without the native ones in which the thread ran.
    ran: u64,
    compiling: u64,
    /// Number of the samples in `compiling` in which the thread slept.
    compiling_asleep: u64,
    native: u64,
    native_compiling: u64,
    compilers: BTreeMap<CompilerName, u64>,
    /// The key is the compiler, true for a native stack, and the function that leads to the compiler.
    callers: BTreeMap<(CompilerName, bool, u32), u64>,
    parts: BTreeMap<String, u64>,
}

/// A sample in a compiler.
#[derive(Clone, Copy)]
struct Compiling {
    name: CompilerName,
    caller: Option<u32>,
}

impl Recompiles {
    /// Returns the iterations in which a compiler runs.
    pub(super) fn find(process: &Process) -> Self {
        let sampled = &process.stacks.sampled;
        let iterations = IterationsByThread::new(process);
        let mut found = Self {
            from: start_up(process),
            ..Self::default()
        };
        let mut tally = SampleTally::default();
        let mut stacks: HashMap<(u32, bool, Option<u32>), Option<Compiling>> = HashMap::new();
        for sample in &sampled.samples {
            let Some(seen) = sampled.seen(sample) else {
                continue;
            };
            let Some(iteration) = iterations.find(sample) else {
                continue;
            };
            tally.count(seen);
            let key = (sample.frame, seen.is_native(), sample.sleep);
            let stack = *stacks
                .entry(key)
                .or_insert_with(|| compiling(process, sample, seen.is_native()));
            let Some(stack) = stack else { continue };
            found.iterations.insert(iteration.n);
            if iteration.n >= found.from {
                let part = part(process, sample, seen);
                tally.count_compiling(stack, seen, part);
            }
        }
        found.finish(process, &tally);
        found
    }

    fn finish(&mut self, process: &Process, tally: &SampleTally) {
        let frames = &process.stacks.sampled.frames;
        let most = |(_, count): &(&CompilerName, &u64)| **count;
        self.compiler = tally
            .compilers
            .iter()
            .max_by_key(most)
            .map(|(name, _)| *name);
        let callers = (tally.callers.iter()).filter(|((name, ..), _)| Some(*name) == self.compiler);
        let caller = callers.max_by_key(|((_, is_native, _), count)| (!*is_native, **count));
        self.caller = caller.map(|((.., function), _)| frames.label(*function).to_owned());
        self.share = tally.compiling as f64 / tally.all.max(1) as f64;
        // Native stacks are sampled only while the thread runs.
        let ran = match tally.all {
            0 => 1.0,
            all => tally.ran as f64 / all as f64,
        };
        self.native_share = ran * tally.native_compiling as f64 / tally.native.max(1) as f64;
        self.asleep =
            (tally.compiling > 0).then(|| tally.compiling_asleep as f64 / tally.compiling as f64);
        self.parts = named_parts(&tally.parts, tally.compiling);
    }

    /// Returns two upper limits, as fractions of the compilation's time: for the time in which the thread runs the
    /// compiler's code, and for the time in which it sleeps. Both are 1 if samples do not show it.
    pub(super) fn ran_and_slept(&self) -> [f64; 2] {
        match self.asleep {
            // `asleep` says nothing about native compilers, which may run during all of the compilation's time.
            Some(asleep) if self.native_share > 0.0 => [1.0, asleep],
            Some(asleep) => [1.0 - asleep, asleep],
            None => [1.0, 1.0],
        }
    }
}

impl SampleTally {
    fn count(&mut self, seen: SampledState) {
        match seen {
            SampledState::Native(_) => self.native += 1,
            seen => {
                self.all += 1;
                self.ran += u64::from(seen.ran());
            }
        }
    }

    /// Counts a sample in a compiler. `part` is the function or the child process in which the compiler was.
    fn count_compiling(&mut self, stack: Compiling, seen: SampledState, part: Option<String>) {
        match seen.is_native() {
            true => self.native_compiling += 1,
            false => {
                self.compiling += 1;
                self.compiling_asleep += u64::from(seen.is_asleep());
            }
        }
        *self.compilers.entry(stack.name).or_default() += 1;
        if let Some(caller) = stack.caller {
            let key = (stack.name, seen.is_native(), caller);
            *self.callers.entry(key).or_default() += 1;
        }
        if let Some(part) = part {
            *self.parts.entry(part).or_default() += 1;
        }
    }
}

/// Returns the number of the first iteration that does not count as part of the program's start. Returns 0 if no steps
/// are known, because the report then shows a stretch of time in place of iterations. If the record has only the last
/// iterations of the process, the first half of all iterations counts as the start if that is less than [`START_UP`].
fn start_up(process: &Process) -> u64 {
    if process.facts.origin.is_own() && process.facts.origin.lacks(Data::Iterations) {
        return 0;
    }
    let windows = || process.windows.iter();
    let last = windows().map(|window| window.last).max().unwrap_or(0);
    match windows().all(|window| window.past) {
        true => START_UP.min(last / 2),
        false => START_UP,
    }
}

/// Returns the compiler in which a sample lies; `None` if it lies in none.
fn compiling(process: &Process, sample: &StackSample, is_native: bool) -> Option<Compiling> {
    let sampled = &process.stacks.sampled;
    if let Some(stack) = CompilerStack::find(&sampled.frames, sample.frame, is_native) {
        return Some(Compiling {
            name: stack.compiler.into(),
            caller: stack.caller,
        });
    }
    let sleep = sampled.frames.sleeps.get(sample.sleep? as usize)?;
    if is_native || !has_compiler_process(&sleep.cause) {
        return None;
    }
    let stack = sampled.frames.stack(sample.frame);
    let mut inward = stack.into_iter().rev();
    let is_own = |place: &u32| {
        let function = sampled.frames.functions.get(*place as usize);
        function.is_some_and(Function::is_own)
    };
    Some(Compiling {
        name: CHILD_PROCESS,
        caller: inward.find(is_own),
    })
}

/// Returns the child process or the Python function in which a compiler was at a sample; `None` for native stacks.
fn part(process: &Process, sample: &StackSample, seen: SampledState) -> Option<String> {
    let frames = &process.stacks.sampled.frames;
    if seen.is_native() {
        return None;
    }
    let sleep = sample
        .sleep
        .and_then(|sleep| frames.sleeps.get(sleep as usize));
    let child = sleep.and_then(|sleep| {
        let awaited = sleep.cause.strip_prefix("waiting for ")?;
        let (who, _) = awaited.split_once(" in ")?;
        who.starts_with(CHILD).then(|| who.to_owned())
    });
    let function = || Some(frames.label(frames.get(sample.frame)?.function).to_owned());
    child.or_else(function)
}

/// Returns text about the functions and child processes with the most samples, such as
/// ` (28.8 % in child process ptxas)`. `all` is the number of all samples in compilers. The text is empty if no
/// function stands out.
fn named_parts(parts: &BTreeMap<String, u64>, all: u64) -> String {
    let [least, most] = NAMED_PARTS;
    let shares = parts
        .iter()
        .map(|(name, count)| (name, *count as f64 / all.max(1) as f64));
    let mut shares: Vec<_> = shares.filter(|(_, share)| *share >= least).collect();
    shares.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(b.0)));
    let is_alone = |(name, share): &(&String, f64)| *share > most && !name.starts_with(CHILD);
    if shares.first().is_none_or(is_alone) {
        return String::new();
    }
    let named = shares.iter().take(MAX_PARTS);
    let named: Vec<_> = named
        .map(|(name, share)| format!("{} in {name}", Share(*share)))
        .collect();
    format!(" ({})", named.join(", "))
}

/// Numbers of samples in which a function is on the stack, in iterations that compile and in other iterations.
#[derive(Clone, Copy, Default)]
struct Additional {
    compiling: u64,
    others: u64,
    /// True if the program itself has the function, false if an installed package has it.
    is_own: bool,
    /// The greatest depth of the function in a stack.
    depth: usize,
}

impl Additional {
    /// Returns the number of samples in iterations that compile, minus the number that the same number of other
    /// iterations would have. `ratio` is the number of iterations that compile, divided by the number of other
    /// iterations.
    fn count(self, ratio: f64) -> f64 {
        (self.compiling as f64 - self.others as f64 * ratio).max(0.0)
    }
}

/// Returns the function of the program in which iterations that compile spend their additional time, compared with
/// other iterations. It is the innermost function that is on the stack of at least half of the additional samples (see
/// [`MIN_ADDITIONAL`]). `compiles` returns true for iterations that compile. Returns `None` if there is no such
/// function.
pub(super) fn additional_function(
    process: &Process,
    from: u64,
    compiles: impl Fn(&Iteration) -> bool,
) -> Option<String> {
    let sampled = &process.stacks.sampled;
    let by_thread = IterationsByThread::new(process);
    let qualified = || process.windows.iter().flat_map(Window::qualified);
    let all = || qualified().filter(|iteration| iteration.n >= from);
    let count = all().filter(|iteration| compiles(iteration)).count();
    let ratio = match all().count() - count {
        0 => 0.0,
        others => count as f64 / others as f64,
    };
    let mut total = Additional::default();
    let mut functions: HashMap<u32, Additional> = HashMap::new();
    for sample in &sampled.samples {
        let is_python = sampled.seen(sample).is_some_and(|seen| !seen.is_native());
        let iteration = by_thread.find(sample).filter(|_| is_python);
        let Some(iteration) = iteration.filter(|iteration| iteration.n >= from) else {
            continue;
        };
        let does_compile = compiles(iteration);
        let add = |sum: &mut Additional| match does_compile {
            true => sum.compiling += 1,
            false => sum.others += 1,
        };
        add(&mut total);
        let stack = sampled.frames.stack(sample.frame);
        let on_stack: BTreeSet<u32> = stack.iter().copied().collect();
        for function in on_stack {
            let known = sampled.frames.functions.get(function as usize);
            let Some(known) = known.filter(|known| known.is_python() && !is_of_compiler(known))
            else {
                continue;
            };
            let sum = functions.entry(function).or_default();
            sum.is_own = known.is_own();
            add(sum);
            let depth = stack.iter().rposition(|place| *place == function);
            sum.depth = sum.depth.max(depth.unwrap_or(0));
        }
    }
    let least = MIN_ADDITIONAL * total.count(ratio);
    functions
        .retain(|_, sum| sum.compiling > 0 && sum.count(ratio) > 0.0 && sum.count(ratio) >= least);
    let innermost = |is_one: fn(&Additional) -> bool| {
        let candidates = functions.iter().filter(|(_, sum)| is_one(sum));
        let found = candidates.max_by_key(|(function, sum)| (sum.depth, **function));
        found.map(|(function, _)| sampled.frames.label(*function))
    };
    let found = innermost(|_| true)?;
    Some(match innermost(|sum| sum.is_own) {
        Some(own) if own != found => format!("{found}, called by {own}"),
        _ => found.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compilers_that_run_explain_no_sleep() {
        let of = |asleep, native_share| {
            let found = Recompiles {
                asleep,
                native_share,
                ..Recompiles::default()
            };
            found.ran_and_slept()
        };
        assert_eq!(of(Some(0.25), 0.0), [0.75, 0.25]);
        assert_eq!(of(Some(0.25), 0.1), [1.0, 0.25]);
        assert_eq!(of(None, 0.1), [1.0, 1.0]);
    }

    #[test]
    fn parts_are_named_if_there_are_several() {
        let parts = |counts: &[(&str, u64)]| {
            let counts = counts.iter();
            let counts = counts.map(|(name, count)| ((*name).to_owned(), *count));
            named_parts(&counts.collect(), 100)
        };
        assert_eq!(
            parts(&[("make_llir", 30), ("child process ptxas", 50), ("hash", 5)]),
            " (50.0 % in child process ptxas, 30.0 % in make_llir)"
        );
        assert_eq!(parts(&[("compile", 95)]), "");
        let child = parts(&[("child process nvcc", 95)]);
        assert_eq!(child, " (95.0 % in child process nvcc)");
        assert_eq!(parts(&[("a", 5), ("b", 5)]), "");
    }

    #[test]
    fn samples_that_all_iterations_have_are_not_additional() {
        let sum = Additional {
            compiling: 40,
            others: 60,
            is_own: true,
            depth: 1,
        };
        assert!((sum.count(0.5) - 10.0).abs() < 1e-9);
        assert!(sum.count(1.0) < 1e-9);
    }
}
