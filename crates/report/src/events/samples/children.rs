//! Adds names of programs to waits for the end of a child process: the names of the programs that the child processes
//! run.

use std::collections::HashMap;

use tllmprof_record::Strings;

use super::producers::Meanwhile;
use super::sleep::{Sleep, SleepKind};
use super::{StackSample, by_frequency};
use crate::events::facts::name;

/// Minimum share of a wait's samples, as a fraction, at which a program must be the awaited one for the program to be
/// named. Samples at which the awaited program is not known do not count.
const MIN_SHARE: f64 = 0.25;
/// Maximum number of programs that are named for one wait.
const MAX_NAMES: usize = 2;

/// Adds the names of the awaited programs to the causes of waits for child processes. At each sample of such a wait,
/// only the last awaited process in `meanwhile` counts. A process comes after the process that started it, so a command
/// counts, and not the shell that waits for the command.
pub(super) fn name_waits(
    samples: &[StackSample],
    meanwhile: &HashMap<u64, Vec<Meanwhile>>,
    strings: &Strings,
    sleeps: &mut [Sleep],
) {
    let mut counts: Vec<HashMap<String, u64>> = vec![HashMap::new(); sleeps.len()];
    for sample in samples {
        let Some(sleep) = sample.sleep.map(|sleep| sleep as usize) else {
            continue;
        };
        let is_wait = sleeps
            .get(sleep)
            .is_some_and(|it| it.kind == SleepKind::Child);
        let all = meanwhile.get(&sample.ticks).filter(|_| is_wait);
        let mut awaited = all.into_iter().flatten().rev();
        let awaited = awaited.find(|one| one.is_awaited && one.name != 0);
        if let Some(awaited) = awaited {
            let name = name(strings.get(awaited.name));
            *counts[sleep].entry(name).or_default() += 1;
        }
    }
    for (sleep, counts) in sleeps.iter_mut().zip(counts) {
        let all: u64 = counts.values().sum();
        let names: Vec<_> = by_frequency(counts)
            .into_iter()
            .filter(|(_, count)| *count as f64 >= MIN_SHARE * all as f64)
            .map(|(name, _)| name)
            .take(MAX_NAMES)
            .collect();
        if !names.is_empty() {
            sleep.name_children(&names);
        }
    }
}

#[cfg(test)]
mod tests {
    use tllmprof_record::{Taken, Task, ThreadState};

    use super::*;

    fn sample(at: u64, sleep: u32) -> StackSample {
        StackSample {
            at,
            ticks: at,
            thread: 7,
            taken: Taken::NoPython,
            state: Some(ThreadState::Sleeping),
            frame: 0,
            sleep: Some(sleep),
            waits_for_events: false,
        }
    }

    fn child(name: u32, is_awaited: bool) -> Meanwhile {
        Meanwhile {
            task: Task::Child,
            is_busy: false,
            has_run: false,
            is_awaited,
            call: None,
            name,
            id: 70 + name,
        }
    }

    fn sleep(kind: SleepKind, begins: &str) -> Sleep {
        Sleep {
            kind,
            cause: format!("{begins} in convert: system"),
            location: None,
            producer: None,
        }
    }

    const SHELL: u32 = 1;
    const CAT: u32 = 2;
    const GZIP: u32 = 3;

    /// Returns the causes of two sleeps: a wait for a child process, and a sleep of another kind. `at` returns the
    /// observed tasks of a sample.
    fn named(at: impl Fn(u64) -> Vec<Meanwhile>) -> [String; 2] {
        let mut strings = Strings::default();
        for (id, name) in [(SHELL, "sh"), (CAT, "cat"), (GZIP, "gzip")] {
            strings.add(id, name.as_bytes());
        }
        let samples: Vec<_> = (0..40).map(|at| sample(at, at as u32 % 2)).collect();
        let meanwhile = (0..40).map(|time| (time, at(time))).collect();
        let mut sleeps = [
            sleep(SleepKind::Child, "waiting for a child process"),
            sleep(SleepKind::Other, "blocked"),
        ];
        name_waits(&samples, &meanwhile, &strings, &mut sleeps);
        sleeps.map(|sleep| sleep.cause)
    }

    #[test]
    fn a_wait_is_for_the_program_that_a_shell_runs() {
        let blocked = "blocked in convert: system".to_owned();
        // The shell has not yet started its command at the first sample. The process `cat`, for which no thread waits,
        // runs all the time.
        let found = named(|time| match time {
            0 => vec![child(SHELL, true), child(CAT, false)],
            _ => vec![child(SHELL, true), child(GZIP, true), child(CAT, false)],
        });
        let expected = "waiting for child process gzip in convert: system";
        assert_eq!(found, [expected.to_owned(), blocked.clone()]);
        let found = named(|time| vec![child(if time < 28 { CAT } else { GZIP }, true)]);
        let expected = "waiting for child processes cat and gzip in convert: system";
        assert_eq!(found, [expected.to_owned(), blocked.clone()]);
        let found = named(|_| vec![child(SHELL, false), child(0, true)]);
        let expected = "waiting for a child process in convert: system";
        assert_eq!(found, [expected.to_owned(), blocked]);
    }
}
