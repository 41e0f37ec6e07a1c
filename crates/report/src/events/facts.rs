//! Data that a record states once for the whole process: names, the rule for iterations, the rank
//! and the table of CUDA calls.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use tllmprof_calls::{CallPurpose, Direction, Wait, kind_of};
use tllmprof_engines::GROUPS;
use tllmprof_record::{
    CallKind, Counter, Entry, GroupRank, Header, Info, Member, NO_STRING, StringId, Strings, What,
};

use super::groups::{Communicator, GroupPlace, write_communicators, write_groups};
use super::origin::{Data, Origin};

/// Maximum number of facts about the process to store; the same maximum applies to names of threads. Further facts and
/// names are dropped.
const MAX_FACTS: usize = 4096;

/// Maximum number of communicators of a process to store; the same maximum applies to its groups of ranks. Further
/// communicators and groups are dropped.
const MAX_GROUPS: usize = 256;

/// Facts about a process. Texts are stored as recorded, so make them printable before you show them.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct Facts {
    /// The name of the host that the process ran on.
    pub host: String,
    /// The process's rank in the job; 0 if it is not known.
    pub rank: u64,
    /// The source of the rank: the name of an environment variable, `torch.distributed`, an engine, or `NCCL`. `null`
    /// if the rank is not known, or if an older version of tllmprof wrote the record.
    #[serde(serialize_with = "write_known")]
    #[schemars(with = "Option<String>")]
    pub rank_source: String,
    /// The number of ranks in the job; `null` if it is not known.
    pub world_size: Option<u64>,
    /// The process's rank in each group of ranks that it belongs to, as text, such as `TP1 of 4, DP0`; empty if no
    /// group is known.
    pub in_groups: String,
    /// The process's rank in each group of ranks that it belongs to. Each group name occurs once, and groups of a
    /// single rank are left out.
    #[serde(serialize_with = "write_groups")]
    #[schemars(with = "Vec<GroupPlace>")]
    pub groups: Vec<GroupRank>,
    /// The NCCL communicators that the process created, in the order of creation.
    #[serde(serialize_with = "write_communicators")]
    #[schemars(with = "Vec<Communicator>")]
    pub communicators: Vec<Member>,
    /// The identifier of the run that the process belongs to; `null` if it has none.
    #[serde(serialize_with = "write_known")]
    #[schemars(with = "Option<String>")]
    pub run: String,
    /// The command line of the process.
    pub command: String,
    /// The name of the process, which is that of `/proc/PID/comm` in records of tllmprof.
    #[serde(rename = "name")]
    pub process: String,
    /// The rule that defines an iteration, in the form of the variable `TLLMPROF_STEP`.
    pub rule: String,
    /// The reason why `rule` was used, such as how `auto` chose it; empty if the record has no reason.
    pub rule_why: String,
    /// The name of the inference or training engine, such as vLLM; empty if tllmprof did not recognize one.
    pub engine: String,
    #[serde(flatten)]
    pub software: Software,
    #[serde(flatten)]
    pub asked: Settings,
    /// CUDA calls of the whole run, summed by name, inside and outside windows.
    #[serde(rename = "calls_counted")]
    pub calls: Vec<CallCount>,
    /// The names of threads, by thread ID. A thread without a recorded name has no entry.
    #[serde(skip)]
    pub threads: BTreeMap<u32, String>,
    /// The boot ID of the process's machine. Records with the same boot ID share one clock.
    #[serde(skip)]
    pub boot: String,
    /// Names of MoE layers, by their numbers.
    #[serde(skip)]
    pub routers: BTreeMap<u32, String>,
    /// The profiler that recorded the process; `null` if it was tllmprof.
    #[serde(rename = "recorded_by", serialize_with = "write_origin")]
    #[schemars(with = "Option<Origin>")]
    pub origin: Origin,
}

/// Versions of the software of a process, and the names of its GPUs.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct Software {
    /// The version of tllmprof that wrote the record.
    pub library: String,
    /// The version of Python in the process; empty if the process has no Python interpreter.
    pub python: String,
    /// The names of the GPUs that the process used. The index is the GPU's number. The name of a GPU that the process
    /// did not use, or whose name is not known, is empty.
    #[serde(skip)]
    pub gpus: Vec<String>,
    /// The NUMA nodes of the GPUs, as texts in the form of [`Info::GpuNode`].
    #[serde(skip)]
    pub gpu_nodes: Vec<String>,
    /// The power limits of the GPUs, as texts in the form of [`Info::GpuPowerLimit`].
    #[serde(skip)]
    pub power_limits: Vec<String>,
    /// The CUDA version of the driver, as 1000 × major + 10 × minor: 12040 is version 12.4. `null` if it is not known.
    pub cuda_driver: Option<u64>,
}

impl Software {
    /// Returns the known names of the GPUs that the process used, in the order of the GPUs' numbers.
    #[must_use]
    pub fn known_gpus(&self) -> Vec<&str> {
        let names = self.gpus.iter().map(String::as_str);
        names.filter(|name| !name.is_empty()).collect()
    }

    /// Adds the name of a GPU. `number` is the GPU's number plus 1. If it is 0, the record does not state the number,
    /// and the GPU is the one after the last GPU so far.
    fn add_gpu(&mut self, number: u64, name: String) {
        let place = match number.checked_sub(1).map(u8::try_from) {
            None => self.gpus.len(),
            Some(Ok(device)) => usize::from(device),
            // The GPU's number is above 255. No event can refer to it.
            Some(Err(_)) => return,
        };
        if place >= self.gpus.len() {
            self.gpus.resize(place + 1, String::new());
        }
        self.gpus[place] = name;
    }
}

/// The settings of tllmprof in a process.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct Settings {
    /// The requested windows (ranges of iterations that are recorded one by one), in the form of the variable
    /// `TLLMPROF_START_STOP`.
    #[serde(rename = "windows_asked")]
    pub windows: String,
    /// The condition that an iteration must satisfy to be included in the figures of windows, in the form of the
    /// variable `TLLMPROF_WHERE`; `null` if there is none.
    #[serde(rename = "where", serialize_with = "write_known")]
    #[schemars(with = "Option<String>")]
    pub condition: String,
    /// The environment variables that configured tllmprof in the process, as `NAME=value`.
    pub settings: Vec<String>,
    /// The settings that tllmprof could not apply, each with the reason.
    pub refused: Vec<String>,
    /// The rate at which stacks are sampled, in Hz.
    #[serde(skip)]
    pub stacks_rate: Option<u64>,
}

/// The numbers of CUDA calls with one name over the whole run.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Counted")]
pub struct CallCount {
    /// The name of the called function.
    pub name: String,
    /// The number of calls inside windows.
    #[schemars(extend("unit" = "calls"))]
    pub inside: u64,
    /// The number of calls outside windows.
    #[schemars(extend("unit" = "calls"))]
    pub outside: u64,
    #[serde(skip)]
    pub row: u8,
    #[serde(skip)]
    pub kind: CallKind,
}

/// Writes a text as JSON. An empty text is written as `null`.
fn write_known<S: Serializer>(text: &str, serializer: S) -> Result<S::Ok, S::Error> {
    Some(text)
        .filter(|text| !text.is_empty())
        .serialize(serializer)
}

/// Writes the profiler that made a record as JSON; `null` if it was tllmprof.
fn write_origin<S: Serializer>(origin: &Origin, serializer: S) -> Result<S::Ok, S::Error> {
    (!origin.is_own()).then_some(origin).serialize(serializer)
}

impl CallCount {
    /// Returns the work that the call waits for, or `None` if the call does not wait. If the function of a waiting call
    /// is not known, the call is assumed to wait for the whole context.
    pub fn waits_for(&self) -> Option<Wait> {
        let known = || kind_of(&self.name).and_then(CallPurpose::waits_for);
        (self.kind == CallKind::Wait).then(|| known().unwrap_or(Wait::Context))
    }

    /// Returns true if the call allocates or frees memory. Calls that do this asynchronously, in
    /// the order of a stream, are not included, because they do not wait.
    pub fn allocates(&self) -> bool {
        kind_of(&self.name) == Some(CallPurpose::Memory)
    }

    /// Returns true if the call copies to the host asynchronously. If the host's memory is pageable, the call waits
    /// until the copy is done, and so for earlier work of the GPU.
    pub fn copies_to_host(&self) -> bool {
        let copy = CallPurpose::AsyncCopy(Direction::ToHost);
        self.kind != CallKind::Wait && kind_of(&self.name) == Some(copy)
    }

    /// Returns true if the call loads code into a context or compiles it.
    pub fn compiles(&self) -> bool {
        kind_of(&self.name) == Some(CallPurpose::Compilation)
    }
}

/// Data about the process that were read from the record so far, with ids in place of strings.
#[derive(Debug, Default)]
pub(crate) struct RawFacts {
    info: Vec<(u64, Info, u64)>,
    calls: BTreeMap<u8, (CallKind, StringId)>,
    threads: BTreeMap<u32, (u64, StringId)>,
    pub strings: Strings,
}

impl RawFacts {
    /// Adds an entry of the record, if it is a string, a fact about the process, or the name of a call or thread.
    /// Other entries are ignored.
    pub(crate) fn take(&mut self, entry: &Entry<'_>) {
        match *entry {
            Entry::String { id, bytes } => self.strings.add(id, bytes),
            Entry::Event { thread, event } => match event.what {
                What::Info {
                    key: Some(key),
                    value,
                } if self.info.len() < MAX_FACTS => {
                    self.info.push((event.start, key, value));
                }
                What::CallName { row, kind, name } => {
                    self.calls
                        .insert(row, (kind.unwrap_or(CallKind::Other), name));
                }
                What::ThreadName { name }
                    if self.threads.len() < MAX_FACTS || self.threads.contains_key(&thread) =>
                {
                    let latest = self.threads.entry(thread).or_insert((event.start, name));
                    if event.start >= latest.0 {
                        *latest = (event.start, name);
                    }
                }
                _ => (),
            },
        }
    }

    /// Returns the kind and the name of a row in the table of CUDA calls; `None` if the record has not named the row
    /// yet.
    pub(crate) fn call(&self, row: u8) -> Option<(CallKind, &str)> {
        let (kind, id) = self.calls.get(&row)?;
        Some((*kind, self.strings.get(*id)))
    }

    /// Replaces ids by their strings, and returns the data about the process. If the record repeats a value that can
    /// exist only once, the latest value is used.
    pub(crate) fn facts(mut self, header: &Header) -> (Facts, Strings) {
        self.info.sort_by_key(|(at, ..)| *at);
        let mut facts = Facts::default();
        let mut pythons = Vec::new();
        for (_, key, value) in &self.info {
            let text = || self.strings.get(*value as StringId).to_owned();
            match key {
                Info::CommandLine => facts.command = text(),
                Info::Host => facts.host = text(),
                Info::Rank => facts.rank = *value,
                Info::RankSource => facts.rank_source = text(),
                Info::WorldSize => facts.world_size = Some(*value),
                Info::Group => facts.add_group(&text()),
                Info::Communicator => facts.add_communicator(&text()),
                Info::Run => facts.run = text(),
                Info::Rule => (facts.rule, facts.origin) = (text(), Origin::default()),
                Info::Span => facts.origin.lacks.push(Data::Iterations),
                Info::RuleWhy => facts.rule_why = text(),
                Info::Version => facts.software.library = text(),
                Info::Python => facts.software.python = text(),
                Info::Refused => facts.asked.refused.push(text()),
                Info::Windows => facts.asked.windows = text(),
                Info::Where => facts.asked.condition = text(),
                Info::StacksRate => facts.asked.stacks_rate = Some(*value),
                Info::Engine => facts.engine = text(),
                Info::CudaDriver => facts.software.cuda_driver = Some(*value),
                Info::GpuNode => facts.software.gpu_nodes.push(text()),
                Info::GpuPowerLimit => facts.software.power_limits.push(text()),
                Info::Gpu => facts.software.add_gpu(*value >> 32, text()),
                Info::Thread => pythons.push(((*value >> 32) as u32, name(&text()))),
                Info::Process => facts.process = text(),
                Info::Setting => facts.asked.settings.push(text()),
                Info::Boot => facts.boot = text(),
                Info::Router => {
                    let layer = (*value >> 32) as u32;
                    facts.routers.insert(layer, text());
                }
            }
        }
        facts.calls = self
            .calls
            .iter()
            .map(|(row, (kind, id))| CallCount {
                row: *row,
                name: name(self.strings.get(*id)),
                kind: *kind,
                inside: header.counter(Counter::CallsInside(*row)),
                outside: header.counter(Counter::CallsOutside(*row)),
            })
            .collect();
        facts.threads = self
            .threads
            .iter()
            .map(|(tid, (_, id))| (*tid, name(self.strings.get(*id))))
            .collect();
        // A thread's name in Python replaces its name in the operating system, because Python
        // passes thread names to the operating system only since version 3.14.
        facts.threads.extend(pythons);
        facts.in_groups = facts.name_groups();
        (facts, self.strings)
    }
}

impl Facts {
    /// Returns the rank, or `None` if it is not known. An unknown rank is stored as 0. Records of
    /// older versions do not state the source of the rank; in these, a rank above 0 counts as
    /// known.
    #[must_use]
    pub fn known_rank(&self) -> Option<u64> {
        (self.rank > 0 || !self.rank_source.is_empty()).then_some(self.rank)
    }

    /// Returns the name of the function in a row of the table of CUDA calls. If the record does not name the row,
    /// returns text with the row's number.
    pub fn call(&self, row: u8) -> String {
        let known = self.calls.iter().find(|known| known.row == row);
        known.map_or_else(|| format!("call {row}"), |known| known.name.clone())
    }

    /// Returns the name of a thread. If the record does not name the thread, returns text with the thread's id.
    pub fn thread(&self, tid: u32) -> String {
        let known = self.threads.get(&tid);
        known.map_or_else(|| format!("thread {tid}"), Clone::clone)
    }
}

impl Facts {
    /// Adds the communicator that the text describes. A text that cannot be parsed is ignored.
    fn add_communicator(&mut self, text: &str) {
        let communicator = text.parse().ok();
        if let Some(member) = communicator.filter(|_| self.communicators.len() < MAX_GROUPS) {
            self.communicators.push(member);
        }
    }

    /// Adds the group that the text describes, or replaces the group of the same name. A text that cannot be parsed
    /// is ignored.
    fn add_group(&mut self, text: &str) {
        let Ok(group) = text.parse::<GroupRank>() else {
            return;
        };
        self.groups.retain(|known| known.name != group.name);
        if self.groups.len() < MAX_GROUPS {
            self.groups.push(group);
        }
        // Sort the groups in the order of `GROUPS`, which is the order in reports.
        let place = |group: &GroupRank| GROUPS.iter().position(|name| *name == group.name);
        self.groups
            .sort_by_key(|group| place(group).unwrap_or(GROUPS.len()));
    }

    /// Returns the process's rank in each of its groups, such as `TP1 of 4, DP0`; empty if no group is known.
    fn name_groups(&self) -> String {
        let groups = self.groups.iter().map(|group| match group.size {
            Some(size) => format!("{}{} of {size}", group.name, group.rank),
            None => format!("{}{}", group.name, group.rank),
        });
        groups.collect::<Vec<_>>().join(", ")
    }

    /// Returns the process's rank and its rank in each group, such as `rank 5, TP1 of 4, DP0`.
    #[must_use]
    pub fn rank_name(&self) -> String {
        let rank = format!("rank {}", self.rank);
        match &*self.in_groups {
            "" => rank,
            groups => format!("{rank}, {groups}"),
        }
    }

    /// Returns the process's rank in the group called `name`; `None` if the process is in no such group.
    #[must_use]
    pub fn group(&self, name: &str) -> Option<&GroupRank> {
        self.groups.iter().find(|group| group.name == name)
    }
}

/// Maximum length of a name in a report, in characters.
const MAX_NAME_LENGTH: usize = 256;

/// Returns a name from a record, cut to the maximum length. Without the cut, a damaged record that
/// uses one huge text as the name of many things would need too much memory.
pub fn name(text: &str) -> String {
    let end = text.char_indices().nth(MAX_NAME_LENGTH);
    end.map_or(text, |(end, _)| &text[..end]).to_owned()
}

/// Returns the name of an NVTX range. The name includes the domain, unless that is the default
/// domain.
pub fn range_name(strings: &Strings, domain: StringId, id: StringId) -> String {
    let text = name(strings.get(id));
    match domain {
        NO_STRING => text,
        _ => format!("{text}@{}", name(strings.get(domain))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_has_the_name_that_the_record_gives_its_number() {
        let names = |added: &[(u64, &str)]| {
            let mut software = Software::default();
            for (number, name) in added {
                software.add_gpu(*number, (*name).to_owned());
            }
            software
        };
        // The process used GPU 2 before GPU 0.
        let software = names(&[(3, "H200"), (1, "L4")]);
        assert_eq!(software.gpus, ["L4", "", "H200"]);
        assert_eq!(software.known_gpus(), ["L4", "H200"]);
        assert_eq!(
            names(&[(0, "L4"), (0, ""), (0, "H200")]).gpus,
            ["L4", "", "H200"]
        );
        assert!(names(&[(u64::from(u32::MAX), "L4")]).gpus.is_empty());
    }
}
