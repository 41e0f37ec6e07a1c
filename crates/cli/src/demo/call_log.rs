//! The log of the stand-in for CUDA: what the driver was asked to do, in order.

use std::fmt;

use tllmprof_calls::{Call, Library};
use tllmprof_config::Windows;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Event {
    Launch,
    Waited,
    Start,
    Stop,
}

/// The calls that matter here. The example launches one graph an iteration and waits for it.
#[derive(Debug)]
pub struct CallLog(Vec<Event>);

impl CallLog {
    /// Lines end in function, first argument and runtime; what is before is numbers and marks.
    pub fn parse(text: &str) -> Self {
        let event = |line: &str| {
            let name = line.split_whitespace().rev().nth(2)?;
            let (name, has_returned) = match name.strip_suffix("_end") {
                Some(name) => (name, true),
                None => (name, false),
            };
            let (call, Library::Driver) = Call::and_library(name)? else {
                return None;
            };
            match (call, has_returned) {
                (Call::GraphLaunch, false) => Some(Event::Launch),
                (Call::StreamSynchronize, true) => Some(Event::Waited),
                (Call::ProfilerStart, false) => Some(Event::Start),
                (Call::ProfilerStop, false) => Some(Event::Stop),
                _ => None,
            }
        };
        Self(text.lines().filter_map(event).collect())
    }

    /// Where the log is not what the windows ask for, in words.
    pub fn differences(&self, windows: &Windows, steps: u64) -> Vec<String> {
        let mut wrong = Vec::new();
        let (mut launched, mut waited, mut recording) = (0, 0, false);
        for event in &self.0 {
            match event {
                Event::Start | Event::Stop => {
                    let starts = *event == Event::Start;
                    if recording == starts {
                        let twice = if starts { "started" } else { "stopped" };
                        wrong.push(format!("the profiler was {twice} twice"));
                    }
                    recording = starts;
                }
                Event::Launch => {
                    check(&mut wrong, "launch", launched, recording, windows);
                    launched += 1;
                }
                Event::Waited => {
                    // The engine's other waits come before and after the loop.
                    if waited < launched {
                        check(&mut wrong, "wait", waited, recording, windows);
                        waited += 1;
                    }
                }
            }
        }
        if recording {
            wrong.push("the profiler was not stopped".to_owned());
        }
        if launched != steps {
            wrong.push(format!("{launched} launches in {steps} iterations"));
        }
        wrong
    }
}

fn check(wrong: &mut Vec<String>, what: &str, n: u64, recording: bool, windows: &Windows) {
    match (recording, windows.contains(n)) {
        (true, false) => wrong.push(format!("{what} {n} was captured")),
        (false, true) => wrong.push(format!("{what} {n} was not captured")),
        _ => {}
    }
}

/// A line an iteration, with those far from the window's ends left out.
impl fmt::Display for CallLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_edge = |event: &Event| matches!(event, Event::Start | Event::Stop);
        let edges: Vec<usize> = (0..self.0.len())
            .filter(|index| self.0.get(*index).is_some_and(is_edge))
            .collect();
        // Two events an iteration: this shows two iterations on either side.
        const NEAR: usize = 4;
        let is_near = |index: usize| edges.iter().any(|edge| edge.abs_diff(index) <= NEAR);
        let mut iteration = 0;
        let mut left_out = false;
        for (index, event) in self.0.iter().enumerate() {
            let line = match event {
                Event::Launch => format!("  iteration {iteration:<5} cuGraphLaunch"),
                Event::Waited => format!("  {:15} cuStreamSynchronize", ""),
                Event::Start => "cuProfilerStart".to_owned(),
                Event::Stop => "cuProfilerStop".to_owned(),
            };
            if *event == Event::Launch {
                iteration += 1;
            }
            if is_near(index) {
                writeln!(f, "  {line}")?;
            } else if !left_out {
                writeln!(f, "    …")?;
            }
            left_out = !is_near(index);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A log of one letter a call.
    fn log(letters: &str) -> CallLog {
        let line = |letter| match letter {
            'l' => "1 2 3 cuGraphLaunch 0x1 via=-\n",
            'w' => "1 2 3 cuStreamSynchronize 0x1 via=-\n1 2 3 cuStreamSynchronize_end 0x1 via=-\n",
            '[' => "1 2 3 cuProfilerStart 0x0 via=-\n",
            ']' => "1 2 3 cuProfilerStop 0x0 via=-\n",
            _ => "1 2 3 capturing cuLaunchKernel 0x1 via=cudart12\n",
        };
        CallLog::parse(&letters.chars().map(line).collect::<String>())
    }

    fn differences(letters: &str) -> Vec<String> {
        log(letters).differences(&Windows::parse("1-2").unwrap(), 4)
    }

    #[test]
    fn exactly_the_window() {
        assert!(differences("xxxlw[lwlw]lwx").is_empty());
    }

    #[test]
    fn every_mistake_is_reported() {
        for (letters, message) in [
            ("lwlw[lw]lw", "launch 1 was not captured"),
            ("[lwlwlw]lw", "launch 0 was captured"),
            ("lw[lwlwl]wlw", "launch 3 was captured"),
            ("lw[lwl]wlw", "wait 2 was not captured"),
            ("l[wlwlw]lw", "wait 0 was captured"),
            ("lw[lwlwlw", "the profiler was not stopped"),
            ("lw[[lwlw]lw", "the profiler was started twice"),
            ("lw[lwlw]]lw", "the profiler was stopped twice"),
            ("lw[lwlw]", "3 launches in 4 iterations"),
            ("", "0 launches in 4 iterations"),
        ] {
            let wrong = differences(letters);
            assert!(wrong.iter().any(|w| w == message), "{letters}: {wrong:?}");
        }
    }

    #[test]
    fn only_the_ends_are_shown() {
        let text = log(&format!("{}[lwlw]{}", "lw".repeat(50), "lw".repeat(50))).to_string();
        assert!(text.contains("iteration 49 "), "{text}");
        assert!(
            !text.contains("iteration 30 ") && text.contains('…'),
            "{text}"
        );
        let start = text.find("cuProfilerStart").unwrap();
        assert!(text.find("iteration 49 ").unwrap() < start, "{text}");
        assert!(start < text.find("iteration 50 ").unwrap(), "{text}");
    }
}
