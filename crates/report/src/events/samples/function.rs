//! A function that occurs in sampled stacks: its name and the kind of code it belongs to.

use tllmprof_engines::{PythonFunction, is_installed_package};

use super::location::Location;

/// A function that occurs in sampled stacks, with its name in several forms.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Function {
    /// The name as recorded, which may contain unprintable characters. For a native function it is
    /// the symbol if one was found, otherwise the module and the offset.
    pub name: String,
    /// The name, with only the last part of the file's path.
    pub label: String,
    pub origin: Origin,
}

/// The kind of code that a function belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Origin {
    /// The program itself, or a third-party library.
    Program,
    /// The C library (libc).
    C,
    /// The runtime library of a language such as C++ or Rust.
    Runtime,
    /// tllmprof's library, which the program's calls of CUDA pass through.
    Recorder,
    /// The Python interpreter.
    Interpreter,
    /// Python's standard library.
    PythonLibrary,
    /// The CUDA driver or runtime.
    Driver,
}

impl Function {
    /// Returns true for a Python function of the program itself, and not of an installed package. The top level of a
    /// module (`<module>`) does not count as a function.
    #[must_use]
    pub fn is_own(&self) -> bool {
        self.is_python() && !is_installed_package(&self.name)
    }

    /// Returns true for a Python function of the program or of an installed package. The top level of a module
    /// (`<module>`) does not count as a function.
    #[must_use]
    pub fn is_python(&self) -> bool {
        let is_named = self.name.contains(" (") && !self.name.starts_with("<module>");
        self.origin == Origin::Program && is_named
    }

    /// Returns the location of the function's code. The file and the line are known only if the
    /// function's name contains them.
    #[must_use]
    pub fn location(&self) -> Location {
        match PythonFunction::parse(&self.name) {
            Some(python) if python.line.is_some() => Location {
                function: python.qualified.to_owned(),
                file: Some(python.file.to_owned()),
                line: python.line,
            },
            _ => Location::native(&self.name),
        }
    }
}
