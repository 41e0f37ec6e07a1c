//! The timeline of a process, with those events of its record that the page contains.

use std::collections::{BTreeMap, HashMap};
use std::io;

use tllmprof_config::printable;
use tllmprof_record::{Metric, NO_STRING, OWN_DOMAIN, StringId};
use tllmprof_report::{Iteration, MetricSample, Process, Recording};
use tllmprof_timeline::{Interpreter, Item, Key, Kind, LaunchEnd, Name, Texts, Track as On};

use crate::buckets::{Buckets, base};
use crate::columns::Columns;
use crate::names::NameTable;
use crate::track::{Track, TrackEvent, TrackKey};

/// Maximum number of tracks (rows of the timeline). Events of further tracks are only counted.
const MAX_TRACKS: usize = 4096;

/// The events of a process that its timeline on the page shows.
#[derive(Debug)]
pub struct Timeline {
    tracks: BTreeMap<TrackKey, Track>,
    /// Samples of GPU metrics. The key is the number of the GPU, and the metric.
    metrics: BTreeMap<(u8, Metric), Vec<MetricSample>>,
    names: NameTable,
    buckets: Buckets,
    shown: Vec<bool>,
    kept: u64,
}

impl Timeline {
    /// Reads the events of a process from its record. At most `room` events are kept.
    ///
    /// # Errors
    /// Returns an error if the record cannot be read.
    pub fn read(process: &Process, recording: &impl Recording, room: u64) -> io::Result<Self> {
        let mut buckets = Buckets::new(process);
        let interpreter = Interpreter::read(process, recording, |known, thread, event| {
            if let Some(item) = known.item(thread, event)
                && is_shown(&item, known.texts(process))
            {
                buckets.count(item.start);
            }
        })?;
        let shown = buckets.choose(process, room);
        let mut pass = SecondPass {
            texts: interpreter.texts(process),
            interpreter: &interpreter,
            room,
            spare: room.saturating_sub(buckets.events_in(&shown)),
            labels: HashMap::new(),
            scopes: HashMap::new(),
            timeline: Self {
                metrics: BTreeMap::new(),
                shown,
                buckets,
                tracks: BTreeMap::new(),
                names: NameTable::default(),
                kept: 0,
            },
        };
        interpreter.items(process, recording, |item| pass.take(item))?;
        let mut timeline = pass.timeline;
        timeline.tracks.values_mut().for_each(Track::sort);
        Ok(timeline)
    }

    /// Returns two numbers: the events in this timeline, and the events in the record that a timeline can show.
    #[must_use]
    pub fn events(&self) -> (u64, u64) {
        (self.kept, self.buckets.events())
    }

    /// Returns true if the timeline contains the events of the iteration that begins at `moment`,
    /// in nanoseconds.
    pub fn shows(&self, moment: u64) -> bool {
        self.shown
            .get(self.buckets.index(moment))
            .copied()
            .unwrap_or(false)
    }

    /// Adds those samples of GPU metrics that the page draws, from the start of the process's first iteration to the
    /// end of its last iteration. The samples may come from several records of the same machine if these records
    /// number the GPUs in the same way.
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

    /// Returns the columns of the page's data: the numbers of events in this timeline and in the
    /// record, the table of kinds, the names, the tracks, and the metrics.
    pub fn columns(&self, process: &Process) -> Columns {
        let mut columns = Columns::default();
        columns.column([self.kept, self.buckets.events()]);
        kinds(&mut columns);
        self.names.put(&mut columns);
        columns.number(self.tracks.len() as u64);
        for (key, track) in &self.tracks {
            track.put(*key, base(process), &mut columns);
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

/// Returns true if the page's timeline shows an item. NVTX ranges that tllmprof itself opened are not shown. In the
/// first pass over the record such a range may be counted nevertheless, because the name of its domain may come later
/// in the record.
fn is_shown(item: &Item, texts: Texts<'_>) -> bool {
    let is_own = || item.domain != NO_STRING && texts.strings.get(item.domain) == OWN_DOMAIN;
    item.kind.row().page.is_some() && !is_own()
}

/// Adds the columns of the table of event kinds. A row has the label of the kind on the page, its category, its colour,
/// the meaning of the events' value, and the side of a launch (call or kernel) that the events show. Texts that a kind
/// does not have are empty.
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
            Some(LaunchEnd::Call) => "call",
            Some(LaunchEnd::Kernel) => "kernel",
            None => "",
        });
    }
}

/// Returns the key that says what the value of a kind's events means on the page; `None` if the value is not shown.
/// For calls and kernels that belong to a launch, the page shows the launch's number instead of the value. The handle
/// of a stream is not shown.
fn shown_value(kind: Kind) -> Option<Key> {
    let row = kind.row();
    let is_shown = |key: &Key| row.end.is_none() && *key != Key::Stream;
    row.value.filter(is_shown)
}

/// Returns true if the page draws the metric as a curve. It draws metrics that show how busy a GPU, its memory and
/// its links are, and the GPU's power.
const fn is_drawn_metric(metric: Metric) -> bool {
    metric.has_mean()
        && !matches!(
            metric,
            Metric::SmClock | Metric::MemoryUsed | Metric::Temperature
        )
}

/// The state of the second pass over a record, which collects the events.
struct SecondPass<'a> {
    interpreter: &'a Interpreter,
    texts: Texts<'a>,
    room: u64,
    /// Number of events that may still be kept although they begin before the chosen iterations. The rest of `room` is
    /// for the events that begin in the chosen iterations.
    spare: u64,
    labels: HashMap<(Name, StringId), u32>,
    /// Numbers of scopes, such as the module `layers.3.mlp`. The key is the scope's ID in the record. The value is
    /// the number of the scope's name on the page plus 1. The name is empty if no scope was open.
    scopes: HashMap<u32, u32>,
    timeline: Timeline,
}

impl SecondPass<'_> {
    fn take(&mut self, item: &Item) {
        if !is_shown(item, self.texts) {
            return;
        }
        let Some(key) = TrackKey::find(item.track) else {
            return;
        };
        let duration = self.interpreter.duration(item).unwrap_or(0);
        let timeline = &mut self.timeline;
        // An event is on the page if it begins in one of the chosen iterations. An event that only ends in one is on
        // the page as long as `spare` is not used up. `spare` is the room that the other events do not need.
        let first = timeline.buckets.index(item.start);
        let last = timeline.buckets.index(item.start.saturating_add(duration));
        let begins = timeline.shown[first];
        let is_chosen = begins || (timeline.shown[last] && self.spare > 0);
        if timeline.kept >= self.room || !is_chosen {
            return;
        }
        if !timeline.tracks.contains_key(&key) {
            if timeline.tracks.len() >= MAX_TRACKS {
                return;
            }
            let whose = timeline.names.number(key.whose(self.texts), String::new());
            timeline.tracks.insert(key, Track::new(whose));
        }
        let name = self.number(item);
        let value = match shown_value(item.kind) {
            Some(_) => item.value,
            // In place of the value, the page gets the number of the launch that the item belongs to, plus 1. It gets
            // 0 if the item belongs to no launch that is known.
            None => self
                .interpreter
                .launch(item)
                .map_or(0, |launch| u64::from(launch.number) + 1),
        };
        let scope = item.scope.map_or(0, |scope| self.scope(scope));
        let timeline = &mut self.timeline;
        timeline.kept += 1;
        if !begins {
            self.spare -= 1;
        }
        if let Some(track) = timeline.tracks.get_mut(&key) {
            let item = TrackEvent::new(item, duration, name, value, scope);
            track.items.push(item);
        }
    }

    /// Returns the number of the name of a scope, such as the module `layers.3.mlp`, plus 1. The name is empty if no
    /// scope was open. The result is cached.
    fn scope(&mut self, scope: u32) -> u32 {
        if let Some(number) = self.scopes.get(&scope) {
            return *number;
        }
        let name = printable(self.interpreter.scope(self.texts.process, scope));
        let number = self.timeline.names.number(name, String::new()) + 1;
        self.scopes.insert(scope, number);
        number
    }

    /// Returns the number of an item's name. The number is cached, because many items share a name.
    fn number(&mut self, item: &Item) -> u32 {
        // A span is the work of one stream in one iteration. The record's item has the iteration as its name. But on
        // the page, the spans of all streams of a GPU are on one track, so each span gets the name of its stream.
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
