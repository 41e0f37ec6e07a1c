//! Builds the programs of `tests/named/` for the tests.

use std::path::PathBuf;
use std::time::Duration;

use crate::common::{self, Scratch, is_x86_64, repo, run, standin};
use crate::twice::Situation;

pub(crate) const BUILDING: Duration = Duration::from_secs(240);

/// The option by which compilers for AArch64 mark branch targets and sign return addresses.
const PROTECTED: &str = "-mbranch-protection=standard";

/// The folder in which a test builds its programs and libraries.
pub(crate) struct Workshop(pub Scratch);

impl Workshop {
    pub(crate) fn new() -> Self {
        Self(Scratch::new("named"))
    }

    pub(crate) fn compile(&self, source: &str, output: &str, options: &[&str]) -> PathBuf {
        let built = self.0.path(output);
        let is_cpp = source.ends_with(".cpp") || source.ends_with(".s");
        let mut cc = if is_cpp {
            common::cpp_compiler()
        } else {
            common::compiler()
        };
        let standard = if is_cpp { "-std=gnu++17" } else { "-std=gnu11" };
        let source = match source.ends_with(".s") {
            true => self.0.path(source),
            false => repo().join("tests/named").join(source),
        };
        // Without `-fno-partial-inlining`, GCC may move a part of a function to a new function whose name contains the
        // old one, such as `NAME.part.0`. A rule could match both.
        cc.args(["-O2", "-g", "-Wall", "-Wextra", "-Wno-psabi"])
            .args([
                "-fno-partial-inlining",
                "-pthread",
                "-fexceptions",
                "-DSTANDIN",
                standard,
            ])
            .args((!is_x86_64()).then_some(PROTECTED))
            .arg(format!("-I{}", repo().join("tests/standin").display()))
            .arg(format!("-I{}", repo().join("tests/fixtures").display()))
            .arg(format!("-I{}", repo().join("tests/named").display()))
            .arg("-o")
            .arg(&built)
            .arg(source)
            .args(options);
        let output = run(&mut cc, BUILDING);
        assert!(output.status.success(), "{cc:?}\n{}", output.err());
        built
    }

    pub(crate) fn library(&self, source: &str, output: &str, options: &[&str]) -> String {
        let options = [&["-shared", "-fPIC"], options].concat();
        let library = self.compile(source, output, &options);
        library
            .to_str()
            .expect("cargo's folders have UTF-8 names")
            .to_owned()
    }

    /// Builds a program that uses the CUDA runtime.
    pub(crate) fn program(&self, source: &str, output: &str, options: &[&str]) -> Situation {
        let folder = format!("-L{}", standin().display());
        let runtime = [folder.as_str(), "-Wl,--no-as-needed", "-l:libcudart.so.12"];
        let program = self.compile(source, output, &[options, &runtime].concat());
        Situation::new(program.to_str().expect("cargo's folders have UTF-8 names"))
            .env("TLLMPROF_LOG", "debug")
    }

    /// Builds a program that uses the CUDA runtime and contains the functions that a rule names. On processors where
    /// entries cannot be patched, the functions are in a library instead, and the program calls them through GOT slots.
    pub(crate) fn program_of(&self, source: &str, output: &str, options: &[&str]) -> Situation {
        if is_x86_64() {
            return self.program(source, output, options);
        }
        let options = [&["-DIN_LIBRARY"], options].concat();
        let library = self.library(source, &format!("lib{output}.so"), &options);
        self.program("main_elsewhere.c", output, &[&library])
    }

    /// Builds a library whose functions have no size in the symbol table, so their entries are not patched.
    pub(crate) fn unsized_library(&self, source: &str) -> String {
        let assembly = self.compile(source, "unsized.s", &["-S", "-g0", "-fPIC"]);
        let text = std::fs::read_to_string(&assembly).expect("the compiler's output");
        let lines = text.lines().map(|line| match line.split_once(", .-") {
            Some((size, _)) => format!("{size}, 0\n"),
            None => format!("{line}\n"),
        });
        std::fs::write(&assembly, lines.collect::<String>()).expect("the test's folder");
        self.library("unsized.s", "libunsized.so", &[])
    }
}
