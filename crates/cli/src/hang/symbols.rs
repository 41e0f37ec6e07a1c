//! Finds the names of native functions. The symbols of each module are read only once.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tllmprof_attach::NativeFrame;
use tllmprof_symbols::{Image, demangle, short};

use crate::beyond;

/// The functions of a module by address. Each value is the function's size in bytes and its name.
type FileFunctions = BTreeMap<u64, (u64, String)>;

#[derive(Default)]
pub(crate) struct Symbols(Mutex<BTreeMap<PathBuf, Arc<FileFunctions>>>);

impl Symbols {
    /// Returns for each frame of a process's stack the function's name and the module's file name. The function's name
    /// is empty if it is not known.
    pub(super) fn names(&self, pid: u64, frames: &[NativeFrame]) -> Vec<(String, String)> {
        let name = |frame: &NativeFrame| {
            let file = frame.path.rsplit('/').next().unwrap_or_default();
            let functions = self.functions(&beyond::path_of(pid, Path::new(&frame.path)));
            let last = functions.range(..=frame.address).next_back();
            let found = last.filter(|(start, (size, _))| frame.address < *start + *size);
            let name = found.map_or("", |(_, (_, name))| name);
            (name.to_owned(), file.to_owned())
        };
        frames.iter().map(name).collect()
    }

    fn functions(&self, path: &Path) -> Arc<FileFunctions> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let functions = known
            .entry(path.to_owned())
            .or_insert_with(|| Arc::new(read(path)));
        functions.clone()
    }
}

fn read(path: &Path) -> FileFunctions {
    let Ok(image) = Image::open(path) else {
        return FileFunctions::new();
    };
    let named = |function: tllmprof_symbols::Function<'_>| {
        let name = function.names.first()?;
        let text = demangle(name).map_or_else(
            || String::from_utf8_lossy(name).into_owned(),
            |name| short(&name),
        );
        Some((function.address?, (function.size, text)))
    };
    image.functions().into_iter().filter_map(named).collect()
}
