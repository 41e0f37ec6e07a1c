//! Checks windows of a program that opens no NVTX ranges itself, under nsys.

use crate::common::read_log;
use crate::profile::{REPEAT_2, STOP, UNGATED, holds_exactly, nsys, profile_engine};

#[test]
fn one_window() {
    let Some(nsys) = nsys() else { return };
    let profile = profile_engine(nsys, STOP, Some("5-9"), "cudaGraphLaunch", &[]);
    profile.holds_one_window(5..=9);
    // According to the driver's log, the profiler was on during the window's five launches, which are also those in
    // nsys's report.
    let log = read_log(&profile.log);
    let launched: Vec<usize> = ["cuProfilerStart", "cuProfilerStop"]
        .iter()
        .map(|&edge| {
            let mut calls = log.iter().map(|record| record.function.as_str());
            let before = calls.position(|function| function == edge).expect(edge);
            log[..before]
                .iter()
                .filter(|record| record.function.starts_with("cuGraphLaunch"))
                .count()
        })
        .collect();
    assert_eq!(launched, [5, 10]);
}

#[test]
fn one_iteration() {
    let Some(nsys) = nsys() else { return };
    let profile = profile_engine(nsys, STOP, Some("17"), "cudaGraphLaunch", &[]);
    profile.holds_one_window(17..=17);
}

#[test]
fn two_windows_give_two_reports() {
    let Some(nsys) = nsys() else { return };
    let profile = profile_engine(nsys, REPEAT_2, Some("5-9,20-22"), "cudaGraphLaunch", &[]);
    assert_eq!(profile.reports.len(), 2);
    holds_exactly(&profile.reports[0], 5..=9);
    holds_exactly(&profile.reports[1], 20..=22);
}

#[test]
fn several_graphs_a_step() {
    let Some(nsys) = nsys() else { return };
    let graphs = &["--graphs", "4"];
    let profile = profile_engine(nsys, STOP, Some("5-9"), "cudaGraphLaunch/4", graphs);
    profile.holds_one_window(5..=9);
}

#[test]
fn closed_by_the_host_wait() {
    let Some(nsys) = nsys() else { return };
    let profile = profile_engine(nsys, STOP, Some("5-9"), "cudaStreamSynchronize", &[]);
    profile.holds_one_window(5..=9);
}

#[test]
fn open_to_the_end() {
    let Some(nsys) = nsys() else { return };
    let profile = profile_engine(nsys, STOP, Some("30-"), "cudaGraphLaunch", &[]);
    profile.holds_one_window(30..=39);
}

#[test]
fn no_window_marks_every_iteration() {
    let Some(nsys) = nsys() else { return };
    let profile = profile_engine(nsys, UNGATED, None, "cudaGraphLaunch", &[]);
    assert_eq!(profile.reports.len(), 1);
    let found: Vec<Option<u64>> = profile.reports[0]
        .iter()
        .filter(|range| range.domain == "tllmprof")
        .map(|range| range.payload)
        .collect();
    assert_eq!(found, (0..40).map(Some).collect::<Vec<_>>());
}
