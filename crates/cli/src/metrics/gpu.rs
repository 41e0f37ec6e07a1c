//! Metrics of one GPU, read with NVML (NVIDIA's management library).

use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::gpm::gpm_metrics_get;
use nvml_wrapper::{Device, GpmSample, Nvml};
use tllmprof_record::Metric;

use super::clock;

/// Metrics that GPM, NVML's performance counters, gives for the time between two samples. Shares are in % and rates in
/// MiB/s, the units of records. "Sent" and "transmitted" (`Tx`) are from the GPU's point of view.
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

/// A metric and its value, in thousandths of its unit.
pub(super) type MetricValue = (Metric, u64);

/// A GPU that is sampled.
pub(crate) struct Gpu<'nvml> {
    /// The GPU's number in CUDA, as the program sees it.
    pub ordinal: u8,
    device: Device<'nvml>,
    /// The last GPM sample. `None` if the GPU has no GPM (it exists since Hopper), or this user may not read it.
    counts: Option<GpmSample<'nvml>>,
    /// The time of the last sample, in nanoseconds of `CLOCK_MONOTONIC`.
    since: u64,
}

/// Values that are means over an interval. Start and end are in nanoseconds of `CLOCK_MONOTONIC`.
pub(crate) struct MeasuredValues {
    pub start: u64,
    pub end: u64,
    pub values: Vec<MetricValue>,
}

impl<'nvml> Gpu<'nvml> {
    /// Begins to sample a GPU. Also returns the reason if its GPM metrics are missing.
    pub(crate) fn new(ordinal: u8, device: Device<'nvml>) -> (Self, Option<String>) {
        let (counts, why) = match first_sample(&device) {
            Ok(sample) => (Some(sample), None),
            Err(why) => (
                None,
                Some(format!(
                    "GPU metrics: of GPU {ordinal} the plain utilisation alone: {why}"
                )),
            ),
        };
        let new = Self {
            ordinal,
            device,
            counts,
            since: clock::monotonic(),
        };
        (new, why)
    }

    /// Returns the metrics since the last call. An error means that the GPM counters could not be read. They are then
    /// not read again.
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
        self.plain(&mut values);
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
        // If this GPU does not have a metric, such as NVLink's, only that metric's result is an error, and it is left
        // out.
        for ((_, metric), result) in COUNTED.iter().zip(results) {
            if let Some(value) = result.ok().and_then(|result| thousandths(result.value)) {
                values.push((*metric, value));
            }
        }
        self.counts = Some(sample);
        Ok(())
    }

    /// Adds the metrics that every GPU reports. NVML itself averages the utilization, over the last 1/6 s to 1 s.
    fn plain(&self, values: &mut Vec<MetricValue>) {
        if let Ok(rates) = self.device.utilization_rates() {
            values.push((Metric::GpuUtil, u64::from(rates.gpu) * 1000));
            values.push((Metric::MemoryUtil, u64::from(rates.memory) * 1000));
        }
        if let Ok(milliwatts) = self.device.power_usage() {
            values.push((Metric::Power, milliwatts.into()));
        }
        if let Ok(megahertz) = self.device.clock_info(Clock::SM) {
            values.push((Metric::SmClock, u64::from(megahertz) * 1000));
        }
        if let Ok(memory) = self.device.memory_info() {
            values.push((Metric::MemoryUsed, memory.used.saturating_mul(1000) >> 20));
        }
        if let Ok(degrees) = self.device.temperature(TemperatureSensor::Gpu) {
            values.push((Metric::Temperature, u64::from(degrees) * 1000));
        }
    }
}

/// Returns the first GPM sample. The error is the reason, in words, why the GPU gives none.
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
