//! The records of a simulated job of many ranks on several hosts. Tests know when each rank arrives
//! at collectives and why a rank is late.

#![allow(dead_code)] // each test file uses only a part of this module

use tllmprof_record::builder::Builder;
use tllmprof_record::{Batch, CallKind, ClockKind, Edge, Ended, Event, Info, StringId, Used, What};

pub(crate) const US: u64 = 1_000;
pub(crate) const MS: u64 = 1_000_000;

/// The number of the first iteration of the job.
pub(crate) const FIRST: u64 = 100;
const START: u64 = 5_000 * MS;
const LAUNCH: u8 = 0;
const WAIT: u8 = 1;

/// The cause for which a rank arrives late.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cause {
    Gc,
    Gil,
    /// The rank's thread sleeps.
    Asleep,
    /// The rank's thread is ready to run, but gets no processor.
    Delayed,
    /// The rank's batch has three times as many tokens as the batches of other ranks.
    Tokens,
    /// The rank runs the same kernels as other ranks, but they take longer.
    Kernels,
    /// The kernel launches are late, and the record does not show why.
    Launch,
}

/// A delay that a test plants in a simulated job: a rank is late by `by` nanoseconds in each iteration from the first
/// to the second number of `steps`. The number 0 means the job's first iteration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plant {
    pub rank: u64,
    pub steps: (u64, u64),
    pub cause: Cause,
    pub by: u64,
}

/// A jump of a clock by `by` nanoseconds, before the iteration with the index `step`. From then on, it shifts all times
/// in the record of the rank `rank` on the host `host`. A field that is `None` selects all hosts or all ranks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Jump {
    pub host: Option<u64>,
    pub rank: Option<u64>,
    pub step: u64,
    pub by: i64,
}

#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub hosts: u64,
    pub per_host: u64,
    pub steps: u64,
    /// Number of collectives in an iteration.
    pub collectives: u64,
    /// Number of kernels before each collective.
    pub kernels: u64,
    /// Transfer time of each collective, in nanoseconds.
    pub transfer: u64,
    pub name: &'static str,
    pub plants: Vec<Plant>,
    pub jumps: Vec<Jump>,
    /// Number of ranks in a group; 0 if all ranks are one group. Ranks of different groups do not
    /// wait for each other.
    pub group: u64,
    /// A rank whose record begins later than those of the other ranks, and the index of the first iteration in that
    /// record. The job's first iteration has the index 0.
    pub later: Option<(u64, u64)>,
    /// A rank whose record lacks one collective, and the index of that collective's iteration. The job's first
    /// iteration has the index 0.
    pub lost: Option<(u64, u64)>,
    pub run: &'static str,
    /// Function that returns the process groups and communicators that a rank's record lists, as the kind and the text
    /// of each entry.
    pub groups: fn(u64) -> Vec<(Info, String)>,
}

impl Default for Job {
    fn default() -> Self {
        Self {
            hosts: 1,
            per_host: 8,
            steps: 40,
            collectives: 8,
            kernels: 2,
            transfer: 30 * US,
            name: "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            plants: Vec::new(),
            jumps: Vec::new(),
            group: 0,
            later: None,
            lost: None,
            run: "a-run",
            groups: |_| Vec::new(),
        }
    }
}

/// The true times, on the job's own clock, at which the last rank of each group arrives at each
/// collective.
pub(crate) struct Truth(Vec<u64>);

impl Job {
    pub(crate) const fn ranks(&self) -> u64 {
        self.hosts * self.per_host
    }

    const fn groups(&self) -> u64 {
        match self.group {
            0 => 1,
            size => self.ranks() / size,
        }
    }

    const fn group_of(&self, rank: u64) -> u64 {
        match self.group {
            0 => 0,
            size => rank / size,
        }
    }

    /// Returns a number from 0 to `most` that looks random but is the same in each run.
    fn noise(rank: u64, step: u64, at: u64, most: u64) -> u64 {
        let mut x = rank << 40 ^ step << 16 ^ at ^ 0x9e37_79b9_7f4a_7c15;
        for _ in 0..3 {
            x ^= x >> 30;
            x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        }
        (x >> 20) % (most + 1)
    }

    fn plant(&self, rank: u64, step: u64) -> Option<Plant> {
        let is_one =
            |plant: &&Plant| plant.rank == rank && (plant.steps.0..=plant.steps.1).contains(&step);
        self.plants.iter().find(is_one).copied()
    }

    /// Returns the GPU's idle time and its busy time between the previous collective and the
    /// collective `at`, in nanoseconds.
    fn before(&self, rank: u64, step: u64, at: u64) -> (u64, u64) {
        let mut idle = if at == 0 { 40 * US } else { US };
        if self.group > 0 {
            // Different groups run independently, so give each group another random idle time.
            idle += Self::noise(self.group_of(rank), step, 7_777, 300 * US);
        }
        let mut work = 100 * US + Self::noise(rank, step, at, 2 * US);
        if let Some(plant) = self.plant(rank, step) {
            match plant.cause {
                Cause::Tokens | Cause::Kernels => work += plant.by / self.collectives,
                _ if at == 0 => idle += plant.by,
                _ => (),
            }
        }
        (idle, work)
    }

    /// Returns the delay, in nanoseconds, with which a rank leaves a collective after its transfer
    /// has ended.
    fn tail(rank: u64, step: u64, at: u64) -> u64 {
        Self::noise(rank, step, at + 1000, 3 * US)
    }

    pub(crate) fn truth(&self) -> Truth {
        let mut ends = vec![START; self.ranks() as usize];
        let mut lasts = Vec::new();
        for step in 0..self.steps {
            for at in 0..self.collectives {
                let mut last = vec![0; self.groups() as usize];
                for (rank, end) in (0..).zip(&ends) {
                    let (idle, work) = self.before(rank, step, at);
                    let own = &mut last[self.group_of(rank) as usize];
                    *own = (*own).max(end + idle + work);
                }
                for (rank, end) in (0..).zip(&mut ends) {
                    *end = last[self.group_of(rank) as usize]
                        + self.transfer
                        + Self::tail(rank, step, at);
                }
                lasts.extend(last);
            }
        }
        Truth(lasts)
    }

    /// Returns the offset of a host's clock from the first host's clock in nanoseconds, and its drift in parts per
    /// million.
    pub(crate) fn clock(&self, host: u64) -> (i64, f64) {
        match host {
            0 => (0, 0.0),
            host => {
                let drift = (host * 7 % 41) as f64 - 20.0;
                (host as i64 * 137_000_003 - 1_000_000_007, drift)
            }
        }
    }

    /// Converts a time on the job's own clock to the clock of a rank's record. Includes the jumps of the clock up to
    /// the iteration with the index `step`.
    pub(crate) fn recorded(&self, rank: u64, step: u64, moment: u64) -> u64 {
        let host = rank / self.per_host;
        let (offset, drift) = self.clock(host);
        let drifted = ((moment - START) as f64 * drift / 1e6) as i64;
        let jumped = self.jumps.iter().filter(|jump| {
            step >= jump.step
                && jump.host.is_none_or(|one| one == host)
                && jump.rank.is_none_or(|one| one == rank)
        });
        let jumped: i64 = jumped.map(|jump| jump.by).sum();
        (moment as i64 + offset + drifted + jumped) as u64
    }

    /// Returns a rank's record.
    pub(crate) fn record(&self, rank: u64, truth: &Truth) -> Vec<u8> {
        let mut writer = RecordWriter {
            builder: Builder::new(1000 + rank as u32, ClockKind::Monotonic),
            main: 1000 + rank as u32,
        };
        let names = self.facts(rank, &mut writer);
        let (mut end, mut place) = (START, 0);
        let first = self
            .later
            .filter(|later| later.0 == rank)
            .map_or(0, |later| later.1);
        for step in 0..self.steps {
            let begin = end;
            let mut pieces = Vec::new();
            for at in 0..self.collectives {
                let (idle, work) = self.before(rank, step, at);
                let last = truth.0[(place * self.groups() + self.group_of(rank)) as usize];
                place += 1;
                let each = work / self.kernels;
                for kernel in 0..self.kernels {
                    pieces.push((end + idle + kernel * each, each, names.0));
                }
                let come = end + idle + each * self.kernels;
                end = last + self.transfer + Self::tail(rank, step, at);
                if self.lost != Some((rank, step)) || at != 3 {
                    pieces.push((come, end - come, names.1));
                }
            }
            if step >= first {
                self.step(rank, step, (begin, end), &pieces, &mut writer);
            }
            if step == first || step + 1 == self.steps {
                let (edge, moment) = if step == first {
                    (Edge::Open, begin)
                } else {
                    (Edge::Close, end)
                };
                let (iteration, moment) = (FIRST + step, self.recorded(rank, step, moment));
                writer.put(moment, 0, What::Window { edge, iteration });
                writer.put(moment, 0, What::KernelWindow { edge, iteration });
            }
        }
        writer.builder.end(Ended::InOrder);
        writer.builder.bytes()
    }

    fn step(
        &self,
        rank: u64,
        step: u64,
        (begin, end): (u64, u64),
        pieces: &[(u64, u64, StringId)],
        writer: &mut RecordWriter,
    ) {
        let n = FIRST + step;
        let at = |moment| self.recorded(rank, step, moment);
        let plant = self.plant(rank, step);
        let (mut gap, mut ran, mut delayed) = (0, 60 * US, 0);
        let mut tokens = 64;
        if let Some(plant) = plant {
            match plant.cause {
                Cause::Gc => {
                    let (generation, collected) = (2, 10);
                    let what = What::Gc {
                        generation,
                        collected,
                    };
                    writer.put(at(begin + US), plant.by, what);
                }
                Cause::Gil => writer.put(at(begin + US), plant.by, What::GilWait),
                Cause::Delayed => delayed = plant.by,
                Cause::Tokens => tokens *= 3,
                Cause::Launch => ran += plant.by,
                Cause::Asleep | Cause::Kernels => (),
            }
            if !matches!(plant.cause, Cause::Tokens | Cause::Kernels) {
                gap = plant.by;
            }
            if plant.cause == Cause::Gc {
                ran += plant.by;
            }
        }
        let batch = Batch::new(8, tokens, 0).unwrap();
        writer.put(
            at(begin),
            0,
            What::Batch {
                iteration: n as u16,
                batch,
            },
        );
        let call = |row| What::Call {
            row,
            capturing: false,
            stream: 1,
        };
        writer.put(at(begin + gap + 20 * US), 10 * US, call(LAUNCH));
        let wait = begin + gap + 40 * US;
        writer.put(at(wait), end - wait, call(WAIT));
        for (what, ns, count) in [
            (Used::Ran, ran, 0),
            (Used::Delayed, delayed, 1),
            // The thread slept during all of its waits for the GPU: it was on a processor for 0 ns
            // of them.
            (Used::Waits, 0, 1000),
        ] {
            let (what, iteration) = (Some(what), n as u32);
            writer.put(
                at(end),
                ns,
                What::Used {
                    what,
                    iteration,
                    count,
                },
            );
        }
        for (correlation, (begin, long, name)) in (0..).zip(pieces) {
            let what = What::GpuKernel {
                device: 0,
                stream: 1,
                name: *name,
                correlation,
            };
            writer.put(at(*begin), *long, what);
        }
        writer.put(
            at(begin),
            end - begin,
            What::Iteration { n, excluded: false },
        );
    }

    /// Writes the entries about a rank's process, such as its command line, host and rank. Returns two IDs: of the name
    /// of the rank's other kernels, and of the name of its collectives.
    fn facts(&self, rank: u64, writer: &mut RecordWriter) -> (StringId, StringId) {
        let host = rank / self.per_host;
        let zero = self.recorded(rank, 0, START);
        for (key, text) in [
            (Info::CommandLine, "python train.py"),
            (Info::Host, &*format!("node{host}")),
            (Info::Boot, &format!("boot-{host}")),
            (Info::Rule, "cudaGraphLaunch"),
            (Info::Version, "0.1.0"),
            (Info::Run, self.run),
        ] {
            let value = u64::from(writer.string(text));
            writer.put(
                zero,
                0,
                What::Info {
                    key: Some(key),
                    value,
                },
            );
        }
        for (key, text) in (self.groups)(rank) {
            let value = u64::from(writer.string(&text));
            let key = Some(key);
            writer.put(zero, 0, What::Info { key, value });
        }
        for (key, value) in [(Info::Rank, rank), (Info::WorldSize, self.ranks())] {
            writer.put(
                zero,
                0,
                What::Info {
                    key: Some(key),
                    value,
                },
            );
        }
        for (row, kind, name) in [
            (LAUNCH, CallKind::GraphLaunch, "cuGraphLaunch"),
            (WAIT, CallKind::Wait, "cuStreamSynchronize"),
        ] {
            let (kind, name) = (Some(kind), writer.string(name));
            writer.put(zero, 0, What::CallName { row, kind, name });
        }
        (writer.string("gemm"), writer.string(self.name))
    }
}

struct RecordWriter {
    builder: Builder,
    main: u32,
}

impl RecordWriter {
    fn put(&mut self, at: u64, long: u64, what: What) {
        self.builder.push(self.main, &Event::new(at, long, what));
    }

    fn string(&mut self, text: &str) -> StringId {
        self.builder.string(self.main, text)
    }
}
