//! The sampling process's main function, which samples the GPUs until the command requests a stop.

use std::env;
use std::fs;
use std::io::{ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use tllmprof_config::Level;
use tllmprof_record::{Counter, Ended, Event, Info, StreamWriter, What};

use super::family::ProcessFamily;
use super::gpu::{Gpu, MeasuredValues};
use super::nodes::NumaNodes;
use super::shares::GpuShares;
use super::visible::{Listed, VisibilityVariables, visible};
use super::{SampleScope, SamplingPlan, clock, file};
use crate::output;

/// Interval between samples of the GPUs. NVML supports no shorter interval for its performance counters (GPM).
const INTERVAL: Duration = Duration::from_millis(100);
/// Maximum size, in bytes, of the record in a run without `--gpu-metrics`, in which only the state of the GPUs is
/// sampled. The interval between samples grows as the record fills.
const STATE_LIMIT: u64 = 64 << 20;
/// Number of rounds at the start of the sampling that search for the run's processes and examine all of their threads.
const FIRST_ROUNDS: u64 = 10;
/// After the first rounds ([`FIRST_ROUNDS`]), only one in this number of rounds searches for the run's processes.
const SEARCH_ROUNDS: u64 = 50;
/// After the first rounds ([`FIRST_ROUNDS`]), all threads are examined in only one in this number of rounds. The other
/// rounds examine only the busy threads.
const THREAD_ROUNDS: u64 = 10;
/// Interval between anchors. An anchor relates the record's clock to the time of day.
const ANCHOR: Duration = Duration::from_secs(60);

/// A GPU in NVML, and the name of its model.
type NamedGpu<'nvml> = (Device<'nvml>, String);

/// Waits until the program has started, and then samples until the command closes the other end of the socket.
/// Returns the number of rounds, in each of which every GPU is sampled once.
///
/// # Errors
/// The reason why there are no metrics, or why they end early.
pub(crate) fn sample(plan: &SamplingPlan, orders: &mut UnixStream) -> Result<u64> {
    if orders.read_exact(&mut [0]).is_err() {
        return Ok(0);
    }
    let nvml = Nvml::init().map_err(plainly)?;
    let (devices, notes) = devices(&nvml)?;
    for note in &notes {
        warn(plan, note);
    }
    let names: Vec<_> = devices.iter().map(|(_, name)| name.clone()).collect();
    let mut gpus = Vec::new();
    let mut less = Vec::new();
    let mut refusals = Vec::new();
    for (ordinal, (device, _)) in (0..).zip(devices) {
        let (gpu, why) = Gpu::new(ordinal, device, plan.sampled == SampleScope::All);
        refusals.extend(gpu.refusal());
        gpus.push(gpu);
        less.extend(why);
    }
    // The reason why GPM metrics are missing is the same for all GPUs of one model, so only the first reason is logged.
    if let Some(why) = less.first() {
        warn(plan, why);
    }
    let shown = || plan.path.display().to_string();
    let driver = nvml.sys_cuda_driver_version().ok();
    let driver = driver.and_then(|version| u64::try_from(version).ok());
    let created = file::create(&plan.path).with_context(shown)?;
    let mut record =
        file::begin(created, plan.pid, plan.run.as_str(), &names, driver).with_context(shown)?;
    for line in notes.iter().chain(&less).chain(&refusals) {
        file::write_fact(&mut record, Info::Refused, line)?;
    }
    let nodes = NumaNodes::read();
    for gpu in &gpus {
        let address = gpu.address();
        if let Some(node) = address.and_then(|address| nodes.of_gpu(gpu.ordinal, &address)) {
            file::write_fact(&mut record, Info::GpuNode, &node)?;
        }
        if let Some(limit) = gpu.power_limit() {
            file::write_fact(&mut record, Info::GpuPowerLimit, &limit)?;
        }
    }
    let mut around = Surrounding {
        family: ProcessFamily::new(plan.pid),
        shares: GpuShares::new(&plan.run),
        nodes,
    };

    let mut rounds = 0;
    let ended = look(
        plan,
        &nvml,
        &mut gpus,
        &mut around,
        &mut record,
        orders,
        &mut rounds,
    );
    if rounds == 0 {
        // No sample was taken, so the record of GPU metrics is useless and is removed.
        let _ = fs::remove_file(&plan.path);
        return ended.map(|()| 0);
    }
    record.header().anchor(clock::anchor());
    let flushed = record.finish(Ended::InOrder);
    ended?;
    flushed.with_context(shown)?;
    Ok(rounds)
}

/// Data that is sampled in addition to the GPUs' metrics: the processes that use the GPUs, and the NUMA nodes on
/// which the threads run.
struct Surrounding {
    family: ProcessFamily,
    shares: GpuShares,
    nodes: NumaNodes,
}

impl Surrounding {
    /// Writes to the record which threads of the run have moved to another NUMA node.
    fn keep_moved(&mut self, record: &mut StreamWriter, round: u64) -> Result<()> {
        if round < FIRST_ROUNDS || round.is_multiple_of(SEARCH_ROUNDS) {
            self.family.search();
        }
        let all = round < FIRST_ROUNDS || round.is_multiple_of(THREAD_ROUNDS);
        for moved in self.nodes.moved(self.family.users(), all) {
            let (node, pid, tid) = (moved.node, moved.pid, moved.tid);
            record.push(&Event::new(
                clock::monotonic(),
                0,
                What::ThreadNode { node, pid, tid },
            ))?;
        }
        Ok(())
    }
}

/// Returns the interval until the next sample if the record has `length` bytes. Returns `None` if the record is full.
fn interval(plan: &SamplingPlan, length: u64) -> Option<Duration> {
    let limit = match plan.sampled {
        SampleScope::All => return (length < plan.limit).then_some(INTERVAL),
        SampleScope::State => plan.limit.min(STATE_LIMIT),
    };
    match length {
        _ if length < limit / 2 => Some(INTERVAL),
        _ if length < limit / 4 * 3 => Some(INTERVAL * 10),
        _ if length < limit => Some(INTERVAL * 100),
        _ => None,
    }
}

/// Takes samples of all GPUs until the command requests a stop, the record is full, or the record cannot be written.
fn look<'nvml>(
    plan: &SamplingPlan,
    nvml: &'nvml Nvml,
    gpus: &mut [Gpu<'nvml>],
    around: &mut Surrounding,
    record: &mut StreamWriter,
    orders: &mut UnixStream,
    rounds: &mut u64,
) -> Result<()> {
    let mut anchored = Instant::now();
    let mut last = anchored;
    loop {
        let interval = interval(plan, record.length());
        while let Some(wait) = interval
            .unwrap_or_default()
            .checked_sub(last.elapsed())
            .filter(|w| !w.is_zero())
        {
            if is_over(orders, wait) {
                return Ok(());
            }
        }
        if interval.is_none() {
            record.header().add(Counter::EventsDropped, 1);
            anyhow::bail!(
                "GPU metrics end here: {} has reached {} bytes (TLLMPROF_TRACE_MAX)",
                plan.path.display(),
                plan.limit
            );
        }
        for gpu in &mut *gpus {
            let (taken, counted) = gpu.take(nvml);
            if let Err(error) = counted {
                let line = format!("GPU metrics: GPU {} stopped counting: {error}", gpu.ordinal);
                warn(plan, &line);
                file::write_fact(record, Info::Refused, &line)?;
            }
            keep(record, gpu.ordinal, &taken)?;
            // If the driver does not list the processes that use this GPU, no processes of the GPU are recorded.
            let listed = gpu.processes().unwrap_or_default();
            let around = (&mut around.shares, &mut around.family);
            around
                .0
                .keep(record, gpu.ordinal, &taken, &listed, around.1)?;
        }
        around.keep_moved(record, *rounds)?;
        if anchored.elapsed() >= ANCHOR {
            anchored = Instant::now();
            record.header().anchor(clock::anchor());
        }
        record
            .flush()
            .with_context(|| format!("GPU metrics end here: {}", plan.path.display()))?;
        *rounds += 1;
        last = Instant::now();
    }
}

fn keep(record: &mut StreamWriter, device: u8, taken: &MeasuredValues) -> Result<()> {
    for (metric, thousandths) in &taken.values {
        let what = What::GpuMetric {
            device,
            metric: Some(*metric),
            thousandths: *thousandths,
        };
        record.push(&Event::new(taken.start, taken.end - taken.start, what))?;
    }
    Ok(())
}

/// Waits up to `wait` for the command's request to stop. Returns true if the request came or the command has ended, and
/// false after the timeout.
fn is_over(orders: &mut UnixStream, wait: Duration) -> bool {
    if orders.set_read_timeout(Some(wait)).is_err() {
        return true;
    }
    match orders.read_exact(&mut [0]) {
        Ok(()) => true,
        Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
    }
}

/// Returns the GPUs that the program sees, with their names, in the order of the program's CUDA numbers. Also returns
/// messages for the user, for example about numbers that are uncertain.
fn devices(nvml: &Nvml) -> Result<(Vec<NamedGpu<'_>>, Vec<String>)> {
    let mut found = Vec::new();
    let mut listed = Vec::new();
    for index in 0..nvml.device_count().map_err(plainly)? {
        // NVML reports an error for a GPU that this user or container may not use. CUDA does not show such a GPU
        // either.
        let Ok(device) = nvml.device_by_index(index) else {
            continue;
        };
        let pci = device.pci_info().map_err(plainly)?;
        let name = device.name().map_err(plainly)?;
        listed.push(Listed {
            uuid: device.uuid().map_err(plainly)?,
            name: name.clone(),
            pci: [pci.domain, pci.bus, pci.device],
        });
        found.push(Some((device, name)));
    }
    let variable = |name| env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    let asked = VisibilityVariables {
        devices: variable("CUDA_VISIBLE_DEVICES"),
        order: variable("CUDA_DEVICE_ORDER"),
    };
    let (order, notes) = visible(&listed, &asked);
    let devices: Vec<_> = order
        .iter()
        .filter_map(|place| found.get_mut(*place)?.take())
        .collect();
    match (&asked.devices, devices.is_empty()) {
        (_, false) => Ok((devices, notes)),
        (None, true) => anyhow::bail!("NVML lists no GPU"),
        (Some(list), true) => anyhow::bail!("CUDA_VISIBLE_DEVICES=\"{list}\" names no GPU"),
    }
}

/// Returns an NVML error in one line. If NVML's library is missing, the line is the dynamic linker's message.
fn plainly(error: NvmlError) -> anyhow::Error {
    match error {
        NvmlError::LibloadingError(error) => error.into(),
        error => anyhow::anyhow!("NVML: {error}"),
    }
}

fn warn(plan: &SamplingPlan, line: &str) {
    if plan.log >= Level::Warn {
        output::say(format_args!("{line}"));
    }
}
