//! A trace in memory: compact events, their names, and data about the process.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::HashMap;

use tllmprof_foreign::{
    LONGEST_EVENT_NS, LeftOut, LeftOutReason, StreamNumbers, check_times, is_step_range,
};
use tllmprof_record::{CopyKind, StringId};

use crate::error::TraceError;
use crate::event::{RawEvent, Scalar};
use crate::facts::Metadata;
use crate::names::StringTable;
use crate::own::{self, Own};

/// Maximum number of host events that are stored; the same maximum applies to GPU events. Further events are only
/// counted.
const LIMIT: usize = 6 << 20;

/// Maximum number of processes to distinguish; the same maximum applies to threads.
const MANY: usize = 1 << 14;

/// An activity of the host: a call, an operator, a range, a function or a module.
#[derive(Clone, Copy, Debug)]
pub struct HostEvent {
    /// Start of the event in nanoseconds, on the trace's clock.
    pub start: i64,
    pub ns: u64,
    pub name: StringId,
    pub thread: u32,
    /// Correlation number: the number that a call shares with the GPU work that it launched; 0 if the event has none.
    pub correlation: u32,
    pub process: u16,
    pub kind: HostKind,
    /// True if the event was cut short by the end of the window or of the process. Like `capturing` and `failed`, it is
    /// false unless tllmprof exported the trace.
    pub cut: bool,
    /// True if the call was made while its thread was capturing a stream into a graph.
    pub capturing: bool,
    /// True if the call returned an error, or if the function raised an exception.
    pub failed: bool,
}

/// The kind of a host event, as derived from the event's category and name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HostKind {
    /// A call of CUDA or HIP.
    Call,
    /// An operator of PyTorch, such as `aten::mm`.
    Operator,
    /// A range that the program marked, for example with `torch.profiler.record_function`.
    Annotation,
    /// A call of a Python function.
    Function,
    /// A call of the `forward` method of a PyTorch module.
    Module,
}

/// A piece of GPU work in the trace: a kernel, a copy or a memory set.
#[derive(Clone, Copy, Debug)]
pub struct GpuEvent {
    pub start: i64,
    pub ns: u64,
    pub bytes: u64,
    pub name: StringId,
    pub correlation: u32,
    pub stream: u16,
    pub device: u8,
    pub kind: GpuKind,
    /// True if the work was cut short by the end of the window or of the process. It is false unless tllmprof exported
    /// the trace.
    pub cut: bool,
}

/// The kind of a piece of GPU work: a kernel, a copy with its direction, or a memory set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GpuKind {
    Kernel,
    Copy(CopyKind),
    Set,
}

impl HostEvent {
    pub const fn end(&self) -> i64 {
        self.start.saturating_add_unsigned(self.ns)
    }
}

impl GpuEvent {
    pub const fn end(&self) -> i64 {
        self.start.saturating_add_unsigned(self.ns)
    }
}

/// The events of a PyTorch trace, and data about its process, as they are kept in memory.
#[derive(Debug, Default)]
pub struct Trace {
    pub names: StringTable,
    pub host: Vec<HostEvent>,
    pub gpu: Vec<GpuEvent>,
    /// Numbers of events that were left out, by reason.
    pub left_out: LeftOut,
    pub metadata: Metadata,
    pub own: Own,
    /// Ids of the processes that have host events, in the order of their first events. After `keep_one_process`, this
    /// is the id of the reported process only.
    pub processes: Vec<Scalar>,
    /// Names of processes, by process id.
    pub process_names: HashMap<Scalar, StringId>,
    /// Names of threads, by process and thread.
    pub thread_names: HashMap<(Scalar, u32), StringId>,
    /// Number of host events that were dropped because they belong to another process than the one that is reported.
    pub of_others: u64,
    threads: HashMap<Scalar, u32>,
    streams: StreamNumbers<Scalar>,
    /// True if at least one event has a category that the PyTorch profiler uses. In a trace that tllmprof exported,
    /// tllmprof's own categories count instead.
    pub is_of_profiler: bool,
}

/// The category of an event, which the key `cat` of its JSON states.
enum Category {
    Host(HostKind),
    Gpu(GpuKind),
    /// An iteration. Only traces exported by tllmprof contain this category.
    Iteration,
    Window,
    Other,
}

impl Category {
    /// Returns the category of an event in a trace that tllmprof exported, or `None` if tllmprof does not use that
    /// category. `text` is the event's `cat`.
    fn of_own(text: &str) -> Option<Self> {
        Some(match text {
            "iteration" => Self::Iteration,
            "window" => Self::Window,
            "cuda" => Self::Host(HostKind::Call),
            "nvtx" => Self::Host(HostKind::Annotation),
            "python" => Self::Host(HostKind::Function),
            "kernel" => Self::Gpu(GpuKind::Kernel),
            "memcpy" => Self::Gpu(GpuKind::Copy(CopyKind::Unknown)),
            "memset" => Self::Gpu(GpuKind::Set),
            _ => return None,
        })
    }

    /// Returns the category of an event that the PyTorch profiler wrote, or `None` if the category is unknown. `text`
    /// is the event's `cat`; older versions write `Operator`, `Runtime`, `Kernel`, `Memcpy` and `Memset`.
    fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "cuda_runtime" | "cuda_driver" | "hip_runtime" | "Runtime" => {
                Self::Host(HostKind::Call)
            }
            "cpu_op" | "Operator" => Self::Host(HostKind::Operator),
            "user_annotation" => Self::Host(HostKind::Annotation),
            "python_function" | "Python" => Self::Host(HostKind::Function),
            "kernel" | "Kernel" => Self::Gpu(GpuKind::Kernel),
            "gpu_memcpy" | "Memcpy" => Self::Gpu(GpuKind::Copy(CopyKind::Unknown)),
            "gpu_memset" | "Memset" => Self::Gpu(GpuKind::Set),
            "gpu_user_annotation"
            | "cuda_sync"
            | "cuda_profiler_range"
            | "overhead"
            | "cpu_instant_event"
            | "Trace" => Self::Other,
            _ => return None,
        })
    }
}

/// Prefix of the names that the profiler gives to calls of a module's `forward`.
const MODULE: &str = "nn.Module: ";

impl Trace {
    /// Adds an event of the trace: stores those of its values that reports use.
    pub fn take(&mut self, raw: &RawEvent) {
        if raw.phase == b'M' {
            return self.describe(raw);
        }
        let category = match self.metadata.is_own {
            true => Category::of_own(&raw.category),
            false => Category::parse(&raw.category),
        };
        let is_span = raw.phase == b'X';
        let Some(category) = category else {
            if is_span && !self.metadata.is_own && !raw.category.is_empty() {
                self.left_out.add(LeftOutReason::UnknownKind);
            }
            return;
        };
        self.is_of_profiler = true;
        if !is_span || matches!(category, Category::Other) {
            return;
        }
        let end = raw.start.zip(raw.duration);
        let end = end.map(|(start, duration)| start.saturating_add(duration));
        let (start, ns) = match (raw.start, check_times(raw.start, end)) {
            (Some(start), Ok(ns)) => (start, ns),
            (_, checked) => {
                self.left_out
                    .add(checked.err().unwrap_or(LeftOutReason::NoTime));
                return;
            }
        };
        match category {
            Category::Host(kind) => self.host(raw, kind, start, ns),
            Category::Gpu(kind) => self.gpu(raw, kind, start, ns),
            Category::Iteration => self.own.iteration(raw, start, ns),
            Category::Window => {
                let line = self.line(raw);
                self.own.window(raw, &line, start, ns);
            }
            Category::Other => (),
        }
    }

    fn host(&mut self, raw: &RawEvent, kind: HostKind, start: i64, ns: u64) {
        if self.host.len() >= LIMIT {
            self.left_out.add(LeftOutReason::TooMany);
            return;
        }
        let (kind, name) = match (kind, raw.name.strip_prefix(MODULE)) {
            (HostKind::Function, Some(module)) => (HostKind::Module, module_name(module)),
            (HostKind::Function, None) => (kind, without_address(&raw.name)),
            // Older versions of the profiler write ranges of the program with the category of operators. An operator
            // with the name of a step is such a range.
            (HostKind::Operator, _) if is_step_range(&raw.name) => {
                (HostKind::Annotation, Cow::Borrowed(&*raw.name))
            }
            _ => (kind, Cow::Borrowed(&*raw.name)),
        };
        let known = self.processes.iter().position(|pid| *pid == raw.pid);
        let process = known.unwrap_or_else(|| {
            let is_room = self.processes.len() < MANY;
            if is_room {
                self.processes.push(raw.pid.clone());
            }
            self.processes.len() - 1
        });
        let event = HostEvent {
            start,
            ns,
            name: self.names.number(&name),
            thread: self.thread(&raw.tid),
            correlation: correlation(raw),
            process: process as u16,
            kind,
            cut: self.metadata.is_own && raw.args.cut,
            capturing: self.metadata.is_own && raw.args.capturing,
            failed: self.metadata.is_own && raw.args.failed,
        };
        self.host.push(event);
    }

    fn gpu(&mut self, raw: &RawEvent, kind: GpuKind, start: i64, ns: u64) {
        let (device, stream) = match self.place(raw) {
            Ok(place) => place,
            Err(reason) => return self.left_out.add(reason),
        };
        if self.gpu.len() >= LIMIT {
            self.left_out.add(LeftOutReason::TooMany);
            return;
        }
        let (kind, name) = match kind {
            GpuKind::Copy(_) => (GpuKind::Copy(copy_kind(&raw.name)), ""),
            GpuKind::Kernel => (kind, &*raw.name),
            GpuKind::Set => (kind, ""),
        };
        let event = GpuEvent {
            start,
            ns,
            bytes: raw.args.bytes.unwrap_or(0).unsigned_abs(),
            name: self.names.number(name),
            correlation: correlation(raw),
            stream,
            device,
            kind,
            cut: self.metadata.is_own && raw.args.cut,
        };
        self.gpu.push(event);
    }

    /// Returns the name of the timeline row that contains the event. The name is empty if it is unknown.
    fn line(&mut self, raw: &RawEvent) -> String {
        let line = (raw.pid.clone(), self.thread(&raw.tid));
        let name = self.thread_names.get(&line);
        name.map_or_else(String::new, |name| self.names.get(*name).to_owned())
    }

    /// Returns the number of the GPU and the stream on which a piece of GPU work ran.
    ///
    /// # Errors
    /// Returns the reason why the work cannot be converted to the form of a tllmprof record.
    fn place(&mut self, raw: &RawEvent) -> Result<(u8, u16), LeftOutReason> {
        let (device, stream) = self.names_of_place(raw);
        let device = device.ok_or(LeftOutReason::NoStream)?;
        let device = u8::try_from(device).map_err(|_| LeftOutReason::UnknownGpu)?;
        let number = match &stream {
            Scalar::None => return Err(LeftOutReason::NoStream),
            Scalar::Number(number) => Some(*number),
            Scalar::Text(_) => None,
        };
        let stream = self.streams.get(&stream, number);
        Ok((device, stream.ok_or(LeftOutReason::TooManyStreams)?))
    }

    /// Returns the GPU and the stream of a piece of GPU work as the trace names them.
    fn names_of_place(&mut self, raw: &RawEvent) -> (Option<i64>, Scalar) {
        if self.metadata.is_own {
            self.own.gpus.insert(raw.pid.clone());
            let place = own::place(&self.line(raw));
            return place.map_or((None, Scalar::None), |(device, stream)| {
                (Some(device), Scalar::Number(stream))
            });
        }
        let device = raw.args.device.or_else(|| raw.pid.number());
        let stream = raw.args.stream.map(Scalar::Number);
        (device, stream.unwrap_or_else(|| raw.tid.clone()))
    }

    /// Stores the name of a process or a thread, which a metadata event (`M`) contains.
    fn describe(&mut self, raw: &RawEvent) {
        match &*raw.name {
            "process_name" if self.process_names.len() < MANY => {
                let name = self.names.number(&raw.args.name);
                self.process_names.insert(raw.pid.clone(), name);
            }
            "thread_name" if self.thread_names.len() < MANY => {
                let name = self.names.number(&raw.args.name);
                let thread = self.thread(&raw.tid);
                self.thread_names.insert((raw.pid.clone(), thread), name);
            }
            _ => (),
        }
    }

    /// Leaves out events whose start is far from those of the other events: more than a day from the median start. The
    /// report would otherwise show a trace that lasts for days.
    pub fn leave_out_far_events(&mut self) {
        let starts = self.host.iter().map(|event| event.start);
        let mut starts: Vec<_> = starts
            .chain(self.gpu.iter().map(|work| work.start))
            .collect();
        let middle = starts.len() / 2;
        if starts.is_empty() {
            return;
        }
        let median = *starts.select_nth_unstable(middle).1;
        let before = self.host.len() + self.gpu.len();
        let is_near = |start: i64| start.abs_diff(median) <= LONGEST_EVENT_NS;
        self.host.retain(|event| is_near(event.start));
        self.gpu.retain(|work| is_near(work.start));
        let left = before - self.host.len() - self.gpu.len();
        self.left_out.add_all(LeftOutReason::FarAway, left as u64);
    }

    /// Keeps only the host events of one process: the process with the most GPU calls or, without GPU calls, the
    /// process with the most events. Data in the form of a tllmprof record describe one process, and the thread and
    /// correlation numbers of several processes could collide.
    ///
    /// # Errors
    /// Returns an error if several processes have GPU calls. The GPU work of a trace does not say which process
    /// launched it, so the work of the other processes could not be left out.
    pub fn keep_one_process(&mut self) -> Result<(), TraceError> {
        let mut sums = vec![(0_u64, 0_u64); self.processes.len()];
        for event in &self.host {
            let (calls, all) = &mut sums[usize::from(event.process)];
            *calls += u64::from(event.kind == HostKind::Call);
            *all += 1;
        }
        if sums.iter().filter(|(calls, _)| *calls > 0).count() > 1 {
            return Err(TraceError::Merged);
        }
        let most = (0..)
            .zip(sums)
            .max_by_key(|(place, sum)| (*sum, Reverse(*place)));
        let Some((most, _)) = most else {
            return Ok(());
        };
        let before = self.host.len();
        self.host.retain(|event| event.process == most);
        self.of_others = (before - self.host.len()) as u64;
        self.processes = vec![self.processes.swap_remove(usize::from(most))];
        let process = &self.processes[0];
        self.thread_names.retain(|(pid, _), _| pid == process);
        Ok(())
    }

    /// Returns the process's id; `None` if it is unknown or not a number.
    pub fn pid(&self) -> Option<u32> {
        let process = self.processes.first()?;
        u32::try_from(process.number()?).ok()
    }

    /// Returns the process's name; empty if it is unknown.
    pub fn process_name(&self) -> &str {
        let process = self.processes.first();
        let name = process.and_then(|process| self.process_names.get(process));
        name.map_or("", |name| self.names.get(*name))
    }

    /// Returns the number of a thread. A thread id that is not a number, or too large, gets an
    /// unused number, counted down from the largest.
    fn thread(&mut self, tid: &Scalar) -> u32 {
        if let Scalar::Number(number) = tid
            && let Ok(number) = u32::try_from(*number)
        {
            return number;
        }
        let next = u32::MAX - self.threads.len() as u32;
        match self.threads.get(tid) {
            Some(thread) => *thread,
            None if self.threads.len() < MANY => *self.threads.entry(tid.clone()).or_insert(next),
            None => u32::MAX,
        }
    }
}

/// Returns the name of a module with its index as a separate component: `Linear.3` for `Linear_3`,
/// the fourth module of its class. In this form, layers whose names differ only in such numbers can
/// be combined in one row of the report.
fn module_name(name: &str) -> Cow<'_, str> {
    match name.rsplit_once('_') {
        Some((class, number)) if !class.is_empty() && is_number(number) => {
            Cow::Owned(format!("{class}.{number}"))
        }
        _ => Cow::Borrowed(name),
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns a function's name without the address of an object, because the address differs in each
/// run: `<built-in method mm of type object>` for `<built-in method mm of type object at 0x7f…>`.
fn without_address(name: &str) -> Cow<'_, str> {
    let Some((before, rest)) = name.split_once(" at 0x") else {
        return Cow::Borrowed(name);
    };
    let after = rest.trim_start_matches(|digit: char| digit.is_ascii_hexdigit());
    Cow::Owned(format!("{before}{after}"))
}

/// Returns the event's correlation number, which a call and the work that it launched share; 0 if
/// the event has none.
fn correlation(raw: &RawEvent) -> u32 {
    let number = raw
        .args
        .correlation
        .and_then(|number| u32::try_from(number).ok());
    number.unwrap_or(0)
}

/// Returns the direction of a copy from its name, such as `Memcpy HtoD (Pageable -> Device)`.
fn copy_kind(name: &str) -> CopyKind {
    let way = name.split(' ').nth(1).unwrap_or("");
    let kinds = (1..=10).map(CopyKind::from_code);
    let mut fit = kinds.filter(|kind| kind.name() == way);
    fit.next().unwrap_or(CopyKind::Unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_any_run() {
        assert_eq!(module_name("Qwen3DecoderLayer_12"), "Qwen3DecoderLayer.12");
        for name in ["Linear", "My_Module", "_3", "Linear_"] {
            assert_eq!(module_name(name), name);
        }
        let bound = "<built-in method synchronize of torch.Event object at 0x7f3ab849d0f0>";
        let expected = "<built-in method synchronize of torch.Event object>";
        assert_eq!(without_address(bound), expected);
        assert_eq!(without_address("a.py(3): f"), "a.py(3): f");
    }

    #[test]
    fn copies_go_the_way_that_their_names_say() {
        for (name, kind) in [
            ("Memcpy HtoD (Pageable -> Device)", CopyKind::HostToDevice),
            ("Memcpy DtoH (Device -> Pinned)", CopyKind::DeviceToHost),
            ("Memcpy PtoP (Device -> Device)", CopyKind::PeerToPeer),
            ("CopyDeviceToHost", CopyKind::Unknown),
            ("", CopyKind::Unknown),
        ] {
            assert_eq!(copy_kind(name), kind, "{name}");
        }
    }
}
