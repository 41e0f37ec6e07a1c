//! Scopes in code that torch has compiled (`TLLMPROF_LAYERS`). A scope is the module that a kernel
//! belongs to.
//!
//! Inductor's code launches the kernels of a whole graph, and no code of the modules runs.
//! Therefore the module of each operation is noted when the graph is compiled. In Inductor's code,
//! a comment before each call names the operations of the call. While a compiled graph runs, the
//! current line of its code gives the scope of each recorded launch. `compiled.py` finds the
//! modules and the comments, in a namespace of its own. Nothing in torch is changed.

use core::ffi::CStr;
use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use tllmprof_platform::{lifecycle, log};
use tllmprof_recorder::Label;
use tllmprof_scopes as scopes;
use tllmprof_sync::Lock;

use super::{fused, gone, known};
use crate::functions::follow;
use crate::functions::lookup::{each_in, each_named};
use crate::later::call_for_program;
use crate::method::MethodDef;
use crate::object::{Held, Object, Python};
use crate::spans::{CallReceiver, Entered};
use crate::stacks::{self, own};
use crate::wants;

const SOURCE: &CStr =
    match CStr::from_bytes_with_nul(concat!(include_str!("compiled.py"), "\0").as_bytes()) {
        Ok(source) => source,
        Err(_) => panic!("a NUL in compiled.py"),
    };

/// The most compiled graphs that are stored, and the most [`GraphCode`]s, which are never freed. A model may have a
/// graph for each of its parts and for each shape of their inputs.
const MAX_CODES: usize = 4096;
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// A graph that torch has compiled.
struct CompiledGraph {
    /// A Python dictionary from the names of the graph's operations to the paths of the modules that they belong to.
    modules: Held,
    /// A weak reference to the graph, which calls [`goes`] when the graph is freed.
    reference: Held,
    /// The prefixes that can turn the graph's relative module names into names of modules of the model
    /// ([`known::around`]).
    starts: Vec<String>,
    /// The functions that the graph runs, once for each prefix of module names that was used.
    codes: Vec<(String, &'static GraphCode)>,
}

/// The functions that a compiled graph runs, each with the scopes (modules, such as `model.layers.3.mlp`) of the
/// kernels that it launches.
struct GraphCode(&'static [ScopedFunction]);

struct ScopedFunction {
    /// The address of the function's code object, which is never freed.
    code: usize,
    scopes: Vec<At<Scope>>,
}

/// A byte offset in a function's instructions, and the value for the instructions from this offset on, up to the offset
/// of the next element in the list.
type At<T> = (usize, T);
/// The name of a scope (the module that a kernel belongs to), or `None` outside all scopes.
type Scope = Option<&'static [u8]>;
/// The qualified names of the modules that a launch belongs to.
type Paths = Vec<String>;
/// A function's code object, and the modules to which its launches belong. Each element of the list holds for the
/// launches from its byte offset in the function's instructions on.
type CodeLaunches<'py> = (Object<'py>, Vec<At<Paths>>);

lifecycle::global! {
    stage: Sinks;

    /// The functions of [`FOLLOWED`] that have not been found yet, one bit for each.
    #[fork(keep = "the interpreter is copied as it is")]
    #[restart(by = begins)]
    static MISSING: AtomicU8 = AtomicU8::new(0);
    /// The Python namespace in which `compiled.py` was run; empty before that.
    #[fork(keep = "the interpreter is copied as it is")]
    #[restart(reset)]
    static NAMES: Held = Held::none();
    /// Number of attempts to create a [`GraphCode`] in this process. After [`MAX_CODES`] attempts no more are made.
    #[fork(keep = "they are inherited")]
    #[restart(keep)]
    static CODES: AtomicUsize = AtomicUsize::new(0);
    /// Compiled graphs by address. Code that holds this lock calls no Python function.
    #[fork(reset)]
    #[restart(reset)]
    static GRAPHS: Lock<BTreeMap<usize, CompiledGraph>> = Lock::new(BTreeMap::new());
}

/// A function of torch's compiler, with the receiver of its calls.
struct CompilerFunction {
    module: &'static CStr,
    file: &'static str,
    name: &'static [&'static str],
    calls: &'static dyn CallReceiver,
}

const FOLLOWED: [CompilerFunction; 3] = [
    CompilerFunction {
        module: c"torch._inductor.compile_fx",
        file: "torch/_inductor/compile_fx.py",
        name: &["compile_fx"],
        calls: &Compiles,
    },
    CompilerFunction {
        module: MADE_IN,
        file: MADE_IN_FILE,
        name: &["CompiledFxGraph", "post_compile"],
        calls: &IsMade,
    },
    CompilerFunction {
        module: MADE_IN,
        file: MADE_IN_FILE,
        name: &["CompiledFxGraph", "__call__"],
        calls: &Runs,
    },
];
const MADE_IN: &CStr = c"torch._inductor.output_code";
const MADE_IN_FILE: &str = "torch/_inductor/output_code.py";

/// Starts the search for the functions of torch's compiler ([`FOLLOWED`]) anew, when an interpreter starts.
pub(crate) fn begins() {
    let is_wanted = wants::wants().modules && scopes::are_on();
    let all = (1 << FOLLOWED.len()) - 1;
    MISSING.store(if is_wanted { all } else { 0 }, Ordering::Relaxed);
}

/// Returns true if an audit event may mean that torch's compiler is being imported.
pub(crate) fn wants(event: &[u8]) -> bool {
    MISSING.load(Ordering::Relaxed) != 0 && matches!(event, b"import" | b"exec")
}

/// Finds the compiler's functions and marks them, so that their calls are reported. The functions may be in code that
/// is about to run (`exec`). They are marked before this code runs, because they may be called right afterwards. The
/// functions may also be in modules that were imported before the library was loaded.
pub(crate) fn look<'py>(py: Python<'py>, event: &[u8], args: &dyn Fn() -> Option<Object<'py>>) {
    let code = (event == b"exec").then(|| args()?.elements().next());
    let code = code.flatten().filter(Object::is_code);
    let file = code.as_ref().and_then(|code| code.attr(c"co_filename"));
    let file = file.as_ref().and_then(Object::as_text).unwrap_or_default();
    for (bit, followed) in FOLLOWED.iter().enumerate() {
        let bit = 1 << bit;
        if MISSING.load(Ordering::Relaxed) & bit == 0 {
            continue;
        }
        let mut found = None;
        if let Some(code) = code.as_ref().filter(|_| file.ends_with(followed.file)) {
            each_in(code, followed.name, &mut |code| found = Some(code.clone()));
        } else if let Some(module) = py.imported(followed.module) {
            let name = followed.name.join(".");
            each_named(&module, &name, &mut |code| found = Some(code.clone()));
        }
        if let Some(found) = found {
            MISSING.fetch_and(!bit, Ordering::Relaxed);
            if is_prepared(py) {
                follow(py, &found, followed.calls);
            }
        }
    }
}

/// Prepares the reports of calls of the compiler's functions: checks that stacks can be read, and runs `compiled.py`.
/// Returns false if that fails.
fn is_prepared(py: Python<'_>) -> bool {
    if NAMES.is_some() {
        return true;
    }
    stacks::install(py);
    if !own::is_ready() {
        log::once!(
            Warn,
            "TLLMPROF_LAYERS: no layers in what torch compiles: the stacks of this Python are not as expected"
        );
        return false;
    }
    let names = py.run(SOURCE, c"<tllmprof>");
    names.map(|names| NAMES.set(names)).is_some()
}

fn call<'py>(py: Python<'py>, name: &CStr, args: &[&Object<'py>]) -> Option<Object<'py>> {
    call_for_program(py, &NAMES.get(py)?.item(name)?, args)
}

/// The receiver of calls of `compile_fx(graph_module, …)`, which compiles a graph.
struct Compiles;

impl CallReceiver for Compiles {
    fn enters(&self, py: Python<'_>, first: Option<&Object<'_>>, _: bool) -> Entered {
        call(py, c"begins", &[first.unwrap_or(&py.nothing())]);
        Entered::with(None)
    }

    fn leaves(&self, py: Python<'_>, _: Entered, _: bool) {
        call(py, c"ends", &[]);
    }
}

/// The receiver of calls of `CompiledFxGraph.post_compile(self, …)`. torch calls this method after it has compiled the
/// graph, or has found it in a cache.
struct IsMade;

impl CallReceiver for IsMade {
    fn enters(&self, py: Python<'_>, first: Option<&Object<'_>>, _: bool) -> Entered {
        if let Some(graph) = first {
            keep(py, graph);
        }
        Entered::with(None)
    }

    fn leaves(&self, _: Python<'_>, _: Entered, _: bool) {}
}

fn keep(py: Python<'_>, graph: &Object<'_>) -> Option<()> {
    static GOES: MethodDef = MethodDef::bound(c"tllmprof_graph_goes", goes);
    let modules = call(py, c"modules", &[]).filter(|modules| !modules.is_none())?;
    let address = graph.addr();
    let made = CompiledGraph {
        modules: Held::new(modules),
        reference: gone::reference(graph, &GOES)?,
        starts: Vec::new(),
        codes: Vec::new(),
    };
    let mut graphs = GRAPHS.lock_for(LOCK_TIMEOUT)?;
    let is_room = graphs.len() < MAX_CODES || graphs.contains_key(&address);
    let left = match is_room {
        true => graphs.insert(address, made),
        false => Some(made),
    };
    drop(graphs);
    drop_graph(py, left);
    Some(())
}

/// Removes from [`GRAPHS`] a graph that was freed. Python calls this function for the graph's weak reference; `address`
/// is the graph's former address.
fn goes(py: Python<'_>, address: &Object<'_>) {
    let remove = |address| GRAPHS.lock_for(LOCK_TIMEOUT)?.remove(&address);
    drop_graph(py, gone::address(address).and_then(remove));
}

fn drop_graph(py: Python<'_>, graph: Option<CompiledGraph>) {
    if let Some(graph) = graph {
        drop(graph.reference.take(py));
        drop(graph.modules.take(py));
    }
}

/// The receiver of calls of `CompiledFxGraph.__call__(self, …)`, which runs a graph.
struct Runs;

impl CallReceiver for Runs {
    fn enters(&self, py: Python<'_>, first: Option<&Object<'_>>, _: bool) -> Entered {
        const NOTHING: &GraphCode = &GraphCode(&[]);
        let code = first.and_then(|graph| code(py, graph));
        scopes::push_within(code.unwrap_or(NOTHING));
        Entered::with(None)
    }

    fn leaves(&self, _: Python<'_>, entered: Entered, _: bool) {
        self.abandons(entered);
    }

    fn abandons(&self, _: Entered) {
        scopes::pop(scopes::OWN);
    }
}

/// Returns the functions that a graph runs, with their scopes inside the thread's current scope. Several layers may
/// share one graph, so the result depends on the current scope. Returns `None` if the library did not see the graph
/// being compiled, or if [`MAX_CODES`] results exist already.
fn code(py: Python<'_>, graph: &Object<'_>) -> Option<&'static GraphCode> {
    let address = graph.addr();
    let caller = scopes::innermost();
    let modules = {
        let graphs = GRAPHS.lock_for(LOCK_TIMEOUT)?;
        let known = graphs.get(&address)?;
        let start = start(&known.starts, caller);
        let mut codes = known.codes.iter();
        if let Some((_, code)) = codes.find(|(of, _)| of == start) {
            return Some(code);
        }
        known.modules.get(py)?
    };
    if CODES.fetch_add(1, Ordering::Relaxed) >= MAX_CODES {
        CODES.store(MAX_CODES, Ordering::Relaxed);
        return None;
    }
    let functions = read(&call(py, c"lines_of", &[graph, &modules])?);
    let lines = functions.iter().flat_map(|(_, lines)| lines);
    let paths = lines.flat_map(|(_, paths)| paths.iter().map(String::as_str));
    let starts = known::around(&paths.filter(|path| !path.is_empty()).collect());
    let start = start(&starts, caller).to_owned();
    let code: &'static GraphCode = Box::leak(Box::new(GraphCode::new(functions, &start)));
    let mut graphs = GRAPHS.lock_for(LOCK_TIMEOUT)?;
    let known = graphs.get_mut(&address)?;
    known.starts = starts;
    known.codes.push((start, code));
    Some(code)
}

/// Selects one of the possible prefixes (`starts`) of module names: `caller` followed by a dot, where `caller` is the
/// innermost part of the current scope. If this prefix is not among `starts` but `starts` has a single element, returns
/// that element. Returns an empty prefix otherwise.
fn start<'a>(starts: &'a [String], caller: Option<&[u8]>) -> &'a str {
    let is_of_caller = |start: &&String| start.strip_suffix('.').map(str::as_bytes) == caller;
    let alone = || starts.first().filter(|_| starts.len() == 1);
    let found = starts.iter().find(is_of_caller).or_else(alone);
    found.map_or("", String::as_str)
}

/// Returns the name of the model's module to which all operations of `module` belong. `module` is a graph module that
/// torch's compiler has made. Returns `None` for any other module, or if the operations do not all belong to the same
/// module of the model.
pub(crate) fn name_of_graph(py: Python<'_>, module: &Object<'_>) -> Option<String> {
    let path = call(py, c"module_of_graph", &[module])?;
    let path = path.as_text().filter(|path| !path.is_empty())?;
    let starts = known::around(&BTreeSet::from([path]));
    Some(start(&starts, scopes::innermost()).to_owned() + path)
}

/// Reads the result of `lines_of` in `compiled.py`: the functions that launch kernels, with the modules of the
/// launches.
fn read<'py>(functions: &Object<'py>) -> Vec<CodeLaunches<'py>> {
    let function = |pair: Object<'py>| {
        let lines: Vec<_> = pair
            .at(1)?
            .elements()
            .filter_map(|line| place(&line))
            .collect();
        let has_paths = lines.iter().any(|(_, paths)| !paths.is_empty());
        has_paths.then(|| Some((pair.at(0)?, lines)))?
    };
    functions.elements().filter_map(function).collect()
}

impl GraphCode {
    fn new(functions: Vec<CodeLaunches<'_>>, around: &str) -> Self {
        let mut names = ScopeNames::default();
        let functions = functions.into_iter().map(|(code, lines)| {
            let mut scopes: Vec<At<Scope>> = Vec::new();
            for (at, mut paths) in lines {
                for path in paths.iter_mut().filter(|path| !path.is_empty()) {
                    path.insert_str(0, around);
                }
                let name = fused::name(&paths).and_then(|name| names.keep(name));
                if scopes.last().is_none_or(|(_, last)| *last != name) {
                    scopes.push((at, name));
                }
            }
            ScopedFunction {
                code: code.release().addr(),
                scopes,
            }
        });
        let functions: Box<[ScopedFunction]> = functions.collect();
        Self(Box::leak(functions))
    }
}

/// Reads one pair `(offset, (path, …))`: the modules of the launches from this offset on.
fn place(line: &Object<'_>) -> Option<At<Paths>> {
    let at = usize::try_from(line.at(0)?.as_int()?).ok()?;
    let paths = line.at(1)?;
    let paths = paths
        .elements()
        .filter_map(|path| Some(path.as_text()?.to_owned()));
    Some((at, paths.collect()))
}

/// Scope names. Each name is stored once.
#[derive(Default)]
struct ScopeNames(BTreeMap<String, Scope>);

impl ScopeNames {
    fn keep(&mut self, name: String) -> Scope {
        *self.0.entry(name).or_insert_with_key(|name| {
            let label = Label::keep(|| name.bytes());
            label.map(Label::text)
        })
    }
}

impl scopes::Within for GraphCode {
    fn now(&self) -> Option<&'static [u8]> {
        let Self(functions) = *self;
        if functions.is_empty() {
            return None;
        }
        let (function, at) =
            own::find(|code| functions.iter().find(|function| function.code == code))?;
        let behind = function.scopes.partition_point(|(from, _)| *from <= at);
        function.scopes.get(behind.checked_sub(1)?)?.1
    }
}
