//! Writes the events of the simulated inference engine's record.

use tllmprof_record::builder::Builder;
use tllmprof_record::{CopyKind, Edge, Event, GraphState, RangeKind, StringId, What};

use super::{MAIN, START, US};

pub(crate) struct NameIds {
    pub ranges: Vec<StringId>,
    pub layers: Vec<StringId>,
    pub kernels: Vec<StringId>,
    pub domain: StringId,
    pub step: StringId,
    pub detokenise: StringId,
    pub idle: StringId,
}

pub(crate) struct RecordWriter {
    pub builder: Builder,
    pub names: NameIds,
    pub main: u32,
    pub events: u64,
    /// Number of launches that have been written.
    pub launches: u32,
    pub has_scopes: bool,
}

/// The modules of a layer. Each launches one kernel: the module at index n launches the layer's kernel n.
const MODULES: [&str; 6] = [
    "self_attn.attn",
    "mlp.down_proj",
    "input_layernorm",
    "mlp.act_fn",
    "mlp",
    "self_attn.rotary_emb",
];

/// ID of the scope (module of the model) in which the first kernel of the engine's CUDA graph is launched. The scope
/// of the graph's second kernel is not known.
const SAMPLE: u32 = 1;

/// Returns the ID of the scope (module of the model) that launches a kernel, which is given by its layer and its
/// index in the layer.
pub(crate) const fn scope_of(layer: u64, kernel: usize) -> u32 {
    SAMPLE + 1 + (layer * MODULES.len() as u64) as u32 + kernel as u32
}

/// Functions of sampled stacks, each with the ID of the caller's frame; 0 for a function without a
/// caller.
const FRAMES: [(&str, u32); 9] = [
    (
        "EngineCoreProc.run_engine_core (vllm/v1/engine/core.py:870)",
        0,
    ),
    ("EngineCore.step (vllm/v1/engine/core.py:310)", 1),
    (
        "Scheduler.schedule (vllm/v1/core/sched/scheduler.py:180)",
        2,
    ),
    (
        "KVCacheManager.allocate_slots (vllm/v1/core/kv_cache_manager.py:220)",
        3,
    ),
    (
        "GPUModelRunner.execute_model (vllm/v1/worker/gpu_model_runner.py:2300)",
        2,
    ),
    (
        "GPUModelRunner._prepare_inputs (vllm/v1/worker/gpu_model_runner.py:1100)",
        5,
    ),
    (
        "LlamaModel.forward (vllm/model_executor/models/llama.py:330)",
        5,
    ),
    ("Sampler.forward (vllm/v1/sample/sampler.py:70)", 2),
    ("Queue.get (/usr/lib/python3.12/queue.py:154)", 1),
];

impl RecordWriter {
    pub(crate) fn put(&mut self, thread: u32, start: u64, duration: u64, what: What) {
        self.events += 1;
        self.builder
            .push(self.main + thread * 100, &Event::new(start, duration, what));
    }

    /// Writes the frames of sampled stacks. In records they come after the samples.
    pub(crate) fn frames(&mut self) {
        for (id, (name, parent)) in (1..).zip(FRAMES) {
            let sampler = self.main + 200;
            let name = self.builder.string(sampler, name);
            let what = What::Frame { id, parent, name };
            self.builder.push(sampler, &Event::new(START, 0, what));
        }
    }

    /// Writes the scopes of the model's layers, which are the names of their modules.
    pub(crate) fn scopes(&mut self, layers: u64) {
        let mut scope = |id, name: &str| {
            let name = self.builder.string(self.main, name);
            let what = What::Scope {
                id,
                parent: 0,
                name,
            };
            self.builder.push(self.main, &Event::new(START, 0, what));
        };
        scope(SAMPLE, "sampler");
        for layer in 0..layers {
            for (kernel, module) in MODULES.iter().enumerate() {
                let name = format!("model.layers.{layer}.{module}");
                scope(scope_of(layer, kernel), &name);
            }
        }
    }

    /// Writes that the main thread enters a scope (a module of the model) at the time `at`. The scope then applies to
    /// the thread's launches.
    pub(crate) fn enter(&mut self, at: u64, scope: u32) {
        if self.has_scopes {
            let what = What::InScope { scope };
            self.builder.push(self.main, &Event::new(at, 0, what));
        }
    }

    /// Writes that the latest kernel was the node with number `node` of the engine's CUDA graph.
    pub(crate) fn node(&mut self, start: u64, node: u32) {
        if self.has_scopes {
            let what = What::KernelNode {
                device: 0,
                stream: MAIN as u16,
                exec: 1,
                node,
            };
            self.builder.push(self.main, &Event::new(start, 0, what));
        }
    }

    /// Writes that the first node of a graph was captured in the scope [`SAMPLE`]. Also writes the executable graph
    /// that was made from this graph.
    pub(crate) fn graph(&mut self, at: u64) {
        let nodes = What::GraphNodes {
            graph: 1,
            first: 0,
            count: 1,
            scope: SAMPLE,
        };
        let exec = What::GraphExec {
            state: Some(GraphState::Known),
            exec: 1,
            graph: 1,
        };
        for what in [nodes, exec] {
            self.builder.push(self.main, &Event::new(at, 0, what));
        }
    }

    pub(crate) fn edge(&mut self, at: u64, edge: Edge, iteration: u64) {
        self.builder.push(
            self.main,
            &Event::new(at, 0, What::Window { edge, iteration }),
        );
    }

    pub(crate) fn kernel_edge(&mut self, at: u64, edge: Edge, iteration: u64) {
        let what = What::KernelWindow { edge, iteration };
        self.builder.push(self.main, &Event::new(at, 0, what));
    }

    pub(crate) fn range(&mut self, name: usize, start: u64, end: u64) {
        self.named_range(self.names.ranges[name], start, end);
    }

    pub(crate) fn named_range(&mut self, name: StringId, start: u64, end: u64) {
        let domain = self.names.domain;
        let kind = RangeKind::PushPop;
        self.put(0, start, end - start, What::Range { kind, domain, name });
    }

    pub(crate) fn call(&mut self, start: u64, duration: u64, row: u8) {
        let (capturing, stream) = (false, 0x7f00);
        self.put(
            0,
            start,
            duration,
            What::Call {
                row,
                capturing,
                stream,
            },
        );
    }

    pub(crate) fn kernel(&mut self, start: u64, duration: u64, kernel: usize) {
        let name = self.names.kernels[kernel];
        let stream = MAIN as u16;
        self.put(
            0,
            start,
            duration,
            What::GpuKernel {
                device: 0,
                stream,
                name,
                correlation: self.launches,
            },
        );
    }

    pub(crate) fn copy(&mut self, stream: u64, start: u64, kind: CopyKind, bytes: u64) {
        let stream = stream as u16;
        let duration = 2 * US + bytes / 50;
        self.put(
            0,
            start,
            duration,
            What::GpuCopy {
                device: 0,
                stream,
                kind,
                bytes,
            },
        );
    }
}
