//! The record of a simulated inference engine. Tests know all its ranges, calls, kernels, copies,
//! garbage collections and holds of the GIL.

#![allow(dead_code)] // each test file uses only a part of this module

mod facts;
mod record_writer;

use tllmprof_record::builder::Builder;
use tllmprof_record::{
    Batch, ClockKind, CopyKind, Counter, Edge, Ended, Event, Info, Metric, Taken, ThreadState, What,
};

use record_writer::{NameIds, RecordWriter, scope_of};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const START: u64 = 5_000 * MS;
/// Unix time minus `CLOCK_MONOTONIC`, in nanoseconds.
const UNIX: u64 = 1_700_000_000_000_000_000;

const GRAPH: u8 = 0;
const KERNEL: u8 = 1;
const COPY: u8 = 4;
const WAIT: u8 = 8;
const MAIN: u64 = 7;
const SIDE: u64 = 14;

/// The name of a kernel that contains HTML and script. If it were not escaped, it would end an element of the page or
/// run the script.
pub(crate) const HOSTILE: &str = "evil</script><script>alert(1)</script>\u{2028}<!-- & \"quoted\" \u{202e}\n\x1b[31m<img onerror=alert(1)>";

const KERNELS: [(&str, u64); 6] = [
    (
        "void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4>>(Flash_fwd_params)",
        46,
    ),
    (
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1",
        61,
    ),
    (
        "void vllm::rms_norm_kernel<c10::BFloat16>(c10::BFloat16*, c10::BFloat16 const*, float, int)",
        4,
    ),
    (
        "void vllm::act_and_mul_kernel<c10::BFloat16, silu_kernel>(c10::BFloat16*, int)",
        7,
    ),
    (
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        22,
    ),
    (
        "void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*, c10::BFloat16*)",
        5,
    ),
];

/// A rank of the simulated engine, and the contents of its record.
pub(crate) struct Engine {
    pub rank: u64,
    /// The windows (recorded intervals), each as the numbers of its first and its last iteration.
    pub windows: Vec<(u64, u64)>,
    /// Number of layers of the rank's model. Each layer launches six kernels.
    pub layers: u64,
    /// Number of iterations with recorded kernels in each window (recorded interval); 0 if CUPTI could not be attached.
    pub kernels: u64,
    /// True if one kernel has the name [`HOSTILE`], which would harm a page if it were not escaped.
    pub hostile: bool,
    /// Number of experts in each layer; 0 if the model has none.
    pub experts: u16,
    /// True if the record says that inside windows (recorded intervals) the learned routers were replaced by balanced
    /// routers, which send the same number of tokens to each expert.
    pub replaced: bool,
    /// True if the batches of iterations are known.
    pub batches: bool,
    /// Rate at which the main thread's stack is sampled inside windows (recorded intervals), in Hz; 0 if it is not
    /// sampled.
    pub stacks: u64,
    /// True if the rank waits for requests at the beginning of every tenth iteration.
    pub pauses: bool,
    /// If this number is N, GPU times are recorded in the first of every N consecutive blocks of eight iterations.
    pub timed: u64,
    /// True if the scopes of kernels (the modules of the model that launched them) are recorded. Even then, the scope
    /// of one kernel of the simulated CUDA graph is unknown.
    pub scopes: bool,
}

/// Returns the record of a GPU's metrics, which the `tllmprof` command writes in addition to the
/// process's record.
pub(crate) fn metrics(iterations: u64) -> Builder {
    let mut builder = Builder::new(1, ClockKind::Monotonic);
    let value = u64::from(builder.string(1, "a-boot"));
    let key = Some(Info::Boot);
    builder.push(1, &Event::new(START, 0, What::Info { key, value }));
    let every = 10 * MS;
    for at in 0..iterations {
        for (metric, percent) in [
            (Metric::SmUtil, 71 + at % 7),
            (Metric::TensorUtil, 38 + at * 3 % 11),
            (Metric::DramBandwidth, 55 + at * 5 % 9),
        ] {
            let what = What::GpuMetric {
                device: 0,
                metric: Some(metric),
                thousandths: percent * 1000,
            };
            let start = START + 1100 * MS + at * every;
            builder.push(1, &Event::new(start, every, what));
        }
    }
    builder
}

/// IDs of stack frames. Each constant lists the innermost frames of the stacks that are sampled in one part of an
/// iteration.
mod sampled {
    pub(crate) const IDLE: u32 = 9;
    pub(crate) const SCHEDULE: [u32; 2] = [3, 4];
    pub(crate) const PREPARE: [u32; 1] = [6];
    pub(crate) const FORWARD: [u32; 1] = [7];
    pub(crate) const SAMPLE: [u32; 1] = [8];
}

/// The length of a wait for requests, in nanoseconds.
pub(crate) const PAUSE: u64 = 25 * MS;

const RANGES: [&str; 6] = [
    "schedule",
    "prepare inputs",
    "forward",
    "sample",
    "all reduce",
    "logits",
];

impl Engine {
    pub(crate) const fn pid(&self) -> u32 {
        21_840 + self.rank as u32
    }

    /// Returns the batch of an iteration. Most batches have only decodes, with a growing number of requests. Some have
    /// only prompts, both, or nothing.
    pub(crate) fn batch(&self, n: u64) -> Option<Batch> {
        let noise = (n * 7919 + self.rank * 104_729) % 97;
        let requests = 1 + n % 64 * (1 + noise / 40);
        let (requests, prefill) = match n % 50 {
            7 => (1 + noise / 32, 512 + noise * 60),
            19 | 20 | 41 => (requests + 1, 256 + noise * 3),
            33 => (0, 0),
            _ => (requests, 0),
        };
        let decodes = match n % 50 {
            7 => 0,
            _ => requests - u64::from(prefill > 0),
        };
        let [requests, tokens, prefill] =
            [requests, prefill + decodes, prefill].map(|number| number as i64);
        Batch::new(requests, tokens, prefill).filter(|_| self.batches)
    }

    /// Returns the time of garbage collections in iteration `n`, in nanoseconds. One iteration of one rank has a long
    /// collection.
    const fn gc(&self, n: u64) -> u64 {
        match (self.rank, n) {
            (0, 117) => 9 * MS + 300 * US,
            (_, n) if n.is_multiple_of(16) => 350 * US,
            _ => 0,
        }
    }

    const fn gil(&self, n: u64) -> u64 {
        match (self.rank, n) {
            (0, 131) => 4 * MS + 200 * US,
            (_, n) if n.is_multiple_of(4) => 120 * US,
            _ => 0,
        }
    }

    /// Returns the record, and the number of its events that a timeline can show.
    pub(crate) fn record(&self) -> (Builder, u64) {
        let main = self.pid();
        let mut builder = Builder::new(main, ClockKind::Monotonic);
        let mut string = |text: &str| builder.string(main, text);
        let mut kernels: Vec<_> = KERNELS.iter().map(|(name, _)| string(name)).collect();
        if self.hostile {
            kernels[3] = string(HOSTILE);
        }
        let names = NameIds {
            ranges: RANGES.iter().map(|name| string(name)).collect(),
            layers: (0..self.layers)
                .map(|layer| string(&format!("layers.{layer}")))
                .collect(),
            kernels,
            domain: string("engine"),
            step: string("EngineCore.step"),
            detokenise: string("Detokenizer.update"),
            idle: string("EngineCoreProc._process_input_queue"),
        };
        let mut writer = RecordWriter {
            builder,
            names,
            main,
            events: 0,
            launches: 0,
            has_scopes: self.scopes,
        };
        if self.scopes {
            writer.scopes(self.layers);
        }
        self.facts(&mut writer);
        self.routing(&mut writer);
        let mut now = START;
        let mut n = 0;
        for (first, last) in &self.windows {
            while n < *first {
                let long = 11 * MS + n % 5 * 40 * US;
                writer.builder.header().outside().add(long);
                now += long.min(30 * MS);
                n += 1;
            }
            writer.edge(now, Edge::Open, *first);
            let last_with = self.kernels.checked_sub(1);
            let last_with = last_with.map(|more| first.saturating_add(more).min(*last));
            if last_with.is_some() {
                writer.kernel_edge(now, Edge::Open, *first);
            }
            while n <= *last {
                let is_timed = ((n - first) / 8).is_multiple_of(self.timed);
                let has_kernels = last_with.is_some_and(|last| n <= last);
                now = self.iteration(&mut writer, n, now, [has_kernels, is_timed]);
                if last_with == Some(n) {
                    writer.kernel_edge(now, Edge::Close, n);
                }
                n += 1;
            }
            writer.edge(now, Edge::Close, *last);
        }
        if self.stacks > 0 {
            writer.frames();
        }
        if self.scopes {
            writer.graph(now);
        }
        let header = writer.builder.header();
        header.set(Counter::Iterations, n);
        header.set(Counter::OwnTicks, 90 * US);
        header.set(Counter::GilHandoffs, 1000);
        writer.builder.end(Ended::InOrder);
        (writer.builder, writer.events)
    }

    /// Writes an iteration and returns its end. `kernels` is true if kernels are recorded in the
    /// iteration, and `is_timed` is true if its GPU time is recorded.
    fn iteration(
        &self,
        to: &mut RecordWriter,
        n: u64,
        start: u64,
        [kernels, is_timed]: [bool; 2],
    ) -> u64 {
        let noise = (n * 7919 + self.rank * 31) % 17 * 12 * US;
        let mut now = start + 30 * US;
        if self.pauses && n.is_multiple_of(10) {
            let name = to.names.idle;
            to.put(0, now, PAUSE, What::Function { name });
            self.sampled(to, now, now + PAUSE, &[sampled::IDLE], true);
            now += PAUSE;
        }
        let begun = now;
        let scheduled = now + 420 * US + noise / 2;
        if self.gc(n) > 0 {
            let generation = if self.gc(n) > MS { 2 } else { 0 };
            let gc = What::Gc {
                generation,
                collected: 1840 + n,
            };
            to.put(0, now + 60 * US, self.gc(n), gc);
        }
        let scheduled = scheduled + self.gc(n);
        to.range(0, now, scheduled);
        now = scheduled + 10 * US;
        if self.gil(n) > 0 {
            to.put(0, now, self.gil(n), What::GilWait);
            to.put(1, now - 40 * US, self.gil(n) + 40 * US, What::GilHold);
            now += self.gil(n);
        }
        to.put(0, now, 900 * US, What::GilHold);
        let prepared = now + 260 * US;
        to.call(now + 40 * US, 9 * US, COPY);
        if kernels {
            to.copy(SIDE, now + 52 * US, CopyKind::HostToDevice, 96 << 10);
        }
        to.range(1, now, prepared);
        now = prepared + 5 * US;
        let forward = now;
        let mut gpu = now + 14 * US;
        let first_work = gpu;
        for layer in 0..self.layers {
            let layer_start = now;
            for (kernel, (_, long)) in KERNELS.iter().enumerate() {
                to.enter(now, scope_of(layer, kernel));
                to.call(now, 5 * US, KERNEL);
                // The kernels of rank 2 take 20 % longer than those of the other ranks. On all ranks the GPU
                // does its work later than the host launches it.
                let slow = if self.rank == 2 { 12 } else { 10 };
                let long = long * US * slow / 10 + noise / 40;
                gpu = gpu.max(now + 9 * US);
                if kernels {
                    to.launches += 1;
                    to.kernel(gpu, long, kernel);
                }
                gpu += long + 1200;
                now += 11 * US;
            }
            to.named_range(to.names.layers[layer as usize], layer_start, now);
            now += 2 * US;
        }
        to.range(2, forward, now);
        let sample = now + 8 * US;
        to.call(sample + 20 * US, 8 * US, COPY);
        to.call(sample + 40 * US, 12 * US, GRAPH);
        if kernels {
            to.launches += 1;
            to.copy(MAIN, gpu + 3 * US, CopyKind::DeviceToHost, 2048);
        }
        gpu = (gpu + 8 * US).max(sample + 46 * US);
        if kernels {
            // This kernel and the next are launched by the iteration's graph, as its nodes.
            to.kernel(gpu, 3 * US, 2);
            to.node(gpu, 0);
            to.kernel(gpu + 4 * US, 2 * US, 3);
            to.node(gpu + 4 * US, 1);
        }
        let end_of_work = gpu + 8 * US;
        let wait = sample + 60 * US;
        let tokens = self.batch(n).map_or(0, |batch| u64::from(batch.tokens));
        let end_of_work = end_of_work + tokens * 3 * US;
        let end = end_of_work.max(wait) + 25 * US;
        to.call(wait, end - wait - 5 * US, WAIT);
        to.range(3, sample, end);
        for (from, until, frames, asleep) in [
            (begun, scheduled, &sampled::SCHEDULE[..], false),
            (scheduled, prepared, &sampled::PREPARE, false),
            (prepared, now, &sampled::FORWARD, false),
            (sample, end, &sampled::SAMPLE, true),
        ] {
            self.sampled(to, from, until, frames, asleep);
        }
        to.put(
            1,
            start + 200 * US,
            1400 * US,
            What::Function {
                name: to.names.detokenise,
            },
        );
        to.put(
            0,
            start,
            end - start,
            What::Function {
                name: to.names.step,
            },
        );
        let span = What::GpuSpan {
            device: 0,
            stream: MAIN as u16,
            iteration: n,
        };
        if is_timed {
            to.put(0, first_work, end_of_work - first_work, span);
        }
        let iteration = Event::new(start, end - start, What::Iteration { n, excluded: false });
        to.builder.push(to.main, &iteration);
        if let Some(batch) = self.batch(n) {
            let iteration = n as u16;
            let what = What::Batch { iteration, batch };
            to.builder.push(to.main, &Event::new(start, 0, what));
        }
        end + 6 * US
    }

    /// Writes samples of the main thread's stack from the time `from` to the time `until`. The innermost functions of
    /// the samples are those in `frames`, in turn. Some samples are rejected, because the stack changed while it was
    /// read.
    fn sampled(&self, to: &mut RecordWriter, from: u64, until: u64, frames: &[u32], asleep: bool) {
        let Some(every) = (1000 * MS).checked_div(self.stacks) else {
            return;
        };
        for at in (from.next_multiple_of(every)..until).step_by(every as usize) {
            let tick = at / every;
            let is_torn = tick.is_multiple_of(41);
            let frame = frames[tick as usize % frames.len()];
            let state = if asleep {
                ThreadState::Sleeping
            } else {
                ThreadState::Running
            };
            let what = What::Sample {
                taken: if is_torn { Taken::Torn } else { Taken::Python },
                state: Some(state),
                thread: to.main,
                frame: if is_torn { 0 } else { frame },
            };
            to.builder.push(to.main + 200, &Event::new(at, 0, what));
        }
    }
}
