//! A temporary folder for each test, and files that tools create in it.

#![allow(dead_code)] // each test file uses only some of these functions

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// A folder that is removed when the test ends.
pub(crate) struct Scratch(TempDir);

impl Scratch {
    pub(crate) fn new() -> Self {
        // Use the canonical path, because the dynamic linker and readlink show paths in this form.
        let parent = std::env::temp_dir().canonicalize().unwrap();
        Self(TempDir::with_prefix_in("tllmprof-", parent).unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        let path = self.0.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    }

    /// Runs a tool in this folder, for at most a minute. A compiler may take over ten seconds on a
    /// busy machine.
    pub(crate) fn tool(&self, words: &[&str]) {
        let mut command = Command::new("timeout");
        command.arg("60").args(words).current_dir(self.0.path());
        let output = command.output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command:?}: {stderr}");
    }

    /// Compiles C++ source. `arguments` are added to those for the source and the output.
    pub(crate) fn compile(&self, name: &str, source: &str, arguments: &[&str]) -> PathBuf {
        let text = self.path(&format!("{name}.cc"));
        fs::write(&text, source).unwrap();
        let text = text.to_str().unwrap();
        self.tool(&[&["c++", "-o", name, text], arguments].concat());
        self.path(name)
    }
}

/// The source of a library with many kinds of functions, such as templates, operators, lambdas and an ifunc.
pub(crate) const LIBRARY: &str = r#"
#include <map>
#include <stdexcept>
#include <string>
#include <vector>
#define KEEP __attribute__((noinline, used))
extern "C" int puts(const char *);
extern "C" KEEP int llama_decode(int x) { return puts("decode") + x; }
namespace ns {
struct Config { int a; };
template <class T> struct Class {
    KEEP Class(int a) : a(a) { puts("made"); }
    KEEP ~Class() { puts("gone"); }
    KEEP int f(int x, char c) { return puts("f") + x + c + a; }
    KEEP Class &operator=(const Config &c) { a = c.a + puts("="); return *this; }
    KEEP int operator()(T x) const { return puts("()") + int((long)x) + a; }
    KEEP operator unsigned long() const { return puts("ul") + a; }
    int a;
};
KEEP int step(int x) { return puts("i") + x; }
KEEP int step(double x) { return puts("d") + int(x); }
KEEP int step(const std::string &s, std::vector<Config> &v) { return puts(s.c_str()) + int(v.size()); }
template <class T, int N> KEEP T twice(T x) { return puts("t") + x * N; }
namespace { KEEP int hidden(int x) { return puts("h") + x; } }
KEEP int lambdas(int x) { auto l = [](int y) KEEP { return puts("l") + y; }; return l(x); }
}
static KEEP int alone(int x) { return puts("s") + x; }
static int choose(int x) { return puts("c") + x; }
extern "C" { static int (*resolve())(int) { return choose; } }
extern "C" int chosen(int) __attribute__((ifunc("resolve")));
int all(int x) {
    ns::Class<int> c(x); ns::Class<std::string *> d(2); c = ns::Config{3};
    std::string s("x"); std::vector<ns::Config> v;
    return c.f(1, 'c') + d.f(1, 'd') + c(4) + int((unsigned long)c) + ns::step(1) + ns::step(1.0)
        + ns::step(s, v) + ns::twice<int, 16>(2) + ns::twice<long, 3>(2) + ns::hidden(1) + ns::lambdas(1)
        + alone(1) + llama_decode(1) + chosen(1);
}
"#;

pub(crate) fn names(functions: &[tllmprof_symbols::Function<'_>]) -> Vec<String> {
    let names = functions.iter().map(|function| function.names[0]);
    names
        .map(|name| String::from_utf8_lossy(name).into_owned())
        .collect()
}

pub(crate) fn pattern(regex: &str) -> tllmprof_symbols::Pattern {
    let rule = format!("sym:{regex}");
    match tllmprof_config::Step::parse(&rule).unwrap() {
        tllmprof_config::Step::Symbol { name, .. } => tllmprof_symbols::Pattern::new(&name),
        other => panic!("{other}"),
    }
}

/// Returns, for each function of the image that matches the regex, the first of the function's names.
pub(crate) fn matching(image: &tllmprof_symbols::Image, regex: &str) -> Vec<String> {
    names(&image.matching(&pattern(regex), usize::MAX).functions)
}

pub(crate) fn open(path: &Path) -> tllmprof_symbols::Image {
    tllmprof_symbols::Image::open_with(path, Path::new("/nonexistent"))
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
