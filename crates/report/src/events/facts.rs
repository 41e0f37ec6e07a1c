//! What a record says about its process once: names, rule, rank, calls.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use tllmprof_calls::{Kind, Wait, kind_of};
use tllmprof_engines::GROUPS;
use tllmprof_record::{
    CallKind, Counter, Entry, GroupRank, Header, Info, Member, NO_STRING, StringId, Strings, What,
};

use super::groups::{Communicator, GroupPlace, write_communicators, write_groups};

/// How many lines of one kind, and how many threads' names, are kept.
const LIMIT: usize = 4096;

/// How many communicators and groups of a process are kept.
const MOST: usize = 256;

/// Facts about a process: texts as they were recorded, which are to be made printable where they are shown.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct Facts {
    /// The host's name.
    pub host: String,
    /// Its rank; 0 where it is not known.
    pub rank: u64,
    /// What its rank is known from: the name of a variable, `torch.distributed`, an engine, `NCCL`; `null`: it is not
    /// known, or the record is of an older version.
    #[serde(serialize_with = "write_known")]
    #[schemars(with = "Option<String>")]
    pub rank_source: String,
    /// How many ranks there are; `null`: not known.
    pub world_size: Option<u64>,
    /// Its place in all its groups, such as `TP1 of 4, DP0`; empty: none is known.
    pub in_groups: String,
    /// The groups of ranks that it is in, each name once; a group of a single rank is left out.
    #[serde(serialize_with = "write_groups")]
    #[schemars(with = "Vec<GroupPlace>")]
    pub groups: Vec<GroupRank>,
    /// The communicators of NCCL that it made, in their order.
    #[serde(serialize_with = "write_communicators")]
    #[schemars(with = "Vec<Communicator>")]
    pub communicators: Vec<Member>,
    /// The identifier of the run that it belongs to; `null`: it has none.
    #[serde(serialize_with = "write_known")]
    #[schemars(with = "Option<String>")]
    pub run: String,
    /// Its command line.
    pub command: String,
    /// The process's own name.
    #[serde(rename = "name")]
    pub process: String,
    /// What an iteration is: the rule that counts them, as `TLLMPROF_STEP` names it.
    pub rule: String,
    /// Why that rule was chosen, where `auto` chose it.
    pub rule_why: String,
    /// The inference or training engine, where it is a known one.
    pub engine: String,
    #[serde(flatten)]
    pub software: Software,
    #[serde(flatten)]
    pub asked: Asked,
    /// CUDA calls over the whole run, by name.
    #[serde(rename = "calls_counted")]
    pub calls: Vec<CallRow>,
    /// The names of threads.
    #[serde(skip)]
    pub threads: BTreeMap<u32, String>,
    /// The boot of the machine that it ran in: its records' clocks are the same.
    #[serde(skip)]
    pub boot: String,
    /// Names of MoE layers, by their numbers.
    #[serde(skip)]
    pub routers: BTreeMap<u32, String>,
}

/// The versions of what a process runs, and its GPUs.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct Software {
    /// The version of tllmprof that wrote the record.
    pub library: String,
    /// The version of Python in the process; empty: none.
    pub python: String,
    /// The names of the GPUs that it used.
    pub gpus: Vec<String>,
    /// The version of the CUDA driver, as CUDA numbers it: 12040 is 12.4; `null`: not known.
    pub cuda_driver: Option<u64>,
}

/// What was asked for.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct Asked {
    /// The windows that were asked for, as `TLLMPROF_START_STOP` has them.
    #[serde(rename = "windows_asked")]
    pub windows: String,
    /// The condition that the iterations of windows satisfy, as `TLLMPROF_WHERE` has it; `null`: none.
    #[serde(rename = "where", serialize_with = "write_known")]
    #[schemars(with = "Option<String>")]
    pub condition: String,
    /// The variables that set tllmprof up, as `NAME=value`.
    pub settings: Vec<String>,
    /// What was asked for and could not be done, and why.
    pub refused: Vec<String>,
    /// How often stacks are sampled, in Hz.
    #[serde(skip)]
    pub stacks_rate: Option<u64>,
}

/// CUDA calls of one name over the whole run.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Counted")]
pub struct CallRow {
    /// The call's name.
    pub name: String,
    /// How many were made inside windows.
    #[schemars(extend("unit" = "calls"))]
    pub inside: u64,
    /// How many were made outside windows.
    #[schemars(extend("unit" = "calls"))]
    pub outside: u64,
    #[serde(skip)]
    pub row: u8,
    #[serde(skip)]
    pub kind: CallKind,
}

/// Writes a text; one that is empty is not known.
fn write_known<S: Serializer>(text: &str, serializer: S) -> Result<S::Ok, S::Error> {
    Some(text)
        .filter(|text| !text.is_empty())
        .serialize(serializer)
}

impl CallRow {
    /// What it waits for; `None` where it does not wait. What nobody knows but the record waits for all.
    pub fn waits_for(&self) -> Option<Wait> {
        let known = || kind_of(&self.name).and_then(Kind::waits_for);
        (self.kind == CallKind::Wait).then(|| known().unwrap_or(Wait::Context))
    }

    /// Whether it takes or gives back memory; what does so in the order of a stream makes nobody wait.
    pub fn allocates(&self) -> bool {
        kind_of(&self.name) == Some(Kind::Memory)
    }
}

/// Facts as they come, in ids of strings.
#[derive(Debug, Default)]
pub struct Found {
    info: Vec<(u64, Info, u64)>,
    calls: BTreeMap<u8, (CallKind, StringId)>,
    threads: BTreeMap<u32, (u64, StringId)>,
    pub strings: Strings,
}

impl Found {
    /// Takes an entry of the record if it is a fact.
    pub fn take(&mut self, entry: &Entry<'_>) {
        match *entry {
            Entry::String { id, bytes } => self.strings.add(id, bytes),
            Entry::Event { thread, event } => match event.what {
                What::Info {
                    key: Some(key),
                    value,
                } if self.info.len() < LIMIT => {
                    self.info.push((event.start, key, value));
                }
                What::CallName { row, kind, name } => {
                    self.calls
                        .insert(row, (kind.unwrap_or(CallKind::Other), name));
                }
                What::ThreadName { name }
                    if self.threads.len() < LIMIT || self.threads.contains_key(&thread) =>
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

    /// The kind and the name of a row of the table of calls.
    pub fn call(&self, row: u8) -> Option<(CallKind, &str)> {
        let (kind, id) = self.calls.get(&row)?;
        Some((*kind, self.strings.get(*id)))
    }

    /// The facts. The latest of each key counts, of those that come once.
    pub fn facts(mut self, header: &Header) -> (Facts, Strings) {
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
                Info::Rule => facts.rule = text(),
                Info::RuleWhy => facts.rule_why = text(),
                Info::Version => facts.software.library = text(),
                Info::Python => facts.software.python = text(),
                Info::Refused => facts.asked.refused.push(text()),
                Info::Windows => facts.asked.windows = text(),
                Info::Where => facts.asked.condition = text(),
                Info::StacksRate => facts.asked.stacks_rate = Some(*value),
                Info::Engine => facts.engine = text(),
                Info::CudaDriver => facts.software.cuda_driver = Some(*value),
                Info::Gpu => facts.software.gpus.push(text()),
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
            .map(|(row, (kind, id))| CallRow {
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
        // Until 3.13 the kernel does not know it.
        facts.threads.extend(pythons);
        facts.in_groups = facts.name_groups();
        (facts, self.strings)
    }
}

impl Facts {
    /// The name of a row of the table of calls.
    pub fn call(&self, row: u8) -> String {
        let known = self.calls.iter().find(|known| known.row == row);
        known.map_or_else(|| format!("call {row}"), |known| known.name.clone())
    }

    /// The name of a thread.
    pub fn thread(&self, tid: u32) -> String {
        let known = self.threads.get(&tid);
        known.map_or_else(|| format!("thread {tid}"), Clone::clone)
    }
}

impl Facts {
    /// Takes a communicator, if the text is one.
    fn add_communicator(&mut self, text: &str) {
        let communicator = text.parse().ok();
        if let Some(member) = communicator.filter(|_| self.communicators.len() < MOST) {
            self.communicators.push(member);
        }
    }

    /// Takes a group, if the text is one: the latest of its name counts.
    fn add_group(&mut self, text: &str) {
        let Ok(group) = text.parse::<GroupRank>() else {
            return;
        };
        self.groups.retain(|known| known.name != group.name);
        if self.groups.len() < MOST {
            self.groups.push(group);
        }
        // In the order in which they are shown.
        let place = |group: &GroupRank| GROUPS.iter().position(|name| *name == group.name);
        self.groups
            .sort_by_key(|group| place(group).unwrap_or(GROUPS.len()));
    }

    /// The process's place in its groups: `TP1 of 4, DP0`; empty where none is known.
    fn name_groups(&self) -> String {
        let groups = self.groups.iter().map(|group| match group.size {
            Some(size) => format!("{}{} of {size}", group.name, group.rank),
            None => format!("{}{}", group.name, group.rank),
        });
        groups.collect::<Vec<_>>().join(", ")
    }

    /// The process's rank, and its place in its groups: `rank 5, TP1 of 4, DP0`.
    #[must_use]
    pub fn rank_name(&self) -> String {
        let rank = format!("rank {}", self.rank);
        match &*self.in_groups {
            "" => rank,
            groups => format!("{rank}, {groups}"),
        }
    }

    /// Its place in the group of that name.
    #[must_use]
    pub fn group(&self, name: &str) -> Option<&GroupRank> {
        self.groups.iter().find(|group| group.name == name)
    }
}

/// The length of a name, in characters, that a report shows.
const NAME: usize = 256;

/// A name from a record, cut, as a damaged record can show one text as many names.
pub fn name(text: &str) -> String {
    let end = text.char_indices().nth(NAME);
    end.map_or(text, |(end, _)| &text[..end]).to_owned()
}

/// The name of an NVTX range, with its domain where it is not the default one.
pub fn range_name(strings: &Strings, domain: StringId, id: StringId) -> String {
    let text = name(strings.get(id));
    match domain {
        NO_STRING => text,
        _ => format!("{text}@{}", name(strings.get(domain))),
    }
}
