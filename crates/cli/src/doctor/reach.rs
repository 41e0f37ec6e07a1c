//! Predicts what happens if the tllmprof library is preloaded into a program: whether the program starts, and whether
//! the library is loaded into the program.
//!
//! If the dynamic loader cannot load the library itself, the program may run without the library, and the user may get
//! no message. If the loader cannot satisfy the library's requirements, it ends the program. AddressSanitizer ends a
//! program into which any library is preloaded. So these cases are reported before the program starts. Only failures
//! that are certain are reported. In doubt, the program is started.

use std::env;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, getrlimit};

use super::elf::{Elf, contains};
use super::program::Program;
use super::search::Search;
use super::version::Version;

/// The file in which the dynamic loader looks up the paths of the system's libraries.
const CACHE: &str = "/etc/ld.so.cache";
/// The oldest glibc version that is supported. `scripts/build-portable` builds the library for this version.
const OLDEST: Version = Version::new(2, 17);
/// Size that the kernel reserves for the stack of a new process, in bytes. The stack takes at least this much address
/// space.
const STACK: u64 = 128 << 10;
/// Upper limit, in bytes, of the memory that a new process has mapped for its arguments and variables, the vDSO and
/// the loader's data. The exact size is not known.
const UNKNOWN: u64 = 256 << 10;

/// The reason why the library cannot be loaded into a program, as text for messages, such as `it is setuid, and
/// LD_PRELOAD is dropped`.
#[derive(Debug)]
pub(crate) enum Obstacle {
    /// The program starts, but without the library.
    LeftOut(String),
    /// The loader, or a sanitizer, ends the program before `main`.
    Fatal(String),
}

impl Obstacle {
    pub(crate) fn why(&self) -> &str {
        match self {
            Self::LeftOut(why) | Self::Fatal(why) => why,
        }
    }
}

/// Returns an obstacle if it is certain that the library cannot be loaded into the program. Returns `None` if this is
/// not certain.
pub(crate) fn obstacle(program: &Program, library: &Elf, search: &Search) -> Option<Obstacle> {
    let elf = &program.elf;
    // If the command line names a loader, the kernel starts the loader's file. Then the mode of that file, not the
    // mode of the program, decides if the process runs in secure mode. In secure mode, the loader ignores paths in
    // `LD_PRELOAD`.
    let started = program.loader.as_ref().map(|loader| &*loader.path);
    if let Some(why) = secure(started.unwrap_or(program.path())) {
        return Some(Obstacle::LeftOut(why));
    }
    if !elf.same_architecture(library) {
        return Some(Obstacle::LeftOut(format!(
            "it is {}, and the library {}",
            elf.architecture(),
            library.architecture()
        )));
    }
    let Some(interpreter) = &elf.interpreter else {
        // A program without an interpreter is static or is the loader itself. Nothing is preloaded into a static
        // program. The loader preloads the library into the program that the loader runs.
        return (!elf.is_loader()).then(|| {
            Obstacle::LeftOut(
                "it is statically linked, without a dynamic linker that would preload anything"
                    .to_owned(),
            )
        });
    };
    if is_musl(interpreter) {
        return Some(Obstacle::Fatal(format!(
            "it uses musl ({interpreter}), and the library needs glibc: with the library preloaded it would not start. \
             Use a build of it for glibc"
        )));
    }
    too_old(program, library, search)
        .or_else(|| not_there(program, library, search))
        .or_else(|| has_to_come_first(program))
        .map(Obstacle::Fatal)
        .or_else(|| no_space(program, library, search, limit()?))
}

fn is_musl(interpreter: &str) -> bool {
    Path::new(interpreter)
        .file_name()
        .is_some_and(|name| name.to_string_lossy().starts_with("ld-musl"))
}

/// Returns the reason why the kernel starts the file in secure mode, or `None` if it does not. In secure mode the
/// loader ignores paths in `LD_PRELOAD`.
fn secure(path: &Path) -> Option<String> {
    const SETUID: u32 = 0o4000;
    const SETGID: u32 = 0o2000;
    const GROUP_EXECUTE: u32 = 0o010;
    let metadata = path.metadata().ok()?;
    let mode = metadata.mode();
    let (user, group) = (rustix::process::getuid(), rustix::process::getgid());
    // A setuid file of the same user gives no further rights, so the kernel does not use secure mode for it.
    if mode & SETUID != 0 && metadata.uid() != user.as_raw() {
        return Some("it is setuid, and LD_PRELOAD is dropped".to_owned());
    }
    let setgid = mode & SETGID != 0 && mode & GROUP_EXECUTE != 0;
    if setgid && metadata.gid() != group.as_raw() {
        return Some("it is setgid, and LD_PRELOAD is dropped".to_owned());
    }
    let mut capabilities = [0_u8; 64];
    let has = rustix::fs::getxattr(path, "security.capability", &mut capabilities[..]).is_ok();
    (has && !user.is_root())
        .then(|| "it has file capabilities, and LD_PRELOAD is dropped".to_owned())
}

/// Returns the C library of a program, and the newest glibc version among that library's symbols. The library's own
/// version is the same, or a later one that added no symbols.
pub(crate) fn glibc(program: &Program, search: &Search) -> Option<(PathBuf, Version)> {
    let version = |path: PathBuf| {
        let provided = Elf::read(&path).ok()?.glibc_provided?;
        Some((path, provided))
    };
    // A loader works only with the C library of the same build, which lies in the loader's folder. If that folder has
    // no C library, the program may load the C library from any of several folders. The newest of these libraries is
    // returned, so that an error is reported only if all of them are too old.
    search
        .beside_loader("libc.so.6", &program.elf)
        .and_then(version)
        .or_else(|| {
            let found = search
                .find_candidates("libc.so.6", program)
                .filter_map(version);
            found.max_by_key(|(_, version)| *version)
        })
}

fn too_old(program: &Program, library: &Elf, search: &Search) -> Option<String> {
    let demanded = library.glibc_demanded?;
    let (path, provided) = glibc(program, search)?;
    (provided < demanded).then(|| {
        let advice = if demanded > OLDEST {
            format!(". Set TLLMPROF_LIB to a library that scripts/build-portable made, for glibc {OLDEST} or later")
        } else {
            String::new()
        };
        format!(
            "its glibc ({}) has no symbols newer than {provided}, and the library requires glibc {demanded}: with the \
             library preloaded it would not start{advice}",
            path.display()
        )
    })
}

fn not_there(program: &Program, library: &Elf, search: &Search) -> Option<String> {
    // Only programs with one of these loaders are checked. A loader at another path, for example of Nix, may find
    // libraries in folders that this code does not know.
    const LOADERS: [&str; 2] = ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"];
    if !LOADERS.contains(&program.elf.interpreter.as_deref()?) {
        return None;
    }
    let is_there = |name: &&String| {
        search.beside_loader(name, &program.elf).is_some()
            || search.find_candidates(name, program).next().is_some()
            || fs::read(CACHE).is_ok_and(|cache| contains(&cache, name.as_bytes()))
    };
    let missing = library.needed.iter().find(|name| !is_there(name))?;
    Some(format!(
        "the library needs {missing}, which is not found here: with the library preloaded it would not start. \
         Install {missing}, or set TLLMPROF_LIB to a library that scripts/build-portable made"
    ))
}

/// Returns the reason why nothing can be preloaded into the program, if the program uses the shared runtime of
/// AddressSanitizer. That runtime ends the program if another library is loaded before the runtime.
fn has_to_come_first(program: &Program) -> Option<String> {
    const RUNTIMES: [&str; 2] = ["libasan.so", "libclang_rt.asan"]; // of GCC and of clang
    const OPTION: &str = "verify_asan_link_order";
    let is_runtime = |name: &&String| RUNTIMES.iter().any(|runtime| name.starts_with(runtime));
    let runtime = program.elf.needed.iter().find(is_runtime)?;
    // AddressSanitizer's check of the library order can be switched off in `ASAN_OPTIONS`, or by the program itself
    // (`__asan_default_options`). If the option's name occurs in either, the program is not refused.
    let is_set = env::var("ASAN_OPTIONS").is_ok_and(|options| options.contains(OPTION))
        || fs::read(program.path()).is_ok_and(|file| contains(&file, OPTION.as_bytes()));
    (!is_set).then(|| {
        format!(
            "it needs {runtime}, AddressSanitizer's shared runtime, which ends a program into which anything is preloaded. \
             Set ASAN_OPTIONS={OPTION}=0, or link the runtime statically"
        )
    })
}

/// Returns the limit of this process's address space in bytes, or `None` if there is none.
fn limit() -> Option<u64> {
    getrlimit(Resource::As).current
}

/// Returns an obstacle if the library does not fit into the limited address space. Only the mappings that exist
/// before `main` are added up, so the program needs even more memory than this sum.
fn no_space(program: &Program, library: &Elf, search: &Search, limit: u64) -> Option<Obstacle> {
    let loader = Elf::read(Path::new(program.elf.interpreter.as_ref()?)).ok()?;
    let others = search.closure(program).loaded.into_iter().skip(1);
    // The closure also contains the loader, because the C library requires it. The loader is left out here, because its
    // memory is counted separately.
    let others = others.filter(|loaded| !loaded.elf.is_loader());
    let others: u64 = others.map(|loaded| loaded.elf.memory).sum();
    let before = program.elf.memory + loader.memory + STACK;
    let without = before + others;
    let with = without + library.memory;
    // If the program does not fit even without the library, the library is not the cause.
    if limit < without || with <= limit {
        return None;
    }
    let why = format!(
        "its address space is limited to {} kB (ulimit -v), and it needs {} kB with the library, {} kB without",
        limit >> 10,
        with >> 10,
        without >> 10
    );
    // The loader maps preloaded libraries first. If the preloaded library does not fit, the loader continues without
    // it. If a library that is mapped later does not fit, the loader ends the program.
    if limit < before + library.memory {
        Some(Obstacle::LeftOut(why))
    } else if limit >= before + library.memory + UNKNOWN {
        let why = format!("{why}: with the library preloaded it would not start. Raise the limit");
        Some(Obstacle::Fatal(why))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the program that runs this test. It can certainly be started, because this machine's loader has just
    /// loaded it.
    fn here() -> Program {
        Program::from_command(&[std::env::current_exe().unwrap().into()]).unwrap()
    }

    #[test]
    fn the_c_library_of_this_program_is_known() {
        let (path, version) = glibc(&here(), &Search::new()).unwrap();
        assert!(
            path.ends_with("libc.so.6") && version >= OLDEST,
            "{path:?} {version}"
        );
    }

    #[test]
    fn a_library_is_refused_only_for_what_it_lacks() {
        let (program, search) = (here(), Search::new());
        let asks = |version, needed: &[&str]| {
            let mut library = program.elf.clone();
            library.glibc_demanded = version;
            library.needed = needed.iter().map(|&name| name.to_owned()).collect();
            obstacle(&program, &library, &search)
        };
        let fits: [(_, &[&str]); 3] = [
            (None, &[]),
            (Some(OLDEST), &["libc.so.6"]),
            (
                Some(OLDEST),
                &["libc.so.6", "libdl.so.2", "libpthread.so.0"],
            ),
        ];
        for (version, needed) in fits {
            let found = asks(version, needed);
            assert!(found.is_none(), "{found:?}");
        }
        let refused = asks(Some(Version::new(9, 99)), &["libc.so.6"]);
        assert!(
            matches!(&refused, Some(Obstacle::Fatal(why)) if why.contains("requires glibc 9.99")),
            "{refused:?}"
        );
        let refused = asks(Some(OLDEST), &["libc.so.6", "libnobody_has.so.1"]);
        assert!(
            matches!(&refused, Some(Obstacle::Fatal(why)) if why.contains("needs libnobody_has.so.1")),
            "{refused:?}"
        );
    }

    #[test]
    fn other_loaders_may_find_what_this_one_does_not() {
        let (mut program, search) = (here(), Search::new());
        let mut library = program.elf.clone();
        library.needed = vec!["libnobody_has.so.1".to_owned()];
        assert!(not_there(&program, &library, &search).is_some());
        program.elf.interpreter = Some("/opt/lib/ld-linux-x86-64.so.2".to_owned());
        assert!(not_there(&program, &library, &search).is_none());
    }

    #[test]
    fn a_limit_is_too_low_only_between_without_and_with_the_library() {
        let (program, search) = (here(), Search::new());
        let mut library = program.elf.clone();
        library.memory = 1 << 30;
        let found = |limit| no_space(&program, &library, &search, limit);
        assert!(found(100 << 10).is_none(), "the program alone has no space");
        assert!(matches!(found(1 << 30), Some(Obstacle::LeftOut(_))));
        let before = program.elf.memory + (1 << 30);
        assert!(matches!(
            found(before + (1 << 20)),
            Some(Obstacle::Fatal(_))
        ));
        assert!(found(2 << 30).is_none());
        assert!(found(u64::MAX).is_none());
    }
}
