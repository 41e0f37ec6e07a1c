//! Groups of iterations whose times are added up separately. The iterations of a group are in the same window and
//! have these properties in common: whether the report's figures include them, whether kernels were recorded,
//! whether their GPU time is known, and their class (the iterations of a class do the same work). A slow iteration
//! that is to be explained forms a group of its own.

use std::collections::{BTreeMap, HashMap};

use tllmprof_record::Strings;

use super::claim::Claim;
use super::difference::Difference;
use super::differences::{SideSums, differences};
use super::host::{GroupedIteration, Sums};
use super::keys::{ActivityKey, HostCause, NameSources};
use super::split::CausePart;
use super::times::Times;
use super::{
    Basis, CauseTime, FoldedCauses, IDLE, Ledger, LedgerDetails, LedgerKind, SplitCauses, kinds,
    rows,
};
use crate::events::busy::DeviceActivity;
use crate::events::busy::work_name;
use crate::events::iteration::GpuFrom;
use crate::events::iteration::{Iteration, part};
use crate::events::samples::SamplePlace;
use crate::events::spans::{Span, Spans};
use crate::events::window::Window;
use crate::events::work_classes::WorkClasses;

/// The properties that all iterations of a group share.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct IterationGroup {
    window: usize,
    /// True if the report's figures include the group's iterations.
    qualified: bool,
    /// True if kernels were recorded in the group's iterations.
    taken: bool,
    /// True if it is known how long the GPU worked in the group's iterations.
    counted: bool,
    /// Index of the class to which the group's iterations belong; the iterations of a class do the same work. `None`
    /// if the report's figures leave out the group's iterations.
    work: Option<usize>,
    /// For a slow iteration that is to be explained, its index in the list of these iterations. The iteration is then
    /// the only one of the group. `None` for other groups.
    slow: Option<usize>,
}

/// Sums of the iterations of a group. Times are in nanoseconds.
#[derive(Clone, Copy, Default, Debug)]
struct GroupSum {
    iterations: u64,
    took: u64,
    /// Time for which the GPU worked in the group's iterations.
    at_work: u64,
    launches: u64,
    /// Time in which the threads' code was ready to run but had no processor. Waits for the GPU, the GIL and requests
    /// are not included.
    delayed: u64,
    /// Time in which the threads were certainly asleep or blocked. Waits for the GPU, the GIL and requests are not
    /// included.
    blocked: u64,
    /// Upper limit for the time that the threads were asleep or blocked.
    blocked_at_most: u64,
    /// Time in which the iterations' threads waited for requests.
    waited: u64,
}

/// Work of a GPU in the iterations of a group. Times are in nanoseconds, in total and by kernel or
/// kind of copy.
#[derive(Clone, Default, Debug)]
struct GroupWork {
    busy: u64,
    by: HashMap<u32, u64>,
}

/// All iterations of all windows, divided into groups that are added up separately.
#[derive(Debug)]
pub(crate) struct Groups {
    groups: Vec<IterationGroup>,
    /// For each window, the indexes of its groups.
    by_window: Vec<Vec<usize>>,
    /// For each group, the work of the GPU that was busy longest; empty if GPU time is not known
    /// from kernels.
    ran: Vec<GroupWork>,
    basis: Basis,
    work: WorkClasses,
    /// All iterations with the indexes of their groups, in the order of their starts.
    pub placed: Vec<GroupedIteration>,
    sums: Vec<GroupSum>,
}

impl Groups {
    /// Divides the iterations of windows into groups. `slow` contains the number and the start of each slow iteration
    /// to explain. `launcher` is the thread that launches the work of other threads' iterations, if there is one. The
    /// host's time is then the launcher's time.
    pub(crate) fn new(
        windows: &[Window],
        gpu_from: GpuFrom,
        slow: &[(u64, u64)],
        launcher: Option<u32>,
    ) -> Self {
        let mut all: Vec<(usize, &Iteration)> = (0..)
            .zip(windows)
            .flat_map(|(window, of)| of.iterations.iter().map(move |one| (window, one)))
            .collect();
        all.sort_by_key(|(_, one)| one.start);
        let is_measured = gpu_from.is_measured(windows.iter().flat_map(Window::qualified));
        let spans = all.iter().map(|(_, one)| Span {
            start: one.start,
            end: one.end(),
        });
        let spans = Spans::new(spans.collect());
        let mut known: HashMap<IterationGroup, usize> = HashMap::new();
        let work = WorkClasses::new(windows.iter().flat_map(Window::qualified));
        let mut found = Self {
            groups: Vec::new(),
            by_window: vec![Vec::new(); windows.len()],
            ran: Vec::new(),
            basis: Basis::Span,
            work,
            placed: Vec::with_capacity(all.len()),
            sums: Vec::new(),
        };
        for ((window, one), span) in all.into_iter().zip(spans.spans()) {
            let gpu = gpu_from.time(one).filter(|_| is_measured);
            let group = IterationGroup {
                window,
                qualified: one.qualifies(),
                taken: one.gpu_busy.is_some(),
                counted: gpu.is_some() && one.qualifies(),
                work: found.work.class(one).filter(|_| one.qualifies()),
                slow: slow.iter().position(|known| *known == (one.n, one.start)),
            };
            let index = *known.entry(group).or_insert_with(|| {
                found.groups.push(group);
                found.by_window[window].push(found.groups.len() - 1);
                found.sums.push(GroupSum::default());
                found.groups.len() - 1
            });
            found.sums[index].add(GroupSum {
                iterations: 1,
                took: one.duration,
                at_work: gpu.unwrap_or(0),
                launches: u64::from(one.launches),
                // The operating system counted the next three values for the iteration's own thread. If another
                // thread launches the work, the host's time is that of the launching thread, for which the three
                // values are unknown: the launching thread may have been blocked for any part of the iteration.
                delayed: launcher.map_or(one.delayed_in_code(), |_| 0),
                blocked: launcher.map_or(one.blocked(), |_| 0),
                blocked_at_most: launcher.map_or(one.blocked_at_most(), |_| one.duration),
                waited: one.idle.min(one.duration),
            });
            found.placed.push(GroupedIteration {
                span: *span,
                thread: launcher.unwrap_or(one.thread),
                group: index,
            });
        }
        found
    }

    /// Stores the recorded work of the GPU that was busy longest. After this call, the GPU's ledger is based on
    /// recorded kernels.
    pub(crate) fn ran(&mut self, did: &DeviceActivity) {
        self.basis = Basis::Kernels;
        self.ran = vec![GroupWork::default(); self.groups.len()];
        for part in &did.parts {
            if let Some(placed) = self.placed.get(part.place) {
                self.ran[placed.group].busy += part.busy;
            }
        }
        for ((place, what), ns) in &did.by {
            if let Some(placed) = self.placed.get(*place as usize) {
                *self.ran[placed.group].by.entry(*what).or_default() += ns;
            }
        }
    }

    /// Returns the data from which the GPU's ledger is computed.
    pub(crate) const fn basis(&self) -> Basis {
        self.basis
    }

    /// Must be called if the GPU's work is not known, because too many of the recorded kernels are missing.
    pub(crate) fn forget_gpu(&mut self) {
        self.groups
            .iter_mut()
            .for_each(|group| group.counted = false);
    }

    /// Must be called if the GPU's idle times are those in which it certainly has no work, because its work was not
    /// measured.
    pub(crate) const fn idle_after_waits(&mut self) {
        self.basis = Basis::Waits;
    }

    /// Returns the ledger (time by cause) of a window; for `None`, of all windows.
    pub(crate) fn ledger(
        &self,
        window: Option<usize>,
        sums: &Sums,
        named: NameSources<'_>,
    ) -> Ledger {
        let (hosts, of_gpu) = (self.hosts(window), self.of_gpu(window));
        let host = self.spent(&hosts, sums, named).into_iter();
        let host = host.map(|(spent, times)| named.time(spent, times.all));
        let host: Vec<_> = host.collect();
        let host_kinds = kinds(&host);
        let (host, gpu) = (rows(host), self.gpu(&of_gpu, sums, named));
        // Only the ledger of all windows is compared with that of another run, which needs the causes without a row.
        let folded = match window {
            None => FoldedCauses {
                host: host.folded,
                gpu: gpu.folded,
            },
            Some(_) => FoldedCauses::default(),
        };
        Ledger {
            iterations: self.sum(&self.chosen(window, |_| true)).iterations,
            host_iterations: self.sum(&hosts).iterations,
            host_kinds,
            host: host.shown,
            gpu_iterations: self.sum(&of_gpu).iterations,
            gpu_from: self.basis,
            gpu: gpu.shown,
            stretched: self.is_stretched(window),
            details: LedgerDetails::default(),
            folded,
        }
    }

    /// Returns the indexes of the groups that the report's figures include and for which `is` returns true, in one
    /// window or (for `None`) in all windows.
    fn chosen(&self, window: Option<usize>, is: impl Fn(&IterationGroup) -> bool) -> Vec<usize> {
        let is = |at: &usize| self.groups[*at].qualified && is(&self.groups[*at]);
        match window {
            Some(window) => {
                let all = self.by_window.get(window).map_or(&[][..], Vec::as_slice);
                all.iter().copied().filter(is).collect()
            }
            None => (0..self.groups.len()).filter(is).collect(),
        }
    }

    /// Returns true if kernels were recorded in all iterations of a window (for `None`, of all windows) that the
    /// report's figures include. All times are then longer than without recording.
    fn is_stretched(&self, window: Option<usize>) -> bool {
        let own = self.chosen(window, |_| true);
        !own.is_empty() && own.iter().all(|at| self.groups[*at].taken)
    }

    /// Returns for each sample its window, and whether the figures of that window and the figures of all windows
    /// include the sample. `groups` contains the group of each sample, or `None` if the sample is in no group.
    pub(crate) fn places(&self, groups: &[Option<usize>]) -> Vec<Option<SamplePlace>> {
        let of_groups = self.groups.iter().map(|group| SamplePlace {
            window: group.window,
            in_window: false,
            in_all: false,
        });
        let mut known: Vec<_> = of_groups.collect();
        for group in self.hosts(None) {
            known[group].in_all = true;
        }
        for window in 0..self.by_window.len() {
            for group in self.hosts(Some(window)) {
                known[group].in_window = true;
            }
        }
        groups.iter().map(|group| Some(known[(*group)?])).collect()
    }

    /// Returns the groups on which the host's ledger is based: those without recorded kernels, or
    /// all groups if kernels were recorded in all iterations.
    pub(crate) fn hosts(&self, window: Option<usize>) -> Vec<usize> {
        let stretched = self.is_stretched(window);
        self.chosen(window, |group| stretched || !group.taken)
    }

    /// Returns the groups on which the GPU's ledger is based: those whose GPU time was measured ([`Basis::Span`]),
    /// those with recorded kernels ([`Basis::Kernels`]), those to which the GPU times of iterations with recorded
    /// kernels were applied ([`Basis::Projected`]), or those of the host's ledger ([`Basis::Waits`]).
    pub(crate) fn of_gpu(&self, window: Option<usize>) -> Vec<usize> {
        match self.basis {
            Basis::Span => self.chosen(window, |group| group.counted),
            Basis::Kernels => self.chosen(window, |group| group.taken),
            Basis::Projected => self.known_by_kernels(self.hosts(window)),
            Basis::Waits => self.hosts(window),
        }
    }

    /// Applies the GPU idle times of iterations with recorded kernels to other iterations that do the same work. In each
    /// class of iterations, the idle times add up to at most the time in which the GPU does not run that work. Must be
    /// called only if recorded kernels represent most iterations (see `Sum::is_alike`).
    pub(crate) fn project(&mut self, sums: &mut Sums, named: NameSources<'_>) {
        let plain = self.known_by_kernels(self.chosen(None, |group| !group.taken));
        if plain.is_empty() || self.basis != Basis::Kernels {
            return;
        }
        self.basis = Basis::Projected;
        let is_request = |spent| named.claim(spent) == Claim::Requests;
        for (measured, alike) in self.by_work(&plain) {
            let idle = self.sum(&alike).took - self.projected_busy(&measured, &alike);
            sums.project(&measured, &alike, idle, is_request);
        }
    }

    /// Returns the time in which the GPU is assumed to run work in the groups `alike`, if it runs as much in each
    /// iteration as it did on average in those of the groups `measured`. The GPU is assumed to be idle while the thread
    /// waits for requests.
    fn projected_busy(&self, measured: &[usize], alike: &[usize]) -> u64 {
        let busy = measured.iter().filter_map(|at| self.ran.get(*at));
        let busy = busy.map(|ran| ran.busy).sum();
        let others = self.sum(alike);
        let most = others.took.saturating_sub(others.waited);
        part(busy, others.iterations, self.sum(measured).iterations).min(most)
    }

    /// Returns those of the given groups whose work is known from recorded kernels of the same
    /// class of iterations.
    fn known_by_kernels(&self, mut groups: Vec<usize>) -> Vec<usize> {
        groups.retain(|at| {
            let work = self.groups[*at].work;
            work.is_some_and(|work| self.work.is_known(work))
        });
        groups
    }

    /// Divides groups by their class (iterations that do the same work). For each class, returns
    /// all its groups with recorded kernels, and those of the given groups that belong to the
    /// class.
    fn by_work(&self, groups: &[usize]) -> Vec<(Vec<usize>, Vec<usize>)> {
        let mut by_work: BTreeMap<Option<usize>, Vec<usize>> = BTreeMap::new();
        for group in groups {
            let work = self.groups[*group].work;
            by_work.entry(work).or_default().push(*group);
        }
        let measured = |work| self.chosen(None, |group| group.taken && group.work == work);
        let by_work = by_work.into_iter();
        by_work
            .map(|(work, groups)| (measured(work), groups))
            .collect()
    }

    /// Returns the time for which the GPU worked in some groups, by cause. If GPU time comes from recorded kernels
    /// (see [`Basis`]), the causes are kernels and kinds of copies; otherwise there is a single cause. If only the times
    /// are known in which the GPU certainly had no work, it may have been idle at other times, too.
    fn worked(&self, groups: &[usize], sums: &Sums, named: NameSources<'_>) -> Vec<CauseTime> {
        let sum = self.sum(groups);
        match self.basis {
            Basis::Span => vec![CauseTime {
                kind: LedgerKind::Span,
                cause: "from first work to last".to_owned(),
                location: None,
                ns: sum.at_work.min(sum.took),
            }],
            Basis::Waits => {
                let idle = sums.times(groups).into_iter().map(|(_, times)| times.idle);
                let ns = sum.took.saturating_sub(idle.sum());
                vec![named.time(HostCause::Unknown, ns)]
            }
            Basis::Kernels => self.by_kernel(groups, named.strings),
            Basis::Projected => {
                let mut rows = Vec::new();
                for (taken, alike) in self.by_work(groups) {
                    let mut some = self.by_kernel(&taken, named.strings);
                    let all: u64 = some.iter().map(|row| row.ns).sum();
                    let busy = self.projected_busy(&taken, &alike);
                    for row in &mut some {
                        row.ns = part(row.ns, busy, all);
                    }
                    rows.extend(some);
                }
                rows
            }
        }
    }

    /// Returns the GPU idle time of some groups in nanoseconds, as it is in the GPU's ledger.
    pub(crate) fn idle_of(&self, groups: &[usize], sums: &Sums, named: NameSources<'_>) -> u64 {
        let worked = self.worked(groups, sums, named);
        let worked: u64 = worked.iter().map(|row| row.ns).sum();
        self.sum(groups).took.saturating_sub(worked)
    }

    fn gpu(&self, groups: &[usize], sums: &Sums, named: NameSources<'_>) -> SplitCauses {
        let took = self.sum(groups).took;
        let mut times = self.worked(groups, sums, named);
        let busy: u64 = times.iter().map(|row| row.ns).sum();
        let idle = self.spent(groups, sums, named).into_iter();
        let idle: Vec<_> = idle.filter(|(_, times)| times.idle > 0).collect();
        let idle = fit(idle, took.saturating_sub(busy));
        times.extend(idle.into_iter().map(|(spent, ns)| {
            let host = named.time(spent, ns);
            CauseTime {
                kind: LedgerKind::Idle,
                cause: format!("{IDLE}{}", host.cause),
                ..host
            }
        }));
        rows(times)
    }

    /// Returns the time in nanoseconds by which a slow iteration exceeded the mean of comparable iterations, and the
    /// causes; 0 and no causes if there are no comparable iterations.
    pub(crate) fn differences(
        &self,
        slow: usize,
        sums: &Sums,
        holder: Option<&str>,
        named: NameSources<'_>,
    ) -> (i64, Vec<Difference>) {
        let Some(one) = self.groups.iter().position(|of| of.slow == Some(slow)) else {
            return (0, Vec::new());
        };
        let IterationGroup { taken, counted, .. } = self.groups[one];
        // Recording kernels makes iterations longer, so the slow iteration is compared only with
        // iterations of the same kind (with or without recorded kernels).
        let is_like = |at: &usize| {
            let other = &self.groups[*at];
            *at != one && other.qualified && other.taken == taken && other.counted == counted
        };
        let like: Vec<_> = (0..self.groups.len()).filter(is_like).collect();
        let usual = like.iter().copied();
        let usual: Vec<_> = usual.filter(|at| self.groups[*at].slow.is_none()).collect();
        let others = if usual.is_empty() { like } else { usual };
        // Divide the time of code by function (by samples) only if both the slow iteration and the
        // other iterations have enough samples.
        let sides = [&[one][..], &others];
        let [own, usual] = match sides.iter().all(|side| sums.seen(side).enough()) {
            true => sides.map(|side| self.spent(side, sums, named)),
            false => sides.map(|side| self.counted_off(side, sums, named)),
        };
        let side = |sum: GroupSum, spent| SideSums {
            iterations: sum.iterations,
            spent,
            gpu: counted.then_some(sum.at_work),
            launches: sum.launches,
        };
        let others = side(self.sum(&others), &usual);
        if others.iterations == 0 {
            return (0, Vec::new());
        }
        differences(side(self.sums[one], &own), others, holder, named)
    }

    /// Returns the host's time in some groups, by cause. Events of the record explain a part of the time. If there
    /// are enough samples of stacks, the samples divide the remaining time. Otherwise only the time off the processor,
    /// which the operating system counted, is separated from the remaining time.
    pub(crate) fn spent(
        &self,
        groups: &[usize],
        sums: &Sums,
        named: NameSources<'_>,
    ) -> Vec<(HostCause, Times)> {
        CausePart::sum(self.parts(groups, sums, named))
    }

    /// Returns the host's time in some groups, by cause, before samples divide it. A long copy to the host waits for
    /// earlier work of the GPU. The part of its time in which the GPU was busy keeps the cause
    /// [`HostCause::CopyToHost`]. The rest of its time becomes time of the call. If the GPU's idle time in a group is
    /// unknown, the whole time of the group's copies becomes time of the call.
    pub(super) fn times(&self, groups: &[usize], sums: &Sums) -> Vec<(HostCause, Times)> {
        let is_copy = |spent: HostCause| matches!(spent, HostCause::CopyToHost(_));
        let times = sums.times(groups);
        if !times.iter().any(|(spent, _)| is_copy(*spent)) {
            return times;
        }
        let known = groups.iter().copied();
        let known: Vec<_> = known.filter(|at| self.is_idle_known(*at)).collect();
        let waits = sums.times(&known).into_iter();
        let waits = waits.filter(|(spent, _)| is_copy(*spent));
        let waits: HashMap<_, _> = waits
            .map(|(spent, times)| (spent, times.all.saturating_sub(times.idle)))
            .collect();
        let mut found: BTreeMap<HostCause, Times> = BTreeMap::new();
        let mut add = |spent, times: Times| {
            let sum = found.entry(spent).or_default();
            *sum = sum.and(times);
        };
        for (spent, mut times) in times {
            let HostCause::CopyToHost(row) = spent else {
                add(spent, times);
                continue;
            };
            let waited = waits.get(&spent).map_or(0, |waited| times.all.min(*waited));
            times.all -= waited;
            add(HostCause::On(ActivityKey::Call(row)), times);
            let (all, idle) = (waited, 0);
            add(spent, Times { all, idle });
        }
        found.retain(|_, times| times.all > 0);
        found.into_iter().collect()
    }

    /// Returns true if the GPU's idle time is known for a group.
    fn is_idle_known(&self, group: usize) -> bool {
        let group = &self.groups[group];
        match self.basis {
            Basis::Span => group.counted,
            Basis::Kernels => group.taken,
            // The GPU may be idle during a copy that waits, which is not known.
            Basis::Waits => false,
            Basis::Projected => {
                group.taken || group.work.is_some_and(|work| self.work.is_known(work))
            }
        }
    }

    /// Returns the same times as [`Self::spent`], together with the cause that each time had before
    /// samples divided it.
    pub(crate) fn parts(
        &self,
        groups: &[usize],
        sums: &Sums,
        named: NameSources<'_>,
    ) -> Vec<CausePart> {
        let seen = sums.seen(groups);
        if !seen.enough() {
            let spent = self.counted_off(groups, sums, named).into_iter();
            return spent.map(CausePart::all).collect();
        }
        let mut spent = self.times(groups, sums);
        let sum = self.sum(groups);
        let are_native = seen.are_native();
        let seen = seen.by_spent();
        if are_native {
            let ran = |spent| seen.native_in(spent);
            spent = off_processor(spent, [sum.delayed, sum.blocked], named, Some(&ran));
        }
        let work = spent.iter().filter(|(spent, _)| !named.waits(*spent));
        let work = work.map(|(spent, times)| (*spent, times.all));
        let asleep = sum.blocked..=sum.blocked_at_most;
        let is_open = |spent| named.is_open(spent);
        let weight = seen.asleep_weight(work, is_open, asleep);
        seen.split(spent, is_open, weight)
    }

    fn counted_off(
        &self,
        groups: &[usize],
        sums: &Sums,
        named: NameSources<'_>,
    ) -> Vec<(HostCause, Times)> {
        let mut found: BTreeMap<HostCause, Times> = BTreeMap::new();
        for group in groups {
            let of = &self.sums[*group];
            let off = [of.delayed, of.blocked];
            let spent = off_processor(self.times(&[*group], sums), off, named, None);
            for (spent, times) in spent {
                let sum = found.entry(spent).or_default();
                *sum = sum.and(times);
            }
        }
        found.into_iter().collect()
    }

    fn sum(&self, groups: &[usize]) -> GroupSum {
        let mut sum = GroupSum::default();
        groups.iter().for_each(|at| sum.add(self.sums[*at]));
        sum
    }

    /// Returns the time for which the GPU was busy in some groups, by kernel and kind of copy.
    fn by_kernel(&self, counted: &[usize], strings: &Strings) -> Vec<CauseTime> {
        let mut busy = 0;
        let mut by: HashMap<u32, u64> = HashMap::new();
        for ran in counted.iter().filter_map(|at| self.ran.get(*at)) {
            busy += ran.busy;
            for (what, ns) in &ran.by {
                *by.entry(*what).or_default() += ns;
            }
        }
        let known: u64 = by.values().sum();
        let time = |cause: &str, ns| CauseTime {
            kind: LedgerKind::Busy,
            cause: format!("busy: {cause}"),
            location: None,
            ns,
        };
        let named = by.into_iter();
        let named = named.map(|(what, ns)| time(&work_name(what, strings), ns));
        let rest = time("other work", busy.saturating_sub(known));
        named.chain([rest]).collect()
    }
}

impl GroupSum {
    const fn add(&mut self, more: Self) {
        self.iterations += more.iterations;
        self.took = self.took.saturating_add(more.took);
        self.at_work = self.at_work.saturating_add(more.at_work);
        self.launches = self.launches.saturating_add(more.launches);
        self.delayed = self.delayed.saturating_add(more.delayed);
        self.blocked = self.blocked.saturating_add(more.blocked);
        let at_most = more.blocked_at_most;
        self.blocked_at_most = self.blocked_at_most.saturating_add(at_most);
        self.waited = self.waited.saturating_add(more.waited);
    }
}

/// Moves the time for which the thread was off the processor from the causes in `spent` to separate causes. The time
/// without a processor (`delayed`) is taken from all causes except waits, in proportion to their times. The time asleep
/// or blocked (`blocked`) is taken from host code.
///
/// `ran` returns the number of samples in which the thread ran during a cause. The more samples, the less sleep is
/// taken from the cause. Without `ran`, a piece of code loses only the part of the sleep that does not fit into the
/// other pieces of code.
fn off_processor(
    mut spent: Vec<(HostCause, Times)>,
    [delayed, blocked]: [u64; 2],
    named: NameSources<'_>,
    ran: Option<&dyn Fn(HostCause) -> u64>,
) -> Vec<(HostCause, Times)> {
    let mut found = Vec::new();
    let mut waited = Times::default();
    let work = spent.iter_mut().filter(|(spent, _)| !named.waits(*spent));
    let mut work: Vec<_> = work.collect();
    let all: u64 = work.iter().map(|(_, times)| times.all).sum();
    for (_, times) in &mut work {
        waited = waited.and(times.split(part(times.all, delayed.min(all), all)));
    }
    found.push((HostCause::Delayed, waited));
    let asleep = match ran {
        Some(ran) => {
            let rows = work.iter().map(|(spent, times)| (times.all, ran(*spent)));
            asleep_by_samples(&rows.collect::<Vec<_>>(), blocked)
        }
        None => {
            let code = |spent: HostCause, times: Times| spent.code().map_or(0, |_| times.all);
            let rows = work.iter().map(|(spent, times)| code(*spent, *times));
            asleep_for_certain(&rows.collect::<Vec<_>>(), blocked)
        }
    };
    for ((spent, times), asleep) in work.into_iter().zip(asleep) {
        if let Some(place) = spent.code() {
            found.push((HostCause::Blocked(place), times.split(asleep)));
        }
    }
    spent.extend(found);
    spent.retain(|(_, times)| times.all > 0);
    spent
}

/// Returns the minimum time that a thread slept in each of `times`, if it slept for `asleep` in total. The minimum is
/// the part of the sleep that does not fit into the other times.
fn asleep_for_certain(times: &[u64], asleep: u64) -> Vec<u64> {
    let all: u64 = times.iter().sum();
    let certain = |time: &u64| asleep.saturating_sub(all - time).min(*time);
    times.iter().map(certain).collect()
}

/// Estimates the time that a thread slept in each row's time, if it slept for `asleep` in total. A row is a time, and
/// the number of samples in it in which the thread was running. The running time is divided in proportion to these
/// numbers.
fn asleep_by_samples(rows: &[(u64, u64)], asleep: u64) -> Vec<u64> {
    let all: u64 = rows.iter().map(|(time, _)| time).sum();
    let seen: u64 = rows.iter().map(|(_, seen)| seen).sum();
    let ran = all.saturating_sub(asleep);
    let off = |(time, seen_in): &(u64, u64)| time.saturating_sub(part(ran, *seen_in, seen));
    let off: Vec<_> = rows.iter().map(off).collect();
    let sum: u64 = off.iter().sum();
    let scaled = |off: &u64| part(*off, asleep.min(sum), sum);
    off.iter().map(scaled).collect()
}

impl Times {
    /// Removes a part of length `all`, in nanoseconds, from this time and returns it. The part has the same share of
    /// GPU idle time as the whole time.
    const fn split(&mut self, all: u64) -> Self {
        let idle = part(self.idle, all, self.all);
        self.all -= all;
        self.idle -= idle;
        Self { all, idle }
    }
}

/// Returns the GPU's idle times by cause, changed so that they add up to `total`. If their sum is too large, they are
/// scaled down; otherwise the missing time is added with an unknown cause. If CUDA events measured the GPU's work,
/// `total` is exact, but the starts and ends of the idle times are less exact.
fn fit(mut idle: Vec<(HostCause, Times)>, total: u64) -> Vec<(HostCause, u64)> {
    idle.sort_by_key(|(spent, times)| (std::cmp::Reverse(times.idle), *spent));
    let found: u64 = idle.iter().map(|(_, times)| times.idle).sum();
    let scaled = |time: u64| match found > total {
        true => part(time, total, found),
        false => time,
    };
    let mut fitted: Vec<_> = idle
        .into_iter()
        .map(|(spent, times)| (spent, scaled(times.idle)))
        .collect();
    let left = total - fitted.iter().map(|(_, time)| time).sum::<u64>();
    match fitted.first_mut() {
        // Add the rounding error to the greatest time.
        Some((_, greatest)) if found > total => *greatest += left,
        _ => fitted.push((HostCause::Unknown, left)),
    }
    fitted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::facts::{CallCount, Facts};
    use crate::events::samples::Frames;
    use crate::ledger::keys::Code;
    use tllmprof_record::CallKind;

    #[test]
    fn idle_time_adds_up_to_what_is_known_of_it() {
        let idle = |idle| Times { all: 100, idle };
        let some = || vec![(HostCause::Other, idle(10)), (HostCause::Unknown, idle(20))];
        let sum = |fitted: &[(HostCause, u64)]| fitted.iter().map(|(_, time)| time).sum::<u64>();
        for total in [0, 1, 7, 29, 30, 31, 90] {
            assert_eq!(sum(&fit(some(), total)), total);
            assert_eq!(sum(&fit(Vec::new(), total)), total);
        }
        assert_eq!(
            fit(some(), 15),
            [(HostCause::Unknown, 10), (HostCause::Other, 5)]
        );
    }

    #[test]
    fn what_a_thread_did_off_the_processor_is_taken_out_of_the_rest() {
        let facts = Facts {
            calls: vec![CallCount {
                row: 1,
                name: "cuStreamSynchronize".to_owned(),
                kind: CallKind::Wait,
                inside: 0,
                outside: 0,
            }],
            ..Facts::default()
        };
        let strings = Strings::default();
        let frames = Frames::default();
        let named = NameSources {
            facts: &facts,
            strings: &strings,
            frames: &frames,
        };
        let wait = ActivityKey::Call(1);
        let (edge, after) = (HostCause::Edge(wait, wait), HostCause::After(wait));
        let times = |all, idle| Times { all, idle };
        let rows = || {
            vec![
                (HostCause::On(wait), times(500, 0)),
                (edge, times(400, 200)),
                (after, times(100, 100)),
            ]
        };
        let off = |delayed, blocked| off_processor(rows(), [delayed, blocked], named, None);
        assert_eq!(off(0, 0), rows());
        // In this test, code takes 500 ns. A delay of 50 ns takes a tenth from each piece of code,
        // and nothing from the wait.
        let delayed = [
            (HostCause::On(wait), times(500, 0)),
            (edge, times(360, 180)),
            (after, times(90, 90)),
            (HostCause::Delayed, times(50, 30)),
        ];
        assert_eq!(off(50, 0), delayed);
        // Each of the two pieces of code is long enough for the whole sleep, so it is not certain in which one the
        // thread slept.
        assert_eq!(off(0, 90), rows());
        let blocked = [
            (HostCause::On(wait), times(500, 0)),
            (edge, times(100, 50)),
            (after, times(100, 100)),
            (HostCause::Blocked(Code::Edge(wait, wait)), times(300, 150)),
        ];
        assert_eq!(off(0, 400), blocked);
        let all = off(0, 9999);
        assert_eq!(all.len(), 3);
        assert_eq!(all.iter().map(|(_, times)| times.all).sum::<u64>(), 1000);
        // The samples show that the thread ran in the code `after`, so all of the sleep was in the
        // other code.
        let ran = |spent| u64::from(spent == after) * 50;
        let by_samples = off_processor(rows(), [0, 400], named, Some(&ran));
        let asleep = (HostCause::Blocked(Code::Edge(wait, wait)), times(400, 200));
        assert_eq!(by_samples, [rows()[0], rows()[2], asleep]);
    }

    #[test]
    fn what_a_thread_ran_is_divided_by_samples() {
        // The thread ran for 400 of 1000 ns. By the samples, it ran for 300 ns in the first row and
        // for 100 ns in the second.
        let rows = [(500, 30), (400, 10), (100, 0)];
        assert_eq!(asleep_by_samples(&rows, 600), [200, 300, 100]);
        // In the first row, the samples would give a longer running time than the row's whole time.
        // So all of the sleep is in the second row.
        assert_eq!(asleep_by_samples(&[(100, 40), (900, 0)], 600), [0, 600]);
        assert_eq!(asleep_by_samples(&[(100, 0), (300, 0)], 40), [10, 30]);
        assert_eq!(asleep_by_samples(&[(100, 7)], 0), [0]);
        assert_eq!(asleep_by_samples(&[(100, 7)], 9999), [100]);
        assert_eq!(asleep_by_samples(&[], 9999), [0_u64; 0]);
    }
}
