//! NVTX's interface to a tool: types from `nvToolsExt.h`, `nvtxDetail/nvtxTypes.h` and `nvtxExtTypes.h` of NVTX 3,
//! which kept the layouts of version 2.

use core::ffi::{c_char, c_int, c_uint, c_void};
use core::sync::atomic::AtomicPtr;

/// The type `wchar_t` on Linux.
pub(crate) type Wide = u32;
/// A handle of a domain or a string. Only the component that issued a handle may use it as an address; for all other
/// components it is only a number. 0 means none, or the default domain.
pub(super) type Handle = usize;
pub(super) type RangeId = u64;
pub(super) type FunctionPointer = *mut c_void;
pub type GetExportTable = unsafe extern "C-unwind" fn(u32) -> *const c_void;
pub(crate) type Initialize = unsafe extern "C-unwind" fn(GetExportTable) -> c_int;
pub(crate) type InitializeExtension = unsafe extern "C-unwind" fn(*mut c_void) -> c_int;

/// The first fields of the C structure `nvtxExtModuleInfo_t`, up to the last field that this library uses.
#[repr(C)]
pub(crate) struct Extension {
    version: u16,
    struct_size: u16,
    number: u16,
    compatibility: u16,
    segment_count: usize,
    segments: *const Segment,
}

/// The C structure `nvtxExtModuleSegment_t`.
#[repr(C)]
struct Segment {
    number: usize,
    slot_count: usize,
    slots: *const isize,
}

/// Returns the address of the first function table of the extension, or 0 if it has none. The table lies in the module
/// (executable or library) that uses the extension, so the module can be found by this address.
pub(crate) unsafe fn part_of(extension: *const Extension) -> usize {
    // SAFETY: the pointer is null or points to NVTX's description, which has as many segments as it states.
    let slots = unsafe {
        let extension = extension.as_ref();
        let segment = extension
            .filter(|extension| extension.segment_count > 0)
            .and_then(|extension| extension.segments.as_ref());
        segment.map(|segment| segment.slots)
    };
    slots.map_or(0, <*const isize>::addr)
}

/// Value of `NVTX_NO_PUSH_POP_TRACKING`, the result of push and pop if no tool tracks them.
pub(crate) const NO_TRACKING: c_int = -2;

const CALLBACKS_TABLE: u32 = 1;

#[repr(C)]
struct Callbacks {
    struct_size: usize,
    get_module_function_table: Option<
        unsafe extern "C-unwind" fn(u32, *mut *mut *mut FunctionPointer, *mut c_uint) -> c_int,
    >,
}

/// The word in which a module that uses NVTX keeps the address of one of its NVTX functions. A tool (a profiler) may
/// replace the address.
pub(crate) type FunctionSlot<'a> = &'a AtomicPtr<c_void>;

/// The function pointers of one NVTX kind (such as `CORE`) in one module that uses NVTX.
pub(super) struct FunctionTable<'a> {
    places: &'a [Option<FunctionSlot<'a>>],
}

impl<'a> FunctionTable<'a> {
    /// Returns the table of this `kind` that a module offers its tool, or `None` if the module has no such table.
    ///
    /// # Safety
    /// `export` is the function that the module passed its tool for initialisation. During `'a` the module waits for
    /// the initialisation and is not unloaded.
    pub(crate) unsafe fn offered_by(export: GetExportTable, kind: u32) -> Option<Self> {
        // SAFETY: the pointers are NVTX's callbacks, which the module keeps for `'a`. A table has the length that it
        // states, and holds aligned pointers or nulls.
        unsafe {
            let callbacks = export(CALLBACKS_TABLE).cast::<Callbacks>().as_ref()?;
            if callbacks.struct_size < size_of::<Callbacks>() {
                return None;
            }
            let (mut places, mut size) = (core::ptr::null_mut(), 0);
            let given =
                (callbacks.get_module_function_table?)(kind, &raw mut places, &raw mut size);
            (given != 0 && !places.is_null()).then(|| Self {
                places: core::slice::from_raw_parts(places.cast(), size as usize),
            })
        }
    }

    /// Returns the slots of all functions that the module has.
    pub(crate) fn places(&self) -> impl Iterator<Item = FunctionSlot<'a>> {
        self.places.iter().copied().flatten()
    }

    /// Returns the slot of function number `index`, or `None` if the module does not have this function.
    pub(crate) fn place(&self, index: usize) -> Option<FunctionSlot<'a>> {
        self.places.get(index).copied().flatten()
    }
}

/// Numbers of all table kinds, from `NVTX_CB_MODULE_CORE` to `NVTX_CB_MODULE_SYNC`.
pub(crate) const KINDS: [u32; 6] = [CORE, 2, 3, 4, CORE2, 6];
/// Value of `NVTX_CB_MODULE_CORE`.
pub(crate) const CORE: u32 = 1;
/// Value of `NVTX_CB_MODULE_CORE2`.
pub(crate) const CORE2: u32 = 5;

/// The C structure `nvtxEventAttributes_t`.
#[repr(C)]
pub(crate) struct Attributes {
    version: u16,
    size: u16,
    category: u32,
    color_type: i32,
    color: u32,
    payload_type: i32,
    reserved: i32,
    payload: u64,
    pub message_type: i32,
    pub message: Message,
}

impl Attributes {
    /// Returns the attributes of a range with this message.
    #[cfg(test)]
    pub(crate) fn made(message_type: i32, message: Message) -> Self {
        Self {
            version: 3,
            size: size_of::<Self>() as u16,
            category: 0,
            color_type: 0,
            color: 0,
            payload_type: 0,
            reserved: 0,
            payload: 0,
            message_type,
            message,
        }
    }

    /// Returns these attributes with a smaller size, like those of an NVTX version with fewer members.
    #[cfg(test)]
    pub(crate) fn cut_to(mut self, size: u16) -> Self {
        self.size = size;
        self
    }

    /// Returns true if the structure is large enough to contain a message. Older versions of NVTX have a smaller one.
    pub(crate) const fn is_whole(&self) -> bool {
        self.size as usize >= size_of::<Self>()
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union Message {
    pub ascii: *const c_char,
    pub wide: *const Wide,
    pub registered: Handle,
}

/// Values of `message_type`: a message is a string of bytes, a string of wide characters, or the handle of a registered
/// string.
pub(crate) const ASCII: i32 = 1;
pub(crate) const UNICODE: i32 = 2;
pub(crate) const REGISTERED: i32 = 3;

const _: () = assert!(size_of::<Attributes>() == 48);
const _: () = assert!(core::mem::offset_of!(Attributes, message) == 40);

/// A simulated module that uses NVTX, as a tool sees it, for tests. Each thread has at most one.
#[cfg(test)]
pub(crate) mod made {
    use core::cell::Cell;
    use core::sync::atomic::Ordering;

    use super::*;

    /// Number of functions in each of the two tables of a simulated module.
    pub(crate) const SIZE: usize = 16;

    pub(crate) struct Module {
        functions: [[AtomicPtr<c_void>; SIZE]; 2],
        tables: [[*const AtomicPtr<c_void>; SIZE]; 2],
        callbacks: Callbacks,
    }

    std::thread_local! {
        static MODULE: Cell<Option<&'static Module>> = const { Cell::new(None) };
    }

    impl Module {
        /// Creates the simulated module of the calling thread. All its function pointers are `own`
        /// at first.
        pub(crate) fn make(own: FunctionPointer) -> &'static Self {
            let functions = core::array::from_fn(|_| core::array::from_fn(|_| AtomicPtr::new(own)));
            let module = Box::leak(Box::new(Self {
                functions,
                tables: [[core::ptr::null(); SIZE]; 2],
                callbacks: Callbacks {
                    struct_size: size_of::<Callbacks>(),
                    get_module_function_table: Some(table),
                },
            }));
            for (table, functions) in module.tables.iter_mut().zip(&module.functions) {
                for (place, function) in table.iter_mut().zip(functions).skip(1) {
                    *place = function;
                }
            }
            let module: &'static Self = module;
            MODULE.set(Some(module));
            module
        }

        /// Creates a simulated module of another NVTX version for the calling thread. Its callbacks structure is
        /// `smaller` bytes smaller than this version's. The function that returns tables is missing if `has_table` is
        /// false.
        pub(crate) fn lacking(smaller: usize, has_table: bool) {
            let module = Self::make(core::ptr::null_mut());
            let mut made = Self {
                functions: [const { [const { AtomicPtr::new(core::ptr::null_mut()) }; SIZE] }; 2],
                tables: module.tables,
                callbacks: Callbacks {
                    struct_size: size_of::<Callbacks>() - smaller,
                    get_module_function_table: None,
                },
            };
            if has_table {
                made.callbacks.get_module_function_table = Some(table);
            }
            MODULE.set(Some(Box::leak(Box::new(made))));
        }

        /// Returns the current value of function pointer `index` in the table of this kind.
        pub(crate) fn now(&self, kind: u32, index: usize) -> FunctionPointer {
            self.functions[usize::from(kind == CORE2)][index].load(Ordering::Relaxed)
        }
    }

    /// Returns a module extension that has no functions.
    pub(crate) fn extension_of_nothing() -> *mut c_void {
        let extension = Extension {
            version: 3,
            struct_size: size_of::<Extension>() as u16,
            number: 2,
            compatibility: 0x100,
            segment_count: 0,
            segments: core::ptr::null(),
        };
        core::ptr::from_mut(Box::leak(Box::new(extension))).cast()
    }

    /// Returns the structure number `number` that the calling thread's simulated module offers its tool, or null if
    /// there is no such structure.
    pub(crate) unsafe extern "C-unwind" fn export(number: u32) -> *const c_void {
        match MODULE.get() {
            Some(module) if number == CALLBACKS_TABLE => {
                core::ptr::from_ref(&module.callbacks).cast()
            }
            _ => core::ptr::null(),
        }
    }

    unsafe extern "C-unwind" fn table(
        kind: u32,
        places: *mut *mut *mut FunctionPointer,
        size: *mut c_uint,
    ) -> c_int {
        let index = match kind {
            CORE => 0,
            CORE2 => 1,
            _ => return 0,
        };
        let Some(module) = MODULE.get() else { return 0 };
        // SAFETY: the tool passes valid addresses for both results.
        unsafe {
            places.write(module.tables[index].as_ptr().cast_mut().cast());
            size.write(SIZE as c_uint);
        }
        1
    }
}

#[cfg(test)]
mod tests {
    use core::ptr::without_provenance_mut;
    use core::sync::atomic::Ordering;

    use super::made::{Module, SIZE, export};
    use super::*;

    #[test]
    fn a_modules_tables_are_as_long_as_it_says() {
        let own = without_provenance_mut(0x1000);
        let module = Module::make(own);
        // SAFETY: the simulated module is never freed.
        let of = |kind| unsafe { FunctionTable::offered_by(export, kind) };
        assert!(
            KINDS
                .iter()
                .all(|&kind| of(kind).is_some() == [CORE, CORE2].contains(&kind))
        );
        let table = of(CORE2).unwrap();
        assert_eq!(table.places().count(), SIZE - 1, "one is null");
        assert!(table.place(0).is_none() && table.place(SIZE).is_none());
        let place = table.place(4).unwrap();
        assert_eq!(place.load(Ordering::Relaxed), own);
        place.store(without_provenance_mut(0x2000), Ordering::Relaxed);
        assert_eq!(module.now(CORE2, 4).addr(), 0x2000);
        assert_eq!(module.now(CORE, 4), own);
    }

    #[test]
    fn a_module_of_another_nvtx_offers_nothing() {
        // SAFETY: the simulated modules are never freed.
        let of = || unsafe { FunctionTable::offered_by(export, CORE) };
        Module::lacking(8, true);
        assert!(of().is_none(), "its callbacks are too short");
        Module::lacking(0, false);
        assert!(of().is_none(), "it has no tables");
        Module::lacking(0, true);
        assert!(of().is_some());
        unsafe extern "C-unwind" fn nothing(_: u32) -> *const c_void {
            core::ptr::null()
        }
        // SAFETY: `nothing` offers no callbacks, so none are read.
        assert!(unsafe { FunctionTable::offered_by(nothing, CORE) }.is_none());
    }
}
