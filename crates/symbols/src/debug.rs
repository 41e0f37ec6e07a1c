//! Finds the debug file to which the symbols of a stripped file were moved.
//!
//! The GDB manual defines where debug files lie: "Debugging Information in Separate Files".

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use crate::crc;
use crate::elf::Elf;
use crate::source::{Source, open};

/// The folder in which Linux distributions install debug files.
pub const DEBUG_ROOT: &str = "/usr/lib/debug";

/// Finds the debug file of `file`: below the folder `root`, in the folder of `path`, or in the subfolder `.debug` of
/// the folder of `path`. `path` is the path of `file`, and `elf` its headers.
pub(crate) fn find(
    path: &Path,
    file: &File,
    elf: &Elf,
    root: &Path,
) -> Option<(PathBuf, File, Elf)> {
    let own = file.metadata().ok()?;
    let fits = |candidate: PathBuf, sum: Option<u32>| {
        let found = open(&candidate).ok()?;
        let metadata = found.metadata().ok()?;
        if (metadata.dev(), metadata.ino()) == (own.dev(), own.ino()) {
            return None;
        }
        let theirs = Elf::read(&found).ok()?;
        let same = match (&elf.build_id, &theirs.build_id, sum) {
            (Some(ours), Some(theirs), _) => ours == theirs,
            (_, _, Some(sum)) => crc::checksum(&found).is_ok_and(|found| found == sum),
            _ => false,
        };
        (same && theirs.machine == elf.machine).then_some((candidate, found, theirs))
    };
    if let Some(place) = elf.build_id.as_deref().and_then(by_build_id)
        && let Some(found) = fits(root.join(place), None)
    {
        return Some(found);
    }
    let (name, sum) = link(file, elf)?;
    let path = path.canonicalize().ok()?;
    let folder = path.parent()?;
    let below_root: PathBuf = folder
        .components()
        .filter(|part| matches!(part, Component::Normal(_)))
        .collect();
    [
        folder.to_owned(),
        folder.join(".debug"),
        root.join(below_root),
    ]
    .into_iter()
    .find_map(|folder| fits(folder.join(&name), Some(sum)))
}

fn by_build_id(id: &[u8]) -> Option<PathBuf> {
    let (first, rest) = id.split_first()?;
    let mut name = format!(".build-id/{first:02x}/");
    for byte in rest {
        name.push_str(&format!("{byte:02x}"));
    }
    name.push_str(".debug");
    Some(name.into())
}

/// Reads the section `.gnu_debuglink`: the name of the debug file and its checksum.
fn link(source: &(impl Source + ?Sized), elf: &Elf) -> Option<(PathBuf, u32)> {
    let bytes = elf.data(source, elf.named(b".gnu_debuglink")?).ok()?;
    let end = bytes.iter().position(|byte| *byte == 0)?;
    let name = Path::new(OsStr::from_bytes(bytes.get(..end)?));
    // The name in `.gnu_debuglink` must be a plain file name, and not a path to another folder.
    let is_name = matches!(name.components().next(), Some(Component::Normal(first)) if first == name.as_os_str());
    let sum = bytes.get((end + 1).checked_next_multiple_of(4)?..)?;
    let sum = u32::from_le_bytes(*sum.first_chunk::<4>()?);
    is_name.then(|| (name.to_owned(), sum))
}
