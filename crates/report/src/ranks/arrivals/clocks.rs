//! The clocks of the ranks. Ranks on one host share a clock. The clocks of several hosts are
//! aligned by the ends of collectives, which all ranks reach at nearly the same time: the ends
//! differ only by the last part of the transfer.

use std::path::Path;

use schemars::JsonSchema;
use serde::Serialize;

use super::fit::{Fit, Jump, median};
use super::matching::{Group, Matched};
use crate::ranks::Rank;

/// Maximum number of a group's collectives that are used to align clocks. If there are more, every n-th one is used.
const MAX_EVENTS: usize = 4096;
/// Assumed maximum error between the times of two processes that read the same host's clock, in
/// nanoseconds.
const SHARED_CLOCK_ERROR_NS: u64 = 1_000;
/// Maximum difference between the sizes of the jumps of two hosts' clocks, in nanoseconds, for the conclusion that the
/// reference clock jumped instead of these two clocks.
const MAX_JUMP_DIFFERENCE_NS: i64 = 25_000;

/// The clock of a host, compared with the clock of a reference host.
#[derive(Clone, PartialEq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "Clock")]
pub struct HostClock {
    /// The name of the host.
    pub host: String,
    /// Index of a process of the host, in the list of processes.
    #[serde(skip)]
    pub process: usize,
    /// The value of `CLOCK_MONOTONIC` on this host minus its value on the reference host, in the middle of the record.
    /// A positive value means that this host's clock is ahead. `null` if there are no collectives to compare the clocks
    /// by.
    #[serde(rename = "offset_ns")]
    pub offset: Option<i64>,
    /// The rate by which this host's clock runs faster than the clock of the reference host; negative if it runs
    /// slower.
    #[serde(rename = "drift_ppm")]
    #[schemars(extend("unit" = "parts per million"))]
    pub drift: f64,
    /// The error of the alignment: 9 of 10 ends of this host's collectives differ by at most this time from the ends on
    /// the other hosts.
    #[serde(rename = "error_ns")]
    pub error: u64,
}

/// A jump of a clock, as the ends of collectives show it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct ClockJump {
    /// The index in `processes` of the process whose GPU times jump. If the clock of a whole host jumps, this is the
    /// index of one process on that host.
    pub process: usize,
    /// True if the clock of the whole host jumps. False if only the GPU times of one process jump.
    pub is_host: bool,
    /// True if only two clocks were compared, so that it is not known which of them jumped.
    #[serde(skip)]
    pub is_either: bool,
    /// The number of the first iteration after the jump.
    #[serde(rename = "n")]
    pub step: u32,
    /// The size of the jump; negative if the clock was set back.
    #[serde(rename = "by_ns")]
    pub by: i64,
}

/// The clocks of processes, with their offsets from the clock of a reference host.
#[derive(Debug)]
pub(crate) struct Clocks {
    /// For each process, the index of its host in `fits`.
    hosts: Vec<usize>,
    /// For each host, the index of one of its processes.
    first: Vec<usize>,
    fits: Vec<Option<Fit>>,
    /// For each process, an offset that is added to the offset of its host. This offset differs from 0 only if the
    /// times of the process jump and the times of the other processes on its host do not.
    own: Vec<Fit>,
    pub jumps: Vec<ClockJump>,
}

/// Returns the index of each process's host. Two processes are on one host if the boot IDs of their
/// machines are equal or, without boot IDs, if the names of their hosts are equal. In traces of
/// other profilers, only processes in the same file share a clock.
pub(crate) fn hosts(processes: &[Rank<'_>]) -> Vec<usize> {
    let mut known: Vec<(&str, &str, &Path)> = Vec::new();
    let mut hosts = Vec::with_capacity(processes.len());
    for Rank { facts, file, .. } in processes {
        let own = match &*facts.boot {
            _ if !facts.origin.is_own() => ("", "", *file),
            "" => ("", &*facts.host, Path::new("")),
            boot => (boot, "", Path::new("")),
        };
        let at = known.iter().position(|other| *other == own);
        hosts.push(at.unwrap_or_else(|| {
            known.push(own);
            known.len() - 1
        }));
    }
    hosts
}

impl Clocks {
    /// Returns the clocks, aligned by the ends of the matched collectives.
    pub(crate) fn new(hosts: Vec<usize>, matched: &Matched<'_>) -> Self {
        let count = hosts.iter().max().map_or(0, |most| most + 1);
        let first = (0..count).map(|host| hosts.iter().position(|one| *one == host).unwrap_or(0));
        let mut clocks = Self {
            first: first.collect(),
            fits: vec![None; count],
            own: vec![Fit::default(); hosts.len()],
            hosts,
            jumps: Vec::new(),
        };
        let mut groups: Vec<_> = matched.groups.iter().collect();
        groups.sort_by_key(|group| std::cmp::Reverse((group.lanes.len(), group.events().len())));
        if let Some(group) = groups.first() {
            let reference = group
                .lanes
                .iter()
                .map(|lane| clocks.hosts[lane.place])
                .min();
            clocks.fits[reference.unwrap_or(0)] = Some(Fit::default());
        }
        let mut is_new = true;
        while is_new {
            is_new = groups
                .iter()
                .fold(false, |new, group| clocks.align(group) | new);
        }
        let mut known = vec![false; clocks.hosts.len()];
        for group in groups {
            clocks.own_jumps(group, &mut known);
        }
        clocks
    }

    /// Aligns those hosts of a group whose offset is not known yet with hosts of the group whose offset is known.
    /// Returns true if at least one host was aligned.
    fn align(&mut self, group: &Group<'_>) -> bool {
        let mut by_host: Vec<Vec<usize>> = vec![Vec::new(); self.fits.len()];
        for (at, lane) in group.lanes.iter().enumerate() {
            by_host[self.hosts[lane.place]].push(at);
        }
        let here = |host: &usize| !by_host[*host].is_empty();
        let (known, new): (Vec<_>, Vec<_>) = (0..self.fits.len())
            .filter(here)
            .partition(|host| self.fits[*host].is_some());
        if known.is_empty() || new.is_empty() {
            return false;
        }
        let points = self.offsets(group, &by_host, &known, &new);
        let fits: Vec<_> = points.iter().map(|points| Fit::through(points)).collect();
        let jumps: Vec<_> = fits.iter().map(Fit::jumps).collect();
        // If the clocks of several hosts make the same jump relative to one reference clock, it was
        // the reference clock that jumped.
        let is_theirs = |jump: &Jump, by: &Jump| (jump.by - by.by).abs() < MAX_JUMP_DIFFERENCE_NS;
        let shared = match (&jumps[..], &known[..]) {
            ([first, others @ ..], [_]) if !others.is_empty() => {
                let all = |jump: &&Jump| {
                    others
                        .iter()
                        .all(|other| other.iter().any(|by| is_theirs(jump, by)))
                };
                first.iter().filter(all).copied().collect()
            }
            _ => Vec::new(),
        };
        let is_either = new.len() == 1 && known.len() == 1;
        for (host, jumps) in new.iter().zip(&jumps) {
            let lane = &group.lanes[by_host[*host][0]];
            for jump in jumps {
                let is_reference = shared.iter().any(|one| is_theirs(one, jump));
                if !is_reference {
                    self.jumps.push(ClockJump {
                        process: lane.place,
                        is_host: true,
                        is_either,
                        step: step_of(group, by_host[*host][0], jump.at),
                        by: jump.by,
                    });
                } else if *host == new[0] {
                    self.jumps.push(ClockJump {
                        process: self.first[known[0]],
                        is_host: true,
                        is_either: false,
                        step: step_of(group, by_host[*host][0], jump.at),
                        by: -jump.by,
                    });
                }
            }
        }
        for (host, fit) in new.into_iter().zip(fits) {
            self.fits[host] = Some(fit);
        }
        true
    }

    /// Returns a list of pairs for each of the `new` hosts, with one pair for each of at most [`MAX_EVENTS`]
    /// collectives. A pair has the time at which the collective ended on this host, and the difference between that
    /// time and its end on the `known` hosts. The end on the `known` hosts is converted to the reference clock. All
    /// values are in nanoseconds. If several ranks or known hosts take part, their median is used.
    fn offsets(
        &self,
        group: &Group<'_>,
        by_host: &[Vec<usize>],
        known: &[usize],
        new: &[usize],
    ) -> Vec<Vec<(i64, i64)>> {
        let mut points = vec![Vec::new(); new.len()];
        let mut ends = Vec::new();
        for event in group.some(MAX_EVENTS) {
            let mut end_of = |host: usize| {
                ends.clear();
                ends.extend(
                    by_host[host]
                        .iter()
                        .map(|at| group.lanes[*at].get(event[*at]).end() as i64),
                );
                median(&mut ends)
            };
            let mut references: Vec<_> = known
                .iter()
                .map(|host| {
                    let end = end_of(*host);
                    end - self.fits[*host].as_ref().map_or(0, |fit| fit.at(end))
                })
                .collect();
            let reference = median(&mut references);
            for (points, host) in points.iter_mut().zip(new) {
                let end = end_of(*host);
                points.push((end, end - reference));
            }
        }
        points
    }

    /// Finds processes whose times jump although the clock of their host does not. Such a jump occurs in the GPU times
    /// that the driver gives to a single process.
    fn own_jumps(&mut self, group: &Group<'_>, known: &mut [bool]) {
        for host in 0..self.fits.len() {
            let lanes = group.lanes.iter().enumerate();
            let own: Vec<_> = lanes
                .filter(|(_, lane)| self.hosts[lane.place] == host)
                .map(|(at, _)| at)
                .collect();
            if own.len() < 2 || own.iter().all(|at| known[group.lanes[*at].place]) {
                continue;
            }
            let mut points = vec![Vec::new(); own.len()];
            for event in group.some(MAX_EVENTS / 4) {
                let ends: Vec<_> = own
                    .iter()
                    .map(|at| group.lanes[*at].get(event[*at]).end() as i64)
                    .collect();
                let middle = match own.len() {
                    // With two ranks it is not known which of them jumps, so the first rank serves
                    // as the reference.
                    2 => ends[0],
                    _ => median(&mut ends.clone()),
                };
                for (points, end) in points.iter_mut().zip(&ends) {
                    points.push((*end, end - middle));
                }
            }
            for (at, points) in own.iter().zip(points) {
                let place = group.lanes[*at].place;
                if std::mem::replace(&mut known[place], true) {
                    continue;
                }
                let fit = Fit::through(&points);
                let jumps = fit.jumps();
                self.jumps.extend(jumps.iter().map(|jump| ClockJump {
                    process: place,
                    is_host: false,
                    is_either: own.len() == 2,
                    step: step_of(group, *at, jump.at),
                    by: jump.by,
                }));
                if !jumps.is_empty() {
                    self.own[place] = fit;
                }
            }
        }
    }

    /// Converts a time in the record of the process `place` to the clock of the reference host. Both times are in
    /// nanoseconds.
    pub(crate) fn aligned(&self, place: usize, moment: u64) -> i64 {
        let moment = moment as i64;
        let fit = self.fits[self.hosts[place]].as_ref();
        moment - fit.map_or(0, |fit| fit.at(moment)) - self.own[place].at(moment)
    }

    /// Returns the assumed error between times of different ranks of a group, in nanoseconds. If the ranks are on
    /// several hosts, this is the largest error in the alignment of these hosts' clocks (see [`HostClock::error`]), but
    /// at least [`SHARED_CLOCK_ERROR_NS`], which is the error on a single host.
    pub(crate) fn error(&self, group: &Group<'_>) -> u64 {
        let mut hosts: Vec<_> = group
            .lanes
            .iter()
            .map(|lane| self.hosts[lane.place])
            .collect();
        hosts.sort_unstable();
        hosts.dedup();
        let errors = hosts
            .iter()
            .filter_map(|host| Some(self.fits[*host].as_ref()?.error));
        match hosts.len() {
            1 => SHARED_CLOCK_ERROR_NS,
            _ => errors.max().unwrap_or(0).max(SHARED_CLOCK_ERROR_NS),
        }
    }

    /// Returns the clock of each host for the report, with its offset in the middle of the record.
    pub(crate) fn shown(&self, processes: &[Rank<'_>]) -> Vec<HostClock> {
        let fits = self.fits.iter().zip(&self.first);
        fits.map(|(fit, first)| {
            let all = &processes[*first].collectives.all;
            let middle = all.get(all.len() / 2).map_or(0, |one| one.start as i64);
            HostClock {
                host: processes[*first].facts.host.clone(),
                process: *first,
                offset: fit.as_ref().map(|fit| fit.at(middle)),
                drift: fit.as_ref().map_or(0.0, Fit::drift),
                error: fit.as_ref().map_or(0, |fit| fit.error),
            }
        })
        .collect()
    }
}

/// Finds the first collective of the group that ends on one process at or after `moment`. `lane` is the index of the
/// process in the group. Returns the number of the collective's iteration; 0 if there is no such collective.
fn step_of(group: &Group<'_>, lane: usize, moment: i64) -> u32 {
    let lane_of = &group.lanes[lane];
    let mut events = group.events().map(|event| lane_of.get(event[lane]));
    let at = events.find(|one| one.end() as i64 >= moment);
    at.map_or(0, |one| one.step)
}
