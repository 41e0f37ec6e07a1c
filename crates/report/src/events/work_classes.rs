//! Classes of iterations that do the same work. Kernels are recorded in only some iterations of a
//! class; the other iterations of the class are assumed to have the same kernels.

use std::collections::BTreeMap;

use tllmprof_record::Phase;

use super::iteration::Iteration;

/// Maximum relative growth of the number of launches from one iteration of a class to the next, as a fraction. The
/// iterations are sorted by number of launches. A new class begins if the growth exceeds both this limit and
/// [`MAX_GAP_LAUNCHES`].
const MAX_GAP: f64 = 0.25;
/// Maximum absolute growth of the number of launches from one iteration of a class to the next. The iterations are
/// sorted by number of launches. A new class begins if the growth exceeds both this limit and [`MAX_GAP`].
const MAX_GAP_LAUNCHES: u32 = 2;

/// Maximum relative difference between two mean numbers of launches of a class, as a fraction: that of the iterations
/// with recorded kernels, and that of the iterations without. If the difference is larger, the recorded kernels do not
/// represent the class.
const MAX_LAUNCH_DIFFERENCE: f64 = 0.1;

/// Minimum ratio of the median duration of a class's iterations with recorded kernels to that of its iterations without.
/// Recording kernels makes iterations longer. Shorter ones do something else: for example, they only launch work, while
/// the GPU has room for more, and the others wait until the GPU has room.
const MIN_DURATION_RATIO: f64 = 0.75;

/// Inverse of the share of iterations that is ignored at each end of the list of iterations sorted by number of
/// launches: with 20, the first twentieth and the last twentieth are ignored.
const ODD_ONE_IN: usize = 20;

/// Classes of iterations. The iterations of a class have the same phase, if it is known, and
/// similar numbers of launches.
#[derive(Clone, Debug, Default)]
pub(crate) struct WorkClasses {
    /// For each phase, its classes, sorted by number of launches. Each class is a pair: the smallest number of launches
    /// among its iterations, and its index in `classes`.
    by_phase: BTreeMap<Option<Phase>, Vec<(u32, usize)>>,
    classes: Vec<WorkClass>,
}

/// Sums over the iterations of one class. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct WorkClass {
    /// Number of iterations with recorded kernels.
    measured: u64,
    /// Busy time of the GPU in the iterations with recorded kernels.
    busy: u64,
    /// Number of iterations without recorded kernels.
    others: u64,
    /// Total time of the iterations without recorded kernels, except waits for requests.
    took: u64,
    /// Total time of the iterations without recorded kernels.
    all: u64,
    /// True if the class's iterations with and without recorded kernels have similar mean numbers of launches (see
    /// [`MAX_LAUNCH_DIFFERENCE`]), and those with kernels are not much shorter (see [`MIN_DURATION_RATIO`]). Then they
    /// are assumed to do the same work.
    is_known: bool,
}

impl WorkClasses {
    /// Divides iterations into classes, by their phase and their number of launches.
    pub(crate) fn new<'a>(iterations: impl Iterator<Item = &'a Iteration>) -> Self {
        let mut found = Self::default();
        let mut by_phase: BTreeMap<Option<Phase>, Vec<&Iteration>> = BTreeMap::new();
        for one in iterations {
            by_phase.entry(phase(one)).or_default().push(one);
        }
        for (phase, mut all) in by_phase {
            all.sort_by_key(|one| one.launches);
            let mut starts = Vec::new();
            let classes = all.chunk_by(|one, next| is_near(one.launches, next.launches));
            for class in classes {
                starts.push((class[0].launches, found.classes.len()));
                found.classes.push(WorkClass::new(class));
            }
            found.by_phase.insert(phase, starts);
        }
        found
    }

    /// Returns the index of an iteration's class; `None` if there is no class for the iteration's
    /// phase.
    pub(crate) fn class(&self, iteration: &Iteration) -> Option<usize> {
        let starts = self.by_phase.get(&phase(iteration))?;
        let after = starts.partition_point(|(launches, _)| *launches <= iteration.launches);
        let (_, class) = starts.get(after.saturating_sub(1))?;
        Some(*class)
    }

    /// Returns true if the recorded kernels of a class also represent its iterations without
    /// recorded kernels.
    pub(crate) fn is_known(&self, class: usize) -> bool {
        self.classes.get(class).is_some_and(|class| class.is_known)
    }

    /// Returns the share of unknown classes in the total time of the iterations without recorded kernels, as a
    /// fraction. A class is unknown if no recorded kernels represent its iterations. Returns 0 if all iterations have
    /// recorded kernels.
    pub(crate) fn unknown_share(&self) -> f64 {
        let took = |known: &dyn Fn(&WorkClass) -> bool| -> u64 {
            let some = self.classes.iter().filter(|class| known(class));
            some.map(|class| class.took).sum()
        };
        took(&|class| !class.is_known) as f64 / took(&|_| true).max(1) as f64
    }

    /// Returns an estimate of the share of time for which the GPU is busy in iterations without recorded
    /// kernels, as a fraction. Only classes with representative recorded kernels are used. Returns `None`
    /// if there is no such class.
    pub(crate) fn busy_share(&self) -> Option<f64> {
        let known = self.classes.iter().filter(|class| class.is_known);
        let (busy, all) = known.fold((0.0, 0.0), |(busy, all), class| {
            let each = class.busy as f64 / class.measured as f64;
            // The GPU cannot work for longer than the iterations take. One class must not make up for another.
            let of_class = f64::min(each * class.others as f64, class.took as f64);
            (busy + of_class, all + class.all as f64)
        });
        (all > 0.0).then(|| busy / all)
    }
}

impl WorkClass {
    /// Returns the sums over iterations, which must be in the order of their numbers of launches.
    fn new(all: &[&Iteration]) -> Self {
        let mut sum = Self::default();
        let mut launches = [Vec::new(), Vec::new()];
        let mut durations = [Vec::new(), Vec::new()];
        for one in all {
            let is_measured = usize::from(one.gpu_busy.is_some());
            launches[is_measured].push(u64::from(one.launches));
            durations[is_measured].push(one.busy());
            match one.gpu_busy {
                Some(busy) => {
                    sum.measured += 1;
                    sum.busy = sum.busy.saturating_add(busy);
                }
                None => {
                    sum.others += 1;
                    sum.took = sum.took.saturating_add(one.busy());
                    sum.all = sum.all.saturating_add(one.duration);
                }
            }
        }
        let [others, measured] = launches.map(|all| usual(&all));
        let [plain, slowed] = durations.map(median);
        let is_long_enough = slowed as f64 >= MIN_DURATION_RATIO * plain as f64;
        sum.is_known = match (measured, others) {
            (Some(with), Some(without)) => {
                let apart = (with - without).abs();
                apart <= MAX_LAUNCH_DIFFERENCE * with.max(without) && is_long_enough
            }
            _ => false,
        };
        sum
    }
}

/// Returns the median of some durations; 0 if there are none.
fn median(mut all: Vec<u64>) -> u64 {
    all.sort_unstable();
    all.get(all.len() / 2).copied().unwrap_or(0)
}

/// Returns the mean of sorted numbers, without the smallest and the largest numbers; `None` if there are no numbers.
/// The extremes are left out because a few iterations in which a graph is captured must not make the iterations with
/// recorded kernels seem different from those without.
fn usual(sorted: &[u64]) -> Option<f64> {
    let odd = sorted.len() / ODD_ONE_IN;
    let some = &sorted[odd..sorted.len() - odd];
    (!some.is_empty()).then(|| some.iter().sum::<u64>() as f64 / some.len() as f64)
}

fn phase(iteration: &Iteration) -> Option<Phase> {
    iteration.batch.map(|batch| batch.phase())
}

fn is_near(launches: u32, next: u32) -> bool {
    let gap = next - launches;
    gap <= MAX_GAP_LAUNCHES || f64::from(gap) <= MAX_GAP * f64::from(launches)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns `count` iterations with the given number of launches and duration. `gpu_busy` is the
    /// GPU's busy time, or `None` if kernels were not recorded.
    fn some(
        count: usize,
        launches: u32,
        duration: u64,
        gpu_busy: Option<u64>,
    ) -> impl Iterator<Item = Iteration> {
        let one = Iteration {
            launches,
            duration,
            gpu_busy,
            ..Iteration::default()
        };
        std::iter::repeat_n(one, count)
    }

    #[test]
    fn a_kind_of_iteration_counts_as_often_as_it_occurs() {
        // In this test, 1 of 10 iterations with recorded kernels processes a prompt, and 1 of 30
        // iterations without recorded kernels. Recording kernels makes an iteration with a prompt
        // very long.
        let all = some(18, 20, 1100, Some(950)).chain(some(2, 370, 9000, Some(2000)));
        let all = all.chain(some(290, 19, 1000, None));
        let all: Vec<_> = all.chain(some(10, 373, 4000, None)).collect();
        let classes = WorkClasses::new(all.iter());
        assert!(classes.unknown_share().abs() < 1e-9);
        let wanted = (290.0 * 950.0 + 10.0 * 2000.0) / (290.0 * 1000.0 + 10.0 * 4000.0);
        assert!((classes.busy_share().unwrap() - wanted).abs() < 1e-9);
        let [decode, prompt] = [&all[0], &all[19]].map(|one| classes.class(one).unwrap());
        assert_ne!(decode, prompt);
        assert_eq!(classes.class(&all[30]), Some(decode));
        assert!(classes.is_known(decode) && classes.is_known(prompt));
    }

    #[test]
    fn one_kind_of_iterations_does_not_make_up_for_another() {
        let all = some(10, 20, 1000, Some(600)).chain(some(10, 90, 1300, Some(700)));
        let all = all.chain(some(60, 20, 750, None));
        let mut all: Vec<_> = all.chain(some(20, 90, 400, None)).collect();
        let share = |all: &[Iteration]| WorkClasses::new(all.iter()).busy_share().unwrap();
        // In the second class, the GPU cannot work for 700 of 400 ns.
        let busy = 60.0 * 600.0 + 20.0 * 400.0;
        assert!((share(&all) - busy / 53_000.0).abs() < 1e-9);
        // The share is one of all the time, also of that in which the thread waits for requests.
        for one in all.iter_mut().filter(|one| one.gpu_busy.is_none()) {
            (one.duration, one.idle) = (one.duration + 1000, 1000);
        }
        assert!((share(&all) - busy / 133_000.0).abs() < 1e-9);
    }

    #[test]
    fn a_kind_without_kernels_is_not_known() {
        let all = some(20, 20, 1100, Some(950)).chain(some(80, 20, 1000, None));
        let all: Vec<_> = all.chain(some(5, 373, 4000, None)).collect();
        let classes = WorkClasses::new(all.iter());
        assert!((classes.unknown_share() - 0.2).abs() < 1e-9);
        assert!((classes.busy_share().unwrap() - 0.95).abs() < 1e-9);
        // Here the numbers of launches grow by 1 from iteration to iteration, so there is only one class. But its
        // iterations with recorded kernels have far fewer launches on average than those without, so it is not known.
        let with = (100..150).flat_map(|launches| some(1, launches, 1000, Some(10)));
        let without = (150..250).flat_map(|launches| some(1, launches, 1000, None));
        let all: Vec<_> = with.chain(without).collect();
        let classes = WorkClasses::new(all.iter());
        assert!((classes.unknown_share() - 1.0).abs() < 1e-9);
        assert_eq!(classes.busy_share(), None);
        assert_eq!(WorkClasses::default().unknown_share(), 0.0);
    }
}
