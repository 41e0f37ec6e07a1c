//! The events that a process sends to the clients of its control socket.

use crate::VERSION;
use crate::json::{JsonValue, Object};

#[derive(Clone, Debug, PartialEq)]
pub enum ControlEvent {
    Status(Box<Status>),
    /// The request for a window is accepted. The window will contain the steps `first` to `last`. Without `last`, the
    /// window ends after the requested duration.
    Accepted {
        first: u64,
        last: Option<u64>,
    },
    /// The window has opened, and `first` is its first step.
    Opened {
        first: u64,
    },
    Closed(Closed),
    Refused {
        why: String,
        /// The number of the next step, if the first step of the requested window has already begun.
        next: Option<u64>,
        /// The last step of the other window that prevents the requested one. `None` if that step is not known, or if
        /// no other window prevents the requested one.
        ends: Option<u64>,
    },
}

/// The state of a process, as the answer to a status request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Status {
    pub pid: u64,
    pub host: String,
    pub run: Option<String>,
    pub rank: Option<u64>,
    pub engine: Option<String>,
    /// The rule that defines a step, in the form of `TLLMPROF_STEP`.
    pub rule: String,
    /// The number of steps that the process has made so far.
    pub iterations: u64,
    /// The time at which `iterations` was read, in nanoseconds of the machine's monotonic clock.
    pub at_ns: u64,
    /// The median duration of the latest steps, in nanoseconds, if the process measures them.
    pub p50_ns: Option<u64>,
    pub phase: Phase,
    /// The first step of the window that is open or requested. `last` is its last step.
    pub first: Option<u64>,
    pub last: Option<u64>,
    /// The path of the record, if the process has begun one.
    pub record: Option<String>,
    /// The durations of steps outside windows, if the process measures durations.
    pub times: Option<StepHistograms>,
}

/// Histograms of the durations of steps, by the phase of their batches. Counts never decrease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepHistograms {
    /// The upper bounds of the buckets of [`Taken::counts`], in nanoseconds, in ascending order.
    pub bounds_ns: Vec<u64>,
    pub phases: Vec<Taken>,
}

/// The histogram of the durations of steps in one phase.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// The phase of the batches; `None` for steps whose batches were not read.
    pub phase: Option<String>,
    /// The number of steps in each bucket: those longer than the previous bound and at most as long as the
    /// bucket's bound. The last bucket has no upper bound.
    pub counts: Vec<u64>,
    pub sum_ns: u64,
}

/// The state of a process's window (range of captured steps), called `state` in JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// No window is open, but one can be requested.
    #[default]
    Armed,
    Open,
    Closing,
    /// The library was attached to a running process and has been detached again, so no window can open.
    Detached,
}

/// The report that a requested window has closed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Closed {
    /// The first and the last step of the window; `None` if it never opened or has no steps.
    pub steps: Option<(u64, u64)>,
    /// The path of the record that contains the window's steps, if there is one.
    pub record: Option<String>,
}

impl Phase {
    const ALL: [Self; 4] = [Self::Armed, Self::Open, Self::Closing, Self::Detached];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Armed => "armed",
            Self::Open => "open",
            Self::Closing => "closing",
            Self::Detached => "detached",
        }
    }
}

impl ControlEvent {
    pub fn refused(why: impl Into<String>) -> Self {
        let why = why.into();
        Self::Refused {
            why,
            next: None,
            ends: None,
        }
    }

    pub fn to_line(&self) -> String {
        let object = |event: &str| Object::default().with("event", event);
        match self {
            Self::Status(status) => status.write(object("status")),
            Self::Accepted { first, last } => {
                let accepted = object("accepted").with("first", *first);
                accepted.with("last", *last)
            }
            Self::Opened { first } => object("opened").with("first", *first),
            Self::Closed(closed) => {
                let (first, last) = (
                    closed.steps.map(|steps| steps.0),
                    closed.steps.map(|steps| steps.1),
                );
                let object = object("closed").with("first", first).with("last", last);
                object.with("record", closed.record.clone())
            }
            Self::Refused { why, next, ends } => object("refused")
                .with("why", why.as_str())
                .with_some("next", *next)
                .with_some("ends", *ends),
        }
        .to_line()
    }

    /// Parses an event from a line. Fields with unknown names, for example from a later version, are ignored.
    ///
    /// # Errors
    /// Returns a description of the error in the line. An event of an unknown type is an error.
    pub fn from_line(line: &[u8]) -> Result<Self, &'static str> {
        let object = Object::from_line(line)?;
        let number = |name: &str| object.get(name).and_then(JsonValue::integer);
        let text = |name: &str| Some(object.get(name)?.text()?.to_owned());
        let needed = |name: &str| number(name).ok_or("a number is missing in the event");
        Ok(match object.get("event").and_then(JsonValue::text) {
            Some("status") => {
                let state = text("state").unwrap_or_default();
                Self::Status(Box::new(Status {
                    pid: needed("pid")?,
                    host: text("host").unwrap_or_default(),
                    run: text("run"),
                    rank: number("rank"),
                    engine: text("engine"),
                    rule: text("rule").unwrap_or_default(),
                    iterations: needed("iterations")?,
                    at_ns: needed("at_ns")?,
                    p50_ns: number("p50_ns"),
                    phase: Phase::ALL
                        .into_iter()
                        .find(|phase| phase.name() == state)
                        .ok_or("the state in the event is unknown")?,
                    first: number("first"),
                    last: number("last"),
                    record: text("record"),
                    times: object.get("times").and_then(StepHistograms::read),
                }))
            }
            Some("accepted") => Self::Accepted {
                first: needed("first")?,
                last: number("last"),
            },
            Some("opened") => Self::Opened {
                first: needed("first")?,
            },
            Some("closed") => Self::Closed(Closed {
                steps: number("first").zip(number("last")),
                record: text("record"),
            }),
            Some("refused") => Self::Refused {
                why: text("why").unwrap_or_default(),
                next: number("next"),
                ends: number("ends"),
            },
            _ => return Err("the event is unknown"),
        })
    }
}

impl Status {
    fn write(&self, object: Object) -> Object {
        object
            .with("version", VERSION)
            .with("pid", self.pid)
            .with("host", self.host.as_str())
            .with("run", self.run.as_deref())
            .with("rank", self.rank)
            .with("engine", self.engine.as_deref())
            .with("rule", self.rule.as_str())
            .with("iterations", self.iterations)
            .with("at_ns", self.at_ns)
            .with("p50_ns", self.p50_ns)
            .with("state", self.phase.name())
            .with("first", self.first)
            .with("last", self.last)
            .with("record", self.record.as_deref())
            .with_some("times", self.times.as_ref().map(StepHistograms::write))
    }
}

impl StepHistograms {
    fn write(&self) -> Object {
        let phases = self.phases.iter().map(Taken::write).map(JsonValue::Object);
        Object::default()
            .with("bounds_ns", numbers(&self.bounds_ns))
            .with("phases", JsonValue::Array(phases.collect()))
    }

    /// Parses the histograms. Returns `None` if the value does not have the form that this version expects.
    fn read(value: &JsonValue) -> Option<Self> {
        let object = value.object()?;
        let bounds_ns = integers(object.get("bounds_ns")?)?;
        let phases = object.get("phases")?.array()?.iter();
        let phases: Option<Vec<_>> = phases
            .map(|phase| {
                Taken::read(phase).filter(|taken| taken.counts.len() == bounds_ns.len() + 1)
            })
            .collect();
        Some(Self {
            phases: phases?,
            bounds_ns,
        })
    }
}

impl Taken {
    fn write(&self) -> Object {
        Object::default()
            .with_some("phase", self.phase.as_deref())
            .with("counts", numbers(&self.counts))
            .with("sum_ns", self.sum_ns)
    }

    fn read(value: &JsonValue) -> Option<Self> {
        let object = value.object()?;
        let phase = object.get("phase").and_then(JsonValue::text);
        Some(Self {
            phase: phase.map(str::to_owned),
            counts: integers(object.get("counts")?)?,
            sum_ns: object.get("sum_ns")?.integer()?,
        })
    }
}

fn numbers(of: &[u64]) -> JsonValue {
    JsonValue::Array(of.iter().copied().map(JsonValue::Integer).collect())
}

fn integers(value: &JsonValue) -> Option<Vec<u64>> {
    value.array()?.iter().map(JsonValue::integer).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_as_it_was_written() {
        let status = Status {
            pid: 7,
            host: "h".to_owned(),
            run: None,
            rank: Some(3),
            engine: Some("vLLM".to_owned()),
            rule: "cudaGraphLaunch".to_owned(),
            iterations: u64::MAX,
            at_ns: 5,
            p50_ns: Some(12_000_000),
            phase: Phase::Closing,
            first: Some(1),
            last: None,
            record: Some("/a \"b\"/c".to_owned()),
            times: Some(StepHistograms {
                bounds_ns: vec![5, 10],
                phases: vec![
                    Taken {
                        phase: Some("decode".to_owned()),
                        counts: vec![1, 0, 2],
                        sum_ns: 33,
                    },
                    Taken {
                        phase: None,
                        counts: vec![0, 0, u64::MAX],
                        sum_ns: 7,
                    },
                ],
            }),
        };
        let closed = Closed {
            steps: Some((5, 9)),
            record: None,
        };
        for event in [
            ControlEvent::Status(Box::new(status)),
            ControlEvent::Accepted {
                first: 5,
                last: Some(9),
            },
            ControlEvent::Accepted {
                first: 5,
                last: None,
            },
            ControlEvent::Opened { first: 5 },
            ControlEvent::Closed(closed),
            ControlEvent::Closed(Closed::default()),
            ControlEvent::Refused {
                why: "a\nb".to_owned(),
                next: Some(7),
                ends: Some(9),
            },
        ] {
            let line = event.to_line();
            assert_eq!(
                ControlEvent::from_line(line.trim_end().as_bytes()),
                Ok(event),
                "{line}"
            );
        }
    }

    #[test]
    fn times_that_are_none_leave_the_rest_of_a_status() {
        let status = |times: &str| {
            let line = format!(
                r#"{{"event":"status","pid":1,"iterations":1,"at_ns":1,"state":"armed","times":{times}}}"#
            );
            match ControlEvent::from_line(line.as_bytes()) {
                Ok(ControlEvent::Status(status)) => status.times,
                other => panic!("{other:?}"),
            }
        };
        let of = |counts: &str| {
            status(&format!(
                r#"{{"bounds_ns":[5],"phases":[{{"counts":{counts},"sum_ns":1}}]}}"#
            ))
        };
        assert_eq!(of("[1,2]").unwrap().phases[0].counts, [1, 2]);
        for wrong in ["[1]", "[1,2,3]", "[1,-2]", "[1,0.5]", "{}", "null"] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
        assert_eq!(status("5"), None);
        assert_eq!(status(r#"{"bounds_ns":[5]}"#), None);
    }

    #[test]
    fn events_are_what_the_documentation_says() {
        let accepted = ControlEvent::Accepted {
            first: 5,
            last: Some(9),
        };
        assert_eq!(
            accepted.to_line(),
            "{\"event\":\"accepted\",\"first\":5,\"last\":9}\n"
        );
        let later = br#"{"event":"opened","first":5,"new":{"a":[1]}}"#;
        assert_eq!(
            ControlEvent::from_line(later),
            Ok(ControlEvent::Opened { first: 5 })
        );
        for wrong in [
            r#"{"event":"else"}"#,
            r#"{"event":"opened"}"#,
            "{}",
            r#"{"event":"status","pid":1,"iterations":1,"at_ns":1,"state":"x"}"#,
        ] {
            assert!(
                ControlEvent::from_line(wrong.as_bytes()).is_err(),
                "{wrong}"
            );
        }
    }
}
