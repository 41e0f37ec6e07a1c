//! Tests that the PyTorch profiler runs in windows, with a stand-in for torch.

use std::path::Path;

use tllmprof_capture::AddOn;
use tllmprof_config::{IterationRange, TracePath, WindowList};

use super::hosted::{Host, in_few};
use crate::torch::profiler::{
    SOURCE, TorchProfiler, runs, window_closes, window_has_closed, window_opens, writes,
};

/// Python source of a stand-in for torch's profiler. `made` collects the options of each profiler
/// that is created.
const TORCH: &str = "
import types
__version__ = '2.1.0+made'
made = []
class profile:
    def __init__(self, **options):
        made.append(options)
    def start(self):
        if self.fails == 'start': raise RuntimeError('no luck\\nat all')
    def stop(self):
        if self.fails == 'stop': raise RuntimeError('no luck')
    def export_chrome_trace(self, path):
        with open(path, 'w') as trace: trace.write('{}')
    fails = ''
autograd = types.SimpleNamespace(profiler=types.SimpleNamespace())
activities = types.SimpleNamespace(CPU='CPU', CUDA='CUDA')
profiler = types.SimpleNamespace(
    profile=profile, supported_activities=lambda: {'CPU', 'CUDA'}, ProfilerActivity=activities)
";
const VARIABLES: &[(&str, &str)] = &[
    ("TLLM_TORCH_PROFILE_TRACE", "traces/trace.json"),
    ("TLLM_PROFILE_START_STOP", "5-9,20"),
];

fn window(text: &str) -> IterationRange {
    WindowList::parse(text).unwrap().as_slice()[0]
}

/// Opens and closes a window with the calls that the session makes.
fn passes(host: &Host, name: &str, rank: Option<u64>) {
    host.without_gil(|| {
        window_opens(window(name), rank, None, None);
        window_closes(false);
        window_has_closed();
    });
}

#[test]
fn each_window_has_a_trace() {
    in_few(VARIABLES, |host| {
        passes(host, "5-9", None);
        assert!(!Path::new("traces").exists()); // no trace: torch was not imported
        host.run_with_module("torch", TORCH, "import torch");
        host.without_gil(|| window_opens(window("5-9"), Some(3), None, None));
        assert!(runs() && !writes());
        assert!(TorchProfiler.loses().is_some());
        host.without_gil(|| window_closes(false));
        assert!(!runs() && !Path::new("traces/trace-rank-3.json").exists());
        host.without_gil(window_has_closed);
        assert!(Path::new("traces/trace-rank-3.json").exists());
        passes(host, "20", None);
        assert!(Path::new("traces/trace-rank-0-window-2.json").exists());
        // A window that is requested while the program runs may have a trace path of its own, other than the one in
        // the settings.
        let path = TracePath::parse("others/own.json").unwrap();
        host.without_gil(|| {
            window_opens(window("30-31"), Some(1), Some(1), Some(&path));
            window_closes(false);
            window_has_closed();
        });
        assert!(Path::new("others/own-rank-1-window-3.json").exists());
        host.run(
            "
import torch
expected = {'activities': ['CPU', 'CUDA'], 'record_shapes': True, 'with_modules': True}
assert torch.made == [expected] * 3, torch.made
",
        );
        host.end();
    });
}

#[test]
fn what_torch_raises_stays_out_of_the_program() {
    in_few(VARIABLES, |host| {
        for place in ["start", "stop"] {
            let fails = format!("import torch; torch.profile.fails = {place:?}");
            host.run_with_module("torch", TORCH, &fails);
            passes(host, "5-9", None);
            assert!(!runs() && !Path::new("traces/trace-rank-0.json").exists());
        }
        host.run("torch.profile.fails = ''");
        // If a trace is still being recorded when the interpreter ends, the end of the interpreter writes it.
        host.without_gil(|| window_opens(window("5-9"), None, None, None));
        assert!(runs());
        host.end();
        assert!(!runs() && Path::new("traces/trace-rank-0.json").exists());
    });
}

#[test]
fn the_options_are_those_that_this_pytorch_has() {
    in_few(&[], |host| {
        host.run_with_module("torch", TORCH, "import torch");
        host.with(|py| {
            let names = py.run(SOURCE, c"<test>").unwrap();
            let checks = py.run(
                c"
import torch, types
def check(options):
    assert sorted(options(torch, True)['activities']) == ['CPU']
    torch.__version__ = '2.15.1'
    assert 'with_modules' not in options(torch, False)
    def made(self, activities, acc_events=False): pass
    torch.profiler.profile = type('profile', (), {'__init__': made})
    assert options(torch, False)['acc_events']
    config = types.SimpleNamespace(_ExperimentalConfig=lambda **named: named)
    torch._C = types.SimpleNamespace(_profiler=config)
    assert options(torch, False)['experimental_config'] == {'profile_all_threads': True}
    config._ExperimentalConfig = lambda: None
    assert 'experimental_config' not in options(torch, False)
",
                c"<test>",
            );
            let check = checks.unwrap().item(c"check").unwrap();
            let checked = check.try_call(&[&names.item(c"_options").unwrap()]);
            assert!(checked.is_ok());
        });
    });
}
