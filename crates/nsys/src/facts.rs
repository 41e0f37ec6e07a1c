//! Reads an export's data about its processes and their machine: names, versions, settings, rank
//! and GPUs.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;

use tllmprof_config::{RANK_VARIABLES, Ranked, TORCHRUN_VARIABLES, masked, variable_names};
use tllmprof_record::Info;

use crate::database::Database;
use crate::error::ExportError;
use crate::ranges::{number, process};

/// Maximum number of GPUs of a process whose names are listed. Larger numbers of GPUs are not read.
const MAX_GPUS: usize = 256;

/// Returns true if a launcher or the user passes the rank in this environment variable, or if the variable shows which
/// launcher did.
fn is_of_launcher(name: &str) -> bool {
    RANK_VARIABLES.contains(&name) || TORCHRUN_VARIABLES.contains(&name)
}

/// Data about the processes of an export and their machine.
#[derive(Debug, Default)]
pub struct ExportFacts {
    /// The Unix time at time 0 of the trace, in nanoseconds.
    pub epoch: i64,
    /// Version of the nsys that recorded the trace.
    version: String,
    host: String,
    /// Names of the machine's GPUs, by nsys's number of the GPU.
    gpus: BTreeMap<i64, String>,
    /// nsys's number of each GPU that a process sees, by the process's id and the number that CUDA gives to the GPU in
    /// this process. Empty if the export does not contain these numbers.
    devices: HashMap<(u32, i64), i64>,
    /// The command line of the program that nsys started.
    command: String,
    variables: BTreeMap<String, String>,
    /// Names of the processes in the export, by process id.
    names: BTreeMap<i64, String>,
    threads: BTreeMap<i64, Vec<(u32, String)>>,
}

impl ExportFacts {
    pub fn read(database: &Database) -> Result<Self, ExportError> {
        let mut facts = Self::default();
        database.rows(
            "TARGET_INFO_SESSION_START_TIME",
            &["utcEpochNs"],
            None,
            |row| {
                facts.epoch = row.number(0).unwrap_or(0);
            },
        )?;
        database.rows(
            "TARGET_INFO_SYSTEM_ENV",
            &["name", "value"],
            None,
            |row| match (row.text(0).as_deref(), row.text(1)) {
                (Some("Hostname"), Some(value)) => facts.host = value,
                (Some("DeviceEnvironment"), Some(value)) => {
                    value.split(';').for_each(|setting| facts.variable(setting));
                }
                _ => (),
            },
        )?;
        facts.read_gpus(database)?;
        database.rows("META_DATA_EXPORT", &["name", "value"], None, |row| {
            if row.text(0).as_deref() == Some("EXPORT_PRODUCT_VERSION") {
                facts.version = row.text(1).unwrap_or_default();
            }
        })?;
        let mut arguments = BTreeMap::new();
        database.rows("META_DATA_CAPTURE", &["name", "value"], None, |row| {
            let (Some(name), Some(value)) = (row.text(0), row.text(1)) else {
                return;
            };
            match name.strip_prefix("PROCESS_0:") {
                Some("COMMAND") => facts.command = value,
                Some("ENVIRONMENT_VARIABLE") => facts.variable(&value),
                Some(other) => {
                    let place = other
                        .strip_prefix("ARGUMENT_")
                        .and_then(|n| n.parse::<u32>().ok());
                    arguments.extend(place.map(|place| (place, value)));
                }
                None => (),
            }
        })?;
        let words = std::iter::once(&facts.command).chain(arguments.values());
        let words = words.map(String::as_str);
        let is_full = facts
            .variables
            .get("TLLMPROF_ARGS")
            .is_some_and(|which| which == "full");
        facts.command = match is_full {
            true => words.collect::<Vec<_>>().join(" "),
            false => masked::command_line(words),
        };
        database.rows("PROCESSES", &["globalPid", "name"], None, |row| {
            if let (Some(pid), Some(name)) = (row.number(0), row.text(1)) {
                facts.names.insert(process(pid), name);
            }
        })?;
        database.rows("ThreadNames", &["globalTid", "nameId"], None, |row| {
            if let (Some(thread), Some(id)) = (row.number(0), row.number(1)) {
                let name = database.string(id).unwrap_or_default();
                let threads = facts.threads.entry(process(thread)).or_default();
                threads.push((number(thread), name));
            }
        })?;
        Ok(facts)
    }

    /// Reads the names of the GPUs, and the numbers that CUDA gives to them in each process.
    fn read_gpus(&mut self, database: &Database) -> Result<(), ExportError> {
        database.rows("TARGET_INFO_GPU", &["id", "name"], None, |row| {
            let id = row.number(0).unwrap_or(self.gpus.len() as i64);
            self.gpus.extend(row.text(1).map(|name| (id, name)));
        })?;
        let columns = ["pid", "cudaId", "gpuId"];
        database.rows("TARGET_INFO_CUDA_DEVICE", &columns, None, |row| {
            if let (Some(pid), Some(device), Some(gpu)) =
                (row.number(0), row.number(1), row.number(2))
            {
                self.devices.insert((number(pid), device), gpu);
            }
        })
    }

    /// Returns the names of the first `count` GPUs of a process, in the order of the numbers that CUDA gives to them in
    /// this process. The name of a GPU that is not known is empty; empty names at the end of the list are left out. If
    /// the export does not contain these numbers, the names are known only if all GPUs of the machine have the same
    /// name.
    fn gpu_names(&self, process: i64, count: usize) -> Vec<String> {
        if self.devices.is_empty() {
            let names: Vec<_> = self.gpus.values().cloned().collect();
            let is_same = names.windows(2).all(|two| two[0] == two[1]);
            let count = if is_same { count } else { 0 };
            return names.into_iter().take(count).collect();
        }
        let name = |device: i64| {
            let gpu = self.devices.get(&(number(process), device))?;
            self.gpus.get(gpu).cloned()
        };
        let count = i64::try_from(count.min(MAX_GPUS)).unwrap_or(0);
        let mut names: Vec<_> = (0..count)
            .map(|device| name(device).unwrap_or_default())
            .collect();
        while names.last().is_some_and(String::is_empty) {
            names.pop();
        }
        names
    }

    /// Stores an environment variable if tllmprof uses this variable, or if the value of this variable may be the
    /// rank. `setting` has the form `NAME=value` or `NAME="value"`.
    fn variable(&mut self, setting: &str) {
        let Some((name, value)) = setting.split_once('=') else {
            return;
        };
        let is_ours = variable_names().any(|known| known == name);
        if is_ours || is_of_launcher(name) {
            let plain = value
                .strip_prefix('"')
                .and_then(|value| value.strip_suffix('"'));
            self.variables
                .insert(name.to_owned(), plain.unwrap_or(value).to_owned());
        }
    }

    /// Returns the name and the version of the profiler that recorded the trace.
    pub fn tool(&self) -> String {
        format!("nsys {}", self.version).trim_end().to_owned()
    }

    /// Returns the operating system's ids and the names of a process's threads. Threads for which the export has no
    /// name are missing.
    pub fn threads(&self, process: i64) -> &[(u32, String)] {
        self.threads.get(&process).map_or(&[], Vec::as_slice)
    }

    /// Returns the rank that the environment of the program contains, or `None` if it contains none. The program is the
    /// one that nsys started.
    pub fn rank(&self) -> Option<u64> {
        let ranked = Ranked::by_variables(&|name| {
            self.variables
                .get(name)
                .map(|value| OsStr::new(value).to_owned())
        });
        Some(ranked?.rank)
    }

    /// Returns data about a process, except its rank. Of the GPUs of the process, only the first `gpus` are listed:
    /// the caller passes the largest number of a GPU that the process used, plus 1, or `usize::MAX` if the process
    /// has no GPU work. The name of a GPU may be empty, because its place in the list is its number.
    pub fn infos(&self, process: i64, gpus: usize) -> Vec<(Info, String)> {
        let name = self.names.get(&process).map_or("", String::as_str);
        let is_started = self.command.split(' ').next() == Some(name);
        let command = if is_started || name.is_empty() {
            &self.command
        } else {
            name
        };
        let mut infos = vec![
            (Info::CommandLine, command.to_owned()),
            (
                Info::Process,
                name.rsplit('/').next().unwrap_or(name).to_owned(),
            ),
            (Info::Host, self.host.clone()),
        ];
        infos.extend(
            self.variables
                .get("TLLMPROF_STEP")
                .map(|rule| (Info::Rule, rule.clone())),
        );
        infos.extend(
            self.gpu_names(process, gpus)
                .into_iter()
                .map(|name| (Info::Gpu, name)),
        );
        let ours = self
            .variables
            .iter()
            .filter(|(name, _)| !is_of_launcher(name));
        infos.extend(ours.map(|(name, value)| (Info::Setting, format!("{name}={value}"))));
        infos.retain(|(info, text)| !text.is_empty() || *info == Info::Gpu);
        infos
    }
}
