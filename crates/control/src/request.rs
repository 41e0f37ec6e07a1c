//! The requests that the command sends to the control socket of a process.

use std::time::Duration;

use crate::VERSION;
use crate::json::{JsonValue, Object};

#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    Status,
    Capture(Capture),
    /// Closes the open window, and cancels a requested window that has not opened.
    Stop,
    /// Makes the library intercept the process's calls again, after a detach.
    Attach,
    /// Makes the library stop intercepting calls, if it was attached to a running process.
    Detach,
}

/// A request for a window, which is a range of steps to capture. Settings that the request does not contain keep the
/// values that the process was started with.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Capture {
    /// The number of steps in the window. If the request has neither this number nor `duration`, the window has
    /// [`STEPS`](crate::STEPS) steps.
    pub steps: Option<u64>,
    /// The duration of the window, or its maximum duration if `steps` is given. `None` for no limit.
    pub duration: Option<Duration>,
    /// The first step of the window; `None` for the next step.
    pub first: Option<u64>,
    /// The number of steps to skip before the window begins; `None` for 0.
    pub delay: Option<u64>,
    /// A condition on batches, as in `TLLMPROF_WHERE`. Only steps that meet the condition are counted.
    pub condition: Option<String>,
    /// The number of steps in which GPU kernels are recorded; 0 for none, `None` for the number from the process's
    /// settings. A number over 0 is refused if the process was started without the recording of kernels.
    pub kernels: Option<u64>,
    /// True if garbage collections have to be recorded. The request is refused if they cannot be recorded.
    pub gc: bool,
    /// True if the use of the GIL has to be recorded. The request is refused if it cannot be recorded.
    pub gil: bool,
    /// True if stacks have to be sampled. The request is refused if they cannot be sampled.
    pub stacks: bool,
    /// True if the window is for a profiler that waits in the process, such as nsys. The request is refused
    /// if there is no such profiler. No record is begun for the window.
    pub profiler: bool,
    /// True if the window also includes the steps before it that the flight recorder has kept (`TLLMPROF_FLIGHT`).
    pub past: bool,
    /// The absolute path, in the process's file system, for the PyTorch profiler's trace. If it is given,
    /// that profiler runs in the window.
    pub torch_trace: Option<String>,
}

const NAMES: [&str; 12] = [
    "steps",
    "seconds",
    "first",
    "delay",
    "where",
    "kernels",
    "gc",
    "gil",
    "stacks",
    "profiler",
    "past",
    "torch_trace",
];

impl Request {
    pub fn to_line(&self) -> String {
        let object = |verb: &str| Object::default().with("do", verb);
        match self {
            Self::Status => object("status"),
            Self::Stop => object("stop"),
            Self::Attach => object("attach"),
            Self::Detach => object("detach"),
            Self::Capture(capture) => capture.write(object("capture")),
        }
        .to_line()
    }

    /// Parses a request from a line.
    ///
    /// # Errors
    /// Returns a description of the error in the line, for the answer to the client.
    pub fn from_line(line: &[u8]) -> Result<Self, String> {
        let object = Object::from_line(line)?;
        // The version is checked first, because in a later version the fields may have other meanings.
        if let Some(version) = object.get("version")
            && version.integer().is_none_or(|version| version > VERSION)
        {
            return Err(format!(
                "this library speaks version {VERSION} of the protocol"
            ));
        }
        let known = |names: &[&str]| {
            let is_known = |name: &&str| ["do", "version"].contains(name) || names.contains(name);
            match object.names().find(|name| !is_known(name)) {
                Some(unknown) => Err(format!("\"{}\" is not known here", shown(unknown))),
                None => Ok(()),
            }
        };
        match object.get("do").and_then(JsonValue::text) {
            Some("status") => known(&[]).map(|()| Self::Status),
            Some("stop") => known(&[]).map(|()| Self::Stop),
            Some("attach") => known(&[]).map(|()| Self::Attach),
            Some("detach") => known(&[]).map(|()| Self::Detach),
            Some("capture") => {
                known(&NAMES)?;
                Capture::read(&object).map(Self::Capture)
            }
            _ => Err("\"do\" is none of status, capture, stop, attach and detach".to_owned()),
        }
    }
}

impl Capture {
    fn write(&self, object: Object) -> Object {
        let on = |flag: bool| flag.then_some(true);
        object
            .with_some("steps", self.steps)
            .with_some("seconds", self.duration.map(|time| time.as_secs_f64()))
            .with_some("first", self.first)
            .with_some("delay", self.delay)
            .with_some("where", self.condition.as_deref())
            .with_some("kernels", self.kernels)
            .with_some("gc", on(self.gc))
            .with_some("gil", on(self.gil))
            .with_some("stacks", on(self.stacks))
            .with_some("profiler", on(self.profiler))
            .with_some("past", on(self.past))
            .with_some("torch_trace", self.torch_trace.as_deref())
    }

    fn read(object: &Object) -> Result<Self, String> {
        let number = |name: &str| match object.get(name) {
            None => Ok(None),
            Some(value) => match value.integer() {
                Some(number) => Ok(Some(number)),
                None => Err(format!("\"{name}\" is not a whole number")),
            },
        };
        let flag = |name: &str| match object.get(name) {
            None => Ok(false),
            Some(value) => value
                .bool()
                .ok_or_else(|| format!("\"{name}\" is neither true nor false")),
        };
        let positive = |name: &str| match number(name)? {
            Some(0) => Err(format!("\"{name}\" is 0")),
            number => Ok(number),
        };
        let duration = match object.get("seconds") {
            None => None,
            Some(value) => {
                let seconds = value.number().filter(|seconds| *seconds > 0.0);
                let duration =
                    seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
                Some(duration.ok_or("\"seconds\" is not a number of seconds")?)
            }
        };
        let text = |name: &str| match object.get(name) {
            None => Ok(None),
            Some(value) => match value.text() {
                Some(text) => Ok(Some(text.to_owned())),
                None => Err(format!("\"{name}\" is not a text")),
            },
        };
        Ok(Self {
            steps: positive("steps")?,
            duration,
            first: number("first")?,
            delay: number("delay")?,
            condition: text("where")?,
            kernels: number("kernels")?,
            gc: flag("gc")?,
            gil: flag("gil")?,
            stacks: flag("stacks")?,
            profiler: flag("profiler")?,
            past: flag("past")?,
            torch_trace: text("torch_trace")?,
        })
    }
}

/// Returns a name that a client has sent, in a form that is safe to show in a message.
fn shown(name: &str) -> String {
    let plain = name.chars().filter(|c| !c.is_control());
    plain.take(32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_what_the_documentation_says() {
        let capture = |line: &str| match Request::from_line(line.as_bytes()).unwrap() {
            Request::Capture(capture) => capture,
            other => panic!("{other:?}"),
        };
        assert_eq!(
            Request::from_line(b"{\"do\":\"status\"}"),
            Ok(Request::Status)
        );
        assert_eq!(
            Request::from_line(b"{\"version\":1,\"do\":\"stop\"}\r"),
            Ok(Request::Stop)
        );
        assert_eq!(capture(r#"{"do":"capture"}"#), Capture::default());
        let all = capture(
            r#"{"do":"capture","steps":50,"seconds":2.5,"first":100,"delay":3,"where":"phase=decode","kernels":20,
                "gc":true,"gil":true,"stacks":true,"profiler":true,"past":true,
                "torch_trace":"/tmp/trace.json"}"#,
        );
        let expected = Capture {
            steps: Some(50),
            duration: Some(Duration::from_millis(2500)),
            first: Some(100),
            delay: Some(3),
            condition: Some("phase=decode".to_owned()),
            kernels: Some(20),
            gc: true,
            gil: true,
            stacks: true,
            profiler: true,
            past: true,
            torch_trace: Some("/tmp/trace.json".to_owned()),
        };
        assert_eq!(all, expected);
    }

    #[test]
    fn a_line_is_read_as_it_was_written() {
        let capture = Capture {
            steps: Some(7),
            duration: Some(Duration::from_millis(1250)),
            gil: true,
            torch_trace: Some("/tmp/a \"b\".json".to_owned()),
            ..Capture::default()
        };
        for request in [
            Request::Status,
            Request::Stop,
            Request::Attach,
            Request::Detach,
            Request::Capture(capture),
        ] {
            assert_eq!(
                Request::from_line(request.to_line().as_bytes()),
                Ok(request)
            );
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (line, why) in [
            ("rubbish", "a JSON value is missing"),
            (
                "{}",
                "\"do\" is none of status, capture, stop, attach and detach",
            ),
            (
                r#"{"do":"status","version":2}"#,
                "this library speaks version 1 of the protocol",
            ),
            (
                r#"{"do":"status","steps":5}"#,
                "\"steps\" is not known here",
            ),
            (
                r#"{"do":"capture","when":"gc > 5ms"}"#,
                "\"when\" is not known here",
            ),
            (
                r#"{"do":"capture","steps":-1}"#,
                "\"steps\" is not a whole number",
            ),
            (r#"{"do":"capture","steps":0}"#, "\"steps\" is 0"),
            (
                r#"{"do":"capture","torch_trace":1}"#,
                "\"torch_trace\" is not a text",
            ),
            (
                r#"{"do":"capture","seconds":0}"#,
                "\"seconds\" is not a number of seconds",
            ),
            (
                r#"{"do":"capture","seconds":1e300}"#,
                "\"seconds\" is not a number of seconds",
            ),
            (
                r#"{"do":"capture","gc":1}"#,
                "\"gc\" is neither true nor false",
            ),
            (r#"{"do":"capture","where":1}"#, "\"where\" is not a text"),
        ] {
            assert_eq!(
                Request::from_line(line.as_bytes()),
                Err(why.to_owned()),
                "{line}"
            );
        }
    }
}
