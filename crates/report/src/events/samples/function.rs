//! A function of a sampled stack.

use super::location::Location;

/// A function that occurs in sampled stacks.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Function {
    /// The name as recorded, which may be unprintable. For a native function it is the symbol, if
    /// one was found.
    pub name: String,
    /// The name, with only the last part of the file's path.
    pub label: String,
    pub origin: Origin,
}

/// The origin of a function.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Origin {
    /// The program, or a third-party library.
    Program,
    /// The C library.
    C,
    /// The runtime library of a language, such as C++ or Rust, or tllmprof itself.
    Runtime,
    /// The Python interpreter.
    Interpreter,
    /// Python's standard library.
    PythonLibrary,
    /// The CUDA driver or runtime.
    Driver,
}

impl Function {
    /// Returns the location of the function's code. File and line are known only if its name
    /// contains them.
    #[must_use]
    pub fn location(&self) -> Location {
        let python = self.name.split_once(" (").and_then(|(function, place)| {
            let (file, line) = place.strip_suffix(')')?.rsplit_once(':')?;
            Some((function, file, line.parse().ok()?))
        });
        match python {
            Some((function, file, line)) => Location {
                function: function.to_owned(),
                file: Some(file.to_owned()),
                line: Some(line),
            },
            None => Location::native(&self.name),
        }
    }
}
