//! NVTX as a tool meets it: `nvToolsExt.h`, `nvtxDetail/nvtxTypes.h` and `nvtxExtTypes.h` of NVTX 3,
//! which kept the layouts of version 2.

use core::ffi::{c_char, c_int, c_uint, c_void};
use core::sync::atomic::AtomicPtr;

/// `wchar_t` on Linux.
pub type Wide = u32;
/// Handles are addresses to whoever gave them out, and numbers to everybody else; 0 is none, or
/// the default domain.
pub type Handle = usize;
pub type RangeId = u64;
pub type Function = *mut c_void;
pub type GetExportTable = unsafe extern "C-unwind" fn(u32) -> *const c_void;
pub type Initialize = unsafe extern "C-unwind" fn(GetExportTable) -> c_int;
pub type InitializeExtension = unsafe extern "C-unwind" fn(*mut c_void) -> c_int;

/// What push and pop return where nobody tracks them: `NVTX_NO_PUSH_POP_TRACKING`.
pub const NO_TRACKING: c_int = -2;

const CALLBACKS: u32 = 1;

#[repr(C)]
struct Callbacks {
    struct_size: usize,
    get_module_function_table:
        Option<unsafe extern "C-unwind" fn(u32, *mut *mut *mut Function, *mut c_uint) -> c_int>,
}

/// Where a module keeps the address of one of its functions, for its tool to replace.
pub type Place<'a> = &'a AtomicPtr<c_void>;

/// The places of one module's functions of one kind.
pub struct Table<'a> {
    places: &'a [Option<Place<'a>>],
}

impl<'a> Table<'a> {
    /// The table of `kind` that a module offers its tool.
    ///
    /// # Safety
    /// `export` is what the module gave its tool to initialise with; the module waits for that, and
    /// is not unloaded, for `'a`.
    pub unsafe fn of(export: GetExportTable, kind: u32) -> Option<Self> {
        // SAFETY: NVTX's own callbacks, which the module keeps for `'a`; a table is as long as it says
        // itself, of aligned places or nulls.
        unsafe {
            let callbacks = export(CALLBACKS).cast::<Callbacks>().as_ref()?;
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

    /// The places of the functions that the module has.
    pub fn places(&self) -> impl Iterator<Item = Place<'a>> {
        self.places.iter().copied().flatten()
    }

    /// The place of function number `index`, if the module has that one.
    pub fn place(&self, index: usize) -> Option<Place<'a>> {
        self.places.get(index).copied().flatten()
    }
}

/// All kinds of tables, from `NVTX_CB_MODULE_CORE` to `NVTX_CB_MODULE_SYNC`.
pub const KINDS: [u32; 6] = [CORE, 2, 3, 4, CORE2, 6];
/// `NVTX_CB_MODULE_CORE`.
pub const CORE: u32 = 1;
/// `NVTX_CB_MODULE_CORE2`.
pub const CORE2: u32 = 5;

/// `nvtxEventAttributes_t`.
#[repr(C)]
pub struct Attributes {
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
    /// Whether there is a message in it.
    pub const fn is_whole(&self) -> bool {
        self.size as usize >= size_of::<Self>()
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union Message {
    pub ascii: *const c_char,
    pub wide: *const Wide,
    pub registered: Handle,
}

/// The kinds of messages.
pub const ASCII: i32 = 1;
pub const UNICODE: i32 = 2;
pub const REGISTERED: i32 = 3;

const _: () = assert!(size_of::<Attributes>() == 48);
const _: () = assert!(core::mem::offset_of!(Attributes, message) == 40);
