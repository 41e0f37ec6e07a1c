//! Checks rules that count the program's own NVTX ranges as iterations, with and without another NVTX tool.

mod common;

use std::path::PathBuf;
use std::time::Duration;

use common::{Output, Record, Scratch, built_command, command, nvtx, read_log, run, shim, standin};

const TIMEOUT: Duration = Duration::from_secs(300);

/// A program of `tests/nvtx` that is ready to run on the stand-in for CUDA.
struct Program {
    path: PathBuf,
    scratch: Scratch,
}

struct Ran {
    output: Output,
    log: Vec<Record>,
}

impl Program {
    fn new(name: &str) -> Self {
        let scratch = Scratch::new("nvtx");
        let path = nvtx::program(&scratch, &format!("nvtx/{name}.c"));
        Self { path, scratch }
    }

    fn library(&self, name: &str, copy: &str) -> PathBuf {
        nvtx::library(&self.scratch, &format!("nvtx/{name}.c"), copy)
    }

    /// Runs the program without preloading `libtllmprof.so`.
    fn plain(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Ran {
        let log = self.scratch.path("log");
        let _ = std::fs::remove_file(&log);
        let mut program = built_command(&self.path);
        program
            .args(arguments)
            .env("LD_LIBRARY_PATH", standin())
            .env("STANDIN_LOG", &log)
            .current_dir(self.scratch.folder())
            .envs(variables.iter().copied());
        let output = run(&mut program, TIMEOUT);
        let log = read_log(&log);
        Ran { output, log }
    }

    /// Runs the program with the library, a rule and windows.
    fn run(&self, arguments: &[&str], rule: &str, windows: &str, more: &[(&str, &str)]) -> Ran {
        let shim = shim();
        let mut variables = vec![
            ("LD_PRELOAD", shim.to_str().expect("a path in UTF-8")),
            ("TLLMPROF_STEP", rule),
            ("TLLM_PROFILE_START_STOP", windows),
        ];
        variables.extend(more);
        self.plain(arguments, &variables)
    }
}

impl Ran {
    /// Returns each start and stop of the profiler in the driver's log, with the numbers of the program's launches
    /// and waits before it.
    fn switches(&self) -> Vec<(&str, usize, usize)> {
        let program = self.log.first().map(|first| first.tid);
        let (mut launches, mut waits) = (0, 0);
        let mut switches = Vec::new();
        for record in &self.log {
            match record.function.as_str() {
                "cuProfilerStart" => switches.push(("start", launches, waits)),
                "cuProfilerStop" => switches.push(("stop", launches, waits)),
                name if name.starts_with("cuGraphLaunch") => launches += 1,
                name if name.ends_with("_end") && Some(record.tid) == program => waits += 1,
                _ => {}
            }
        }
        switches
    }

    #[track_caller]
    fn said(&self, wanted: &str) {
        assert!(self.output.err().contains(wanted), "{}", self.output.err());
    }

    /// Returns the lines that the NVTX tool (`tool.c`) printed, one for each process, in the order in which the
    /// processes ended.
    fn tools(&self) -> Vec<String> {
        let said = self.output.err();
        let lines = said.lines().filter_map(|line| line.strip_prefix("tool: "));
        lines.map(str::to_owned).collect()
    }
}

/// Asserts that the window opens before the range of its first step is pushed, and closes after the range of its last
/// step is popped. Each step launches twice, once within the range and once after it.
#[track_caller]
fn window_is_exact(kind: &str, rule: &str) {
    let program = Program::new("ranges");
    let plain = program.plain(&[kind], &[]);
    let ran = program.run(&[kind], rule, "5-9", &[]);
    assert!(ran.output.status.success(), "{}", ran.output.err());
    assert_eq!(ran.output.out(), plain.output.out(), "{kind} by {rule}");
    assert_eq!(
        ran.switches(),
        [("start", 10, 5), ("stop", 19, 10)],
        "{kind} by {rule}: {}",
        ran.output.err()
    );
    ran.said("window 5-9 opened at iteration 5");
    ran.said("window 5-9 captured: 40 iterations");
}

#[test]
fn pushed_names() {
    window_is_exact("push_a", "nvtx:^step");
    window_is_exact("push_a", r"nvtx:^step \d+$");
    window_is_exact("push_w", "nvtx:^step");
    window_is_exact("push_ex", "nvtx:^step");
}

#[test]
fn registered_strings_in_a_domain() {
    window_is_exact("domain_push", "nvtx:^step of the engine$");
    window_is_exact("domain_push", "nvtx:step@engine");
    window_is_exact("domain_push", "nvtx:step@other");
    window_is_exact("domain_push_wide", "nvtx:^step@engine");
    window_is_exact("domain_push_wide", "nvtx:wide$");
}

#[test]
fn started_ranges_end_on_other_threads() {
    let program = Program::new("ranges");
    let ran = program.run(&["start"], "nvtx:^step", "5-9", &[]);
    let plain = program.plain(&["start"], &[]);
    assert_eq!(ran.output.out(), plain.output.out());
    assert_eq!(ran.switches(), [("start", 10, 5), ("stop", 19, 10)]);
    let ran = program.run(&["domain_start"], "nvtx:step@engine", "5-9", &[]);
    assert_eq!(ran.switches(), [("start", 10, 5), ("stop", 19, 10)]);
}

#[test]
fn every_fourth_range() {
    let program = Program::new("ranges");
    let ran = program.run(&["push_a"], "nvtx:^step/4", "2-3", &[]);
    assert_eq!(ran.switches(), [("start", 16, 8), ("stop", 31, 16)]);
    ran.said("window 2-3 captured: 10 iterations");
}

#[test]
fn nested_matches_count_each() {
    let program = Program::new("ranges");
    let ran = program.run(&["nested"], "nvtx:^step", "11", &[]);
    // In this program, each step has two matching ranges, one within the other. Iteration 11 is the inner range of step
    // 5.
    assert_eq!(ran.switches(), [("start", 10, 5), ("stop", 11, 6)]);
    ran.said("window 11 captured: 80 iterations");
}

#[test]
fn ranges_that_nothing_pops_end_with_the_next() {
    let program = Program::new("ranges");
    let ran = program.run(&["unpopped"], "nvtx:^step", "5-9", &[]);
    assert_eq!(ran.switches(), [("start", 10, 5), ("stop", 20, 10)]);
}

#[test]
fn ranges_during_a_stream_capture_are_no_iterations() {
    window_is_exact("captured", "nvtx:^step");
}

#[test]
fn threads_are_counted_exactly() {
    let program = Program::new("threads");
    for window in ["1000000000", "100000-100100"] {
        let ran = program.run(&[], "nvtx:^step", window, &[]);
        assert!(ran.output.status.success());
        ran.said(": 160000 iterations by nvtx:^step");
    }
}

#[test]
fn modules_with_an_nvtx_of_their_own() {
    let program = Program::new("modules");
    let libraries: Vec<PathBuf> = (0..20)
        .map(|n| program.library("module", &n.to_string()))
        .collect();
    let arguments: Vec<&str> = libraries
        .iter()
        .map(|path| path.to_str().unwrap())
        .collect();
    let tool = program.library("tool", "");
    for more in [
        vec![],
        vec![("NVTX_INJECTION64_PATH", tool.to_str().unwrap())],
    ] {
        let plain = program.plain(&arguments, &more);
        let ran = program.run(&arguments, "nvtx:^step", "5-9", &more);
        assert_eq!(ran.output.out(), plain.output.out());
        assert_eq!(ran.switches(), [("start", 10, 5), ("stop", 19, 10)]);
        assert_eq!(ran.tools().len(), more.len());
    }
}

/// The NVTX tool counts the same events with the library as without it, and the program gets the same return values.
#[test]
fn a_tool_gets_every_event() {
    let program = Program::new("ranges");
    let tool = program.library("tool", "");
    let tool = ("NVTX_INJECTION64_PATH", tool.to_str().unwrap());
    for (kind, rule) in [
        ("push_a", "nvtx:^step"),
        ("push_w", "nvtx:^step"),
        ("push_ex", "nvtx:^step"),
        ("domain_push", "nvtx:^step@engine"),
        ("domain_push_wide", "nvtx:^step@engine"),
        ("start", "nvtx:^step"),
        ("domain_start", "nvtx:^step@engine"),
    ] {
        let plain = program.plain(&[kind], &[tool]);
        // Without `TLLMPROF_NVTX=0`, the tool would also get the library's own ranges.
        let ran = program.run(&[kind], rule, "5-9", &[tool, ("TLLMPROF_NVTX", "0")]);
        assert_eq!(ran.output.out(), plain.output.out(), "{kind}");
        assert_eq!(ran.tools(), plain.tools(), "{kind}");
        assert_eq!(ran.tools().len(), 1, "{kind}");
        assert!(
            ran.tools()[0].ends_with("foreign=0"),
            "{kind}: {:?}",
            ran.tools()
        );
        assert_eq!(
            ran.switches(),
            [("start", 10, 5), ("stop", 19, 10)],
            "{kind}"
        );
    }
}

/// If no environment variable names an NVTX tool, NVTX uses a tool that is linked into the program. tllmprof sets the
/// variable to become NVTX's tool, and must still pass all events to the linked tool.
#[test]
fn a_tool_that_is_linked_in_gets_every_event() {
    for options in [
        &["nvtx/linked_tool.c"][..],
        &["nvtx/linked_tool.c", "-rdynamic"],
    ] {
        let mut program = Program::new("ranges");
        program.path = nvtx::program_with(&program.scratch, "nvtx/ranges.c", "linked", options);
        for kind in ["push_a", "domain_push", "start"] {
            let plain = program.plain(&[kind], &[]);
            let ran = program.run(&[kind], "nvtx:^step", "5-9", &[("TLLMPROF_NVTX", "0")]);
            assert_eq!(ran.output.out(), plain.output.out(), "{kind}");
            assert_eq!(ran.tools(), plain.tools(), "{kind}");
            assert!(
                ran.tools()[0].starts_with("modules=1 "),
                "{kind}: {:?}",
                ran.tools()
            );
            assert_eq!(ran.switches().len(), 2, "{kind}: {}", ran.output.err());
            // With TOOL_FAILS, the tool's initialization function returns an error.
            let refuses = [("TLLMPROF_NVTX", "0"), ("TOOL_FAILS", "1")];
            let plain = program.plain(&[kind], &refuses);
            let ran = program.run(&[kind], "nvtx:^step", "5-9", &refuses);
            assert_eq!(ran.tools(), plain.tools(), "{kind}");
            assert_eq!(ran.switches().len(), 2, "{kind}: {}", ran.output.err());
        }
    }
    let mut program = Program::new("extension");
    let options = ["nvtx/linked_tool.c"];
    program.path = nvtx::program_with(&program.scratch, "nvtx/extension.c", "linked", &options);
    let plain = program.plain(&[], &[]);
    let ran = program.run(&[], "nvtx:^step", "all", &[("TLLMPROF_NVTX", "0")]);
    assert_eq!(ran.output.out(), "schema 4711\nenabled 1\n");
    assert_eq!(ran.output.out(), plain.output.out());
    assert_eq!(ran.tools(), plain.tools());
}

/// Two libraries of the program each have a copy of NVTX, and the second library has a tool linked in. With tllmprof,
/// each copy must use the same tool as without it. This also holds if the environment variable names a tool.
#[test]
fn two_tools_get_every_event_of_their_copies() {
    let program = Program::new("modules");
    let of = |name: &str, options: &[&str]| {
        let library = nvtx::library_with(&program.scratch, "nvtx/module.c", name, options);
        library.display().to_string()
    };
    let first = of("first", &[]);
    let by_variable = program.library("tool", "").display().to_string();
    let variable = ("NVTX_INJECTION64_PATH", by_variable.as_str());
    // Three builds of the second library. In `exported`, the linked tool's function is exported, but tllmprof's
    // function of the same name comes first. In `bound`, the linked tool's function is bound within the library. In
    // `alone`, NVTX also ignores the environment variable, so tllmprof does not see this library's half of the
    // ranges.
    let own = "-Wl,-Bsymbolic";
    let alone = "-DNVTX_SUPPORT_ENV_VARS=0";
    for (name, options, seen) in [
        ("exported", &["nvtx/linked_tool.c"][..], 40),
        ("bound", &["nvtx/linked_tool.c", own], 40),
        ("alone", &["nvtx/linked_tool.c", own, alone], 20),
    ] {
        let arguments = [first.as_str(), &of(name, options)];
        for variables in [&[][..], &[variable]] {
            let sorted = |ran: &Ran| {
                let mut tools = ran.tools();
                tools.sort();
                tools
            };
            let plain = program.plain(&arguments, variables);
            let variables = [variables, &[("TLLMPROF_NVTX", "0")]].concat();
            let ran = program.run(&arguments, "nvtx:^step", "5-9", &variables);
            let said = ran.output.err();
            assert_eq!(ran.output.out(), plain.output.out(), "{name}");
            assert_eq!(sorted(&ran), sorted(&plain), "{name}: {said}");
            assert_eq!(ran.tools().len(), variables.len(), "{name}: {said}");
            ran.said(&format!("window 5-9 captured: {seen} iterations"));
            assert_eq!(ran.switches().len(), 2, "{name}: {said}");
        }
    }
}

/// The library opens NVTX ranges of its own. They reach the tool, but do not count as ranges of the program.
#[test]
fn own_ranges_do_not_count() {
    let program = Program::new("ranges");
    let tool = program.library("tool", "");
    let tool = ("NVTX_INJECTION64_PATH", tool.to_str().unwrap());
    let ran = program.run(&["push_a"], "nvtx:.", "all", &[tool]);
    // A step pushes two ranges, and there are 40 steps.
    ran.said("window all captured: 80 iterations");
    let ran = program.run(&["push_a"], "nvtx:^step", "5-9", &[tool]);
    // The tool gets the library's own ranges: 40 iterations and one capture.
    assert!(
        ran.tools()[0].contains(" starts=41 ends=41 "),
        "{:?}",
        ran.tools()
    );
    let ran = program.run(&["push_a"], "nvtx:iteration", "all", &[tool]);
    ran.said("window all never opened: 0 iterations by nvtx:iteration");
}

#[test]
fn a_tool_that_fails_gets_nothing() {
    let program = Program::new("ranges");
    let tool = program.library("tool", "");
    let more = [
        ("NVTX_INJECTION64_PATH", tool.to_str().unwrap()),
        ("TOOL_FAILS", "1"),
    ];
    let plain = program.plain(&["push_a"], &more);
    let ran = program.run(&["push_a"], "nvtx:^step", "5-9", &more);
    assert_eq!(ran.output.out(), plain.output.out());
    assert!(ran.output.out().contains("-2 -2"), "{}", ran.output.out());
    assert_eq!(ran.switches(), [("start", 10, 5), ("stop", 19, 10)]);

    let more = [("NVTX_INJECTION64_PATH", "/nonexistent/tool.so")];
    let ran = program.run(&["push_a"], "nvtx:^step", "5-9", &more);
    assert_eq!(ran.output.out(), plain.output.out());
    assert_eq!(ran.switches(), [("start", 10, 5), ("stop", 19, 10)]);
}

#[test]
fn a_thread_is_cancelled_in_the_tool() {
    let program = Program::new("cancelled");
    let tool = program.library("tool", "");
    let more = [("NVTX_INJECTION64_PATH", tool.to_str().unwrap())];
    let ran = program.run(&[], "nvtx:^step", "0", &more);
    assert_eq!(ran.output.out(), "cancelled\n", "{}", ran.output.err());
    assert!(ran.output.status.success());
    ran.said("window 0 captured: 1 iterations");
}

#[test]
fn extensions_are_the_tools() {
    let program = Program::new("extension");
    let tool = program.library("tool", "");
    let tool = ("NVTX_INJECTION64_PATH", tool.to_str().unwrap());
    let ran = program.run(&[], "nvtx:^step", "all", &[tool, ("TLLMPROF_NVTX", "0")]);
    assert_eq!(ran.output.out(), "schema 4711\nenabled 1\n");
    let counted = " extensions=1 pushes=1 pops=1 starts=0 ends=0 marks=1 ";
    assert!(ran.tools()[0].contains(counted), "{:?}", ran.tools());
    ran.said("window all captured: 1 iterations");
}

/// Some programs ask NVTX if a tool is loaded before they open ranges. With a rule for ranges, tllmprof is such a tool,
/// so the answer must be yes.
#[test]
fn a_program_asks_whether_anybody_listens() {
    let program = Program::new("extension");
    let old = program.library("tool_of_old", "");
    let old = [("NVTX_INJECTION64_PATH", old.to_str().unwrap())];
    let gone = [("NVTX_INJECTION64_PATH", "/nonexistent/tool.so")];
    // Each entry has environment variables, and the program's answer (1 if it sees a tool) without and with a rule for
    // ranges.
    for (variables, without, with) in [(&[][..], 0, 1), (&old, 1, 1), (&gone, 0, 1)] {
        for (rule, answer) in [("cudaGraphLaunch", without), ("nvtx:^step", with)] {
            let ran = program.run(&[], rule, "all", variables);
            let wanted = format!("schema 0\nenabled {answer}\n");
            assert_eq!(ran.output.out(), wanted, "{rule}, {variables:?}");
            ran.said("window all captured: 1 iterations");
        }
    }
}

/// A process of the program starts a child. Each of them loads its NVTX tool exactly once, in whatever way the child
/// was started.
#[test]
fn children_do_not_chain_to_themselves() {
    let program = Program::new("children");
    let tool = program.library("tool", "");
    let tool = ("NVTX_INJECTION64_PATH", tool.to_str().unwrap());
    // Each entry: the argument KIND, the pushes that the child's tool counts, and the number of captured windows. After
    // a fork, the child's tool continues its parent's count.
    for (kind, child, captured) in [("fork", 5, 1), ("preload", 3, 2), ("bare", 3, 1)] {
        let ran = program.run(
            &[kind],
            "nvtx:^step",
            "all",
            &[tool, ("TLLMPROF_NVTX", "0")],
        );
        assert!(ran.output.status.success(), "{kind}: {}", ran.output.err());
        let pushes: Vec<bool> = ran
            .tools()
            .iter()
            .zip([child, 4])
            .map(|(tool, count)| {
                tool.starts_with(&format!(
                    "modules=1 extensions=0 pushes={count} pops={count} "
                ))
            })
            .collect();
        assert_eq!(pushes, [true, true], "{kind}: {:?}", ran.tools());
        ran.said("window all captured: 4 iterations");
        let said = ran.output.err();
        assert_eq!(said.matches(" captured: ").count(), captured, "{said}");
        assert_eq!(
            said.contains(" captured: 3 iterations"),
            kind == "preload",
            "{said}"
        );
        let alone = program.run(&[kind], "nvtx:^step", "all", &[]);
        assert!(
            alone.output.status.success(),
            "{kind}: {}",
            alone.output.err()
        );
    }
}

/// A rule for ranges makes the library change the variable that names the NVTX tool. In a child with another rule, the
/// library restores the variable.
#[test]
fn another_rule_puts_the_tool_back() {
    let shim = shim();
    let value = |rule: &str, tool: &str| {
        let mut shell = command("sh");
        shell
            .args([
                "-c",
                &format!("TLLMPROF_STEP={rule} sh -c 'env' | grep NVTX_ | sort"),
            ])
            .env("LD_PRELOAD", &shim)
            .env("TLLMPROF_STEP", "nvtx:^step")
            .env("TLLMPROF_START_STOP", "5-9");
        if !tool.is_empty() {
            shell.env("NVTX_INJECTION64_PATH", tool);
        }
        run(&mut shell, TIMEOUT).out()
    };
    assert_eq!(value("auto", ""), "");
    assert_eq!(
        value("auto", "/a/tool.so"),
        "NVTX_INJECTION64_PATH=/a/tool.so\n"
    );
    let shim = std::fs::canonicalize(&shim).unwrap();
    assert_eq!(
        value("nvtx:f", "/a/tool.so"),
        format!(
            "NVTX_INJECTION64_PATH={}\nTLLMPROF_NVTX_CHAIN=/a/tool.so\n",
            shim.display()
        )
    );
}

#[test]
fn what_was_not_matched_is_reported() {
    let program = Program::new("ranges");
    let ran = program.run(&["push_a"], "nvtx:^stap", "5-9", &[]);
    ran.said("window 5-9 never opened: 0 iterations by nvtx:^stap; no NVTX range matched, there were \"step");
    ran.said("; it made 80 graph launches and 40 stream waits: try auto");
    let ran = program.run(&["domain_push"], "nvtx:default@engine", "5-9", &[]);
    ran.said("\"step of the default domain\" in another domain");
    let ran = program.run(&["domain_push"], "nvtx:inner@other", "5-9", &[]);
    ran.said("\"inner\" in another domain");
    let program = Program::new("modules");
    let silent = program.library("silent", "");
    let ran = program.run(&[silent.to_str().unwrap()], "nvtx:^step", "5-9", &[]);
    ran.said("0 iterations by nvtx:^step; no NVTX range was seen; it made 80 graph launches");
    let program = Program::new("ranges");
    let ran = program.run(&["push_a", "40", "elsewhere"], "nvtx:^step", "5-9", &[]);
    ran.said("; NVTX_INJECTION64_PATH does not lead here, so its NVTX ranges were not seen");
}

#[test]
fn a_process_without_cuda_says_nothing() {
    let program = Program::new("no_cuda");
    let ran = program.run(&[], "nvtx:^step", "5-9", &[]);
    assert_eq!(ran.output.status.code(), Some(3));
    assert_eq!(ran.output.out(), "done\n");
    assert_eq!(ran.output.err(), "");
}

#[test]
fn an_allocator_may_open_ranges() {
    let program = Program::new("allocator");
    for windows in ["5-9", "0,3,6,9,12,15,18,21"] {
        let ran = program.run(&[], "nvtx:^step", windows, &[]);
        assert!(ran.output.status.success(), "{:?}", ran.output);
        assert_eq!(ran.output.out(), "done\n");
    }
}

/// The library passes NVTX calls on to the next tool. Two copies of the library, in one process or in a parent and a
/// child, must not pass the calls to each other without end.
#[test]
fn copies_do_not_chain_to_each_other() {
    let program = Program::new("children");
    let shim = shim();
    for name in ["libtllmprof.so", "another.so"] {
        let folder = program.scratch.path(&format!("of-{name}"));
        std::fs::create_dir(&folder).expect("the test's folder");
        let copy = folder.join(name);
        std::fs::copy(&shim, &copy).expect("the library can be copied");
        let both = format!("{}:{}", shim.display(), copy.display());
        for kind in ["fork", "preload"] {
            let ran = program.run(&[kind], "nvtx:^step", "all", &[("LD_PRELOAD", &both)]);
            assert!(ran.output.status.success(), "{kind}: {:?}", ran.output);
            ran.said("window all captured: 4 iterations");
        }
    }
}
