//! Data about the process in the simulated engine's record: its command line, the kinds of its calls, and its routers.

use tllmprof_record::{Anchor, CallKind, Event, Info, What};

use super::record_writer::RecordWriter;
use super::{COPY, Engine, GRAPH, KERNEL, MS, START, UNIX, WAIT};

/// Returns the number of tokens that a layer's learned router sent to an expert. In layer 0 all experts get the same
/// number. In layer n, the numbers vary by less than 400, and one expert gets another 80 n tokens. In the last layer,
/// every eighth expert gets none.
fn tokens(layer: u64, layers: u64, expert: u64) -> u64 {
    let noise = (layer * 7919 + expert * 104_729) % 97;
    let most = if expert == layer * 5 % 16 {
        layer * 80
    } else {
        0
    };
    match layer + 1 == layers && expert % 8 == 3 {
        true => 0,
        false => 1000 + noise * layer % 400 + most,
    }
}

impl Engine {
    pub(super) fn routing(&self, to: &mut RecordWriter) {
        let main = to.main;
        let mut push = |what| to.builder.push(main, &Event::new(START, 0, what));
        for layer in 0..self.layers {
            for expert in 0..self.experts {
                push(What::ExpertLoad {
                    layer: layer as u16,
                    expert,
                    tokens: tokens(layer, self.layers, u64::from(expert)),
                });
            }
        }
        if self.experts > 0 {
            for layer in 0..self.layers {
                let name = format!("Qwen3MoeSparseMoeBlock.gate {layer}");
                let value = layer << 32 | u64::from(to.builder.string(main, &name));
                let key = Some(Info::Router);
                to.builder
                    .push(main, &Event::new(START, 0, What::Info { key, value }));
            }
        }
        let replaced = "output is intentionally wrong: the routers are replaced";
        let no_kernels = "no kernels: CUPTI took too long to load";
        let lines = [(self.replaced, replaced), (self.kernels == 0, no_kernels)];
        for (_, line) in lines.iter().filter(|(is_so, _)| *is_so) {
            let value = u64::from(to.builder.string(main, line));
            let key = Some(Info::Refused);
            to.builder
                .push(main, &Event::new(START, 0, What::Info { key, value }));
        }
    }

    pub(super) fn facts(&self, to: &mut RecordWriter) {
        for ns in [START, START + 20_000 * MS] {
            to.builder.header().anchor(Anchor {
                ticks: ns,
                monotonic_ns: ns,
                unix_ns: ns + UNIX,
            });
        }
        let main = to.main;
        for (key, text) in [
            (
                Info::CommandLine,
                "python3 -m vllm.entrypoints.openai.api_server --model meta-llama/Llama-3.1-8B -tp 4",
            ),
            (Info::Host, "gpu7"),
            (Info::Rule, "py:vllm.v1.engine.core:EngineCore.step"),
            (Info::RuleWhy, "auto knows vLLM"),
            (Info::Engine, "vLLM 0.11.0"),
            (Info::Version, "0.1.0"),
            (Info::Python, "3.12.3"),
            (Info::Gpu, "NVIDIA H200"),
            (Info::Process, "VllmWorker"),
            (Info::Boot, "a-boot"),
            (Info::Windows, "100-150"),
            (Info::Setting, "TLLMPROF_GIL=1"),
            (Info::Refused, "GPU metrics: NVML gives none to this user"),
        ] {
            let value = u64::from(to.builder.string(main, text));
            let key = Some(key);
            to.builder
                .push(main, &Event::new(START, 0, What::Info { key, value }));
        }
        let stacks = (self.stacks > 0).then_some((Info::StacksRate, self.stacks));
        let numbers = [(Info::Rank, self.rank), (Info::CudaDriver, 13_000)];
        for (key, value) in numbers.into_iter().chain(stacks) {
            let key = Some(key);
            to.builder
                .push(main, &Event::new(START, 0, What::Info { key, value }));
        }
        for (row, kind, name) in [
            (GRAPH, CallKind::GraphLaunch, "cuGraphLaunch"),
            (KERNEL, CallKind::KernelLaunch, "cuLaunchKernelEx"),
            (COPY, CallKind::AsyncCopy, "cuMemcpyAsync"),
            (WAIT, CallKind::Wait, "cuEventSynchronize"),
        ] {
            let name = to.builder.string(main, name);
            let kind = Some(kind);
            to.builder.push(
                main,
                &Event::new(START, 0, What::CallName { row, kind, name }),
            );
        }
        for (thread, name) in [(main, "EngineCore"), (main + 100, "detokenizer")] {
            let name = to.builder.string(thread, name);
            to.builder
                .push(thread, &Event::new(START, 0, What::ThreadName { name }));
        }
    }
}
