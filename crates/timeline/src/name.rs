//! The names of timeline items, in the different forms for exported traces, tables and the page.

use std::fmt::{self, Write};

use tllmprof_config::printable;
use tllmprof_record::{CopyKind, NO_STRING, StringId, Strings, Taken, ThreadState};
use tllmprof_report::{Process, kernel_name, name, range_name, short_kernel_name};

/// The name of an item, as ids and numbers from which `Name::write` and `Name::shown` make a text.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Name {
    Text(StringId),
    /// The name of a kernel, which is mangled in the record.
    Kernel(StringId),
    /// The name of a CUDA call. The field is its row in the table of CUDA calls.
    Call(u8),
    Iteration(u64),
    /// A window (range of captured iterations). The fields are the numbers of its first iteration and, if known, its
    /// last iteration.
    Window(u64, Option<u64>),
    /// A garbage collection of Python. The field is the generation.
    Collection(u16),
    Copy(CopyKind),
    Stream(u16),
    /// A sample of a stack, named after its innermost function.
    Sample {
        frame: u32,
        taken: Taken,
        state: Option<ThreadState>,
    },
    Fixed(&'static str),
}

/// The process and the strings of its record, which are needed to convert a `Name` to a text.
#[derive(Clone, Copy, Debug)]
pub struct Texts<'a> {
    pub process: &'a Process,
    pub strings: &'a Strings,
}

impl Name {
    /// Appends the name to `to` in the form for exported traces. Texts from the record are not changed: the name of a
    /// kernel, for example, stays mangled.
    pub fn write(self, texts: Texts<'_>, to: &mut String) {
        let _: fmt::Result = match self {
            Self::Text(id) | Self::Kernel(id) => to.write_str(texts.strings.get(id)),
            Self::Call(row) => to.write_str(&texts.process.facts.call(row)),
            Self::Iteration(n) => write!(to, "iteration {n}"),
            Self::Window(first, Some(last)) => write!(to, "window {first}-{last}"),
            Self::Window(first, None) => write!(to, "window {first}-"),
            Self::Collection(generation) => write!(to, "Python GC gen{generation}"),
            Self::Copy(kind) => write!(to, "memcpy {}", kind.name()),
            Self::Stream(stream) => write!(to, "stream {stream}"),
            Self::Sample {
                frame,
                taken,
                state,
            } => {
                let state = match state {
                    Some(ThreadState::Sleeping) => ", asleep",
                    Some(ThreadState::Runnable) => ", waiting for a processor",
                    Some(ThreadState::Running) | None => "",
                };
                match taken {
                    Taken::Torn => to.write_str("rejected"),
                    Taken::NoPython => write!(to, "in no Python function{state}"),
                    Taken::Python | Taken::Native => {
                        let name = texts.process.stacks.sampled.frames.innermost(frame);
                        write!(to, "{name}{state}")
                    }
                }
            }
            Self::Fixed(text) => to.write_str(text),
        };
    }

    /// Returns the name in the form for the page: printable, demangled, cut if it is long, and with
    /// the domain of a range. The second text is a short form of the name; it is empty if there is
    /// no shorter form.
    #[must_use]
    pub fn shown(self, domain: StringId, texts: Texts<'_>) -> (String, String) {
        let whole = match self {
            Self::Text(id) if domain == NO_STRING => printable(name(texts.strings.get(id))),
            Self::Text(id) => printable(range_name(texts.strings, domain, id)),
            Self::Kernel(id) => {
                let whole = printable(kernel_name(texts.strings.get(id)));
                let short = short_kernel_name(&whole);
                return (whole, short);
            }
            Self::Collection(generation) => format!("GC gen{generation}"),
            Self::Copy(kind) => format!("copy {}", kind.name()),
            other => {
                let mut text = String::new();
                other.write(texts, &mut text);
                printable(text)
            }
        };
        (whole, String::new())
    }

    /// Returns the word for the column `kind` of exported tables, such as `gen0` for a garbage collection of
    /// generation 0. Returns `None` for names that have no such word.
    #[must_use]
    pub const fn word(self) -> Option<&'static str> {
        match self {
            Self::Collection(0) => Some("gen0"),
            Self::Collection(1) => Some("gen1"),
            Self::Collection(2) => Some("gen2"),
            Self::Copy(kind) => Some(kind.name()),
            Self::Sample { taken, .. } => Some(match taken {
                Taken::Python => "python",
                Taken::Native => "native",
                Taken::NoPython => "no python",
                Taken::Torn => "rejected",
            }),
            _ => None,
        }
    }
}
