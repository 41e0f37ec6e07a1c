//! The energy counters of the machine's GPUs, read with NVML (NVIDIA's management library) at each scrape.
//!
//! A separate thread reads the counters, because a query of a broken GPU may never return. In that case, the metrics of
//! the processes are served without the energy.

use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

use nvml_wrapper::Nvml;

/// The longest time that a scrape waits for the counters. NVML needs some milliseconds for eight GPUs. The first scrape
/// may reach this limit, because NVML may still be initializing. Later scrapes reach it only if a GPU does not answer.
const MAX_WAIT: Duration = Duration::from_millis(500);

/// The energy that a GPU has used since its driver was loaded.
pub(crate) struct GpuEnergy {
    /// The GPU's number in NVML, which is the one that `nvidia-smi` shows.
    pub index: u32,
    pub uuid: String,
    pub millijoules: u64,
}

/// A reader of the energy counters of all GPUs. A separate thread answers its requests.
pub(crate) struct EnergyReader {
    requests: Sender<()>,
    answers: Receiver<Vec<GpuEnergy>>,
    /// True if the latest request was not answered in time, so that its answer may still come.
    is_late: bool,
}

impl EnergyReader {
    /// Starts the thread that reads the counters. Without NVML, the thread ends at once.
    pub(crate) fn start() -> Self {
        let (requests, requested) = mpsc::channel();
        let (answer, answers) = mpsc::channel();
        thread::spawn(move || answer_all(&requested, &answer));
        Self {
            requests,
            answers,
            is_late: false,
        }
    }

    /// Returns the present values of the counters. The list is empty if no counter can be read, or if the thread does
    /// not answer within [`MAX_WAIT`].
    pub(crate) fn read(&mut self) -> Vec<GpuEnergy> {
        // The answer to an earlier request may have come too late for that request's scrape. Such an answer is dropped.
        self.is_late = self.is_late && self.answers.try_recv().is_err();
        if self.is_late || self.requests.send(()).is_err() {
            return Vec::new();
        }
        let answer = self.answers.recv_timeout(MAX_WAIT);
        self.is_late = answer.is_err();
        answer.unwrap_or_default()
    }
}

/// Answers each request with the counters until the [`EnergyReader`] is dropped. Returns at once if NVML is missing.
fn answer_all(requested: &Receiver<()>, answer: &Sender<Vec<GpuEnergy>>) {
    let Ok(nvml) = Nvml::init() else { return };
    while requested.recv().is_ok() && answer.send(energies(&nvml)).is_ok() {}
}

fn energies(nvml: &Nvml) -> Vec<GpuEnergy> {
    let energy = |index| {
        let device = nvml.device_by_index(index).ok()?;
        Some(GpuEnergy {
            index,
            uuid: device.uuid().ok()?,
            millijoules: device.total_energy_consumption().ok()?,
        })
    };
    let count = nvml.device_count().unwrap_or(0);
    (0..count).filter_map(energy).collect()
}
