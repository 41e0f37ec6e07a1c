//! Synthetic programs: the calls of their threads, with the times that a host and a GPU would need
//! for them.

mod loops;
mod programs;

pub(crate) use programs::synced_layers;

/// Returns all programs with their names.
pub(crate) fn all() -> Vec<(String, Vec<Record>)> {
    let mut all = programs::all();
    all.extend(loops::all());
    all
}

use super::recorded::Record;
use tllmprof_calls::Wait;
use tllmprof_learn::Call;

/// Pseudo-random numbers, the same in each run.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    pub(crate) fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }
}

/// A synthetic program and its simulated clocks. Each thread has a separate host time, and all
/// threads share one GPU.
pub(crate) struct Program {
    pub random: Random,
    records: Vec<(u64, Record)>,
    host: [u64; 8],
    /// The time, in nanoseconds, at which the GPU has finished everything launched so far.
    gpu: u64,
    /// The duration of a kernel, in nanoseconds.
    pub kernel: u64,
}

impl Program {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            random: Random(seed),
            records: Vec::new(),
            host: [0; 8],
            gpu: 0,
            kernel: 3_000,
        }
    }

    /// Returns the records of all threads, ordered by time.
    pub(crate) fn records(mut self) -> Vec<Record> {
        self.records.sort_by_key(|&(time, _)| time);
        self.records.into_iter().map(|(_, record)| record).collect()
    }

    pub(crate) fn now(&self, thread: u32) -> u64 {
        self.host[thread as usize]
    }

    pub(crate) fn mark(&mut self, thread: u32) {
        self.records.push((self.now(thread), Record::Mark));
    }

    /// Lets the thread run code without CUDA calls for about `micros` microseconds.
    pub(crate) fn work(&mut self, thread: u32, micros: u64) {
        // In one of forty cases the host's work takes longer, as if the thread had been interrupted.
        let late = if self.random.below(40) == 0 {
            60_000
        } else {
            0
        };
        let nanos = micros * 1000;
        let jitter = self.random.below(nanos / 5 + 1);
        self.host[thread as usize] += nanos - nanos / 10 + jitter + self.random.below(late + 1);
    }

    /// Lets the thread do nothing until `time`.
    pub(crate) fn until(&mut self, thread: u32, time: u64) {
        let host = &mut self.host[thread as usize];
        *host = (*host).max(time);
    }

    pub(crate) fn call(&mut self, thread: u32, call: Call) {
        let time = self.now(thread);
        self.records.push((time, Record::Call(thread, call, time)));
        self.work(thread, 3);
    }

    /// Launches `count` kernels with successive handles from `first` on.
    pub(crate) fn launch(&mut self, thread: u32, first: u64, count: u64) {
        for kernel in first..first + count {
            self.call(thread, Call::Launch((1 << 32) + kernel));
            self.gpu = self.gpu.max(self.now(thread)) + self.kernel;
        }
    }

    /// Launches a graph that contains `kernels` kernels.
    pub(crate) fn graph(&mut self, thread: u32, kernels: u64) {
        self.call(thread, Call::GraphLaunch);
        self.gpu = self.gpu.max(self.now(thread)) + kernels * self.kernel;
    }

    pub(crate) fn upload(&mut self, thread: u32) {
        self.call(thread, Call::CopyToDevice);
    }

    /// Returns the time at which the GPU will have finished everything launched so far.
    pub(crate) fn done(&self) -> u64 {
        self.gpu
    }

    /// Lets the thread wait until the time `done`, at which the GPU has finished the work that is waited for.
    pub(crate) fn wait_until(&mut self, thread: u32, wait: Wait, done: u64) {
        self.until(thread, done);
        self.work(thread, 6);
        self.call(thread, Call::Returned(wait));
    }

    pub(crate) fn wait(&mut self, thread: u32, wait: Wait) {
        self.wait_until(thread, wait, self.gpu);
    }

    /// Waits for an event that the GPU passed long ago, so that the wait returns at once.
    pub(crate) fn call_event(&mut self, thread: u32) {
        self.call(thread, Call::Returned(Wait::Event));
    }

    /// Copies a result to the host and waits for it.
    pub(crate) fn read(&mut self, thread: u32) {
        self.call(thread, Call::CopyToHost);
        self.wait(thread, Wait::Stream);
    }

    /// Captures a graph with `count` kernels, whose handles begin with `first`.
    pub(crate) fn capture(&mut self, thread: u32, first: u64, count: u64) {
        self.call(thread, Call::CaptureBegin);
        for kernel in first..first + count {
            self.call(thread, Call::Launch((1 << 32) + kernel));
        }
        self.call(thread, Call::CaptureEnd);
        self.work(thread, 400);
    }
}
