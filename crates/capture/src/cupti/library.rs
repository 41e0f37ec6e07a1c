//! Finds and loads the CUPTI library. A process uses only one CUPTI library, and never unloads it.

use core::ffi::{CStr, c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use tllmprof_cupti::{NEWEST, OLDEST, find, folders, names};
use tllmprof_platform::lifecycle;

use super::refusal::KernelsRefusal;
use tllmprof_platform::{elf, function};

pub(crate) type CuptiResult = c_int;
/// An activity kind (`CUpti_ActivityKind`), that is, a type of GPU work that CUPTI records, such as kernels.
pub(crate) type ActivityKind = c_int;
pub(crate) type Subscriber = *mut c_void;
pub(crate) type OnCallback = extern "C" fn(*mut c_void, c_int, u32, *const c_void);
pub(crate) type BufferRequested = extern "C" fn(*mut *mut u8, *mut usize, *mut usize);
pub(crate) type BufferCompleted = extern "C" fn(*mut c_void, u32, *mut u8, usize, usize);

/// Type of the function `cuptiGetGraphExecId`. It returns the number by which CUPTI's records refer to an executable
/// graph.
pub(crate) type GraphExecId = unsafe extern "C" fn(*mut c_void, *mut u32) -> CuptiResult;

/// Value of `CUPTI_API_VERSION` in CUDA 12.0; in 11.8 it is 18 (`cupti_version.h`).
const API_OF_12: u32 = 19;
const PREFIX: &[u8] = b"libcupti.so.";

macro_rules! functions {
    ($($field:ident: fn($($arg:ty),*) = $name:literal;)*) => {
        /// The loaded CUPTI library: its path, its API version, and the functions that are used.
        pub(crate) struct Cupti {
            pub path: String,
            pub version: u32,
            /// The function `cuptiGetGraphExecId`, which exists since CUDA 12.
            pub graph_exec_id: Option<GraphExecId>,
            $(pub $field: unsafe extern "C" fn($($arg),*) -> CuptiResult,)*
        }

        impl Cupti {
            fn from_module(module: &elf::ElfModule) -> Result<Self, KernelsRefusal> {
                let path = module.path().to_string_lossy().into_owned();
                Ok(Self {
                    version: 0,
                    graph_exec_id: {
                        let address = module.defines(c"cuptiGetGraphExecId", None);
                        // SAFETY: CUPTI's header declares the function with this type.
                        address.and_then(|address| unsafe { function::at(address) })
                    },
                    $($field: {
                        let name: &CStr = $name;
                        let Some(address) = module.defines(name, None) else {
                            let function = name.to_str().unwrap_or_default();
                            return Err(KernelsRefusal::Lacks { path, function });
                        };
                        type Function = unsafe extern "C" fn($($arg),*) -> CuptiResult;
                        // SAFETY: CUPTI's headers declare the function with these types.
                        unsafe { core::mem::transmute::<*mut c_void, Function>(address) }
                    },)*
                    path,
                })
            }
        }
    };
}

functions! {
    get_version: fn(*mut u32) = c"cuptiGetVersion";
    get_timestamp: fn(*mut u64) = c"cuptiGetTimestamp";
    subscribe: fn(*mut Subscriber, OnCallback, *mut c_void) = c"cuptiSubscribe";
    unsubscribe: fn(Subscriber) = c"cuptiUnsubscribe";
    register_callbacks: fn(BufferRequested, BufferCompleted) = c"cuptiActivityRegisterCallbacks";
    enable: fn(ActivityKind) = c"cuptiActivityEnable";
    disable: fn(ActivityKind) = c"cuptiActivityDisable";
    flush_all: fn(u32) = c"cuptiActivityFlushAll";
    next_record: fn(*mut u8, usize, *mut *mut u8) = c"cuptiActivityGetNextRecord";
    dropped_records: fn(*mut c_void, u32, *mut usize) = c"cuptiActivityGetNumDroppedRecords";
    finalize: fn() = c"cuptiFinalize";
}

lifecycle::global! {
    #[fork(keep = "the child has CUPTI loaded, too")]
    static LOADED: AtomicPtr<Cupti> = AtomicPtr::new(core::ptr::null_mut());
}

impl Cupti {
    /// Returns the CUPTI that [`Cupti::load`] has loaded; `None` if none is loaded.
    pub(crate) fn get() -> Option<&'static Self> {
        // SAFETY: the pointer is null or a value that `load` has leaked, which is never changed or freed.
        unsafe { LOADED.load(Ordering::Acquire).as_ref() }
    }

    /// Finds or loads the process's CUPTI. If the process has already loaded a CUPTI, for example through PyTorch, that
    /// CUPTI is used. Otherwise the newest CUPTI that the driver supports is loaded. `driver` is the driver's version,
    /// such as 12040 for CUDA 12.4. Runs on the worker thread, because loading runs constructors, which may hang.
    pub(crate) fn load(driver: c_int) -> Result<&'static Self, KernelsRefusal> {
        if let Some(known) = Self::get() {
            return Ok(known);
        }
        let newest = u32::try_from(driver / 1000)
            .unwrap_or(0)
            .clamp(OLDEST, NEWEST);
        let path = match mapped(newest) {
            // Opening the library again keeps the program from unloading it while tllmprof uses it.
            Some(path) => open(&path, libc::RTLD_NOLOAD).map(|()| path)?,
            None => open_newest(newest)?,
        };
        let mut found = Err(KernelsRefusal::NotFound { newest });
        elf::walk(|module| {
            let is_it =
                is_cupti(module) && (module.path() == path.as_c_str() || is_named(module, &path));
            if is_it {
                found = Self::from_module(module);
            }
            is_it
        });
        let mut cupti = found?;
        // SAFETY: CUPTI writes the version to this field.
        unsafe { (cupti.get_version)(&raw mut cupti.version) };
        if cupti.version < API_OF_12 {
            let Self { path, version, .. } = cupti;
            return Err(KernelsRefusal::TooOld { path, version });
        }
        let cupti: &'static Self = Box::leak(Box::new(cupti));
        LOADED.store(core::ptr::from_ref(cupti).cast_mut(), Ordering::Release);
        Ok(cupti)
    }
}

fn is_cupti(module: &elf::ElfModule) -> bool {
    module
        .soname()
        .is_some_and(|soname| soname.to_bytes().starts_with(PREFIX))
}

/// Returns true if `name` contains no path and is the soname of the module. If such a name is passed to `dlopen`, the
/// loader searches its folders for the file.
fn is_named(module: &elf::ElfModule, name: &CStr) -> bool {
    !name.to_bytes().contains(&b'/') && module.soname() == Some(name)
}

/// Returns the path of the newest loaded CUPTI that the driver supports. If the driver supports none of the loaded
/// CUPTI libraries, returns the path of any of them. Returns `None` if none is loaded.
fn mapped(newest: u32) -> Option<CString> {
    let mut best: Option<(u32, CString)> = None;
    elf::walk(|module| {
        if is_cupti(module) {
            let soname = module.soname().map(CStr::to_bytes).unwrap_or_default();
            let digits = soname[PREFIX.len()..].split(|byte| *byte == b'.').next();
            let major = digits
                .and_then(|digits| core::str::from_utf8(digits).ok()?.parse().ok())
                .filter(|major| *major <= newest)
                .unwrap_or(0);
            if best.as_ref().is_none_or(|(known, _)| *known < major) {
                best = Some((major, module.path().to_owned()));
            }
        }
        false
    });
    best.map(|(_, path)| path)
}

fn open_newest(newest: u32) -> Result<CString, KernelsRefusal> {
    let mut runtimes = Vec::new();
    elf::walk(|module| {
        if module.file_name().starts_with(b"libcudart") {
            let path = Path::new(OsStr::from_bytes(module.path().to_bytes()));
            runtimes.extend(path.parent().map(PathBuf::from));
        }
        false
    });
    let library_path = std::env::var_os("LD_LIBRARY_PATH");
    let folders = folders(library_path.as_deref(), &runtimes, Path::new("/usr/local"));
    let in_folders = find(&folders, newest)
        .and_then(|path| CString::new(path.into_os_string().into_encoded_bytes()).ok());
    if let Some(path) = in_folders {
        return open(&path, 0).map(|()| real(path));
    }
    names(newest)
        .filter_map(|name| CString::new(name).ok())
        .find(|name| open(name, 0).is_ok())
        .ok_or(KernelsRefusal::NotFound { newest })
}

/// Returns the path by which the loader lists the library. `path` is the path by which it was opened.
fn real(path: CString) -> CString {
    let mut found = None;
    elf::walk(|module| {
        let is_it = is_cupti(module) && module.path() == path.as_c_str();
        if is_it {
            found = Some(module.path().to_owned());
        }
        is_it
    });
    // If the library was already loaded under another name, the loader lists it under that name only.
    found.or_else(|| mapped(NEWEST)).unwrap_or(path)
}

/// Loads the library. With [`libc::RTLD_NOLOAD`], it loads nothing, but keeps a loaded library from being unloaded.
fn open(path: &CStr, flags: c_int) -> Result<(), KernelsRefusal> {
    let path = OsStr::from_bytes(path.to_bytes());
    // SAFETY: opening runs CUPTI's constructors. They run on the worker thread, so that no thread of the program hangs
    // if a constructor hangs.
    let opened = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL | flags) };
    match opened {
        // The library is never closed, because its functions are used as long as the process lives.
        Ok(library) => core::mem::forget(library),
        Err(libloading::Error::DlOpenUnknown) => {
            return Err(KernelsRefusal::NotLoaded("no reason was given".to_owned()));
        }
        Err(why) => return Err(KernelsRefusal::NotLoaded(why.to_string())),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_not_loaded() {
        for flags in [0, libc::RTLD_NOLOAD] {
            let refusal = open(c"/nowhere/libcupti.so.12", flags);
            assert!(
                matches!(refusal, Err(KernelsRefusal::NotLoaded(_))),
                "{refusal:?}"
            );
        }
        let path = || CString::new("/nowhere/libcupti.so.12").unwrap();
        assert_eq!(real(path()), path());
    }
}

/// A stand-in for CUPTI, for tests. It implements the functions of CUPTI without a driver or a GPU.
#[cfg(test)]
pub(crate) mod made {
    use std::collections::BTreeSet;
    use std::sync::Mutex;

    use super::*;

    /// Size of one record of the stand-in for CUPTI, in bytes.
    pub(crate) const RECORD: usize = 128;

    /// The activity kinds (types of GPU work) that are enabled in the stand-in for CUPTI.
    pub(crate) static ENABLED: Mutex<BTreeSet<ActivityKind>> = Mutex::new(BTreeSet::new());
    /// Number of times that the stand-in for CUPTI was asked to flush.
    pub(crate) static FLUSHES: Mutex<u32> = Mutex::new(0);
    /// Number of records that the stand-in for CUPTI reports as dropped.
    pub(crate) static DROPPED: Mutex<usize> = Mutex::new(0);

    /// # Safety
    /// `version` must be valid for writing.
    unsafe extern "C" fn get_version(version: *mut u32) -> CuptiResult {
        // SAFETY: the caller guarantees that `version` is valid for writing.
        unsafe { *version = API_OF_12 };
        0
    }

    extern "C" fn get_timestamp(_: *mut u64) -> CuptiResult {
        1
    }

    extern "C" fn subscribe(_: *mut Subscriber, _: OnCallback, _: *mut c_void) -> CuptiResult {
        0
    }

    extern "C" fn unsubscribe(_: Subscriber) -> CuptiResult {
        0
    }

    extern "C" fn register(_: BufferRequested, _: BufferCompleted) -> CuptiResult {
        0
    }

    extern "C" fn enable(kind: ActivityKind) -> CuptiResult {
        ENABLED.lock().unwrap().insert(kind);
        0
    }

    extern "C" fn disable(kind: ActivityKind) -> CuptiResult {
        i32::from(!ENABLED.lock().unwrap().remove(&kind))
    }

    extern "C" fn flush_all(_: u32) -> CuptiResult {
        *FLUSHES.lock().unwrap() += 1;
        0
    }

    /// # Safety
    /// `buffer` must contain `valid` bytes of records. `record` must point to a null pointer, or to the pointer that
    /// the last call for the same buffer wrote there.
    unsafe extern "C" fn next_record(
        buffer: *mut u8,
        valid: usize,
        record: *mut *mut u8,
    ) -> CuptiResult {
        // SAFETY: `record` is valid for reading: it contains null or the result of the last call.
        let last = unsafe { *record };
        let at = match last.addr() {
            0 => 0,
            last => last - buffer.addr() + RECORD,
        };
        if at + RECORD > valid {
            return 12;
        }
        // SAFETY: `record` is valid for writing, and the new record ends within the `valid` bytes of the buffer.
        unsafe { *record = buffer.add(at) };
        0
    }

    /// # Safety
    /// `dropped` must be valid for writing.
    unsafe extern "C" fn dropped_records(
        _: *mut c_void,
        _: u32,
        dropped: *mut usize,
    ) -> CuptiResult {
        let now = core::mem::take(&mut *DROPPED.lock().unwrap());
        // SAFETY: the caller guarantees that `dropped` is valid for writing.
        unsafe { *dropped = now };
        0
    }

    extern "C" fn finalize() -> CuptiResult {
        0
    }

    /// Makes the stand-in the CUPTI library that this test process uses.
    pub(crate) fn load() {
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| {
            let cupti = Box::leak(Box::new(Cupti {
                path: "made".to_owned(),
                version: API_OF_12,
                graph_exec_id: None,
                get_version,
                get_timestamp,
                subscribe,
                unsubscribe,
                register_callbacks: register,
                enable,
                disable,
                flush_all,
                next_record,
                dropped_records,
                finalize,
            }));
            LOADED.store(cupti, Ordering::Release);
        });
    }
}
