//! Watches the processes of a run, for `tllmprof run --when 'stuck > TIME'`. Once the processes have been stuck for
//! that time, the verdict of `tllmprof hang` is written into the folder of their ring files (the files with their
//! latest steps and collectives).

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use tllmprof_config::{Condition, RunId};

use super::find::{self, ProcessRing};
use super::judge;
use super::state::RankState;
use super::verdict::{Answer, HangVerdict};
use super::{BETWEEN, examine_with_faults, is_elsewhere, quiet, text};
use crate::failure::worded;
use crate::output;

/// Name of the file with the verdict of `tllmprof hang` as JSON.
const JSON: &str = "hang.json";
/// Name of the file with the verdict of `tllmprof hang` as text.
const TEXT: &str = "hang.txt";
/// Shortest time between two readings of the ring files, which hold the latest steps and collectives of processes.
const INTERVAL: Duration = Duration::from_secs(1);
/// Divisor that limits the processor time of the searches for ring files: they use at most 1/`SHARE` of the time of one
/// processor.
const SHARE: u32 = 50;
/// Minimum time between two verdicts on processes that have begun no step or collective since the last verdict, such as
/// a server without requests.
const RECHECK: Duration = Duration::from_secs(10);
/// Largest difference between the time that a file system stores for a file and the real time. Some file systems round
/// the times of files.
const SLACK: Duration = Duration::from_secs(2);

/// A thread that watches the processes of a run, until this value is dropped.
pub(crate) struct StuckWatch {
    _runs: Sender<()>,
}

impl StuckWatch {
    /// Starts the thread that watches the run. The ring files (latest steps and collectives) of its processes are in
    /// `folder`, or anywhere if `folder` is `None`. Returns `None` if the thread cannot be started. The caller has
    /// blocked all signals, so the new thread receives no signals.
    pub(crate) fn start(condition: Condition, run: RunId, folder: Option<PathBuf>) -> Option<Self> {
        let (runs, ended) = mpsc::channel::<()>();
        let mut watcher = Watcher {
            condition,
            run,
            folder,
            since: SystemTime::now(),
            judged: None,
        };
        let watch = move || {
            let mut interval = INTERVAL;
            while ended.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                let begun = Instant::now();
                let found = watcher.find();
                interval = INTERVAL.max(begun.elapsed() * SHARE);
                if let Some((folder, verdict, ranks)) = watcher.judge(found) {
                    return watcher.report(&folder, &verdict, &ranks);
                }
            }
        };
        let thread = thread::Builder::new().name("stuck".to_owned());
        thread.spawn(watch).ok()?;
        Some(Self { _runs: runs })
    }
}

struct Watcher {
    condition: Condition,
    run: RunId,
    /// The folder of the run's ring files. `None` if the user chose another place for them.
    folder: Option<PathBuf>,
    since: SystemTime,
    /// The time of the latest verdict, and the number of steps and of collectives that each process had begun when the
    /// ring files were read for this verdict.
    judged: Option<(Instant, Vec<[u64; 2]>)>,
}

impl Watcher {
    /// Finds the ring files (latest steps and collectives) of the running processes of this run. Another run that the
    /// user gave the same identifier has its ring files in another folder.
    fn find(&self) -> Vec<ProcessRing> {
        let is_ours = |one: &ProcessRing| {
            let folder = self.folder.as_deref();
            one.ring.run == self.run.as_str()
                && folder
                    .is_none_or(|folder| one.path.parent().is_some_and(|of| is_same(of, folder)))
        };
        let mut found = find::running();
        found.retain(is_ours);
        found
    }

    fn is_late(&self, quiet_ns: u64) -> bool {
        self.condition.holds_if_stuck(quiet_ns)
    }

    /// Examines the processes in `found`, if in one of them no step or collective has begun or ended for the time that
    /// the condition requires. If the processes are stuck, returns the folder of their ring files, the verdict and the
    /// states of the ranks. Otherwise returns `None`.
    fn judge(
        &mut self,
        mut found: Vec<ProcessRing>,
    ) -> Option<(PathBuf, HangVerdict, Vec<RankState>)> {
        let is_candidate = |one: &ProcessRing| {
            let ring = &one.ring;
            ring.steps_begun > 0 && !is_elsewhere(ring) && self.is_late(quiet(ring))
        };
        let folder = found
            .iter()
            .find(|one| is_candidate(one))?
            .path
            .parent()?
            .to_owned();
        let progress: Vec<_> = found
            .iter()
            .map(|one| [one.ring.steps_begun, one.ring.collectives_begun])
            .collect();
        if self
            .judged
            .as_ref()
            .is_some_and(|(at, before)| at.elapsed() < RECHECK && *before == progress)
        {
            return None;
        }
        find::add_others(&mut found);
        let ranks = examine_with_faults(&mut found, BETWEEN);
        let verdict = judge::judge(&ranks);
        self.judged = Some((Instant::now(), progress));
        let mut about = verdict
            .ranks
            .iter()
            .filter_map(|rank| ranks[*rank].quiet_ns);
        let is_stuck = verdict.answer == Answer::Stuck && about.all(|quiet| self.is_late(quiet));
        is_stuck.then_some((folder, verdict, ranks))
    }

    /// Writes the verdict to files, and one line about it to standard error. Does nothing if another command has
    /// already done this for the same run.
    fn report(&self, folder: &Path, verdict: &HangVerdict, ranks: &[RankState]) {
        let json = format!("{}\n", output::json(&text::json(verdict, ranks)));
        let written = self.create(&folder.join(JSON)).and_then(|mut file| {
            file.write_all(json.as_bytes())?;
            fs::write(folder.join(TEXT), text::text(verdict, ranks))
        });
        let place = folder.join(TEXT);
        let where_ = match written {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return,
            Err(error) => format!(
                "{} cannot be written: {}",
                place.display(),
                worded(&error.to_string())
            ),
            Ok(()) => format!("{} has the state of each rank", place.display()),
        };
        output::say(format_args!(
            "{}: {} ({where_})",
            self.condition, verdict.text
        ));
    }

    /// Creates a file. A file that an earlier run left is replaced.
    ///
    /// # Errors
    /// Another command of this run has created the file, or it cannot be created.
    fn create(&self, path: &Path) -> io::Result<File> {
        let written = fs::metadata(path).and_then(|file| file.modified());
        if written.is_ok_and(|at| at + SLACK < self.since) {
            fs::remove_file(path)?;
        }
        File::create_new(path)
    }
}

/// Returns true if two paths lead to the same folder. One of them may be the path within the root folder of a process
/// that runs in a container.
fn is_same(one: &Path, other: &Path) -> bool {
    let place = |path| fs::metadata(path).map(|folder| (folder.dev(), folder.ino()));
    matches!((place(one), place(other)), (Ok(one), Ok(other)) if one == other)
}
