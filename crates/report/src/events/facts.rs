//! What a record says about its process once: names, rule, rank, calls.

use std::collections::BTreeMap;

use tllmprof_calls::{Kind, Wait, kind_of};
use tllmprof_record::{
    CallKind, Counter, Entry, GroupRank, Header, Info, Member, NO_STRING, StringId, Strings, What,
};

/// How many lines of one kind, and how many threads' names, are kept.
const LIMIT: usize = 4096;

/// Facts about a process: texts as they were recorded, which are to be made printable where they are shown.
#[derive(Debug, Default)]
pub struct Facts {
    pub command: String,
    pub process: String,
    pub host: String,
    /// 0 where it is not known.
    pub rank: u64,
    /// What it is known from; empty where it is not.
    pub rank_source: String,
    /// How many ranks there are.
    pub world_size: Option<u64>,
    /// The groups that it is in, each name once.
    pub groups: Vec<GroupRank>,
    /// The communicators of NCCL that it made.
    pub communicators: Vec<Member>,
    /// The identifier of its run; empty where it has none.
    pub run: String,
    pub rule: String,
    pub rule_why: String,
    pub engine: String,
    pub library: String,
    pub python: String,
    pub gpus: Vec<String>,
    pub cuda_driver: Option<u64>,
    pub boot: String,
    pub windows: String,
    /// What iterations had to fulfil to count for them; empty: nothing.
    pub condition: String,
    /// How often stacks are sampled, in Hz.
    pub stacks_rate: Option<u64>,
    pub refused: Vec<String>,
    pub settings: Vec<String>,
    pub calls: Vec<CallRow>,
    pub threads: BTreeMap<u32, String>,
    /// Names of MoE layers, by their numbers.
    pub routers: BTreeMap<u32, String>,
}

/// A row of the table of calls.
#[derive(Debug)]
pub struct CallRow {
    pub row: u8,
    pub name: String,
    pub kind: CallKind,
    pub inside: u64,
    pub outside: u64,
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
                Info::Version => facts.library = text(),
                Info::Python => facts.python = text(),
                Info::Refused => facts.refused.push(text()),
                Info::Windows => facts.windows = text(),
                Info::Where => facts.condition = text(),
                Info::StacksRate => facts.stacks_rate = Some(*value),
                Info::Engine => facts.engine = text(),
                Info::CudaDriver => facts.cuda_driver = Some(*value),
                Info::Gpu => facts.gpus.push(text()),
                Info::Thread => pythons.push(((*value >> 32) as u32, name(&text()))),
                Info::Process => facts.process = text(),
                Info::Setting => facts.settings.push(text()),
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
