//! The timeline of a process: the events of its record, as far as there is room for them.

use std::collections::{BTreeMap, HashMap};
use std::io;

use tllmprof_config::printable;
use tllmprof_record::{Metric, NO_STRING, OWN_DOMAIN, StringId};
use tllmprof_report::{Iteration, MetricSample, Process, Recording};
use tllmprof_timeline::{End, Interpreter, Item, Key, Kind, Name, Texts, Track as On};

use crate::columns::Columns;
use crate::names::Names;
use crate::shown::{Buckets, base};
use crate::track::{Place, Shown, Track};

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
        let mut buckets = Buckets::of(process);
        let interpreter = Interpreter::read(process, recording, |known, thread, event| {
            if let Some(item) = known.item(thread, event)
                && is_shown(&item, known.texts(process))
            {
                buckets.count(item.start);
            }
        })?;
        let mut reading = Reading {
            texts: interpreter.texts(process),
            interpreter: &interpreter,
            room,
            labels: HashMap::new(),
            scopes: HashMap::new(),
            timeline: Self {
                metrics: BTreeMap::new(),
                shown: buckets.choose(process, room),
                buckets,
                tracks: BTreeMap::new(),
                names: Names::default(),
                kept: 0,
            },
        };
        interpreter.items(process, recording, |item| reading.take(item))?;
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

    /// Numbers of events: those here, those of the record. Then the kinds of events, names, the tracks,
    /// and metrics.
    pub fn columns(&self, process: &Process) -> Columns {
        let mut columns = Columns::default();
        columns.column([self.kept, self.buckets.events()]);
        kinds(&mut columns);
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

/// Whether an item is one of the page's timeline. Strings that come after what refers to them may let one
/// of our own ranges through here, which is then counted and not drawn.
fn is_shown(item: &Item, texts: Texts<'_>) -> bool {
    let is_own = || item.domain != NO_STRING && texts.strings.get(item.domain) == OWN_DOMAIN;
    item.kind.row().page.is_some() && !is_own()
}

/// The table of kinds, as far as it is the page's: what people call each, its category, its colour, what its
/// value is and which end of a launch it is. Empty: it is not shown, has none, is none.
fn kinds(columns: &mut Columns) {
    columns.number(Kind::ALL.len() as u64);
    for kind in Kind::ALL {
        let row = kind.row();
        let (label, colour) = row.page.unwrap_or_default();
        columns.text(label);
        columns.text(row.category.map_or("", |category| category.text()));
        columns.text(colour);
        columns.text(shown_value(*kind).map_or("", Key::text));
        columns.text(match row.end {
            Some(End::Call) => "call",
            Some(End::Kernel) => "kernel",
            None => "",
        });
    }
}

/// What the page shows of a kind's value. Of the ends of a launch it has the launch instead; a stream's handle
/// means nothing to a reader.
fn shown_value(kind: Kind) -> Option<Key> {
    let row = kind.row();
    let is_shown = |key: &Key| row.end.is_none() && *key != Key::Stream;
    row.value.filter(is_shown)
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
    interpreter: &'a Interpreter,
    texts: Texts<'a>,
    room: u64,
    labels: HashMap<(Name, StringId), u32>,
    /// Of scopes one more than the number of the name.
    scopes: HashMap<u32, u32>,
    timeline: Timeline,
}

impl Reading<'_> {
    fn take(&mut self, item: &Item) {
        if !is_shown(item, self.texts) {
            return;
        }
        let Some(place) = Place::of(item.track) else {
            return;
        };
        let duration = self.interpreter.duration(item).unwrap_or(0);
        let timeline = &mut self.timeline;
        // What reaches into an iteration that is shown is shown, wherever it began.
        let first = timeline.buckets.at(item.start);
        let last = timeline.buckets.at(item.start.saturating_add(duration));
        let ends = [first, last];
        if timeline.kept >= self.room || !ends.iter().any(|bucket| timeline.shown[*bucket]) {
            return;
        }
        if !timeline.tracks.contains_key(&place) {
            if timeline.tracks.len() >= TRACKS {
                return;
            }
            let whose = timeline
                .names
                .number(place.whose(self.texts), String::new());
            timeline.tracks.insert(place, Track::new(whose));
        }
        let name = self.number(item);
        let value = match shown_value(item.kind) {
            Some(_) => item.value,
            // One more than the number of the launch; 0 where it is not known.
            None => self
                .interpreter
                .launch(item)
                .map_or(0, |launch| u64::from(launch.number) + 1),
        };
        let scope = item.scope.map_or(0, |scope| self.scope(scope));
        let timeline = &mut self.timeline;
        timeline.kept += 1;
        if let Some(track) = timeline.tracks.get_mut(&place) {
            let item = Shown::new(item, duration, name, value, scope);
            track.items.push(item);
        }
    }

    /// One more than the number of a scope's name.
    fn scope(&mut self, scope: u32) -> u32 {
        if let Some(number) = self.scopes.get(&scope) {
            return *number;
        }
        let name = printable(self.interpreter.scope(self.texts.process, scope));
        let number = self.timeline.names.number(name, String::new()) + 1;
        self.scopes.insert(scope, number);
        number
    }

    /// The number of an item's name. Names are put together once: there are many items of each.
    fn number(&mut self, item: &Item) -> u32 {
        // All streams of a device are on one track, where iterations are seen anyway.
        let name = match item.track {
            On::Spans { stream, .. } => Name::Stream(stream),
            _ => item.name,
        };
        let key = (name, item.domain);
        if let Some(number) = self.labels.get(&key) {
            return *number;
        }
        let (whole, short) = name.shown(item.domain, self.texts);
        let number = self.timeline.names.number(whole, short);
        self.labels.insert(key, number);
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_colour_of_the_style_and_of_the_legend() {
        let style = include_str!("../web/src/page.css");
        let legend = include_str!("../web/src/kinds.ts");
        for (label, colour) in Kind::ALL.iter().filter_map(|kind| kind.row().page) {
            assert!(style.contains(&format!("--{colour}:")), "{label}");
            assert!(legend.contains(&format!("[\"{colour}\", ")), "{label}");
        }
    }
}
