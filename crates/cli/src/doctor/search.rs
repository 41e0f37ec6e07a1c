//! Finds shared libraries in the same way as the dynamic linker, without running it.

use std::cell::OnceCell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::env;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::elf::Elf;
use super::program::Program;

/// A file that the dynamic linker would load.
#[derive(Debug)]
pub(crate) struct Loaded {
    /// The name by which the program or another library requests this file.
    pub name: String,
    pub path: PathBuf,
    pub elf: Elf,
}

/// All files that the dynamic linker would load before `main`.
#[derive(Debug, Default)]
pub(crate) struct Closure {
    /// The files, in the order of loading. The executable comes first.
    pub loaded: Vec<Loaded>,
    /// Libraries that were not found, each with the name of the file that needs the library.
    pub missing: Vec<(String, String)>,
}

impl Closure {
    pub(crate) fn find(&self, prefix: &str) -> Option<&Loaded> {
        self.loaded
            .iter()
            .find(|loaded| loaded.name.starts_with(prefix))
    }
}

/// The folders in which the dynamic linker searches for libraries, and the cache of library paths.
#[derive(Debug)]
pub(crate) struct Search {
    library_path: Vec<PathBuf>,
    /// The contents of `/etc/ld.so.cache`, as `ldconfig -p` prints them: the paths of each library, by its name. Read
    /// on first use.
    cache: OnceCell<HashMap<String, Vec<PathBuf>>>,
}

impl Search {
    pub(crate) fn new() -> Self {
        let library_path = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        Self {
            library_path: folders(library_path.as_bytes()),
            cache: OnceCell::new(),
        }
    }

    /// Returns the folders and the cache in which the loader searches for the libraries of `program`. If the command
    /// line starts the program with a loader and its `--library-path`, that path replaces `LD_LIBRARY_PATH`.
    pub(crate) fn from_program(program: &Program) -> Self {
        let given = program
            .loader
            .as_ref()
            .and_then(|loader| loader.library_path.as_ref());
        match given {
            Some(given) => Self {
                library_path: folders(given.as_bytes()),
                cache: OnceCell::new(),
            },
            None => Self::new(),
        }
    }

    /// Returns the paths of a library in the loader's cache, as `ldconfig -p` prints it. There are none if `ldconfig`
    /// cannot be run.
    fn cached(&self, name: &str) -> impl Iterator<Item = PathBuf> {
        let cache = self.cache.get_or_init(|| {
            ["/sbin/ldconfig", "/usr/sbin/ldconfig", "ldconfig"]
                .iter()
                .find_map(|command| Command::new(command).arg("-p").output().ok())
                .map(|output| parse_cache(&String::from_utf8_lossy(&output.stdout)))
                .unwrap_or_default()
        });
        cache.get(name).into_iter().flatten().cloned()
    }

    /// Finds the libraries that the program needs, directly and indirectly. Libraries that are not found are listed in
    /// [`Closure::missing`].
    pub(crate) fn closure(&self, program: &Program) -> Closure {
        let mut closure = Closure::default();
        closure.loaded.push(Loaded {
            name: program.file_name().to_owned(),
            path: program.path().to_owned(),
            elf: program.elf.clone(),
        });
        let mut seen = HashSet::new();
        let mut waiting: VecDeque<(String, usize)> = VecDeque::new();
        waiting.extend(program.elf.needed.iter().map(|name| (name.clone(), 0)));
        while let Some((name, by)) = waiting.pop_front() {
            if !seen.insert(name.clone()) {
                continue;
            }
            let (executable, asking) = (&closure.loaded[0], &closure.loaded[by]);
            match self.resolve(&name, asking, executable) {
                Some((path, elf)) => {
                    let index = closure.loaded.len();
                    waiting.extend(elf.needed.iter().map(|needed| (needed.clone(), index)));
                    closure.loaded.push(Loaded { name, path, elf });
                }
                None => closure.missing.push((name, asking.name.clone())),
            }
        }
        closure
    }

    /// Returns the library that a module would get if it opened `name` with `dlopen`, provided that the module has no
    /// RUNPATH. `like` is a file whose architecture the library must have.
    pub(crate) fn by_name(&self, name: &str, like: &Elf) -> Option<PathBuf> {
        self.library_path
            .iter()
            .map(|folder| folder.join(name))
            .chain(self.cached(name))
            .chain(
                system_folders(like)
                    .into_iter()
                    .map(|folder| folder.join(name)),
            )
            .find(|path| fits(path, like))
    }

    /// Returns the path of the library `name` in the folder of the dynamic linker that `like` requests. Returns
    /// `None` if the file does not exist or has another architecture than `like`.
    pub(crate) fn beside_loader(&self, name: &str, like: &Elf) -> Option<PathBuf> {
        let path = loader_folder(like)?.join(name);
        fits(&path, like).then_some(path)
    }

    /// Returns the paths at which the loader may find the library `name` for the program, or for a library that is
    /// preloaded into the program. These are the paths in the folders that the program (RPATH, RUNPATH) or
    /// `LD_LIBRARY_PATH` names, and the path that [`Search::by_name`] returns. Only files of the program's architecture
    /// count.
    pub(crate) fn find_candidates(
        &self,
        name: &str,
        program: &Program,
    ) -> impl Iterator<Item = PathBuf> {
        let elf = &program.elf;
        let mut folders = run_path(elf.rpath.as_deref(), program.path());
        folders.extend(run_path(elf.runpath.as_deref(), program.path()));
        folders.extend(self.library_path.iter().cloned());
        let own = folders.into_iter().map(move |folder| folder.join(name));
        own.chain(std::iter::once_with(move || self.by_name(name, elf)).flatten())
            .filter(move |path| fits(path, elf))
    }

    fn resolve(&self, name: &str, asking: &Loaded, executable: &Loaded) -> Option<(PathBuf, Elf)> {
        let fits = |path: PathBuf| {
            let elf = Elf::read(&path).ok()?;
            elf.same_architecture(&executable.elf)
                .then_some((path, elf))
        };
        if name.contains('/') {
            return fits(PathBuf::from(name));
        }
        // RPATH is the older form of RUNPATH. An RPATH has priority over `LD_LIBRARY_PATH`, but is ignored if the file
        // also has a RUNPATH.
        let rpath = if asking.elf.runpath.is_some() {
            Vec::new()
        } else {
            let mut folders = run_path(asking.elf.rpath.as_deref(), &asking.path);
            folders.extend(run_path(executable.elf.rpath.as_deref(), &executable.path));
            folders
        };
        let runpath = run_path(asking.elf.runpath.as_deref(), &asking.path);
        rpath
            .into_iter()
            .chain(self.library_path.iter().cloned())
            .chain(runpath)
            .map(|folder| folder.join(name))
            .chain(self.cached(name))
            .chain(
                system_folders(&executable.elf)
                    .into_iter()
                    .map(|folder| folder.join(name)),
            )
            .find_map(fits)
    }
}

fn fits(path: &Path, like: &Elf) -> bool {
    Elf::read(path).is_ok_and(|elf| elf.same_architecture(like))
}

fn loader_folder(elf: &Elf) -> Option<PathBuf> {
    let loader = Path::new(elf.interpreter.as_ref()?).canonicalize().ok()?;
    loader.parent().map(Path::to_owned)
}

/// Returns the folders in which the loader always searches. They include the loader's own folder, because a toolchain
/// outside the system's folders keeps its C library in the same folder as its loader.
fn system_folders(elf: &Elf) -> Vec<PathBuf> {
    let mut folders = Vec::from_iter(loader_folder(elf));
    // Debian is merging `/lib` into `/usr/lib`, so the loader's folder is also searched below `/usr`.
    folders.extend(
        folders
            .first()
            .map(|beside| Path::new("/usr").join(beside.strip_prefix("/").unwrap_or(beside))),
    );
    let names = if elf.is_64 {
        ["/lib64", "/usr/lib64"]
    } else {
        ["/lib32", "/usr/lib32"]
    };
    folders.extend(
        names
            .into_iter()
            .chain(["/lib", "/usr/lib"])
            .map(PathBuf::from),
    );
    folders
}

fn folders(list: &[u8]) -> Vec<PathBuf> {
    if list.is_empty() {
        return Vec::new();
    }
    list.split(|b| b":;".contains(b))
        .map(|folder| if folder.is_empty() { b"." } else { folder })
        .map(|folder| PathBuf::from(OsStr::from_bytes(folder)))
        .collect()
}

/// Returns the folders of an RPATH or RUNPATH of the file `of`, with tokens such as `$ORIGIN` replaced.
fn run_path(list: Option<&str>, of: &Path) -> Vec<PathBuf> {
    let Some(list) = list else {
        return Vec::new();
    };
    let origin = of
        .canonicalize()
        .ok()
        .and_then(|path| path.parent().map(Path::to_owned));
    let origin = origin.unwrap_or_default().display().to_string();
    list.split(':')
        .filter(|folder| !folder.is_empty())
        .flat_map(|folder| {
            let folder = folder
                .replace("${ORIGIN}", &origin)
                .replace("$ORIGIN", &origin);
            // The loader's token `$LIB` stands for different folders in different distributions, so all its usual
            // values are tried.
            [
                "lib",
                "lib64",
                "lib/x86_64-linux-gnu",
                "lib/aarch64-linux-gnu",
            ]
            .map(|lib| folder.replace("${LIB}", lib).replace("$LIB", lib))
        })
        .map(PathBuf::from)
        .fold(Vec::new(), |mut all, folder| {
            if !all.contains(&folder) {
                all.push(folder);
            }
            all
        })
}

/// Parses the output of `ldconfig -p`, with lines such as `libm.so.6 (libc6,x86-64) =>
/// /lib/x86_64-linux-gnu/libm.so.6`.
fn parse_cache(text: &str) -> HashMap<String, Vec<PathBuf>> {
    let mut cache: HashMap<String, Vec<PathBuf>> = HashMap::new();
    for line in text.lines() {
        if let Some((name, path)) = line.split_once(" => ")
            && let Some((name, _)) = name.trim().split_once(' ')
        {
            cache
                .entry(name.to_owned())
                .or_default()
                .push(PathBuf::from(path));
        }
    }
    cache
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_is_read() {
        let cache = parse_cache(
            "2 libs found in cache `/etc/ld.so.cache'\n\
             \tlibm.so.6 (libc6,x86-64, OS ABI: Linux 3.2.0) => /lib/libm.so.6\n\
             \tlibm.so.6 (libc6) => /lib32/libm.so.6\n\
             Cache generated by: ldconfig\n",
        );
        assert_eq!(cache.len(), 1);
        assert_eq!(
            cache["libm.so.6"],
            [Path::new("/lib/libm.so.6"), Path::new("/lib32/libm.so.6")]
        );
    }

    #[test]
    fn tokens_are_filled_in() {
        assert_eq!(
            run_path(
                Some("$ORIGIN/../x:/y:${ORIGIN}"),
                Path::new("/bin/nothing-there")
            ),
            ["/../x", "/y", ""].map(PathBuf::from)
        );
        assert_eq!(run_path(Some("/a/$LIB"), Path::new("/x")).len(), 4);
        assert!(run_path(None, Path::new("/x")).is_empty());
    }

    #[test]
    fn a_list_of_folders() {
        assert_eq!(folders(b"/a:/b;/c"), ["/a", "/b", "/c"].map(PathBuf::from));
        assert_eq!(folders(b"/a:"), ["/a", "."].map(PathBuf::from));
        assert!(folders(b"").is_empty());
    }
}
