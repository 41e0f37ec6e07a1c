//! What keeps the library out of a program: obstacles that the dynamic linker does not report.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::elf::Elf;
use super::program::Program;

/// The reasons why the library is not loaded into the program, none if it is.
pub fn obstacles(program: &Program, library: &Elf) -> Vec<String> {
    let elf = &program.elf;
    let mut found = Vec::new();
    match &elf.interpreter {
        None => found.push(
            "it is statically linked, without a dynamic linker that would preload anything"
                .to_owned(),
        ),
        Some(interpreter) if is_musl(interpreter) => found.push(format!(
            "its C library is musl ({interpreter}), and the library needs glibc"
        )),
        Some(_) => {}
    }
    if !elf.same_architecture(library) {
        found.push(format!(
            "it is {}, and the library {}",
            elf.architecture(),
            library.architecture()
        ));
    }
    found.extend(secure(program.path()));
    found
}

fn is_musl(interpreter: &str) -> bool {
    Path::new(interpreter)
        .file_name()
        .is_some_and(|name| name.to_string_lossy().starts_with("ld-musl"))
}

/// Why the kernel starts it in secure mode, in which LD_PRELOAD with a path is ignored.
fn secure(path: &Path) -> Option<String> {
    const SETUID: u32 = 0o4000;
    const SETGID: u32 = 0o2000;
    const GROUP_EXECUTE: u32 = 0o010;
    let metadata = path.metadata().ok()?;
    let mode = metadata.mode();
    let (user, group) = (rustix::process::getuid(), rustix::process::getgid());
    // One's own identity is no gain, and is not secured against.
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
