//! Recorded GPU work (kernels, copies and memory sets): totals by name, and sums by iteration.

pub(crate) mod blocks;
pub(crate) mod compare;
pub(crate) mod streams;
mod sums;
pub(crate) mod text;

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap, HashSet};

use tllmprof_record::{Clock, Edge, Event, StringId, Strings, What};

use crate::events::busy::{Busy, COPIES, DeviceActivity, IterationActivity, KINDS, SET, copy_name};
use crate::events::iteration::InKernels;
use crate::events::kernel_name;
use crate::events::qualify::Qualified;
use crate::events::raw::RawIteration;
use crate::events::spans::{Span, Spans};
use crate::events::window::{WindowEdge, pairs};
use crate::events::work::{GpuWork, GpuWorkKind};
use blocks::BlockTally;
use streams::StreamSearch;
pub use sums::{CopyTotal, KernelSum, KernelTotal, Samples};
pub(crate) use sums::{DeviceSum, Kernels, Tallied};

/// Maximum number of kernel names whose times are added up separately. The same maximum applies to the number of
/// threads, and to the number of windows that sample kernels periodically. Further names, threads and windows are left
/// out.
const MAX_NAMES: usize = 1 << 14;

/// Maximum number of entries in all lists [`Total::by_step`] together. An entry is the time of one kernel name in one
/// iteration. If the maximum is reached, the report has no times per iteration for any kernel.
const MAX_STEP_TIMES: usize = 1 << 20;

#[derive(Debug)]
struct Total {
    count: u64,
    ns: u64,
    longest: u64,
    shortest: u64,
    /// Indexes of iterations, each with the time of the kernels of this name in that iteration, in nanoseconds. An
    /// index may occur several times, because work may arrive out of order.
    by_step: Vec<(u32, u64)>,
}

/// Adds up kernels, copies and memory sets during a pass over a record.
#[derive(Debug)]
pub(crate) struct KernelTally<'a> {
    clock: &'a Clock,
    timeline: Spans,
    /// The qualifying iterations, which are those that the report's figures include. Sums include work in these
    /// iterations and work outside all iterations.
    qualified: &'a Qualified,
    busy: Busy,
    /// Number of kernels that began in each iteration.
    began: Vec<u32>,
    kernels: HashMap<StringId, Total>,
    /// Number of entries that may still be added to the lists `by_step` of all kernel names before the limit
    /// [`MAX_STEP_TIMES`] is reached.
    room: usize,
    is_too_much: bool,
    blocks: BlockTally,
    copies: [(u64, u64, u64); KINDS + 1],
    /// The process's threads that recorded GPU work.
    threads: HashSet<u32>,
    /// The thread that recorded the latest piece of GPU work.
    latest: Option<u32>,
    /// For each thread, the number of events that it dropped.
    dropped: HashMap<u32, u64>,
    /// Number (modulo 2^32) of the first iteration of each sample. A sample is a window that opens
    /// periodically to record kernels.
    sampled: BTreeSet<u32>,
    /// Settings of the latest sample (a window that opens periodically to record kernels).
    samples: Samples,
    left_out: u64,
}

impl<'a> KernelTally<'a> {
    /// Returns an empty tally. `iterations` must be sorted by their starts.
    pub(crate) fn new(
        clock: &'a Clock,
        iterations: &[RawIteration],
        qualified: &'a Qualified,
    ) -> Self {
        let spans = iterations.iter().map(|iteration| Span {
            start: clock.ns(iteration.start),
            end: clock.ns(iteration.span().end),
        });
        let timeline = Spans::new(spans.collect());
        Self {
            clock,
            qualified,
            busy: Busy::new(timeline.spans().to_vec()),
            began: vec![0; timeline.spans().len()],
            timeline,
            kernels: HashMap::new(),
            room: MAX_STEP_TIMES,
            is_too_much: false,
            blocks: BlockTally::default(),
            copies: Default::default(),
            threads: HashSet::new(),
            latest: None,
            dropped: HashMap::new(),
            sampled: BTreeSet::new(),
            samples: Samples::default(),
            left_out: 0,
        }
    }

    /// Adds a piece of GPU work. `thread` is the thread that recorded it.
    #[inline]
    pub(crate) fn add_work(&mut self, thread: u32, work: &GpuWork) {
        if self.latest != Some(thread) && self.threads.len() < MAX_NAMES {
            self.threads.insert(thread);
            self.latest = Some(thread);
        }
        let GpuWork {
            device, start, ns, ..
        } = *work;
        match work.what {
            GpuWorkKind::Kernel { name, .. } => {
                self.busy.add(device, work.span(), name);
                let place = self.timeline.at(start);
                if let Some(place) = place {
                    self.began[place] = self.began[place].saturating_add(1);
                    self.blocks.add(device, place, start, name, ns);
                }
                if self.counts(place) {
                    self.kernel(name, ns, place);
                }
            }
            GpuWorkKind::Copy { kind, bytes } => {
                let kind = kind as usize;
                self.busy.add(device, work.span(), COPIES + kind as u32);
                self.copy(start, kind, ns, bytes);
            }
            GpuWorkKind::Set { bytes } => {
                self.busy.add(device, work.span(), COPIES + SET as u32);
                self.copy(start, SET, ns, bytes);
            }
        }
    }

    /// Adds an event about the recording itself: the start of a periodic window (sample), or a
    /// number of dropped events.
    #[inline]
    pub(crate) fn add(&mut self, thread: u32, event: &Event) {
        match event.what {
            What::KernelSample {
                steps,
                every_ms,
                iteration,
            } if self.sampled.len() < MAX_NAMES => {
                self.sampled.insert(iteration);
                self.samples.steps = steps.into();
                self.samples.every = u64::from(every_ms) * 1_000_000;
            }
            What::Dropped { events }
                if self.dropped.len() < MAX_NAMES || self.dropped.contains_key(&thread) =>
            {
                let dropped = self.dropped.entry(thread).or_default();
                *dropped = dropped.saturating_add(events);
            }
            _ => (),
        }
    }

    fn kernel(&mut self, name: StringId, ns: u64, place: Option<usize>) {
        if self.kernels.len() >= MAX_NAMES && !self.kernels.contains_key(&name) {
            self.left_out += 1;
            return;
        }
        let total = self.kernels.entry(name).or_insert(Total {
            count: 0,
            ns: 0,
            longest: 0,
            shortest: u64::MAX,
            by_step: Vec::new(),
        });
        if let Some(place) = place {
            match total.by_step.last_mut() {
                Some((last, sum)) if *last as usize == place => *sum = sum.saturating_add(ns),
                // If the limit on entries is reached, the times per iteration are incomplete for all kernels, so the
                // results do not contain them.
                _ if self.room > 0 => {
                    self.room -= 1;
                    total.by_step.push((place as u32, ns));
                }
                _ => self.is_too_much = true,
            }
        }
        total.count += 1;
        total.ns = total.ns.saturating_add(ns);
        total.longest = total.longest.max(ns);
        total.shortest = total.shortest.min(ns);
    }

    /// Returns the index of the iteration in which a piece of work began: `Some(None)` if it began outside all
    /// iterations, `None` if the report's figures leave out its iteration.
    pub(crate) fn counted(&mut self, work: &GpuWork) -> Option<Option<usize>> {
        let place = self.timeline.at(work.start);
        self.counts(place).then_some(place)
    }

    fn counts(&self, place: Option<usize>) -> bool {
        place.is_none_or(|place| self.qualified.has(place))
    }

    fn copy(&mut self, start: u64, kind: usize, ns: u64, bytes: u64) {
        if !self.qualified.has_all() {
            let place = self.timeline.at(start);
            if !self.counts(place) {
                return;
            }
        }
        let (count, total, moved) = &mut self.copies[kind];
        *count += 1;
        *total = total.saturating_add(ns);
        *moved = moved.saturating_add(bytes);
    }

    /// Returns the number of windows with recorded kernels that opened periodically (samples), and the number of other
    /// windows with recorded kernels. Returns `None` if there are no samples.
    fn samples(&self, edges: &[WindowEdge]) -> Option<Samples> {
        let opened = edges.iter().filter(|edge| edge.edge == Edge::Open);
        let (mut count, mut others) = (0, 0);
        for edge in opened {
            match self.sampled.contains(&(edge.iteration as u32)) {
                true => count += 1,
                false => others += 1,
            }
        }
        let mut samples = Samples {
            count,
            others,
            ..self.samples.clone()
        };
        samples.text = samples.to_string();
        (count > 0).then_some(samples)
    }

    /// Returns the results. `edges` contains the openings and closings of the windows in which
    /// kernels were recorded.
    pub(crate) fn finish(
        self,
        raw: &[RawIteration],
        edges: Vec<WindowEdge>,
        strings: &Strings,
    ) -> Tallied {
        let is_none = self.kernels.is_empty() && self.copies.iter().all(|copy| copy.0 == 0);
        if is_none && edges.is_empty() {
            return Tallied::default();
        }
        let samples = self.samples(&edges);
        let devices = self.busy.finish();
        let spans = self.timeline.spans();
        let is_inside = inside(edges, raw, &devices);
        let mut iterations: Vec<_> = self
            .began
            .iter()
            .zip(&is_inside)
            .map(|(kernels, inside)| InKernels {
                kernels: *kernels,
                busy: inside.then_some(0),
            })
            .collect();
        let sums = device_sums(&devices, &is_inside, self.qualified);
        let (longest, busiest) = longest(&devices, &sums, self.qualified, &is_inside);
        for part in busiest.iter().flat_map(|at| &devices[*at].parts) {
            if let Some(busy) = &mut iterations[part.place].busy {
                *busy = part.busy;
            }
        }
        let is_one: Vec<_> = (0..raw.len())
            .map(|place| is_inside[place] && self.qualified.has(place))
            .collect();
        let inside = || (0..raw.len()).filter(|place| is_one[*place]);
        let numbers = numbered(&is_one);
        let steps = (!self.is_too_much).then_some(&numbers[..]);
        let kernels = inside().map(|place| u64::from(self.began[place])).sum();
        // Some drivers do not report when kernels began and ended; all kernels then take 0 ns.
        let has_times = longest.0 > 0 || kernels == 0;
        let wall = inside().fold(0, |wall, place| {
            let idle = self.clock.duration_ns(raw[place].start, raw[place].idle);
            let whole = spans[place].end.saturating_sub(spans[place].start);
            whole.saturating_sub(idle) + wall
        });
        let (busy, gaps) = longest;
        let sum = KernelSum {
            iterations: inside().count() as u64,
            busy: has_times.then_some(busy),
            wall,
            kernels,
            // The gaps may contain waits for requests, which `wall` does not contain.
            gaps: has_times.then_some(gaps.min(wall.saturating_sub(busy))),
            dropped: self
                .dropped
                .iter()
                .filter(|(thread, _)| self.threads.contains(thread))
                .fold(0, |sum, (_, more)| more.saturating_add(sum)),
            samples,
        };
        let totals = totals(self.kernels.into_iter(), strings, steps);
        Tallied {
            kernels: Kernels {
                time: (totals.iter()).fold(0, |sum, kernel| kernel.total.saturating_add(sum)),
                totals,
                copies: copies(&self.copies),
                window: Some(sum),
                blocks: self.blocks.finish(&is_one, strings),
                streams: StreamSearch::Nothing,
                missing: 0,
                devices: sums,
            },
            iterations,
            busiest: busiest.and_then(|at| devices.into_iter().nth(at)),
            numbers,
            left_out: self.left_out,
        }
    }
}

/// Returns the sums for each GPU over the iterations with recorded kernels that the report's figures include.
/// `is_inside` is true for each iteration with recorded kernels.
fn device_sums(
    devices: &[DeviceActivity],
    is_inside: &[bool],
    qualified: &Qualified,
) -> Vec<DeviceSum> {
    let of = |device: &DeviceActivity| {
        let mut sum = DeviceSum {
            device: device.device,
            busy: 0,
            kernels: 0,
        };
        for part in &device.parts {
            if is_inside[part.place] && qualified.has(part.place) {
                sum.busy += part.busy;
                sum.kernels += part.kernels;
            }
        }
        sum
    };
    devices.iter().map(of).collect()
}

/// Returns figures of the GPU with the longest busy time: the busy time, the idle time between work of the same
/// iteration, and the GPU's index in `devices`. Both times are sums over the iterations that the report's figures
/// include.
fn longest(
    devices: &[DeviceActivity],
    sums: &[DeviceSum],
    qualified: &Qualified,
    is_inside: &[bool],
) -> ((u64, u64), Option<usize>) {
    let gaps = |device: &DeviceActivity| -> u64 {
        let counted =
            |part: &&IterationActivity| is_inside[part.place] && qualified.has(part.place);
        device
            .parts
            .iter()
            .filter(counted)
            .map(|part| part.gaps)
            .sum()
    };
    let all = devices.iter().zip(sums).enumerate();
    let all = all.map(|(at, (device, sum))| ((sum.busy, gaps(device)), Reverse(at)));
    match all.max() {
        Some((longest, Reverse(at))) => (longest, Some(at)),
        None => ((0, 0), None),
    }
}

/// Returns for each iteration true if it lies in a window with recorded kernels. If the record lacks the closing of a
/// window, the window extends to the last iteration with GPU work. If the record lacks the openings of all windows, one
/// window extends from the first iteration with GPU work to the last.
fn inside(edges: Vec<WindowEdge>, raw: &[RawIteration], devices: &[DeviceActivity]) -> Vec<bool> {
    let mut windows = pairs(edges);
    windows.sort_by_key(|window| window.first);
    let first = devices
        .iter()
        .filter_map(|did| did.parts.first())
        .map(|part| part.place)
        .min();
    let last = devices
        .iter()
        .filter_map(|did| did.parts.last())
        .map(|part| part.place)
        .max();
    let have_work = |place: usize| {
        first.is_some_and(|first| first <= place) && last.is_some_and(|last| place <= last)
    };
    let is_inside = |(place, iteration): (usize, &RawIteration)| {
        let after = windows.partition_point(|window| window.first <= iteration.n);
        match after.checked_sub(1).and_then(|at| windows.get(at)) {
            Some(window) if window.closed => iteration.n <= window.last,
            Some(_) => last.is_some_and(|last| place <= last),
            None => windows.is_empty() && have_work(place),
        }
    };
    raw.iter().enumerate().map(is_inside).collect()
}

/// Returns, for each iteration whose entry in `is_inside` is true, its index among these iterations; `None` for other
/// iterations.
fn numbered(is_inside: &[bool]) -> Vec<Option<u32>> {
    let mut number = 0;
    let each = is_inside.iter().map(|inside| {
        number += u32::from(*inside);
        inside.then(|| number - 1)
    });
    each.collect()
}

fn totals(
    kernels: impl Iterator<Item = (StringId, Total)>,
    strings: &Strings,
    steps: Option<&[Option<u32>]>,
) -> Vec<KernelTotal> {
    let mut by_name: HashMap<String, KernelTotal> = HashMap::new();
    for (id, total) in kernels {
        let name = kernel_name::full(strings.get(id));
        let sum = by_name.entry(name.clone()).or_insert_with(|| KernelTotal {
            short_name: kernel_name::short(&name),
            name,
            count: 0,
            total: 0,
            longest: 0,
            shortest: u64::MAX,
            by_step: steps.map(|_| Vec::new()),
        });
        sum.count += total.count;
        sum.total = sum.total.saturating_add(total.ns);
        sum.longest = sum.longest.max(total.longest);
        sum.shortest = sum.shortest.min(total.shortest);
        if let (Some(all), Some(steps)) = (&mut sum.by_step, steps) {
            let step = |(place, ns): (u32, u64)| Some((steps[place as usize]?, ns));
            all.extend(total.by_step.into_iter().filter_map(step));
        }
    }
    let mut totals: Vec<_> = by_name.into_values().collect();
    totals.sort_by(|a, b| b.total.cmp(&a.total).then_with(|| a.name.cmp(&b.name)));
    totals
}

fn copies(copies: &[(u64, u64, u64); KINDS + 1]) -> Vec<CopyTotal> {
    let mut totals: Vec<_> = (0..)
        .zip(copies)
        .filter(|(_, (count, ..))| *count > 0)
        .map(|(kind, (count, total, bytes))| CopyTotal {
            kind: copy_name(kind).to_owned(),
            count: *count,
            total: *total,
            bytes: *bytes,
        })
        .collect();
    totals.sort_by_key(|copy| Reverse(copy.total));
    totals
}
