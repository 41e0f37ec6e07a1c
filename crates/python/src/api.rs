//! The part of CPython's C API that is used, found in the interpreter's own symbol table.
//!
//! No header and no link to libpython: the functions below have kept their types from 3.8 to 3.15.
//! Where one has had two names, both are asked for.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::NonNull;

use tllmprof_platform::elf::Module;

/// A `PyObject *`, borrowed or owned as the function says.
pub type Raw = *mut c_void;
/// A `PyThreadState *`.
pub type ThreadState = *mut c_void;
/// What the interpreter calls on its main thread between two steps of its code.
pub type PendingCall = unsafe extern "C" fn(*mut c_void) -> c_int;
/// What the interpreter calls at each audited event.
pub type AuditHook = unsafe extern "C" fn(*const c_char, Raw, *mut c_void) -> c_int;
/// A C function that Python calls, in whichever of the conventions its flags say.
pub type Method = unsafe extern "C" fn(Raw, Raw) -> Raw;

/// `METH_VARARGS`: the second argument is a tuple.
pub const VARARGS: c_int = 0x1;
/// `METH_NOARGS`.
pub const NOARGS: c_int = 0x4;
/// `METH_O`: the second argument is the one that there is.
pub const ONE: c_int = 0x8;
/// `METH_FASTCALL`: the second argument is an array, and a third one its length.
pub const FASTCALL: c_int = 0x80;

/// A C function that Python calls with [`FASTCALL`].
pub type FastMethod = unsafe extern "C" fn(Raw, *const Raw, isize) -> Raw;
/// A `_PyFrameEvalFunction` with the arguments that it has from 3.9 on.
pub type Evaluate = unsafe extern "C-unwind" fn(ThreadState, Raw, c_int) -> Raw;

/// `PyMethodDef`.
#[repr(C)]
pub struct MethodDef {
    pub name: *const c_char,
    pub method: Method,
    pub flags: c_int,
    pub doc: *const c_char,
}

// SAFETY: the pointers are to constants.
unsafe impl Sync for MethodDef {}

impl MethodDef {
    pub const fn new(name: &'static CStr, method: Method, flags: c_int) -> Self {
        Self {
            name: name.as_ptr(),
            method,
            flags,
            doc: core::ptr::null(),
        }
    }

    /// One that takes its arguments as an array.
    pub const fn fast(name: &'static CStr, method: FastMethod) -> Self {
        // SAFETY: a function that is called as its flags say, whatever type it is kept as.
        let method = unsafe { core::mem::transmute::<FastMethod, Method>(method) };
        Self::new(name, method, FASTCALL)
    }
}

macro_rules! functions {
    (
        required { $($field:ident: fn($($arg:ty),*) $(-> $result:ty)? = $($name:literal)|+;)* }
        optional { $($maybe:ident: fn($($maybe_arg:ty),*) $(-> $maybe_result:ty)? = $($maybe_name:literal)|+;)* }
    ) => {
        /// The functions of one interpreter library or executable.
        pub struct Api {
            $(pub $field: unsafe extern "C" fn($($arg),*) $(-> $result)?,)*
            $(pub $maybe: Option<unsafe extern "C" fn($($maybe_arg),*) $(-> $maybe_result)?>,)*
            /// `_PyEval_EvalFrameDefault`; with two arguments in 3.8.
            pub evaluate: Option<NonNull<c_void>>,
            /// `Py_None`, borrowed.
            pub none: Raw,
            /// `PyCode_Type`, borrowed.
            pub code_type: Raw,
            pub types: Types,
            /// The minor version: 12 for 3.12.
            pub minor: u32,
        }

        impl Api {
            /// What `module` defines; none if it is no CPython from 3.8 on.
            pub fn find(module: &Module) -> Option<Self> {
                let find = |names: &[&CStr]| names.iter().find_map(|name| module.defines(name, None));
                let mut api = Self {
                    $($field: {
                        let address = find(&[$($name),+])?;
                        type Function = unsafe extern "C" fn($($arg),*) $(-> $result)?;
                        // SAFETY: the types are those of Python's headers for these names.
                        unsafe { core::mem::transmute::<*mut c_void, Function>(address) }
                    },)*
                    $($maybe: find(&[$($maybe_name),+]).map(|address| {
                        type Function = unsafe extern "C" fn($($maybe_arg),*) $(-> $maybe_result)?;
                        // SAFETY: as above.
                        unsafe { core::mem::transmute::<*mut c_void, Function>(address) }
                    }),)*
                    evaluate: find(&[c"_PyEval_EvalFrameDefault"]).and_then(NonNull::new),
                    none: find(&[c"_Py_NoneStruct"])?,
                    code_type: find(&[c"PyCode_Type"])?,
                    types: Types::find(find)?,
                    minor: 0,
                };
                api.minor = api.read_minor()?;
                Some(api)
            }
        }
    };
}

functions! {
    required {
        is_initialized: fn() -> c_int = c"Py_IsInitialized";
        get_version: fn() -> *const c_char = c"Py_GetVersion";
        add_audit_hook: fn(AuditHook, *mut c_void) -> c_int = c"PySys_AddAuditHook";
        sys_object: fn(*const c_char) -> Raw = c"PySys_GetObject";
        import: fn(*const c_char) -> Raw = c"PyImport_ImportModule";
        add_module: fn(*const c_char) -> Raw = c"PyImport_AddModule";
        modules: fn() -> Raw = c"PyImport_GetModuleDict";
        attr: fn(Raw, *const c_char) -> Raw = c"PyObject_GetAttrString";
        is_subtype: fn(Raw, Raw) -> c_int = c"PyType_IsSubtype";
        class_attr: fn(Raw, Raw) -> Raw = c"_PyType_Lookup";
        own_dict: fn(Raw, *mut c_void) -> Raw = c"PyObject_GenericGetDict";
        module_dict: fn(Raw) -> Raw = c"PyModule_GetDict";
        function_code: fn(Raw) -> Raw = c"PyFunction_GetCode";
        call: fn(Raw, Raw) -> Raw = c"PyObject_CallObject";
        is_true: fn(Raw) -> c_int = c"PyObject_IsTrue";
        type_of: fn(Raw) -> Raw = c"PyObject_Type";
        tuple_new: fn(isize) -> Raw = c"PyTuple_New";
        tuple_set: fn(Raw, isize, Raw) -> c_int = c"PyTuple_SetItem";
        tuple_get: fn(Raw, isize) -> Raw = c"PyTuple_GetItem";
        tuple_size: fn(Raw) -> isize = c"PyTuple_Size";
        as_tuple: fn(Raw) -> Raw = c"PySequence_Tuple";
        sequence_get: fn(Raw, isize) -> Raw = c"PySequence_GetItem";
        list_append: fn(Raw, Raw) -> c_int = c"PyList_Append";
        dict_next: fn(Raw, *mut isize, *mut Raw, *mut Raw) -> c_int = c"PyDict_Next";
        dict_new: fn() -> Raw = c"PyDict_New";
        dict_get: fn(Raw, *const c_char) -> Raw = c"PyDict_GetItemString";
        dict_values: fn(Raw) -> Raw = c"PyDict_Values";
        dict_set: fn(Raw, *const c_char, Raw) -> c_int = c"PyDict_SetItemString";
        dict_remove: fn(Raw, *const c_char) -> c_int = c"PyDict_DelItemString";
        long_from: fn(i64) -> Raw = c"PyLong_FromLongLong";
        long_as: fn(Raw) -> i64 = c"PyLong_AsLongLong";
        text_from: fn(*const c_char, isize) -> Raw = c"PyUnicode_FromStringAndSize";
        text_as: fn(Raw, *mut isize) -> *const c_char = c"PyUnicode_AsUTF8AndSize";
        c_function: fn(*const MethodDef, Raw, Raw) -> Raw = c"PyCFunction_NewEx";
        weak_reference: fn(Raw, Raw) -> Raw = c"PyWeakref_NewRef";
        inc_ref: fn(Raw) = c"Py_IncRef";
        dec_ref: fn(Raw) = c"Py_DecRef";
        err_clear: fn() = c"PyErr_Clear";
        err_occurred: fn() -> Raw = c"PyErr_Occurred";
        err_fetch: fn(*mut Raw, *mut Raw, *mut Raw) = c"PyErr_Fetch";
        err_restore: fn(Raw, Raw, Raw) = c"PyErr_Restore";
        save_thread: fn() -> ThreadState = c"PyEval_SaveThread";
        restore_thread: fn(ThreadState) = c"PyEval_RestoreThread";
        gil_ensure: fn() -> c_int = c"PyGILState_Ensure";
        gil_release: fn(c_int) = c"PyGILState_Release";
        own_thread_state: fn() -> ThreadState = c"PyGILState_GetThisThreadState";
        add_pending_call: fn(PendingCall, *mut c_void) -> c_int = c"Py_AddPendingCall";
        compile: fn(*const c_char, *const c_char, c_int) -> Raw = c"Py_CompileString";
        eval_code: fn(Raw, Raw, Raw) -> Raw = c"PyEval_EvalCode";
        builtins: fn() -> Raw = c"PyEval_GetBuiltins";
        interpreter: fn() -> *mut c_void = c"PyInterpreterState_Get" | c"_PyInterpreterState_Get";
        interpreter_id: fn(*mut c_void) -> i64 = c"PyInterpreterState_GetID";
        current_thread_state: fn() -> ThreadState = c"PyThreadState_GetUnchecked" | c"_PyThreadState_UncheckedGet";
    }
    optional {
        is_finalizing: fn() -> c_int = c"Py_IsFinalizing" | c"_Py_IsFinalizing";
        dict_get_new: fn(Raw, *const c_char, *mut Raw) -> c_int = c"PyDict_GetItemStringRef";
        class_attr_new: fn(Raw, Raw) -> Raw = c"_PyType_LookupRef";
        current_frame: fn() -> Raw = c"PyEval_GetFrame";
        frame_variable: fn(Raw, Raw) -> Raw = c"PyFrame_GetVar";
        cell_get: fn(Raw) -> Raw = c"PyCell_Get";
        evaluator: fn(*mut c_void) -> *mut c_void = c"_PyInterpreterState_GetEvalFrameFunc";
        set_evaluator: fn(*mut c_void, *mut c_void) = c"_PyInterpreterState_SetEvalFrameFunc";
    }
}

/// Types of the interpreter's own, borrowed.
pub struct Types {
    pub function: Raw,
    pub method: Raw,
    pub static_method: Raw,
    pub class_method: Raw,
    pub property: Raw,
    pub class: Raw,
}

impl Types {
    fn find(find: impl Fn(&[&CStr]) -> Option<Raw>) -> Option<Self> {
        Some(Self {
            function: find(&[c"PyFunction_Type"])?,
            method: find(&[c"PyMethod_Type"])?,
            static_method: find(&[c"PyStaticMethod_Type"])?,
            class_method: find(&[c"PyClassMethod_Type"])?,
            property: find(&[c"PyProperty_Type"])?,
            class: find(&[c"PyType_Type"])?,
        })
    }
}

impl Api {
    /// From `Py_GetVersion`, which may be called at any time: "3.12.1 (main, …".
    /// The version, as `3.12.1`.
    pub fn version(&self) -> Option<&'static str> {
        // SAFETY: may be called at any time; the text is the interpreter's own.
        let version = unsafe { CStr::from_ptr((self.get_version)()) };
        version.to_str().ok()?.split_whitespace().next()
    }

    fn read_minor(&self) -> Option<u32> {
        // SAFETY: the function takes nothing and returns a static, terminated text.
        let version = unsafe { CStr::from_ptr((self.get_version)()) };
        let version = version.to_str().ok()?.strip_prefix("3.")?;
        let digits = version.find(|c: char| !c.is_ascii_digit())?;
        version[..digits].parse().ok()
    }

    /// Whether the calling thread has the GIL, or may use the interpreter where there is none.
    ///
    /// Not `PyGILState_Check`: with a sub-interpreter that says yes to everybody. Up to 3.11, of a
    /// thread that has the GIL for one, this may say no.
    pub fn has_gil(&self) -> bool {
        // SAFETY: both may be called by any thread while the interpreter is there.
        unsafe {
            let current = (self.current_thread_state)();
            // Up to 3.11 that is whoever has the GIL, and later the calling thread.
            !current.is_null() && (self.minor >= 12 || current == (self.own_thread_state)())
        }
    }

    /// Whether there is an interpreter to run code in.
    pub fn runs(&self) -> bool {
        // SAFETY: both may be called at any time, with and without the GIL.
        unsafe {
            (self.is_initialized)() != 0
                && self
                    .is_finalizing
                    .is_none_or(|finalizing| finalizing() == 0)
        }
    }
}
