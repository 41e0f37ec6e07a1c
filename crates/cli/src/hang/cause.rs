//! Finds the reason why a rank does not make progress, from its threads.

use super::state::{ProcessThread, RankState};
use super::verdict::VerdictKind;

/// The reason why a rank does not make progress, as a kind and as a text for the user.
pub(crate) struct StuckCause {
    pub kind: VerdictKind,
    pub text: String,
    /// True if the GPU waits for a function of the program that runs on the host.
    pub is_host_function: bool,
}

impl StuckCause {
    /// Returns the reason why the rank's main thread, which usually makes the steps, does not continue. The search
    /// follows locks and the GIL from each waiting thread to the thread that holds them. Returns `None` if the main
    /// thread is not known, for example because the process has ended.
    pub(crate) fn find(rank: &RankState) -> Option<Self> {
        let first = rank.main_thread()?;
        let mut chain = vec![first];
        let mut is_by_gil = false;
        loop {
            let last = chain[chain.len() - 1];
            let holder = rank.gil_holder.filter(|_| last.waits_for_gil);
            if chain.len() == 1 {
                is_by_gil = last.mutex_owner.is_none() && holder.is_some();
            }
            let Some(next) = last.mutex_owner.or(holder).and_then(|id| rank.thread(id)) else {
                break;
            };
            if next.id == last.id && last.mutex_owner.is_none() {
                break;
            }
            if let Some(start) = chain.iter().position(|thread| thread.id == next.id) {
                return Some(Self::deadlock(&chain[start..]));
            }
            chain.push(next);
        }
        let last = chain[chain.len() - 1];
        if chain.len() == 1 {
            return Some(Self::of_thread(last).with_host_function(rank));
        }
        let what = if is_by_gil { "the GIL" } else { "a lock" };
        let holder = Self::of_thread(last);
        let kind = match (holder.kind, is_by_gil) {
            (VerdictKind::Busy, _) => VerdictKind::Busy,
            (_, true) => VerdictKind::Gil,
            (_, false) => VerdictKind::Lock,
        };
        let text = format!(
            "{} waits for {what}{}, which {} holds: it {}",
            named(first),
            in_function(first),
            named(last),
            holder.text
        );
        Some(Self::new(kind, text))
    }

    const fn new(kind: VerdictKind, text: String) -> Self {
        Self {
            kind,
            text,
            is_host_function: false,
        }
    }

    fn deadlock(threads: &[&ProcessThread]) -> Self {
        let each = threads.iter().map(|thread| {
            let what = if thread.mutex_owner.is_some() {
                "a lock"
            } else {
                "the GIL"
            };
            format!("{} waits for {what}{}", named(thread), in_function(thread))
        });
        let text = match threads {
            [only] => format!(
                "{} waits for a lock that it holds itself{}",
                named(only),
                in_function(only)
            ),
            _ => format!(
                "threads wait for each other: {}",
                each.collect::<Vec<_>>().join(", ")
            ),
        };
        Self::new(VerdictKind::Deadlock, text)
    }

    /// Adds to the text the host function that a thread of the CUDA driver runs, if there is one. Does this only if the
    /// rank waits for the GPU or may wait for it: a main thread that is not known to sleep in a system call may wait in
    /// a loop.
    fn with_host_function(mut self, rank: &RankState) -> Self {
        let may_wait = matches!(
            self.kind,
            VerdictKind::Gpu | VerdictKind::Busy | VerdictKind::Unclear
        );
        let mut threads = rank.threads.iter();
        if may_wait
            && let Some((thread, function)) =
                threads.find_map(|thread| Some((thread, thread.host_function()?)))
        {
            let does = match &thread.call {
                _ if thread.waits_for_gil => "waits for the GIL".to_owned(),
                Some(call) => format!("sleeps in {call}"),
                None => "sleeps in an unknown system call".to_owned(),
            };
            self.is_host_function = true;
            self.text = format!("{}; the GPU waits for {function}, which {does}", self.text);
        }
        self
    }

    fn of_thread(thread: &ProcessThread) -> Self {
        let function = in_function(thread);
        let (kind, text) = if let Some(caller) = thread.putter() {
            (
                VerdictKind::Queue,
                format!("waits for room in a full queue, in {caller}"),
            )
        } else if let Some(wait) = thread.gpu_wait() {
            (
                VerdictKind::Gpu,
                format!("waits for the GPU in {wait}{function}"),
            )
        } else if thread.state == 'R' || thread.ran && thread.call.is_none() {
            (VerdictKind::Busy, format!("runs{function}"))
        } else if let Some(call) = &thread.call {
            (VerdictKind::Idle, format!("sleeps in {call}{function}"))
        } else {
            // The system call of this thread could not be read, perhaps because the thread was about to run. So the
            // reason for its sleep is not known.
            let text = format!("sleeps in an unknown system call{function}");
            (VerdictKind::Unclear, text)
        };
        Self::new(kind, text)
    }
}

fn named(thread: &ProcessThread) -> String {
    format!("thread {} ({})", thread.id, thread.name)
}

fn in_function(thread: &ProcessThread) -> String {
    thread
        .function()
        .map_or(String::new(), |name| format!(", in {name}"))
}
