//! Adds up the events of a record, in total and by iteration.

use std::collections::HashMap;
use std::hash::Hash;

use tllmprof_record::{CallKind, Event, OWN_DOMAIN, StringId, Strings, What};

use crate::events::causes::{Cause, SlowestIterations};
use crate::events::iteration::Preparation;
use crate::events::qualify::Qualified;
use crate::events::requests::Requests;
use crate::events::spans::{Span, Spans};
use crate::events::turnaround::{Turnaround, Turnarounds};

/// Maximum number of entries in each of the maps `functions`, `ranges` and `holds` of [`Totals`]. Further functions,
/// ranges and threads get no entry.
const MAX_NAMES: usize = 1 << 14;

/// Number of generations of Python's garbage collector that are distinguished.
pub(crate) const GENERATIONS: usize = 4;

/// Number of events of one kind, and the sum of their times in ticks.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Total {
    pub count: u64,
    pub ticks: u64,
    pub longest: u64,
    /// The part of `ticks` that delayed iterations: the time of events on the iteration's own
    /// thread, or, for garbage collections, on any thread.
    pub inside: u64,
}

impl Total {
    fn add(&mut self, ticks: u64) {
        self.count += 1;
        self.ticks = self.ticks.saturating_add(ticks);
        self.longest = self.longest.max(ticks);
    }
}

/// Sums of the events of one iteration. Times are in ticks.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct InIteration {
    pub launches: u32,
    pub launching: u64,
    /// Number of graph launches among `launches`.
    pub graphs: u32,
    pub calls: u32,
    pub preparation: Preparation,
    pub wait: u64,
    pub gil_wait: u64,
    pub gc: u64,
    /// The wait for the GPU after which the iteration's thread first continued to launch work, as a row in the table of
    /// CUDA calls. Waits before the first launch of the iteration do not count. `None` if there is no such wait.
    pub launched_after: Option<u8>,
    /// The latest wait of the iteration's thread for the GPU, as a row in the table of CUDA calls. Waits before the
    /// first launch of the iteration do not count.
    waited: Option<u8>,
    /// Number of garbage collections that cover this iteration entirely, minus the number of garbage collections
    /// that cover the previous iteration entirely.
    collections: i64,
}

/// Totals of events, by kind of event.
#[derive(Debug)]
pub struct Totals {
    /// Totals of calls, by their row in the table of CUDA calls.
    pub calls: Box<[Total; 256]>,
    pub gc: [Total; GENERATIONS],
    pub collected: u64,
    pub gil_wait: Total,
    pub gil_hold: Total,
    /// Time that each thread held the GIL, in ticks.
    pub holds: HashMap<u32, u64>,
    pub gil_forced: u64,
    pub functions: HashMap<StringId, Total>,
    pub ranges: HashMap<(StringId, StringId), Total>,
    /// Number of events whose function or range has no entry in `functions` or `ranges`, because the map was full
    /// (`MAX_NAMES`).
    pub left_out: u64,
    /// Number of events that the recorder dropped: the sum of the numbers in the record's [`What::Dropped`] events.
    pub dropped: u64,
    pub events: u64,
}

impl Totals {
    /// Returns the time by which a possible cause of slowness, such as a garbage collection, delayed iterations, in
    /// ticks. For a thread that holds the GIL, returns the whole time that it held the GIL.
    pub fn spent(&self, cause: Cause) -> u64 {
        let total = match cause {
            Cause::Gc(generation) => self.gc.get(usize::from(generation)),
            Cause::GilWait => Some(&self.gil_wait),
            Cause::GilHold(thread) => return self.holds.get(&thread).copied().unwrap_or(0),
            Cause::Wait(row) => Some(&self.calls[usize::from(row)]),
            Cause::Function(name) => self.functions.get(&name),
            Cause::Range(domain, name) => self.ranges.get(&(domain, name)),
        };
        total.map_or(0, |total| total.inside)
    }
}

/// The results of [`Tally`], which adds up the events of a record.
#[derive(Debug)]
pub(crate) struct Tallied {
    pub inside: Vec<InIteration>,
    pub totals: Totals,
    pub watched: SlowestIterations,
    /// Times from waits for the GPU to the next launch, in ticks.
    pub turnaround: Turnaround,
}

/// Data that the first pass over the record collected and that [`Tally`] needs in the second pass.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TallyInputs<'a> {
    pub qualified: &'a Qualified,
    /// Kind of each row of the table of CUDA calls.
    pub kinds: &'a [CallKind; 256],
    /// For each row of the table of CUDA calls, true if its function allocates or frees memory.
    pub allocates: &'a [bool; 256],
    /// For each row of the table of CUDA calls, true if its function loads or compiles code.
    pub compiles: &'a [bool; 256],
    pub requests: &'a Requests,
    pub strings: &'a Strings,
}

/// Adds up the events of a record during a pass over it, in total and by iteration.
#[derive(Debug)]
pub(crate) struct Tally<'a> {
    timeline: Spans,
    /// For each iteration, the thread that ran it.
    threads: Vec<u32>,
    /// Data from the first pass over the record. The field `qualified` decides which events the totals include: events
    /// outside iterations, and events in those iterations that the report's figures include.
    known: TallyInputs<'a>,
    pub iterations: Vec<InIteration>,
    pub totals: Totals,
    pub watched: SlowestIterations,
    pub turnarounds: Turnarounds,
}

impl<'a> Tally<'a> {
    /// Returns an empty tally. `timeline` contains the iterations in the order of their starts, and
    /// `threads` the thread of each iteration.
    pub(crate) fn new(
        timeline: Spans,
        threads: Vec<u32>,
        known: TallyInputs<'a>,
        watched: SlowestIterations,
        turnarounds: Turnarounds,
    ) -> Self {
        let iterations = vec![InIteration::default(); threads.len()];
        Self {
            timeline,
            threads,
            known,
            iterations,
            totals: Totals::default(),
            watched,
            turnarounds,
        }
    }

    /// Adds an event of a thread to the totals, and to the sums of the iterations that it affects.
    #[inline]
    pub(crate) fn add(&mut self, thread: u32, event: &Event) {
        self.totals.events += 1;
        let ticks = event.duration;
        let counts = self.counts(event);
        if self.holds(thread, event) {
            self.turnarounds.held(thread, event);
        }
        match event.what {
            What::Call {
                row,
                capturing,
                stream,
            } => self.call(thread, event, row, (!capturing).then_some(stream), counts),
            What::Gc {
                generation,
                collected,
            } => {
                let generation = generation.min(GENERATIONS as u16 - 1);
                if counts {
                    self.totals.gc[usize::from(generation)].add(ticks);
                    self.totals.collected = self.totals.collected.saturating_add(collected);
                }
                self.collection(event, generation);
            }
            What::GilWait => {
                if counts {
                    self.totals.gil_wait.add(ticks);
                }
                self.own(thread, event, Cause::GilWait);
            }
            What::GilHold if counts => self.hold(thread, event),
            What::GilForced => self.totals.gil_forced += u64::from(counts),
            What::Function { name } if counts => {
                named(
                    &mut self.totals.functions,
                    &mut self.totals.left_out,
                    name,
                    ticks,
                );
                self.own(thread, event, Cause::Function(name));
            }
            What::Range { domain, name, .. }
                if counts && self.known.strings.get(domain) != OWN_DOMAIN =>
            {
                let key = (domain, name);
                named(
                    &mut self.totals.ranges,
                    &mut self.totals.left_out,
                    key,
                    ticks,
                );
                self.own(thread, event, Cause::Range(domain, name));
            }
            What::Dropped { events } => {
                self.totals.dropped = self.totals.dropped.saturating_add(events);
            }
            _ => (),
        }
    }

    /// Returns true if an event delays its thread for a reason that has a finding of its own, such as a garbage
    /// collection. Such delays are not counted as effects of a preceding wait for the GPU.
    fn holds(&self, thread: u32, event: &Event) -> bool {
        match event.what {
            What::Gc { .. } | What::GilWait => true,
            What::Call { row, .. } => self.known.allocates[usize::from(row)],
            What::Function { .. } => self.known.requests.is_one(thread, event),
            _ => false,
        }
    }

    /// Returns true if totals include an event. An event is left out if it lies only in iterations that the report's
    /// figures leave out.
    fn counts(&mut self, event: &Event) -> bool {
        self.known.qualified.has_all()
            || self
                .timeline
                .reach(&span(event))
                .is_none_or(|(first, last)| self.known.qualified.has_any(first, last))
    }

    /// Adds a CUDA call. `stream` is the stream that the call uses; `None` if the call was captured
    /// into a graph.
    #[inline]
    fn call(&mut self, thread: u32, event: &Event, row: u8, stream: Option<u64>, counts: bool) {
        if counts {
            self.totals.calls[usize::from(row)].add(event.duration);
        }
        let kind = self.known.kinds[usize::from(row)];
        if let Some(place) = self.timeline.at(event.start)
            && let Some(iteration) = self.iterations.get_mut(place)
        {
            iteration.calls = iteration.calls.saturating_add(1);
            let captures = stream.is_none() || kind == CallKind::Capture;
            let compiles = self.known.compiles[usize::from(row)];
            let prepared = &mut iteration.preparation;
            prepared.captures = prepared.captures.saturating_add(captures.into());
            prepared.compilations = prepared.compilations.saturating_add(compiles.into());
            let is_own = self.threads.get(place) == Some(&thread);
            if is_own && kind == CallKind::Wait && iteration.launches > 0 {
                iteration.waited = Some(row);
            }
            if kind.launches() && stream.is_some() {
                if is_own && iteration.launched_after.is_none() {
                    iteration.launched_after = iteration.waited;
                }
                iteration.launches = iteration.launches.saturating_add(1);
                let launches_graph = kind == CallKind::GraphLaunch;
                iteration.graphs = iteration.graphs.saturating_add(launches_graph.into());
                iteration.launching = iteration.launching.saturating_add(event.duration);
            }
            if let Some(stream) = stream
                && self.known.qualified.has(place)
            {
                self.turnarounds.call(thread, row, stream, place, event);
            }
        }
        if kind == CallKind::Wait {
            self.own(thread, event, Cause::Wait(row));
        }
    }

    /// Adds an activity of a thread to the first and the last iteration that it overlaps. An iteration of another
    /// thread is left out. An iteration that begins after the activity and ends before it is left out, too: an activity
    /// around whole iterations, such as a range around a loop, does not explain why one of them is slow.
    fn own(&mut self, thread: u32, event: &Event, cause: Cause) {
        let span = span(event);
        let Some((first, last)) = self.timeline.reach(&span) else {
            return;
        };
        for place in [Some(first), (last != first).then_some(last)]
            .into_iter()
            .flatten()
        {
            let Some(around) = self.timeline.span(place) else {
                continue;
            };
            let covers = span.start < around.start && span.end > around.end;
            if covers || self.threads.get(place) != Some(&thread) {
                continue;
            }
            let ticks = span.overlap(around);
            if let Some(iteration) = self.iterations.get_mut(place) {
                match cause {
                    Cause::Wait(_) => iteration.wait = iteration.wait.saturating_add(ticks),
                    Cause::GilWait => iteration.gil_wait = iteration.gil_wait.saturating_add(ticks),
                    Cause::Gc(_) | Cause::GilHold(_) | Cause::Function(_) | Cause::Range(..) => (),
                }
            }
            if self.known.qualified.has(place) {
                self.totals.inside(cause, ticks);
            }
            self.watched.note(place, cause, ticks);
        }
    }

    /// Adds a garbage collection to every iteration that it overlaps, also to those of other threads, because it stops
    /// all Python code.
    fn collection(&mut self, event: &Event, generation: u16) {
        let span = span(event);
        let Some((first, last)) = self.timeline.reach(&span) else {
            return;
        };
        let mut part = |place: usize| {
            let ticks = self
                .timeline
                .span(place)
                .map_or(0, |around| span.overlap(around));
            if let Some(iteration) = self.iterations.get_mut(place) {
                iteration.gc = iteration.gc.saturating_add(ticks);
            }
            if self.known.qualified.has(place) {
                self.totals.inside(Cause::Gc(generation), ticks);
            }
        };
        part(first);
        if last != first {
            part(last);
        }
        // The garbage collection covers all iterations between the first and the last entirely.
        // There may be very many of these iterations, so only the changes of the number of
        // collections from one iteration to the next are stored.
        if last > first + 1 {
            self.iterations[first + 1].collections += 1;
            self.iterations[last].collections -= 1;
        }
        for index in self.watched.between(first, last) {
            self.note(index, &span, Cause::Gc(generation));
        }
    }

    /// Adds a time for which a thread held the GIL. If the time overlaps one of the slowest iterations (`watched`) and
    /// another thread ran that iteration, the overlap is stored as a possible cause of the iteration's slowness.
    fn hold(&mut self, thread: u32, event: &Event) {
        self.totals.gil_hold.add(event.duration);
        if self.totals.holds.len() < MAX_NAMES || self.totals.holds.contains_key(&thread) {
            let ticks = self.totals.holds.entry(thread).or_default();
            *ticks = ticks.saturating_add(event.duration);
        }
        let span = span(event);
        let Some((first, last)) = self.timeline.reach(&span) else {
            return;
        };
        for index in self.watched.between(first, last) {
            let place = self.watched.place(index);
            let owner = place.and_then(|place| self.threads.get(place));
            if owner.is_some_and(|owner| *owner != thread) {
                self.note(index, &span, Cause::GilHold(thread));
            }
        }
    }

    /// Adds the overlap of an activity with a slow iteration. `index` is the iteration's index
    /// among the slowest iterations.
    fn note(&mut self, index: usize, span: &Span, cause: Cause) {
        if let Some(place) = self.watched.place(index)
            && let Some(around) = self.timeline.span(place)
        {
            self.watched.note(place, cause, span.overlap(around));
        }
    }

    /// Adds the garbage collections that cover whole iterations to the sums of these iterations, and returns the
    /// results.
    pub(crate) fn finish(mut self) -> Tallied {
        let mut collections = 0_i64;
        for (place, iteration) in self.iterations.iter_mut().enumerate() {
            collections += iteration.collections;
            let length = self
                .timeline
                .span(place)
                .map_or(0, |span| span.end - span.start);
            let whole = length.saturating_mul(collections.unsigned_abs());
            iteration.gc = iteration.gc.saturating_add(whole);
        }
        Tallied {
            inside: self.iterations,
            turnaround: self.turnarounds.finish(),
            totals: self.totals,
            watched: self.watched,
        }
    }
}

/// Returns the time span of an event, in ticks of the record's clock.
const fn span(event: &Event) -> Span {
    Span {
        start: event.start,
        end: event.start.saturating_add(event.duration),
    }
}

/// Adds a time in ticks to the total with the key `key`. If there is no room for a new key, the
/// event is only counted in `left_out`.
fn named<K: Hash + Eq>(totals: &mut HashMap<K, Total>, left_out: &mut u64, key: K, ticks: u64) {
    if totals.len() < MAX_NAMES || totals.contains_key(&key) {
        totals.entry(key).or_default().add(ticks);
    } else {
        *left_out += 1;
    }
}

impl Totals {
    fn inside(&mut self, cause: Cause, ticks: u64) {
        let total = match cause {
            Cause::Gc(generation) => self.gc.get_mut(usize::from(generation)),
            Cause::GilWait => Some(&mut self.gil_wait),
            Cause::GilHold(_) => None,
            Cause::Wait(row) => Some(&mut self.calls[usize::from(row)]),
            Cause::Function(name) => self.functions.get_mut(&name),
            Cause::Range(domain, name) => self.ranges.get_mut(&(domain, name)),
        };
        if let Some(total) = total {
            total.inside = total.inside.saturating_add(ticks);
        }
    }
}

impl Default for Totals {
    fn default() -> Self {
        Self {
            calls: Box::new([Total::default(); 256]),
            gc: [Total::default(); GENERATIONS],
            collected: 0,
            gil_wait: Total::default(),
            gil_hold: Total::default(),
            holds: HashMap::new(),
            gil_forced: 0,
            functions: HashMap::new(),
            ranges: HashMap::new(),
            left_out: 0,
            dropped: 0,
            events: 0,
        }
    }
}
