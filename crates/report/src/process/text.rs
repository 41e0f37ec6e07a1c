//! The report's notes on figures of a process that are missing or inexact.

use super::Process;
use crate::events::origin::Data;
use crate::numbers::units::{Bytes, Count, Time};

/// Returns notes on missing or inexact figures. Of the warnings in the record, at most `warnings`
/// are included.
pub(crate) fn notes(process: &Process, warnings: usize) -> Vec<String> {
    let mut notes = Vec::from_iter(process.uncounted());
    let origin = &process.facts.origin;
    if let (true, Some(sum)) = (
        origin.is_own() && origin.lacks(Data::Iterations),
        &process.sum,
    ) {
        notes.push(format!(
            "no step was recognised: this is about the last {} as one span. --step names what a step is",
            Time(sum.time.max)
        ));
    }
    // If there are iterations, the findings already say that no window opened.
    if process.sum.is_none() && process.lacks_kernel_window() {
        notes.push(
            "kernels were asked for, and are recorded in windows, none of which opened (--window opens one, and \
             tllmprof capture while the program runs)"
                .to_owned(),
        );
    }
    if let Some(tied) = process.record.tied_briefly {
        notes.push(format!(
            "times are unsure: the clock was tied for {} alone",
            Time(tied)
        ));
    }
    notes.extend(missing(process));
    if process.record.windows_dropped > 0 {
        notes.push(format!(
            "{} older window{} made room for later ones: the record could take {}",
            process.record.windows_dropped,
            if process.record.windows_dropped == 1 {
                ""
            } else {
                "s"
            },
            Bytes(process.record.keep)
        ));
    }
    if process.record.left_out > 0 {
        notes.push(format!(
            "{} things were too many for this report",
            process.record.left_out
        ));
    }
    if process.kernels.missing > 0 {
        notes.push(format!(
            "no kernel arrived from {} in which the GPU was busy",
            Count(process.kernels.missing, "iteration")
        ));
    }
    let kernels_lost = process
        .kernels
        .window
        .as_ref()
        .map_or(0, |taken| taken.dropped);
    if kernels_lost > 0 {
        notes.push(format!("{kernels_lost} kernels or copies are missing"));
    }
    notes.extend(said_of_record(process, warnings));
    notes
}

/// Returns the notes on iterations and events that are missing in the record.
fn missing(process: &Process) -> Vec<String> {
    let (record, mut notes) = (&process.record, Vec::new());
    if record.passed > 0 {
        notes.push(format!(
            "{} missing: later ones began while a window was being switched",
            Count(record.passed, "iteration").are()
        ));
    }
    if record.missing > 0 {
        notes.push(format!(
            "missing in a window that was not closed: {}",
            Count(record.missing, "iteration")
        ));
    }
    let known = record.passed.saturating_add(record.missing);
    let dropped = record.dropped.saturating_sub(known);
    // For a trace of another profiler, the warnings give the reasons for which its events were left out.
    if dropped > 0 && process.facts.origin.is_own() {
        notes.push(format!(
            "{} dropped: the record or its disk was full",
            Count(dropped, "event").were()
        ));
    }
    notes
}

/// Returns notes on GPU times that could not be read, on the state of the record, and at most `warnings` of the
/// warnings in the record.
fn said_of_record(process: &Process, warnings: usize) -> Vec<String> {
    let mut notes = Vec::new();
    if process.record.gpu_lost > 0 {
        notes.push(format!(
            "GPU times that could not be read: {}",
            process.record.gpu_lost
        ));
    }
    notes.extend(process.condition());
    let warned = &process.facts.asked.refused;
    let more = match warned.len().saturating_sub(warnings) {
        0 => String::new(),
        more => format!(" ({more} more)"),
    };
    notes.extend(
        warned
            .iter()
            .take(warnings)
            .map(|one| format!("warned{more}: {one}")),
    );
    notes
}
