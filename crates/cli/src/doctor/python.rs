//! The `doctor` section on Python. It reports if the program is a CPython that libtllmprof.so can attach to: version
//! 3.8 or later, with an exported C API.

use super::elf::CPython;
use super::finding::Section;
use super::program::Program;
use super::search::Closure;

pub(crate) fn describe(section: &mut Section, program: &Program, closure: &Closure) {
    let found = closure
        .loaded
        .iter()
        .find_map(|loaded| Some((loaded, loaded.elf.python?)));
    let name = program.file_name();
    match found {
        Some((loaded, CPython::Attachable)) => section.good(format_args!(
            "{} exports CPython's C API: collections, the GIL and Python functions can be seen",
            loaded.path.display()
        )),
        Some((loaded, CPython::TooOld)) => section.note(format_args!(
            "{} is a CPython before 3.8: nothing inside Python can be seen, only its CUDA calls",
            loaded.path.display()
        )),
        Some((loaded, CPython::WithoutSlots)) => section.note(format_args!(
            "{} has the C library inside it: nothing inside Python can be seen",
            loaded.path.display()
        )),
        None if name.starts_with("pypy") => {
            section.note("PyPy has no C API of CPython's: nothing inside Python can be seen");
        }
        None if name.starts_with("python") => section.note(
            "it exports no C API, and is linked to no libpython that does: nothing inside Python \
             can be seen, unless it starts another Python",
        ),
        None => {}
    }
}
