//! The functions in which code spends its time, according to sampled stacks. The result is the
//! innermost function that most samples have in common.

use std::collections::BTreeMap;

use super::keys::{HostCause, NameSources};
use crate::events::samples::{Frames, Function, Origin};

/// Share of samples, as a fraction. A function counts as being in most samples if its share exceeds this limit.
const MAJORITY: f64 = 0.5;
/// Minimum share of a function's samples that are in one callee, as a fraction, for the search to
/// continue in that callee.
const PASSED_ON: f64 = 0.9;
/// Minimum share of samples, as a fraction, for a function to be named if no single function occurs in most samples.
const MIN_NAMED_SHARE: f64 = 0.15;
/// Minimum number of samples that are needed for a result.
const MIN_SAMPLES: u64 = 30;
/// Maximum number of functions to name if no single function occurs in most samples.
const MAX_NAMED: usize = 2;

/// Functions whose only purpose is to call the function that was passed to them.
const WRAPPERS: &[&str] = &[
    "Module._call_impl",
    "Module._wrapped_call_impl",
    "context_decorator.<locals>.decorate_context",
    "__call__",
    "wrapper",
    "wrapped",
    "inner",
];

/// Parts of function names or file names, each with the purpose of such functions in words.
const KNOWN_PURPOSES: &[(&str, &str)] = &[
    (
        "cudnn_frontend::ExecutionPlanBuilder",
        "cuDNN builds an execution plan",
    ),
    ("cudnnBackendFinalize", "cuDNN builds an execution plan"),
    ("/torch/_inductor/", "torch.compile compiles"),
    ("/torch/_dynamo/convert_frame.py", "torch.compile compiles"),
    ("/triton/compiler/", "Triton compiles a kernel"),
    ("/cupy/cuda/compiler.py", "CuPy compiles a kernel"),
    ("/jax/_src/compiler.py", "XLA compiles"),
    ("/jax/_src/interpreters/mlir.py", "JAX traces and compiles"),
    ("nvrtcCompileProgram", "NVRTC compiles"),
    ("cuModuleLoad", "the driver loads code"),
];

/// The functions that the samples taken during a cause of time (such as code between two CUDA calls) have in common:
/// one for Python stacks, one for native stacks.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Paths {
    pub python: Option<Path>,
    pub native: Option<Path>,
}

impl Paths {
    /// Returns true if the samples show a common function in Python or native stacks.
    pub const fn are_known(&self) -> bool {
        self.python.is_some() || self.native.is_some()
    }
}

/// A function that most samples have in common, with the functions around it.
#[derive(Clone, PartialEq, Debug)]
pub struct Path {
    /// The innermost function that most samples have in common; if there is none, the outermost function with the most
    /// samples. `share` is the share of the samples that contain `function`, as a fraction.
    pub function: String,
    pub share: f64,
    /// The innermost caller around `function` that belongs to no library; `None` if there is none,
    /// or if `function` itself belongs to no library.
    pub caller: Option<String>,
    /// Further functions with many samples, at most two, and their shares of the samples as fractions. They are callees
    /// of the innermost function that most samples have in common. If most samples have no function in common, they are
    /// other outermost functions.
    pub into: Vec<(String, f64)>,
    /// The known purpose of the code in most samples, such as compiling a kernel.
    pub does: Option<&'static str>,
}

/// Functions by index in `Frames::functions`, each with its number of samples.
type NodeCounts = Vec<(u32, u64)>;

/// Samples of either Python stacks or native stacks, by stack.
#[derive(Debug, Default)]
struct PathSamples<'a> {
    /// The functions of each stack, the outermost first, and the number of samples with this stack. The stack is
    /// empty for samples that show no function, such as samples outside Python functions.
    all: Vec<(Vec<u32>, u64)>,
    frames: Option<&'a Frames>,
}

impl Paths {
    /// Finds the functions that samples have in common. Only samples for whose cause `is_one` returns true are used.
    /// An item of `samples` contains the cause of the time in which a sample was taken, the ID of its innermost
    /// frame, true for a native stack, and the number of equal samples.
    pub fn find(
        samples: impl Iterator<Item = (HostCause, u32, bool, u64)>,
        is_one: impl Fn(HostCause) -> bool,
        named: NameSources<'_>,
    ) -> Self {
        let mut by_frame: BTreeMap<(bool, u32), u64> = BTreeMap::new();
        for (spent, frame, is_native, count) in samples {
            if is_one(spent) {
                *by_frame.entry((is_native, frame)).or_default() += count;
            }
        }
        let path = |native: bool| {
            let some = by_frame
                .iter()
                .filter(|((is_native, _), _)| *is_native == native);
            let all = some.map(|((_, frame), count)| (named.frames.stack(*frame), *count));
            let frames = Some(named.frames);
            let all = all.collect();
            PathSamples { all, frames }.path()
        };
        let (python, mut native) = (path(false), path(true));
        // Native stacks explain only the time outside Python functions, so scale their share to
        // that part of the time.
        let count = |is_one: fn(u32) -> bool| -> u64 {
            let some = by_frame
                .iter()
                .filter(|((is_native, frame), _)| !is_native && is_one(*frame));
            some.map(|(_, count)| count).sum()
        };
        let all = count(|_| true);
        if let Some(native) = native.as_mut().filter(|_| python.is_none() && all > 0) {
            let outside = count(|frame| frame == 0) as f64 / all as f64;
            native.share *= outside;
            native
                .into
                .iter_mut()
                .for_each(|(_, share)| *share *= outside);
        }
        Self { python, native }
    }
}

impl PathSamples<'_> {
    fn path(self) -> Option<Path> {
        let frames = self.frames?;
        let total: u64 = self.all.iter().map(|(_, count)| count).sum();
        let outside = self.all.iter().filter(|(stack, _)| stack.is_empty());
        let outside: u64 = outside.map(|(_, count)| count).sum();
        if total < MIN_SAMPLES || outside as f64 > MAJORITY * total as f64 {
            return None;
        }
        let share = |count: u64| count as f64 / total as f64;
        let (way, next) = self.way(total);
        let does = KNOWN_PURPOSES
            .iter()
            .find(|(part, _)| self.mostly(frames, part, total));
        let does = does.map(|(_, text)| *text);
        // Find the innermost function that explains on what time is spent (see the function `says`). If none does, use
        // the innermost function of all.
        let function = |place: u32| frames.functions.get(place as usize);
        let says = |place: u32| function(place).is_none_or(says);
        let at = way.iter().rposition(|(place, _)| says(*place));
        let at = at.or(way.len().checked_sub(1));
        // If the function that was found belongs to the interpreter, the native stacks show only that Python ran,
        // which is no result.
        if at
            .and_then(|at| function(way[at].0))
            .is_some_and(is_interpreter)
        {
            return None;
        }
        let into = next
            .into_iter()
            .map(|(place, count)| (place, share(count)))
            .filter(|(place, share)| *share >= MIN_NAMED_SHARE && says(*place))
            .take(MAX_NAMED)
            .map(|(place, share)| (frames.label(place).to_owned(), share));
        let mut into: Vec<_> = into.collect();
        let Some(at) = at else {
            // Without a common function, report the functions with the most samples.
            let (function, share) = into.first().cloned()?;
            into.remove(0);
            return Some(Path {
                function,
                share,
                caller: None,
                into,
                does,
            });
        };
        let is_own = |(place, _): &(u32, u64)| function(*place).is_some_and(Function::is_own);
        let own = way[..=at].iter().rposition(is_own).filter(|own| *own != at);
        Some(Path {
            function: frames.label(way[at].0).to_owned(),
            share: share(way[at].1),
            caller: own.map(|own| frames.label(way[own].0).to_owned()),
            into,
            does,
        })
    }

    /// Follows the stacks inward from the outermost function, as long as most samples share the
    /// next function or nearly all samples of a function are in one callee. Returns the functions
    /// on this way with their numbers of samples, the outermost first, and the callees of the last
    /// function, the one with the most samples first.
    fn way(&self, total: u64) -> (NodeCounts, NodeCounts) {
        let mut way = NodeCounts::new();
        let mut rest: Vec<_> = self.all.iter().collect();
        let is_next = |count: u64, caller: Option<&(u32, u64)>| {
            let passes_on = |(_, all): &(u32, u64)| count as f64 >= PASSED_ON * *all as f64;
            count as f64 > MAJORITY * total as f64 || caller.is_some_and(passes_on)
        };
        loop {
            let mut next: BTreeMap<u32, u64> = BTreeMap::new();
            for (stack, count) in &rest {
                if let Some(function) = stack.get(way.len()) {
                    *next.entry(*function).or_default() += count;
                }
            }
            let mut next: NodeCounts = next.into_iter().collect();
            next.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
            match next.first() {
                Some((function, count)) if is_next(*count, way.last()) => {
                    rest.retain(|(stack, _)| stack.get(way.len()) == Some(function));
                    way.push((*function, *count));
                }
                _ => return (way, next),
            }
        }
    }

    /// Returns true if at least half of the samples contain a function with `part` in its name.
    fn mostly(&self, frames: &Frames, part: &str, total: u64) -> bool {
        let has = |stack: &[u32]| {
            stack
                .iter()
                .any(|function| frames.name(*function).contains(part))
        };
        let having = self.all.iter().filter(|(stack, _)| has(stack));
        let having: u64 = having.map(|(_, count)| count).sum();
        having as f64 >= MAJORITY * total as f64
    }
}

/// Returns true if a function explains on what time is spent: it belongs to the program or to
/// Python's standard library, and does more than call another function.
fn says(function: &Function) -> bool {
    let is_program = matches!(function.origin, Origin::Program | Origin::PythonLibrary);
    let name = &function.name;
    let qualified = name.split(" (").next().unwrap_or(name);
    let last = qualified.rsplit('.').next().unwrap_or(qualified);
    is_program && !WRAPPERS.contains(&qualified) && !WRAPPERS.contains(&last)
}

fn is_interpreter(function: &Function) -> bool {
    function.origin == Origin::Interpreter
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::facts::Facts;
    use crate::events::samples::RawStacks;
    use tllmprof_record::{Clock, ClockKind, Event, Strings, What};

    /// Returns frames from a list of `(id, parent, name)`.
    fn frames(tree: &[(u32, u32, &str)]) -> Frames {
        let mut strings = Strings::default();
        let mut raw = RawStacks::default();
        let clock = Clock::new(ClockKind::Monotonic, &[]);
        for (id, parent, text) in tree {
            strings.add(*id, text.as_bytes());
            let (id, parent, name) = (*id, *parent, *id);
            raw.take(
                &clock,
                0,
                &Event::new(0, 0, What::Frame { id, parent, name }),
            );
        }
        raw.finish(&Facts::default(), &strings).frames
    }

    fn path(tree: &[(u32, u32, &str)], counts: &[(u32, u64)]) -> Option<Path> {
        let frames = frames(tree);
        let all = counts
            .iter()
            .map(|(frame, count)| (frames.stack(*frame), *count));
        PathSamples {
            all: all.collect(),
            frames: Some(&frames),
        }
        .path()
    }

    const TREE: &[(u32, u32, &str)] = &[
        (1, 0, "<module> (/srv/serve.py:1)"),
        (2, 1, "serve (/srv/serve.py:10)"),
        (3, 2, "apply_penalties (/srv/serve.py:40)"),
        (4, 3, "dumps (/usr/lib/python3.12/json/__init__.py:183)"),
        (
            5,
            4,
            "Module._call_impl (/x/site-packages/torch/nn/modules/module.py:1783)",
        ),
        (6, 2, "tokenize (/srv/serve.py:50)"),
        (7, 2, "detokenize (/srv/serve.py:60)"),
        (8, 3, "pad (/srv/serve.py:70)"),
    ];

    #[test]
    fn the_innermost_function_that_most_have_in_common_is_named() {
        let found = path(TREE, &[(4, 50), (5, 40), (6, 10)]).unwrap();
        assert_eq!(found.function, "dumps (__init__.py:183)");
        assert_eq!(
            found.caller.as_deref(),
            Some("apply_penalties (serve.py:40)")
        );
        assert!(
            (found.share - 0.9).abs() < 1e-9 && found.into.is_empty(),
            "{found:?}"
        );
        // In this test the samples are divided among two callees of one caller, so the caller is
        // the common function.
        let found = path(TREE, &[(4, 45), (8, 45), (6, 10)]).unwrap();
        assert_eq!(found.function, "apply_penalties (serve.py:40)");
        assert_eq!((found.caller, found.into.len()), (None, 2));
        // The function `apply_penalties` has nearly all its samples in its callee `dumps`, so the
        // result is `dumps`.
        let found = path(TREE, &[(4, 48), (3, 4), (6, 24), (7, 24)]).unwrap();
        assert_eq!(found.function, "dumps (__init__.py:183)");
        assert!((found.share - 0.48).abs() < 1e-9, "{found:?}");
        // The samples are divided among three callees of `serve`, so `serve` is the common function.
        // The two callees with the most samples are reported, too.
        let found = path(TREE, &[(4, 35), (6, 33), (7, 32)]).unwrap();
        assert_eq!(found.function, "serve (serve.py:10)");
        assert_eq!(found.into.len(), 2);
        assert!(path(TREE, &[(4, MIN_SAMPLES - 1)]).is_none());
        // Samples outside Python functions (frame 0) are included in the total.
        let found = path(TREE, &[(4, 50), (0, 40), (6, 10)]).unwrap();
        assert_eq!(
            (&*found.function, found.share),
            ("serve (serve.py:10)", 0.6)
        );
        assert!(path(TREE, &[(4, 40), (0, 50)]).is_none());
    }

    #[test]
    fn what_is_known_of_a_function_is_said() {
        let tree = [
            (1, 0, "step (/srv/a.py:1)"),
            (
                2,
                1,
                "compile (/x/site-packages/torch/_inductor/graph.py:7)",
            ),
            (3, 2, "a (/x/b.py:1)"),
            (4, 2, "b (/x/b.py:2)"),
        ];
        let found = path(&tree, &[(3, 40), (4, 40)]).unwrap();
        assert_eq!(found.does, Some("torch.compile compiles"));
        assert_eq!(found.caller.as_deref(), Some("step (a.py:1)"));
    }
}
