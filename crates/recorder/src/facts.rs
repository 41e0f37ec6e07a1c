//! Writes the data about the process itself that a record holds, such as the process's rank and the rule that
//! defines a step. They are written as events without a duration.

use core::fmt::{Display, Write};
use core::time::Duration;
use std::fs;

use tllmprof_calls::CALLS;
use tllmprof_config::{Ranked, Settings, masked, variable_names};
use tllmprof_platform::lifecycle::{self, OnlyThread};
use tllmprof_record::{Event, Info, NO_STRING, StringId, What};
use tllmprof_session::SessionFacts;

use super::writers::{self, strings};
use super::{clock, is_on, is_wanted, ring};
use tllmprof_sync::Lock;

/// Warnings that were logged before the record existed, each followed by a line feed. They are written once
/// the record begins.
struct Pending {
    bytes: [u8; 4096],
    length: usize,
}

lifecycle::global! {
    stage: Sinks;

    #[fork(by = in_child)]
    #[together(tables)]
    static PENDING: Lock<Pending> = Lock::new(Pending {
        bytes: [0; 4096],
        length: 0,
    });
}

/// Writes an item of data about the process. The item's value is a string.
pub(crate) fn write_text(key: Info, text: &str) {
    let id = strings::lasting_id_of(text);
    if id != NO_STRING {
        write_number(key, id.into());
    }
}

/// Writes the name of an MoE layer, and the number of tokens that the layer's learned router has sent to each expert so
/// far. `layer` is the layer's number.
pub fn expert_loads(layer: u16, name: &str, tokens: impl Iterator<Item = u64>) {
    if !is_on() {
        return;
    }
    let id = strings::id_of(name);
    if id != NO_STRING {
        write_latest(Info::Router, layer.into(), id);
    }
    for (expert, tokens) in (0..=u16::MAX).zip(tokens) {
        let what = What::ExpertLoad {
            layer,
            expert,
            tokens,
        };
        writers::write_latest(&Event::new(clock::ticks(), 0, what));
    }
}

/// Writes the name that Python gives a thread. Returns the era for which the name is written. An era is a number that
/// changes when the recorder forgets which names it has written, so that they are written again. A name that stays as
/// long as the record has the era [`strings::lasting_era`]. Other names may be dropped together with the oldest
/// windows, so they have the current era.
pub fn thread_name(thread: u32, name: &str) -> u32 {
    let lasting = strings::lasting_era();
    let era = strings::era();
    let id = strings::only_lasting_id_of(name);
    if id != NO_STRING && writers::write_lasting(&named(Info::Thread, thread, id)) {
        return lasting;
    }
    let id = strings::id_of(name);
    if id != NO_STRING {
        write_latest(Info::Thread, thread, id);
    }
    era
}

/// Writes the name of a GPU, with the GPU's number. See [`Info::Gpu`] for the format.
pub(crate) fn gpu_name(device: u8, name: &str) {
    let id = strings::lasting_id_of(name);
    if id != NO_STRING {
        let number = u64::from(device) + 1;
        write_number(Info::Gpu, (number << 32) | u64::from(id));
    }
}

/// Writes the name of a numbered object, such as a thread or a layer of the model.
fn write_latest(key: Info, number: u32, name: StringId) {
    writers::write_latest(&named(key, number, name));
}

fn named(key: Info, number: u32, name: StringId) -> Event {
    let what = What::Info {
        key: Some(key),
        value: u64::from(number) << 32 | u64::from(name),
    };
    Event::new(clock::ticks(), 0, what)
}

/// Writes an item of data about the process. The item's value is a number.
pub(crate) fn write_number(key: Info, value: u64) {
    let what = What::Info {
        key: Some(key),
        value,
    };
    writers::write_fact(&Event::new(clock::ticks(), 0, what));
}

/// Stores a logged warning until the record begins, or writes it if the record has begun. The function does not
/// allocate, and waits for locks only for a limited time, so it may be called from anywhere.
pub(crate) fn keep_warning(line: &str) {
    if is_on() {
        return write_text(Info::Refused, line);
    }
    if is_wanted()
        && let Some(mut pending) = PENDING.lock_for(Duration::ZERO)
    {
        let at = pending.length;
        let room = pending.bytes.get_mut(at..at + line.len() + 1);
        if let Some((end, text)) = room.and_then(<[u8]>::split_last_mut) {
            text.copy_from_slice(line.as_bytes());
            *end = b'\n';
            pending.length += line.len() + 1;
        }
    }
}

/// Writes the warnings that were logged before the record began.
pub(crate) fn write_pending() {
    // The lines are copied to the heap, because the stack of the calling thread may be too small for them.
    let lines = {
        let mut pending = PENDING.lock();
        let length = core::mem::take(&mut pending.length);
        let lines = pending.bytes.get(..length).unwrap_or_default();
        String::from_utf8_lossy(lines).into_owned()
    };
    for line in lines.lines() {
        write_text(Info::Refused, line);
    }
}

/// Writes the data about the process that are known when the record begins.
pub(crate) fn write(settings: &Settings, facts: &SessionFacts<'_>, host: &[u8]) {
    for row in CALLS {
        let what = What::CallName {
            row: row.call as u8,
            kind: Some(row.kind.into()),
            name: strings::lasting_id_of(row.call.name()),
        };
        writers::write_fact(&Event::new(0, 0, what));
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let file = |path| fs::read(path).unwrap_or_default();
    let command = text(&file("/proc/self/cmdline"));
    let arguments = command.trim_end_matches('\0').split('\0');
    let command = match settings.full_args {
        true => arguments.collect::<Vec<_>>().join(" "),
        false => masked::command_line(arguments),
    };
    write_text(Info::CommandLine, command.trim_end());
    write_text(Info::Process, text(&file("/proc/self/comm")).trim_end());
    write_text(Info::Host, &text(host));
    write_text(
        Info::Boot,
        text(&file("/proc/sys/kernel/random/boot_id")).trim_end(),
    );
    write_text(Info::Version, env!("CARGO_PKG_VERSION"));
    if let Some(run) = &settings.run {
        write_text(Info::Run, run.as_str());
    }
    if let Some(ranked) = &facts.rank {
        write_rank(ranked);
    }
    if let Some(python) = facts.python {
        write_text(Info::Python, python);
    }
    write_rule(facts);
    write_text(Info::Windows, &settings.windows.to_string());
    if let Some(condition) = &settings.condition {
        write_text(Info::Where, &condition.to_string());
    }
    if let Some(rate) = settings.stacks {
        write_number(Info::StacksRate, rate);
    }
    for name in variable_names() {
        if let Some(value) = std::env::var_os(name) {
            let setting = format!("{name}={}", value.display());
            let setting = match settings.full_args {
                true => setting,
                false => masked::text(&setting),
            };
            write_text(Info::Setting, &setting);
        }
    }
}

/// Writes the process's rank in the distributed job, the source of that number (an environment variable, torch, the
/// engine or NCCL), and the number of ranks if it is known.
pub fn write_rank(ranked: &Ranked) {
    ring::set_rank(ranked.rank);
    write_number(Info::Rank, ranked.rank);
    write_shown(Info::RankSource, &ranked.source);
    if let Some(size) = ranked.world_size {
        write_number(Info::WorldSize, size);
    }
}

/// Writes the rule that defines an iteration, and the reason why it was chosen. If the rule is written
/// several times, the last one is valid.
pub fn write_rule(facts: &SessionFacts<'_>) {
    write_shown(Info::Rule, facts.rule);
    if let Some(why) = facts.why {
        write_shown(Info::RuleWhy, why);
    }
    if facts.is_span {
        write_number(Info::Span, 1);
    }
    if let Some(engine) = facts.engine {
        write_text(Info::Engine, engine);
    }
}

pub(crate) fn write_shown(key: Info, what: &dyn Display) {
    let mut text = String::new();
    // Writing to a String cannot fail, so the result is ignored.
    let _ = write!(text, "{what}");
    write_text(key, &text);
}

/// Discards the parent's warnings in the child of a fork.
fn in_child(alone: &OnlyThread) {
    PENDING.break_open(alone);
    PENDING.lock().length = 0;
}
