//! Reads another process's Python stacks, and which thread holds the GIL, from the process's memory.

use std::ops::Range;

use tllmprof_attach::ProcessView;
use tllmprof_cpython::{Holder, Layout, Life, ThreadsLayout, Top, WORDS, owner};

/// Maximum number of threads that are read. This limit and the next two are needed because another process's memory may
/// contain anything, such as a loop of pointers.
const MAX_THREADS: usize = 4096;
/// Maximum number of frames that are read of a Python stack.
const MAX_FRAMES: usize = 4096;
/// Maximum number of characters that are read of a Python name.
const MAX_CHARACTERS: usize = 4096;
/// Upper limit of the distance, in bytes, from the field with a GIL's holder to the end of the GIL's condition
/// variables and mutexes.
const GIL_BYTES: u64 = 256;
/// Offset of the kernel's thread id in the structure to which `pthread_self` points (glibc on x86-64).
const TID_IN_PTHREAD: u64 = 720;
/// The low bits of a reference that CPython uses as tags. These bits are not part of the address.
const TAGS: u64 = 0b111;

/// The main interpreter of another process.
pub(crate) struct PythonState<'a> {
    view: &'a ProcessView,
    layout: Layout,
    threads: ThreadsLayout,
    runtime: u64,
    interpreter: u64,
}

/// The GIL of a Python interpreter, while a thread holds it: the holder's thread id, and the addresses where other
/// threads wait for the GIL.
pub(crate) struct Gil {
    pub holder: u32,
    /// The addresses of the condition variables and mutexes in which threads wait for the GIL.
    pub range: Range<u64>,
}

impl<'a> PythonState<'a> {
    /// Finds the main Python interpreter of the process. `None` if the process has none, or a Python of an unknown
    /// version.
    pub(crate) fn find(view: &'a ProcessView) -> Option<Self> {
        let runtime = view.variable("_PyRuntime")?;
        let minor = minor(view)?;
        let words = || {
            let mut bytes = [0; 8 * WORDS];
            view.read(runtime, &mut bytes).then(|| {
                let words = bytes.as_chunks::<8>().0;
                std::array::from_fn(|index| u64::from_le_bytes(words[index]))
            })
        };
        let layout = Layout::for_minor(minor, words)?;
        let threads = ThreadsLayout::for_minor(minor, words)?;
        let mut python = Self {
            view,
            layout,
            threads,
            runtime,
            interpreter: 0,
        };
        python.interpreter = python.word(runtime + threads.interpreter as u64)?;
        (python.interpreter != 0).then_some(python)
    }

    fn word(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.view
            .read(address, &mut bytes)
            .then(|| u64::from_le_bytes(bytes))
    }

    fn at(&self, address: u64, offset: usize) -> Option<u64> {
        self.word(address.checked_add(offset as u64)?)
    }

    fn byte(&self, address: u64, offset: usize) -> Option<u8> {
        let mut bytes = [0];
        let address = address.checked_add(offset as u64)?;
        self.view.read(address, &mut bytes).then_some(bytes[0])
    }

    /// Returns the kernel's id of the thread to which the thread state at the address `state` belongs.
    fn number(&self, state: u64) -> Option<u32> {
        Some(match self.threads.native {
            Some(at) => self.at(state, at)? as u32,
            None => self.word(self.at(state, self.layout.thread.id)? + TID_IN_PTHREAD)? as u32,
        })
    }

    /// Returns the GIL of the interpreter, or `None` if no thread holds it.
    pub(crate) fn gil(&self) -> Option<Gil> {
        let place = match self.threads.holder {
            Holder::InRuntime(at) => self.runtime + at as u64,
            Holder::InInterpreter(at) => self.interpreter + at as u64,
        };
        let is_held = self.word(place + 8)? as u32 == 1;
        let holder = is_held.then(|| self.number(self.word(place)?))??;
        Some(Gil {
            holder,
            range: place..place + GIL_BYTES,
        })
    }

    /// Returns the Python functions that a thread is in, as `NAME (FILE:LINE)`, the innermost first. The list is empty
    /// for a thread that runs no Python code.
    pub(crate) fn stack(&self, thread: u32) -> Vec<String> {
        let mut state = self.at(self.interpreter, self.threads.first);
        for _ in 0..MAX_THREADS {
            let Some(here) = state.filter(|state| *state != 0) else {
                break;
            };
            if self.number(here) == Some(thread) {
                return self.functions(here);
            }
            state = self.at(here, self.threads.next);
        }
        Vec::new()
    }

    fn functions(&self, state: u64) -> Vec<String> {
        let top = match self.layout.thread.frame {
            Top::Here(at) => self.at(state, at),
            Top::Behind { pointer, frame } => self
                .at(state, pointer)
                .and_then(|link| self.at(link, frame)),
        };
        let mut found = Vec::new();
        let mut frame = top;
        for _ in 0..MAX_FRAMES {
            let Some(here) = frame.filter(|frame| *frame != 0) else {
                break;
            };
            let is_function = match self.layout.frame.life {
                Life::Object { .. } => true,
                Life::Chunk { owner: at } => {
                    self.byte(here, at).is_some_and(|owner| owner < owner::NONE)
                }
            };
            if is_function {
                let code = self.at(here, self.layout.frame.code);
                found.extend(code.and_then(|code| self.function(code & !TAGS)));
            }
            frame = self.at(here, self.layout.frame.previous);
        }
        found
    }

    fn function(&self, code: u64) -> Option<String> {
        let name = self.text(self.at(code, self.layout.code.name)?)?;
        let file = self.text(self.at(code, self.layout.code.file)?)?;
        let line = self.at(code, self.layout.code.line)? as u32;
        (name != file).then(|| format!("{name} ({file}:{line})"))
    }

    fn text(&self, address: u64) -> Option<String> {
        let layout = self.layout.text;
        let length = self.at(address, layout.length)? as usize;
        let state = self.at(address, layout.state)? as u32 >> layout.kind;
        let (is_compact, is_ascii) = (state & 0b1000 != 0, state & 0b1_0000 != 0);
        let width = match state & 0b111 {
            width @ (1 | 2 | 4) if is_compact => width as usize,
            _ => return None,
        };
        if length > MAX_CHARACTERS {
            return None;
        }
        let mut bytes = vec![0; length * width];
        let start = if is_ascii { layout.ascii } else { layout.other };
        let is_read = self.view.read(address + start as u64, &mut bytes);
        let code = |character: &[u8]| {
            let bytes = character.iter().rev();
            bytes.fold(0, |code, byte| code << 8 | u32::from(*byte))
        };
        let shown = |code| char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
        is_read.then(|| bytes.chunks(width).map(code).map(shown).collect())
    }
}

/// Returns the minor version of Python, such as 12 for 3.12. The source is the variable `Py_Version`, which exists
/// since 3.11, or otherwise the file name of the library or the program.
fn minor(view: &ProcessView) -> Option<u32> {
    let by_variable = || {
        let mut bytes = [0; 8];
        let place = view.variable("Py_Version")?;
        view.read(place, &mut bytes).then(|| u32::from(bytes[2]))
    };
    let by_name = |path: &str| {
        let name = path.rsplit('/').next()?;
        let rest = name
            .strip_prefix("lib")
            .unwrap_or(name)
            .strip_prefix("python3.")?;
        let digits = rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len());
        rest[..digits].parse().ok()
    };
    by_variable().or_else(|| view.paths().find_map(by_name))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    /// Starts a Python process that runs `code`. Calls `act` with the id and a view of the process once the process has
    /// printed the line `here`. Does nothing if there is no `python3`.
    fn with_python(code: &str, act: impl FnOnce(u32, &ProcessView)) {
        let Ok(mut child) = Command::new("python3")
            .args(["-c", code])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
        else {
            return eprintln!("skipped: there is no python3");
        };
        let mut line = String::new();
        let out = child.stdout.take().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).unwrap();
        assert_eq!(line, "here\n");
        let view = ProcessView::open(child.id().cast_signed()).unwrap();
        act(child.id(), &view);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn the_functions_of_a_thread_that_sleeps_are_read() {
        let code = "
import sys
class A:
    def wait(self):
        print('here', flush=True)
        sys.stdin.read()
def run():
    A().wait()
run()
";
        with_python(code, |pid, view| {
            let python = PythonState::find(view).unwrap();
            let stack = python.stack(pid);
            let name = |function: &String| {
                let name = function.split(' ').next().unwrap_or_default();
                name.rsplit('.').next().unwrap_or_default().to_owned()
            };
            let names: Vec<_> = stack.iter().map(name).collect();
            assert_eq!(names, ["wait", "run", "<module>"], "{stack:?}");
            assert!(stack[0].ends_with("(<string>:4)"), "{stack:?}");
            assert_eq!(python.stack(1), [""; 0]);
        });
    }
}
