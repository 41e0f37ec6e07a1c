//! Metrics of one GPU, read with NVML (NVIDIA's management library).

use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::gpm::gpm_metrics_get;
use nvml_wrapper::{Device, GpmSample, Nvml};
use tllmprof_record::Metric;

use super::clock;

/// Metrics that GPM, NVML's performance counters, gives for the time between two samples. As in records, shares are
/// in % and rates in MiB/s. Received (`Rx`) and sent (`Tx`) are from the GPU's point of view.
const COUNTED: [(GpmMetricId, Metric); 8] = [
    (GpmMetricId::SmUtil, Metric::SmUtil),
    (GpmMetricId::SmOccupancy, Metric::SmOccupancy),
    (GpmMetricId::AnyTensorUtil, Metric::TensorUtil),
    (GpmMetricId::DramBwUtil, Metric::DramBandwidth),
    (GpmMetricId::PcieRxPerSec, Metric::PcieReceived),
    (GpmMetricId::PcieTxPerSec, Metric::PcieSent),
    (GpmMetricId::NvlinkTotalRxPerSec, Metric::NvlinkReceived),
    (GpmMetricId::NvlinkTotalTxPerSec, Metric::NvlinkSent),
];

/// NVML takes samples of how much each process uses the GPU, up to six times a second. Samples that are older than this
/// time, in microseconds, are not used.
const LOAD_US: u64 = 2_000_000;

/// A metric and its value, in thousandths of its unit.
pub(super) type MetricValue = (Metric, u64);

/// A GPU whose metrics are sampled, and the values of the last sample that the next sample needs.
pub(crate) struct Gpu<'nvml> {
    /// The number by which the profiled program's CUDA identifies the GPU.
    pub ordinal: u8,
    device: Device<'nvml>,
    /// The last GPM sample. `None` if GPM was not requested, if the GPU does not support GPM (only GPUs since Hopper
    /// do), if this user may not read it, or once reading has failed.
    counts: Option<GpmSample<'nvml>>,
    /// True if utilization and used memory are sampled, too (`--gpu-metrics`).
    has_load: bool,
    /// True if the GPU is divided into parts (MIG). Its clocks, power and processes are then those of all parts
    /// together.
    is_divided: bool,
    /// The GPU's energy counter at the last sample, in millijoules. `None` if the counter cannot be read.
    energy: Option<u64>,
    /// The time of the last sample, in nanoseconds of `CLOCK_MONOTONIC`.
    since: u64,
}

/// The values of one sample, and the interval since the previous sample. Start and end are in nanoseconds of
/// `CLOCK_MONOTONIC`.
pub(crate) struct MeasuredValues {
    pub start: u64,
    pub end: u64,
    pub values: Vec<MetricValue>,
}

impl<'nvml> Gpu<'nvml> {
    /// Returns a message if the GPU's state cannot be used, or only in part. If the GPU is divided (MIG), its state
    /// cannot be attributed to the program. If the GPU does not report the reasons for its clocks, the state is
    /// incomplete.
    pub(crate) fn refusal(&self) -> Option<String> {
        let ordinal = self.ordinal;
        if self.is_divided {
            return Some(format!(
                "GPU {ordinal} is divided (MIG): its clocks, energy and processes are those of all parts"
            ));
        }
        let error = self.device.current_throttle_reasons().err()?;
        Some(format!(
            "GPU {ordinal} does not report the reasons for its clocks: {error}"
        ))
    }

    /// Returns the processes that use the GPU. Each comes with its share of the SMs' time in percent, if the share is
    /// known. For a divided GPU (MIG), the list is empty.
    ///
    /// # Errors
    /// The driver does not list the processes.
    pub(crate) fn processes(&self) -> Result<Vec<(u32, Option<u8>)>, NvmlError> {
        if self.is_divided {
            return Ok(Vec::new());
        }
        let device = &self.device;
        let listed = device.running_compute_processes()?;
        let since = clock::unix_us().saturating_sub(LOAD_US);
        let loads = match device.process_utilization_stats(since) {
            // NVML reports `NotFound` if no process was busy on the GPU.
            Err(NvmlError::NotFound) => Some(Vec::new()),
            loads => loads.ok(),
        };
        let share = |pid| {
            let loads = loads.as_ref()?.iter().filter(|load| load.pid == pid);
            let most = loads.map(|load| load.sm_util).max();
            u8::try_from(most.unwrap_or(0).min(100)).ok()
        };
        let mut found: Vec<_> = listed.iter().map(|one| (one.pid, share(one.pid))).collect();
        found.sort_unstable();
        found.dedup_by_key(|(pid, _)| *pid);
        Ok(found)
    }

    /// Returns the GPU's PCI address, as the names in `/sys/bus/pci/devices` spell it. `None` if NVML does not report
    /// it.
    pub(crate) fn address(&self) -> Option<String> {
        let pci = self.device.pci_info().ok()?;
        Some(format!(
            "{:04x}:{:02x}:{:02x}.0",
            pci.domain, pci.bus, pci.device
        ))
    }

    /// Returns the GPU's power limits, in the form of [`Info::GpuPowerLimit`](tllmprof_record::Info::GpuPowerLimit).
    /// `None` if NVML does not report the limit that the driver enforces. Also `None` for a part of a divided GPU
    /// (MIG), because the limit applies to all parts together.
    pub(crate) fn power_limit(&self) -> Option<String> {
        if self.is_divided {
            return None;
        }
        let enforced = self.device.enforced_power_limit().ok()?;
        let default = self.device.power_management_limit_default();
        let default = default.map_or_else(|_| "-".to_owned(), |milliwatts| milliwatts.to_string());
        Some(format!("{} {enforced} {default}", self.ordinal))
    }

    /// Begins to sample a GPU: always its state (clocks, power, energy), and its load if `has_load` is true. Also
    /// returns the reason if `has_load` is true but the GPU gives no GPM metrics.
    pub(crate) fn new(
        ordinal: u8,
        device: Device<'nvml>,
        has_load: bool,
    ) -> (Self, Option<String>) {
        let is_divided = device.mig_mode().is_ok_and(|mode| mode.current != 0);
        let (counts, why) = match has_load.then(|| first_sample(&device)) {
            None => (None, None),
            Some(Ok(sample)) => (Some(sample), None),
            Some(Err(why)) => (
                None,
                Some(format!(
                    "GPU metrics: of GPU {ordinal} the plain utilisation alone: {why}"
                )),
            ),
        };
        let new = Self {
            ordinal,
            energy: device.total_energy_consumption().ok(),
            device,
            counts,
            has_load,
            is_divided,
            since: clock::monotonic(),
        };
        (new, why)
    }

    /// Returns the GPU's metrics since the last call. The second value is an error if the GPM counters could not be
    /// read. After such an error, the counters are not read again.
    pub(crate) fn take(&mut self, nvml: &'nvml Nvml) -> (MeasuredValues, Result<(), NvmlError>) {
        let mut values = Vec::new();
        let start = self.since;
        let counted = self.counted(nvml, &mut values);
        if counted.is_err() {
            self.counts = None;
        }
        if self.counts.is_none() {
            self.since = clock::monotonic();
        }
        if self.has_load {
            self.load(&mut values);
        }
        // The state of a divided GPU is that of all its parts together, so it says nothing about the program. Without
        // `--gpu-metrics`, the state is used only for findings about the program, so the state of a divided GPU is then
        // not sampled.
        if self.has_load || !self.is_divided {
            self.state(&mut values);
        }
        let taken = MeasuredValues {
            start,
            end: self.since,
            values,
        };
        (taken, counted)
    }

    fn counted(
        &mut self,
        nvml: &'nvml Nvml,
        values: &mut Vec<MetricValue>,
    ) -> Result<(), NvmlError> {
        let Some(last) = &self.counts else {
            return Ok(());
        };
        let sample = self.device.gpm_sample()?;
        self.since = clock::monotonic();
        let results = gpm_metrics_get(nvml, last, &sample, &COUNTED.map(|(id, _)| id))?;
        // If this GPU does not have a metric, for example one of NVLink, only the result for that metric is an error.
        // The metric is then left out.
        for ((_, metric), result) in COUNTED.iter().zip(results) {
            if let Some(value) = result.ok().and_then(|result| thousandths(result.value)) {
                values.push((*metric, value));
            }
        }
        self.counts = Some(sample);
        Ok(())
    }

    /// Adds the utilization and used memory, which every GPU reports, to `values`. NVML averages the utilization over
    /// the last 1/6 s to 1 s.
    fn load(&self, values: &mut Vec<MetricValue>) {
        if let Ok(rates) = self.device.utilization_rates() {
            values.push((Metric::GpuUtil, u64::from(rates.gpu) * 1000));
            values.push((Metric::MemoryUtil, u64::from(rates.memory) * 1000));
        }
        if let Ok(memory) = self.device.memory_info() {
            values.push((Metric::MemoryUsed, memory.used.saturating_mul(1000) >> 20));
        }
    }

    /// Adds the GPU's clocks, power, temperature and energy to `values`.
    fn state(&mut self, values: &mut Vec<MetricValue>) {
        let device = &self.device;
        if let Ok(milliwatts) = device.power_usage() {
            values.push((Metric::Power, milliwatts.into()));
        }
        if let Ok(megahertz) = device.clock_info(Clock::SM) {
            values.push((Metric::SmClock, u64::from(megahertz) * 1000));
        }
        if let Ok(megahertz) = device.max_clock_info(Clock::SM) {
            values.push((Metric::MaxSmClock, u64::from(megahertz) * 1000));
        }
        if let Ok(reasons) = device.current_throttle_reasons() {
            values.push((Metric::ClockReasons, reasons.bits() * 1000));
        }
        if let Ok(degrees) = self.device.temperature(TemperatureSensor::Gpu) {
            values.push((Metric::Temperature, u64::from(degrees) * 1000));
        }
        let energy = device.total_energy_consumption().ok();
        if let (Some(before), Some(now)) = (self.energy, energy) {
            values.push((Metric::Energy, now.saturating_sub(before)));
        }
        self.energy = energy;
    }
}

/// Returns the first GPM sample. The error is the reason, in words, why the GPU gives no GPM sample.
fn first_sample<'nvml>(device: &Device<'nvml>) -> Result<GpmSample<'nvml>, String> {
    match device.gpm_support() {
        Ok(true) => device.gpm_sample().map_err(|error| match error {
            NvmlError::NoPermission => {
                "the driver does not let this user count (NVreg_RestrictProfilingToAdminUsers)"
                    .to_owned()
            }
            error => error.to_string(),
        }),
        Ok(false) | Err(NvmlError::NotSupported) => {
            Err("it has no GPM, which came with Hopper".to_owned())
        }
        Err(NvmlError::FailedToLoadSymbol(_)) => Err("the driver is too old for GPM".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Returns a value in thousandths. Returns `None` if the value is negative or not finite.
fn thousandths(value: f64) -> Option<u64> {
    (value.is_finite() && value >= 0.0).then(|| (value * 1000.0).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_is_left_out() {
        assert_eq!(thousandths(12.3456), Some(12_346));
        assert_eq!(thousandths(0.0), Some(0));
        for bad in [f64::NAN, f64::INFINITY, -1.0] {
            assert_eq!(thousandths(bad), None);
        }
    }
}
