//! The timeline of a process: the events of its record, as far as there is room for them.

use std::collections::{BTreeMap, HashMap};
use std::io;

use tllmprof_record::{
    CallKind, Clock, CopyKind, Entry, Event, Metric, RangeKind, StringId, Strings, What,
};
use tllmprof_report::{
    Iteration, Launch, LaunchTally, Launches, MetricSample, Process, Recording, range_name,
};

use crate::columns::Columns;
use crate::iterations::base;
use crate::kind::Kind;
use crate::names::Names;
use crate::shown::Buckets;
use crate::track::{CAPTURING, CUT, FAILED, Item, Place, Track};

/// The NVTX domain of tllmprof's own ranges: events of other kinds tell what they do.
const OWN_DOMAIN: &str = "tllmprof";

/// How many tracks there are, at most. Events of more are counted.
const TRACKS: usize = 4096;

/// The events of a process that a page shows.
#[derive(Debug)]
pub struct Timeline {
    tracks: BTreeMap<Place, Track>,
    /// By device.
    metrics: BTreeMap<(u8, Metric), Vec<MetricSample>>,
    names: Names,
    buckets: Buckets,
    shown: Vec<bool>,
    kept: u64,
}

impl Timeline {
    /// Reads the events of a process from its record, `room` of them at most.
    ///
    /// # Errors
    /// Where it cannot be read.
    pub fn read(process: &Process, recording: &impl Recording, room: u64) -> io::Result<Self> {
        let header = recording.header();
        let clock = Clock::new(header.clock, &header.anchors);
        let mut buckets = Buckets::of(process);
        let mut strings = Strings::default();
        let mut launches = LaunchTally::new(process, &clock);
        recording.read(|entry| match entry {
            Entry::String { id, bytes } => strings.add(id, bytes),
            Entry::Event { thread, event } if is_drawn(&event.what, &strings) => {
                launches.add(thread, &event);
                buckets.count(clock.ns(event.start));
            }
            Entry::Event { .. } => (),
        })?;
        let mut reading = Reading {
            process,
            strings: &strings,
            launches: launches.finish(),
            clock: &clock,
            room,
            labels: HashMap::new(),
            timeline: Self {
                metrics: BTreeMap::new(),
                shown: buckets.choose(process, room),
                buckets,
                tracks: BTreeMap::new(),
                names: Names::default(),
                kept: 0,
            },
        };
        recording.read(|entry| {
            if let Entry::Event { thread, event } = entry {
                reading.take(thread, &event);
            }
        })?;
        let mut timeline = reading.timeline;
        timeline.tracks.values_mut().for_each(Track::sort);
        Ok(timeline)
    }

    /// How many events it has, and how many the record.
    #[must_use]
    pub fn events(&self) -> (u64, u64) {
        (self.kept, self.buckets.events())
    }

    /// Whether the events of the iteration that begins at a moment are in it.
    pub fn shows(&self, moment: u64) -> bool {
        self.shown
            .get(self.buckets.at(moment))
            .copied()
            .unwrap_or(false)
    }

    /// Adds what was measured of the process's GPUs, by whichever record of the same machine, as far as
    /// it reaches into the windows.
    pub fn measured<'a>(
        &mut self,
        process: &Process,
        samples: impl IntoIterator<Item = &'a MetricSample>,
    ) {
        let iterations = || process.windows.iter().flat_map(|window| &window.iterations);
        let from = iterations().map(|iteration| iteration.start).min();
        let to = iterations().map(Iteration::end).max();
        let (Some(from), Some(to)) = (from, to) else {
            return;
        };
        for sample in samples {
            let end = sample
                .start
                .saturating_add(u64::from(sample.duration) * 1000);
            if end >= from && sample.start <= to && is_drawn_metric(sample.metric) {
                let key = (sample.device, sample.metric);
                self.metrics.entry(key).or_default().push(*sample);
            }
        }
        for samples in self.metrics.values_mut() {
            samples.sort_by_key(|sample| sample.start);
        }
    }

    /// Numbers of events: those here, those of the record. Then names, the tracks, and metrics.
    pub fn columns(&self, process: &Process) -> Columns {
        let mut columns = Columns::default();
        columns.column([self.kept, self.buckets.events()]);
        self.names.put(&mut columns);
        columns.number(self.tracks.len() as u64);
        for (place, track) in &self.tracks {
            track.put(*place, base(process), &mut columns);
        }
        columns.number(self.metrics.len() as u64);
        for ((device, metric), samples) in &self.metrics {
            columns.number(u64::from(*device));
            columns.text(metric.name());
            columns.text(metric.unit());
            columns.number(samples.len() as u64);
            let starts = samples
                .iter()
                .map(|sample| sample.start.wrapping_sub(base(process)) as i64);
            columns.signed_differences(starts);
            columns.column(
                samples
                    .iter()
                    .map(|sample| u64::from(sample.duration) * 1000),
            );
            let thousandths = |sample: &MetricSample| (f64::from(sample.value) * 1000.0) as u64;
            columns.column(samples.iter().map(thousandths));
        }
        columns
    }
}

/// Whether an event is one of a timeline. Strings that come after what refers to them may let one of our
/// own ranges through here, which is then counted and not drawn.
fn is_drawn(what: &What, strings: &Strings) -> bool {
    match what {
        What::Range { domain, .. } | What::Mark { domain, .. } => {
            strings.get(*domain) != OWN_DOMAIN
        }
        What::Call { .. }
        | What::Gc { .. }
        | What::GilWait
        | What::GilHold
        | What::GilForced
        | What::Function { .. }
        | What::GpuSpan { .. }
        | What::GpuKernel { .. }
        | What::GpuCopy { .. }
        | What::GpuSet { .. } => true,
        _ => false,
    }
}

/// Whether a metric says how much a GPU was at work: what it has in use and how warm it is do not.
const fn is_drawn_metric(metric: Metric) -> bool {
    !matches!(
        metric,
        Metric::SmClock | Metric::MemoryUsed | Metric::Temperature
    )
}

/// The second way through a record.
struct Reading<'a> {
    process: &'a Process,
    strings: &'a Strings,
    launches: Launches,
    clock: &'a Clock,
    room: u64,
    labels: HashMap<Label, u32>,
    timeline: Timeline,
}

impl Reading<'_> {
    fn take(&mut self, thread: u32, event: &Event) {
        if !is_drawn(&event.what, self.strings) {
            return;
        }
        let start = self.clock.ns(event.start);
        let on_gpu = matches!(
            event.what,
            What::GpuSpan { .. }
                | What::GpuKernel { .. }
                | What::GpuCopy { .. }
                | What::GpuSet { .. }
        );
        let duration = if on_gpu {
            event.duration
        } else {
            self.clock.duration_ns(event.start, event.duration)
        };
        let timeline = &mut self.timeline;
        // What reaches into an iteration that is shown is shown, wherever it began.
        let first = timeline.buckets.at(start);
        let last = timeline.buckets.at(start.saturating_add(duration));
        let ends = [first, last];
        if timeline.kept >= self.room || !ends.iter().any(|bucket| timeline.shown[*bucket]) {
            return;
        }
        let (place, kind, label, value) = self.drawn(thread, start, &event.what);
        let timeline = &mut self.timeline;
        let whose = match place {
            _ if timeline.tracks.contains_key(&place) => None,
            _ if timeline.tracks.len() >= TRACKS => return,
            Place::Steps { device } | Place::Stream { device, .. } => {
                let gpus = &self.process.facts.gpus;
                let gpu = gpus.get(usize::from(device)).or(gpus.first());
                Some(gpu.cloned().unwrap_or_default())
            }
            Place::Thread { tid } | Place::Gil { tid } => Some(self.process.facts.thread(tid)),
            Place::Ranges => Some(String::new()),
        };
        if let Some(whose) = whose {
            let new = Track::new(timeline.names.number(whose, String::new()));
            timeline.tracks.insert(place, new);
        }
        let name = self.number(label);
        let timeline = &mut self.timeline;
        let mut flags = 0;
        if event.cut {
            flags |= CUT;
        }
        if event.failed {
            flags |= FAILED;
        }
        if let What::Call {
            capturing: true, ..
        } = event.what
        {
            flags |= CAPTURING;
        }
        timeline.kept += 1;
        if let Some(track) = timeline.tracks.get_mut(&place) {
            track.items.push(Item {
                start,
                duration,
                kind,
                flags,
                name,
                value,
            });
        }
    }

    /// Where an event is drawn, as what, by which name, and what else there is to say of it.
    fn drawn(&self, tid: u32, start: u64, what: &What) -> (Place, Kind, Label, u64) {
        let thread = Place::Thread { tid };
        let gil = Place::Gil { tid };
        match *what {
            What::Range { kind, domain, name } => {
                let place = match kind {
                    RangeKind::PushPop => thread,
                    RangeKind::StartEnd => Place::Ranges,
                };
                (place, Kind::Range, Label::Range(domain, name), 0)
            }
            What::Mark { domain, name } => (thread, Kind::Mark, Label::Range(domain, name), 0),
            What::Function { name } => (thread, Kind::Function, Label::Text(name), 0),
            What::Call { row, .. } => {
                let calls = &self.process.facts.calls;
                let known = calls.iter().find(|known| known.row == row);
                let kind = known.map_or(CallKind::Other, |known| known.kind);
                let launch = self.launches.of_call(tid, start);
                (thread, kind.into(), Label::Call(row), numbered(launch))
            }
            What::Gc {
                generation,
                collected,
            } => (thread, Kind::Gc, Label::Gc(generation), collected),
            What::GilWait => (gil, Kind::GilWait, Label::Words("GIL wait"), 0),
            What::GilHold => (gil, Kind::GilHold, Label::Words("GIL hold"), 0),
            What::GpuSpan {
                device,
                stream,
                iteration,
            } => {
                let place = Place::Steps { device };
                (place, Kind::Step, Label::Stream(stream), iteration)
            }
            What::GpuKernel {
                device,
                stream,
                name,
                correlation,
            } => {
                let place = Place::Stream { device, stream };
                let launch = self.launches.of_kernel(correlation, start);
                (place, Kind::Kernel, Label::Kernel(name), numbered(launch))
            }
            What::GpuCopy {
                device,
                stream,
                kind,
                bytes,
            } => {
                let place = Place::Stream { device, stream };
                (place, Kind::Copy, Label::Copy(kind), bytes)
            }
            What::GpuSet {
                device,
                stream,
                bytes,
            } => {
                let place = Place::Stream { device, stream };
                (place, Kind::Set, Label::Words("memset"), bytes)
            }
            // Nothing else is drawn but a forced switch.
            _ => (
                gil,
                Kind::GilForced,
                Label::Words("GIL given up on demand"),
                0,
            ),
        }
    }

    /// The number of an event's name. Names are put together once: there are many events of each.
    fn number(&mut self, label: Label) -> u32 {
        if let Some(number) = self.labels.get(&label) {
            return *number;
        }
        let text = |id| self.strings.get(id);
        let name = match label {
            Label::Text(id) => tllmprof_report::name(text(id)),
            Label::Range(domain, name) => range_name(self.strings, domain, name),
            Label::Kernel(id) => tllmprof_report::kernel_name(text(id)),
            Label::Call(row) => self.process.facts.call(row),
            Label::Gc(generation) => format!("GC gen{generation}"),
            Label::Stream(stream) => format!("stream {stream}"),
            Label::Copy(kind) => format!("copy {}", kind.name()),
            Label::Words(words) => words.to_owned(),
        };
        let short = match label {
            Label::Kernel(_) => tllmprof_report::short_kernel_name(&name),
            _ => String::new(),
        };
        let number = self.timeline.names.number(name, short);
        self.labels.insert(label, number);
        number
    }
}

/// One more than the number of a launch; 0 where it is not known.
fn numbered(launch: Option<&Launch>) -> u64 {
    launch.map_or(0, |launch| u64::from(launch.number) + 1)
}

/// What an event is called.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Label {
    Text(StringId),
    /// Domain and name.
    Range(StringId, StringId),
    Kernel(StringId),
    /// By its row in the table of calls.
    Call(u8),
    Gc(u16),
    Stream(u16),
    Copy(CopyKind),
    Words(&'static str),
}
