//! Finds the parts of a process that matter for attaching: the C library's functions, code in which a thread cannot
//! safely be interrupted, and unused memory after the code of modules.

use std::collections::HashMap;
use std::ops::Range;

use crate::elf::{Module, Symbol};
use crate::memory::ProcessMemory;
use crate::refusal::AttachRefusal;
use crate::stub::MADE;

/// Beginnings of the file names of glibc's libraries. Old versions consist of several files whose names contain
/// the version, such as `libpthread-2.31.so`.
const C_LIBRARY: [&str; 8] = [
    "libc.so",
    "libpthread.so",
    "libdl.so",
    "librt.so",
    "libc-2",
    "libpthread-2",
    "libdl-2",
    "librt-2",
];

/// Functions of the C library in which a thread only waits, without holding a lock of the C library.
const WAITS: [&str; 33] = [
    "poll",
    "ppoll",
    "select",
    "pselect",
    "epoll_wait",
    "epoll_pwait",
    "epoll_pwait2",
    "nanosleep",
    "clock_nanosleep",
    "usleep",
    "sleep",
    "pthread_cond_wait",
    "pthread_cond_timedwait",
    "pthread_cond_clockwait",
    "pthread_mutex_lock",
    "sem_wait",
    "sem_timedwait",
    "sem_clockwait",
    "accept",
    "accept4",
    "recv",
    "recvfrom",
    "recvmsg",
    "read",
    "ioctl",
    "wait4",
    "waitpid",
    "sigwait",
    "sigwaitinfo",
    "sigtimedwait",
    "pause",
    "sched_yield",
    "syscall",
];

/// Functions by which sanitizers are recognized in a process, each with the sanitizer's name. Attaching to a process
/// with a sanitizer is refused.
const SANITIZERS: [(&str, &str); 3] = [
    ("__asan_init", "AddressSanitizer"),
    ("__tsan_init", "ThreadSanitizer"),
    ("__msan_init", "MemorySanitizer"),
];

/// Addresses of the C library's functions that the stub (the injected code) calls in the process.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Functions {
    pub pthread_create: u64,
    pub pthread_detach: u64,
    pub errno_location: u64,
    pub dlopen: u64,
    pub dlsym: u64,
    pub dlerror: u64,
}

/// Address ranges of code in the process, grouped by the role of this code for attaching.
pub(crate) struct Places {
    pub functions: Functions,
    /// Functions of the C library in which threads wait without holding a lock of that library (see `WAITS`).
    pub waits: Vec<Range<u64>>,
    pub c_library: Vec<Range<u64>>,
    pub loader: Vec<Range<u64>>,
    /// Libraries other than the C library that define `malloc`.
    pub allocators: Vec<Range<u64>>,
    /// The C library's function `exit`, which runs the program's exit handlers.
    pub exit: Vec<Range<u64>>,
    /// The tllmprof library, if the process has already loaded it.
    pub ours: Vec<Range<u64>>,
    /// The version of the process's C library, such as (2, 34). `None` if the version is unknown.
    pub glibc: Option<(u32, u32)>,
    /// The modules that stay loaded as long as the process lives, as indices in the list of all modules.
    stay: Vec<usize>,
}

fn is_c_library(module: &Module) -> bool {
    C_LIBRARY
        .iter()
        .any(|name| module.file_name().starts_with(name))
}

fn is_loader(module: &Module) -> bool {
    let name = module.file_name();
    name.starts_with("ld-linux") || name.starts_with("ld-2") || name.starts_with("ld.so")
}

fn is_ours(module: &Module) -> bool {
    module.path == MADE || module.file_name().starts_with("libtllmprof.so")
}

/// Returns the functions of the C library that attaching needs, by name: those that the stub (the injected code) calls,
/// those in which a thread may wait, and `exit`.
fn c_library_functions(
    memory: &ProcessMemory,
    modules: &[Module],
) -> HashMap<&'static str, Symbol> {
    let mut functions = HashMap::new();
    let mut names = vec![
        "pthread_create",
        "pthread_detach",
        "__errno_location",
        "dlopen",
        "dlsym",
        "dlerror",
        "exit",
    ];
    names.extend(WAITS);
    for module in modules.iter().filter(|module| is_c_library(module)) {
        for (name, symbol) in module.functions(memory, &names) {
            // The first definition of a name is used, as the dynamic loader does. In old versions of glibc, both
            // libpthread and libc define some names.
            functions.entry(name).or_insert(symbol);
        }
    }
    functions
}

/// Returns the address ranges of the modules outside the C library that define `malloc`.
///
/// # Errors
/// Returns a refusal if a module belongs to a sanitizer.
fn allocators(
    memory: &ProcessMemory,
    modules: &[Module],
) -> Result<Vec<Range<u64>>, AttachRefusal> {
    let mut allocators = Vec::new();
    for module in modules {
        let asked = SANITIZERS.map(|(function, _)| function);
        let found = module.functions(memory, &[&asked[..], &["malloc"]].concat());
        if let Some((_, name)) = SANITIZERS
            .iter()
            .find(|(function, _)| found.contains_key(function))
        {
            return Err(AttachRefusal::Sanitizer(name));
        }
        if found.contains_key("malloc") && !is_c_library(module) && !is_loader(module) {
            allocators.push(module.range.clone());
        }
    }
    Ok(allocators)
}

impl Places {
    /// Classifies a process's modules. `program` is the path of its executable.
    ///
    /// # Errors
    /// Returns a refusal if the process lacks something that attaching needs, or contains something (such as a
    /// sanitizer) that makes attaching unsafe.
    pub(crate) fn find(
        memory: &ProcessMemory,
        modules: &[Module],
        program: &str,
    ) -> Result<Self, AttachRefusal> {
        let main = modules.iter().find(|module| module.path == program);
        let main = main.ok_or_else(|| {
            AttachRefusal::System(
                "its program was not found in its memory: it may be another by now".to_owned(),
            )
        })?;
        if !main.has_interpreter() {
            return Err(AttachRefusal::Static);
        }
        let functions = c_library_functions(memory, modules);
        let function = |name| match functions.get(name) {
            Some(Symbol {
                address,
                is_ifunc: false,
                ..
            }) => Ok(*address),
            _ => Err(AttachRefusal::CLibrary(name)),
        };
        let functions_called = Functions {
            pthread_create: function("pthread_create")?,
            pthread_detach: function("pthread_detach")?,
            errno_location: function("__errno_location")?,
            dlopen: function("dlopen")?,
            dlsym: function("dlsym")?,
            dlerror: function("dlerror")?,
        };
        let ranges = |is_one: &dyn Fn(&Module) -> bool| -> Vec<Range<u64>> {
            let chosen = modules.iter().filter(|module| is_one(module));
            chosen.map(|module| module.range.clone()).collect()
        };
        let allocators = allocators(memory, modules)?;
        if allocators.contains(&main.range) {
            return Err(AttachRefusal::Allocator);
        }
        let needed = main.needed(memory);
        let stays = |module: &Module| {
            module.range == main.range
                || is_c_library(module)
                || is_loader(module)
                || needed.iter().any(|name| name == module.file_name())
        };
        let codes = |names: &[&str]| -> Vec<Range<u64>> {
            let symbols = names.iter().filter_map(|name| functions.get(name));
            symbols
                .map(|symbol| symbol.address..symbol.address + symbol.size)
                .collect()
        };
        Ok(Self {
            functions: functions_called,
            waits: codes(&WAITS),
            exit: codes(&["exit"]),
            c_library: ranges(&is_c_library),
            loader: ranges(&is_loader),
            allocators,
            ours: ranges(&is_ours),
            glibc: modules
                .iter()
                .filter(|module| is_c_library(module))
                .filter_map(|module| module.newest(memory, "GLIBC_"))
                .max(),
            stay: (0..modules.len())
                .filter(|index| stays(&modules[*index]))
                .collect(),
        })
    }

    /// Returns addresses in the process for the stub's code and for its texts (strings). Both are in unused bytes, all
    /// 0, after read-only segments of modules that stay loaded. The segment before the stub's code is executable.
    /// `code` and `texts` are the sizes in bytes. Returns `None` if too few such bytes are left.
    pub(crate) fn room(
        &self,
        memory: &ProcessMemory,
        modules: &[Module],
        code: usize,
        texts: usize,
    ) -> Option<(u64, u64)> {
        let mut free = Vec::new();
        for module in self.stay.iter().filter_map(|index| modules.get(*index)) {
            for (range, is_executable) in module.slack() {
                if let Some(start) = unused(memory, &range) {
                    free.push((start..range.end, is_executable));
                }
            }
        }
        let mut take = |size: usize, needs_executable: bool| {
            let fits = |range: &Range<u64>| range.end.saturating_sub(range.start) >= size as u64;
            let mut places = free
                .iter_mut()
                .filter(|(range, executable)| (*executable || !needs_executable) && fits(range));
            // Texts need no executable memory. They are placed in memory that is not executable if possible, so that
            // the executable memory is left for code.
            let place = match needs_executable {
                true => places.next(),
                false => places.min_by_key(|(_, executable)| *executable),
            };
            place.map(|(range, _)| {
                let start = range.start;
                range.start = (start + size as u64).next_multiple_of(16);
                start
            })
        };
        Some((take(code, true)?, take(texts, false)?))
    }
}

/// Returns the first address at which a range may be used: at least 8 bytes after its last byte that is not 0, aligned
/// to 16 bytes. The caller must check that the address is still within the range. `None` if the range cannot be read.
fn unused(memory: &ProcessMemory, range: &Range<u64>) -> Option<u64> {
    let length = usize::try_from(range.end.saturating_sub(range.start)).ok()?;
    let bytes = memory.some(range.start, length)?;
    let used = bytes.iter().rposition(|byte| *byte != 0);
    let start = used.map_or(0, |last| last + 1) as u64;
    Some((range.start + start + 8).next_multiple_of(16))
}

#[cfg(test)]
impl Places {
    /// Returns address ranges for tests: those of a C library, a loader, and a library that defines `malloc`, in this
    /// order. `waits` is the only function in which a thread may wait.
    pub(crate) fn made(ranges: [Range<u64>; 3], waits: Range<u64>) -> Self {
        let [c_library, loader, allocators] = ranges.map(|range| vec![range]);
        Self {
            functions: Functions::default(),
            waits: vec![waits],
            c_library,
            loader,
            allocators,
            exit: Vec::new(),
            ours: Vec::new(),
            glibc: None,
            stay: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf::tests::here;

    fn program() -> String {
        let path = std::fs::read_link("/proc/self/exe").unwrap();
        path.to_str().unwrap().to_owned()
    }

    #[test]
    fn the_functions_are_those_that_this_process_would_call() {
        let (memory, modules) = here();
        let functions = Places::find(&memory, &modules, &program())
            .unwrap()
            .functions;
        assert_eq!(functions.dlopen, libc::dlopen as *const () as u64);
        assert_eq!(functions.dlsym, libc::dlsym as *const () as u64);
        assert_eq!(
            functions.pthread_create,
            libc::pthread_create as *const () as u64
        );
    }

    #[test]
    fn room_is_unused_and_code_has_room_that_can_be_executed() {
        let (memory, modules) = here();
        let places = Places::find(&memory, &modules, &program()).unwrap();
        let (code, texts) = places.room(&memory, &modules, 200, 40).unwrap();
        assert_eq!(memory.some(code, 200), Some(vec![0; 200]));
        assert_eq!(memory.some(texts, 40), Some(vec![0; 40]));
        assert!(code + 200 <= texts || texts + 40 <= code);
        assert_eq!(places.room(&memory, &modules, 5000, 1), None);
    }

    #[test]
    fn a_program_that_is_not_there_is_refused() {
        let (memory, modules) = here();
        let places = Places::find(&memory, &modules, "/no/such/program");
        assert!(matches!(places.err(), Some(AttachRefusal::System(_))));
    }
}
