//! Reads records and passes their items to a trace format, in an order in which they can be drawn.

use std::cmp::Reverse;
use std::collections::hash_map::Entry as Slot;
use std::collections::{HashMap, HashSet};
use std::io;

use tllmprof_timeline::Track;

use crate::activity::{Activity, Draw};
use crate::clocks::Clocks;
use crate::exported::Exported;
use crate::lanes::{Lanes, kept_apart};
use crate::record::Record;

/// Number of events in a batch. The events of a batch are collected, sorted by time and then written.
const BATCH_EVENTS: usize = 4096;

/// Maximum number of tracks of a record. The number of lines of all its tracks together has the same limit.
const MAX_TRACKS: usize = 1 << 16;

/// First number that is invented for processes and threads whose real number is unknown or already used. Linux's
/// process and thread ids are below 2^22.
const FIRST_INVENTED: u32 = 10_000_000;

/// Number of a group or of a line, which is unique in the whole trace.
pub(crate) type Id = u32;

/// A group of tracks: a process, or the GPUs that it used.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub id: Id,
    /// The process id, unless an earlier group in the trace already has this number. Then, and for a group of GPUs, it
    /// is an invented number.
    pub pid: u32,
    pub title: String,
    /// The rank of the process, which determines the group's position among other groups.
    pub rank: u64,
}

/// One line of a track, on which a trace viewer draws events.
#[derive(Clone, Debug)]
pub(crate) struct TrackLine {
    pub id: Id,
    pub track: Track,
    /// For the first line of a thread's track, the thread's id. For all other lines, an invented number.
    pub tid: u32,
    pub name: String,
    /// The main line of the thread to which this line belongs. `None` if this is the main line, or if the line belongs
    /// to no thread.
    pub thread: Option<Id>,
}

/// An output format for traces. It receives groups and lines before the items that refer to them.
pub(crate) trait TraceFormat {
    fn begin(&mut self, clocks: &Clocks) -> io::Result<()>;
    /// Begins a new record. All groups, lines and items that are passed in later belong to this record, until the next
    /// record begins.
    fn record(&mut self, record: &Record) -> io::Result<()>;
    fn group(&mut self, record: &Record, group: &Group) -> io::Result<()>;
    fn line(&mut self, group: &Group, line: &TrackLine) -> io::Result<()>;
    fn activity(
        &mut self,
        record: &Record,
        group: &Group,
        line: &TrackLine,
        activity: &Activity,
    ) -> io::Result<()>;
    fn value(&mut self, group: &Group, line: &TrackLine, at: u64, value: f64) -> io::Result<()>;
    fn end(&mut self) -> io::Result<()>;
}

/// Writes records in a trace format.
///
/// # Errors
/// Returns an error if a record cannot be read, and the errors of the format.
pub(crate) fn write(records: &[Record], format: &mut impl TraceFormat) -> io::Result<Exported> {
    let clocks = Clocks::from_records(records);
    format.begin(&clocks)?;
    let mut numbers = Numbers::default();
    let mut exported = Exported::default();
    for (index, record) in records.iter().enumerate() {
        format.record(record)?;
        let shift = clocks.shift(index);
        let mut page = Page::new(record, &mut numbers, format);
        let mut draw = Draw::new(record, shift);
        record.items(|item| match (item.track, item.kind.row().category) {
            (track @ Track::Counter { .. }, _) => {
                page.value(track, draw.at(item), item.value as f64 / 1e3)
            }
            (_, Some(category)) => page.activity(draw.activity(item, category)),
            (_, None) => Ok(()),
        })?;
        page.flush()?;
        exported.events += page.exported.events;
        exported.left_out += page.exported.left_out;
    }
    format.end()?;
    Ok(exported)
}

/// The ids of groups, tracks, processes and threads that have been assigned so far.
#[derive(Default)]
struct Numbers {
    ids: Id,
    pids: HashSet<u32>,
}

impl Numbers {
    const fn id(&mut self) -> Id {
        self.ids += 1;
        self.ids
    }

    /// Returns a process number that no other process has: `wanted` if that number is free, otherwise an invented
    /// number.
    fn pid(&mut self, wanted: Option<u32>) -> u32 {
        let wanted = wanted.filter(|pid| *pid < FIRST_INVENTED);
        if let Some(pid) = wanted.filter(|pid| self.pids.insert(*pid)) {
            return pid;
        }
        let mut pid = FIRST_INVENTED;
        while !self.pids.insert(pid) {
            pid += 1;
        }
        pid
    }
}

/// The tracks of one record, and the items that wait to be sorted and written.
struct Page<'a, F> {
    record: &'a Record,
    format: &'a mut F,
    numbers: &'a mut Numbers,
    /// The group of the process and the group of its GPUs. The flag is true once the group was passed to the format.
    groups: [(Group, bool); 2],
    tracks: HashMap<Track, usize>,
    lanes: Vec<Drawing>,
    /// The track of the last event, and the track's index. Both are cached because the next event usually has the same
    /// track.
    last: Option<(Track, usize)>,
    lines: Vec<TrackLine>,
    waiting: Vec<Activity>,
    /// A buffer that only `flush` uses. It is kept so that its memory is reused.
    placed: Vec<Placed>,
    batch: u32,
    exported: Exported,
}

/// The start and end of an item that waits to be written, and the line for the item.
struct Placed {
    start: u64,
    end: u64,
    index: usize,
    line: Option<usize>,
}

/// The lines of one track, and the index of each line in [`Page::lines`].
#[derive(Default)]
struct Drawing {
    lanes: Lanes,
    lines: Vec<usize>,
}

impl<'a, F: TraceFormat> Page<'a, F> {
    fn new(record: &'a Record, numbers: &'a mut Numbers, format: &'a mut F) -> Self {
        let process = &record.process;
        let facts = &process.facts;
        let (pid, rank) = (process.pid, facts.rank);
        let name = match &facts.process[..] {
            "" => "process",
            name => name,
        };
        let place = match &facts.host[..] {
            "" => format!("pid {pid}"),
            host => format!("pid {pid}, {host}"),
        };
        let rank_name = facts.rank_name();
        let gpus = if process.sum.is_none() && process.calls.calls.is_empty() {
            format!("GPU metrics ({place})")
        } else {
            format!("{rank_name}: GPU ({place})")
        };
        let mut group = |wanted, title| Group {
            id: numbers.id(),
            pid: numbers.pid(wanted),
            title,
            rank,
        };
        let groups = [
            group(Some(pid), format!("{rank_name}: {name} ({place})")),
            group(None, gpus),
        ];
        Self {
            record,
            format,
            numbers,
            groups: groups.map(|group| (group, false)),
            tracks: HashMap::new(),
            lanes: Vec::new(),
            last: None,
            lines: Vec::new(),
            waiting: Vec::with_capacity(BATCH_EVENTS),
            placed: Vec::with_capacity(BATCH_EVENTS),
            batch: 0,
            exported: Exported::default(),
        }
    }

    fn activity(&mut self, activity: Activity) -> io::Result<()> {
        self.waiting.push(activity);
        if self.waiting.len() == BATCH_EVENTS {
            self.flush()?;
        }
        Ok(())
    }

    fn value(&mut self, track: Track, at: u64, value: f64) -> io::Result<()> {
        match self.line(track, at, at)? {
            Some(line) => {
                self.exported.events += 1;
                let (group, _) = &self.groups[1];
                self.format.value(group, &self.lines[line], at, value)
            }
            None => {
                self.exported.left_out += 1;
                Ok(())
            }
        }
    }

    /// Finds lines for the waiting items, in the order of their ends, and writes the items in the order of their
    /// starts. If items start together, the longest comes first, because it contains the other items. If items also end
    /// together, the item that was added later comes first.
    fn flush(&mut self) -> io::Result<()> {
        let waiting = std::mem::take(&mut self.waiting);
        let mut placed = std::mem::take(&mut self.placed);
        placed.extend((0..).zip(&waiting).map(|(index, activity)| {
            Placed {
                start: activity.start,
                end: activity
                    .start
                    .saturating_add(activity.duration.unwrap_or(0)),
                index,
                line: None,
            }
        }));
        placed.sort_by_key(|placed| (placed.end, Reverse(placed.start)));
        for placed in &mut placed {
            let track = waiting[placed.index].item.track;
            placed.line = self.line(track, placed.start, placed.end)?;
        }
        placed.sort_unstable_by_key(|placed| {
            (placed.start, Reverse(placed.end), Reverse(placed.index))
        });
        for placed in placed.drain(..) {
            let Some(line) = placed.line else {
                self.exported.left_out += 1;
                continue;
            };
            let activity = &waiting[placed.index];
            let (group, _) = &self.groups[usize::from(activity.item.track.is_of_gpu())];
            self.format
                .activity(self.record, group, &self.lines[line], activity)?;
            self.exported.events += 1;
        }
        (self.waiting, self.placed) = (waiting, placed);
        self.waiting.clear();
        self.batch = self.batch.wrapping_add(1);
        Ok(())
    }

    /// Returns the index in [`Page::lines`] of the line for a span of a track. Returns `None` if the span needs a new
    /// track or line, and the maximum number of these is reached.
    fn line(&mut self, track: Track, start: u64, end: u64) -> io::Result<Option<usize>> {
        let index = match self.last {
            Some((last, index)) if last == track => index,
            _ => match self.tracks.entry(track) {
                Slot::Occupied(known) => *known.get(),
                Slot::Vacant(new) if self.lanes.len() < MAX_TRACKS => {
                    self.lanes.push(Drawing::default());
                    *new.insert(self.lanes.len() - 1)
                }
                Slot::Vacant(_) => return Ok(None),
            },
        };
        self.last = Some((track, index));
        let drawing = &mut self.lanes[index];
        let lane = match track {
            Track::Counter { .. } => Some(0),
            _ => drawing
                .lanes
                .line(start, end, self.batch, kept_apart(self.lines.len())),
        };
        let Some(lane) = lane else {
            return Ok(None);
        };
        match drawing.lines.get(lane) {
            Some(line) => Ok(Some(*line)),
            None if self.lines.len() < MAX_TRACKS => self.add(track, index, lane),
            None => Ok(None),
        }
    }

    /// Adds another line to a track. Returns the line's index in [`Page::lines`].
    fn add(&mut self, track: Track, index: usize, lane: usize) -> io::Result<Option<usize>> {
        let own = Track::Thread(track.thread().unwrap_or(0));
        let thread = match track.thread() {
            Some(_) if track != own => {
                // The thread's main line is added first, even if no item is on the main line, because the new line
                // refers to it.
                let line = self.line(own, 0, 0)?;
                self.last = None;
                line
            }
            Some(_) if lane > 0 => self.lanes[index].lines.first().copied(),
            _ => None,
        };
        let (group, known) = &mut self.groups[usize::from(track.is_of_gpu())];
        if !*known {
            self.format.group(self.record, group)?;
            *known = true;
        }
        let id = self.numbers.id();
        let line = TrackLine {
            id,
            track,
            tid: match (track, lane) {
                (Track::Thread(tid), 0) => tid,
                _ => FIRST_INVENTED.saturating_add(id),
            },
            name: track.name(self.record.texts()),
            thread: thread
                .and_then(|line| self.lines.get(line))
                .map(|line| line.id),
        };
        self.format.line(group, &line)?;
        self.lines.push(line);
        let line = self.lines.len() - 1;
        self.lanes[index].lines.push(line);
        Ok(Some(line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_processes_have_one_number() {
        let mut numbers = Numbers::default();
        let wanted = [Some(7), Some(7), None, Some(u32::MAX), Some(8)];
        let given = wanted.map(|wanted| numbers.pid(wanted));
        assert_eq!(
            given,
            [7, FIRST_INVENTED, FIRST_INVENTED + 1, FIRST_INVENTED + 2, 8]
        );
    }
}
