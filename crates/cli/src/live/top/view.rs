//! The contents of the full screen of `top`, as lines of text.

use std::collections::VecDeque;

use tllmprof_config::printable;
use tllmprof_report::{Rate, Share, Time};

use super::orders::{Captured, Id, capturing};
use super::watched::ProcessRow;
use crate::live::shown::{self, or_dash};

/// The largest number of messages that the screen shows.
const MESSAGES: usize = 4;
const KEYS: &str = "q quit   c capture 50 iterations   s stop   arrows select, ESC all";

#[derive(Default)]
pub(super) struct View {
    rows: Vec<ProcessRow>,
    /// The selected process. `None` means that all processes are selected.
    selected: Option<Id>,
    captured: Vec<Captured>,
    messages: VecDeque<String>,
    /// The index of the first visible row of the table of processes. It is not 0 if the rows do not fit on the screen
    /// and the view has moved down.
    top: std::cell::Cell<usize>,
}

/// A line of the screen, and true if it is highlighted.
pub(super) type ScreenLine = (String, bool);

impl View {
    pub(super) fn show(&mut self, rows: Vec<ProcessRow>) {
        self.rows = rows;
        if self.place().is_none() {
            self.selected = None;
        }
    }

    /// Shows the windows (ranges of captured iterations) that an order of the user has captured, and removes the
    /// message about the running capture. Only the latest window of each process stays on the screen.
    pub(crate) fn finish_order(&mut self, captured: Vec<Captured>) {
        let begun = capturing();
        self.messages.retain(|line| *line != begun);
        let is_old = |old: &Captured| captured.iter().any(|new| new.pid == old.pid);
        self.captured.retain(|old| !is_old(old));
        self.captured.extend(captured);
        self.captured.sort_by_key(|one| (one.rank, one.pid));
    }

    pub(crate) fn say(&mut self, line: String) {
        if self.messages.back() == Some(&line) {
            return;
        }
        self.messages.push_back(line);
        if self.messages.len() > MESSAGES {
            self.messages.pop_front();
        }
    }

    fn place(&self) -> Option<usize> {
        let selected = self.selected.as_ref()?;
        self.rows
            .iter()
            .position(|row| Id::from_status(&row.status) == *selected)
    }

    fn select(&mut self, place: Option<usize>) {
        let row = place.and_then(|place| self.rows.get(place));
        self.selected = row.map(|row| Id::from_status(&row.status));
    }

    /// Moves the selection up by one row. If the first row is selected, selects all processes.
    pub(crate) fn up(&mut self) {
        self.select(self.place().and_then(|place| place.checked_sub(1)));
    }

    pub(crate) fn down(&mut self) {
        let next = self.place().map_or(0, |place| place + 1);
        self.select(Some(next.min(self.rows.len().saturating_sub(1))));
    }

    pub(crate) fn select_all(&mut self) {
        self.selected = None;
    }

    /// Returns the selected processes, to which the next capture or stop applies.
    pub(crate) fn selected(&self) -> Vec<Id> {
        match &self.selected {
            Some(selected) => vec![selected.clone()],
            None => self
                .rows
                .iter()
                .map(|row| Id::from_status(&row.status))
                .collect(),
        }
    }

    /// Returns the lines that fill a screen with `height` lines.
    pub(super) fn lines(&self, height: usize) -> Vec<ScreenLine> {
        let count = self.rows.len();
        let selected = self.place();
        let of = match selected.and_then(|place| self.rows.get(place)) {
            Some(row) => row.status.pid.to_string(),
            None => "all".to_owned(),
        };
        let s = if count == 1 { "" } else { "es" };
        let mut lines = vec![(
            format!("tllmprof top: {count} process{s}, selected: {of}"),
            false,
        )];
        let table = table(&self.rows);
        let mut rows = table.lines().map(str::to_owned);
        lines.push((rows.next().unwrap_or_default(), false));
        let mut below: Vec<String> = Vec::new();
        if !self.captured.is_empty() {
            below.push(String::new());
            below.push(
                "Captured: shares of the time of iterations; GPU: of those that were timed"
                    .to_owned(),
            );
            below.extend(captured(&self.captured).lines().map(str::to_owned));
        }
        if !self.messages.is_empty() {
            below.push(String::new());
            below.extend(self.messages.iter().cloned());
        }
        // The rows of processes get the lines that the other parts of the screen do not need, but at least half of the
        // lines below the header and above the line of keys.
        let room = height.saturating_sub(lines.len() + 2);
        let room = room
            .saturating_sub(below.len())
            .max(room / 2)
            .clamp(1, count.max(1));
        let top = self.top.get().min(count.saturating_sub(room));
        let top = selected.map_or(top, |place| {
            top.clamp((place + 1).saturating_sub(room), place)
        });
        self.top.set(top);
        match count {
            0 => lines.push(("no process listens".to_owned(), false)),
            _ => lines.extend(
                rows.enumerate()
                    .skip(top)
                    .take(room)
                    .map(|(place, row)| (row, selected == Some(place))),
            ),
        }
        lines.extend(below.into_iter().map(|line| (line, false)));
        lines.truncate(height.saturating_sub(2));
        lines.resize(height.saturating_sub(1), ScreenLine::default());
        lines.push((KEYS.to_owned(), false));
        lines
    }
}

/// Returns the processes as a table with a header.
pub(super) fn table(rows: &[ProcessRow]) -> String {
    let mut cells = vec![
        [
            "PID", "RANK", "STATE", "STEPS", "STEPS/S", "P50", "P99", "GPU", "WAITS/S", "GC/S",
            "GIL/S", "ENGINE",
        ]
        .map(str::to_owned),
    ];
    cells.extend(rows.iter().map(|row| {
        let status = &row.status;
        let rate = |rate: Option<f64>| or_dash(rate.map(Rate));
        let time = |ns: Option<u64>| or_dash(ns.map(Time));
        [
            status.pid.to_string(),
            or_dash(status.rank),
            status.phase.name().to_owned(),
            status.iterations.to_string(),
            rate(row.rate),
            time(row.p50),
            time(row.p99),
            or_dash(row.gpu.map(Share)),
            rate(row.waits),
            rate(row.collections),
            rate(row.handoffs),
            or_dash(status.engine.as_ref().map(printable)),
        ]
    }));
    shown::table(&cells, &[0, 1, 3, 4, 5, 6, 7, 8, 9, 10])
}

fn captured(all: &[Captured]) -> String {
    let mut cells = vec![
        [
            "PID", "RANK", "WINDOW", "STEPS", "P50", "GPU", "TIMED", "WAITS", "GC", "GIL", "BATCH",
        ]
        .map(str::to_owned),
    ];
    cells.extend(all.iter().map(|one| {
        let share = |share: Option<f64>| or_dash(share.map(Share));
        let batch = |(requests, tokens)| format!("{requests:.1} requests, {tokens:.0} tokens");
        [
            one.pid.to_string(),
            or_dash(one.rank),
            format!("{}-{}", one.window.0, one.window.1),
            one.iterations.to_string(),
            or_dash(one.p50.map(Time)),
            share(one.gpu),
            one.timed.to_string(),
            share(one.waits),
            share(one.collections),
            share(one.gil),
            or_dash(one.batch.map(batch)),
        ]
    }));
    shown::table(&cells, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
}

#[cfg(test)]
mod tests {
    use tllmprof_control::Status;

    use super::*;

    fn row(pid: u64) -> ProcessRow {
        let status = Status {
            pid,
            iterations: 10 * pid,
            ..Status::default()
        };
        ProcessRow {
            status,
            rate: Some(1000.0),
            p50: Some(1_234_567),
            gpu: Some(0.25),
            ..ProcessRow::default()
        }
    }

    fn shown(view: &View, height: usize) -> Vec<String> {
        let lines = view.lines(height);
        assert_eq!(lines.len(), height);
        lines
            .into_iter()
            .map(|(line, is_selected)| {
                if is_selected {
                    format!(">{line}")
                } else {
                    line
                }
            })
            .collect()
    }

    #[test]
    fn rows_have_figures_and_dashes() {
        assert_eq!(
            table(&[row(7)]),
            "PID  RANK  STATE  STEPS  STEPS/S      P50  P99     GPU  WAITS/S  GC/S  GIL/S  ENGINE\n  \
             7     -  armed     70     1000  1.23 ms    -  25.0 %        -     -      -  -\n"
        );
    }

    #[test]
    fn the_selected_row_is_on_the_screen_and_all_are_above_the_first() {
        let mut view = View::default();
        assert!(shown(&view, 8)[2].contains("no process listens"));
        view.show((1..=20).map(row).collect());
        view.say("a message".to_owned());
        assert_eq!(view.selected().len(), 20);
        for _ in 0..15 {
            view.down();
        }
        let screen = shown(&view, 10);
        assert!(
            screen.iter().any(|line| line.starts_with("> 15 ")),
            "{screen:?}"
        );
        assert!(screen.iter().any(|line| line == "a message"), "{screen:?}");
        assert_eq!(view.selected(), [Id::from_status(&row(15).status)]);
        // The selection stays when processes other than the selected one end. If the selected process ends, all
        // processes become selected.
        view.show((10..=20).map(row).collect());
        assert_eq!(view.selected(), [Id::from_status(&row(15).status)]);
        view.show((16..=20).map(row).collect());
        assert_eq!(view.selected().len(), 5);
        view.down();
        view.up();
        assert_eq!(view.selected().len(), 5);
    }

    #[test]
    fn windows_that_were_captured_are_below() {
        let mut view = View::default();
        view.show(vec![row(7)]);
        let mut one = Captured {
            pid: 7,
            window: (5, 9),
            p50: Some(2_000_000),
            gpu: Some(0.5),
            iterations: 5,
            timed: 3,
            batch: Some((2.0, 17.0)),
            ..Captured::default()
        };
        view.say(capturing());
        assert!(shown(&view, 20).contains(&capturing()));
        view.finish_order(vec![one.clone()]);
        assert!(!shown(&view, 20).contains(&capturing()));
        one.window = (15, 19);
        view.finish_order(vec![one]);
        let screen = shown(&view, 20).join("\n");
        assert!(
            screen.contains(
                "  7     -   15-19      5  2.00 ms  50.0 %      3      -   -    -  2.0 requests, 17 tokens"
            ),
            "{screen}"
        );
        assert!(!screen.contains("5-9 "), "{screen}");
        // Whichever row is selected, the lines must fit on a screen of any height.
        view.show((1..=20).map(row).collect());
        for _ in 0..22 {
            for height in 0..12 {
                assert!(view.lines(height).len() <= height.max(1));
            }
            view.down();
        }
    }
}
