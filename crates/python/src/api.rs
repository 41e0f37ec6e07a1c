//! The functions of CPython's C API that the library uses. They are found in the interpreter's symbol table.
//!
//! The library includes no Python header and does not link libpython. It can declare the functions itself, because
//! their types are the same from 3.8 to 3.15. If a function had another name in some versions, both names are looked
//! up.
//!
//! The macro `with_functions` contains a table of the functions, with the types of their arguments and results. From
//! these types, [`super::object`] derives safe wrappers for most functions. Code that may use the interpreter calls the
//! wrappers without `unsafe`. If versions differ in a function's result, or in the functions that exist, a method of
//! [`Api`] hides the difference. No other file selects a function by version.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::NonNull;

use tllmprof_platform::elf::ElfModule;

use super::version::Version;

/// A `PyObject *`. Each function defines whether the reference is borrowed or owned.
pub type Raw = *mut c_void;
/// A `PyThreadState *`.
pub type ThreadState = *mut c_void;
/// A callback that the interpreter runs on its main thread between two bytecode instructions.
pub type PendingCall = unsafe extern "C" fn(*mut c_void) -> c_int;
/// A callback that the interpreter runs at each audit event, such as an import.
pub type AuditHook = unsafe extern "C" fn(*const c_char, Raw, *mut c_void) -> c_int;
/// A function that evaluates a frame: the type `_PyFrameEvalFunction` in Python 3.9 and later.
pub type Evaluate = unsafe extern "C-unwind" fn(ThreadState, Raw, c_int) -> Raw;

/// A C function that Python code can call. The flags of its `MethodDef` state the calling
/// convention.
pub type Method = unsafe extern "C" fn(Raw, Raw) -> Raw;

/// `PyMethodDef`: the definition of a C function for Python.
#[repr(C)]
pub struct MethodDef {
    pub(crate) name: *const c_char,
    pub(crate) method: Method,
    pub(crate) flags: c_int,
    pub(crate) doc: *const c_char,
}

// SAFETY: the pointers point to constants, which never change.
unsafe impl Sync for MethodDef {}

/// Maps a word of the table in `with_functions` to the C type of an argument or result:
///
/// - `object`: a live object, borrowed; `maybe`: a live object, borrowed, or null;
/// - `taken`: a reference that the function takes over;
/// - `text`: a zero-terminated text; `method`: a `PyMethodDef` that is never freed;
/// - `int`, `size`, `number`: the integer types `int`, `Py_ssize_t` and a 64-bit integer;
/// - `nothing`: no result; `is_set`: a reference that is only compared with null;
/// - `address`: the address of an object of the interpreter;
/// - `new`: a reference that the caller owns, or null with an exception set;
/// - `result`: like `new`, but Rust code gets the exception as an `Err` and it is no longer set;
/// - `borrowed`: a reference to a live object that the caller does not own, or null.
macro_rules! c_type {
    (object) => { Raw };
    (maybe) => { Raw };
    (taken) => { Raw };
    (text) => { *const c_char };
    (method) => { *const MethodDef };
    (int) => { c_int };
    (size) => { isize };
    (number) => { i64 };
    (new) => { Raw };
    (result) => { Raw };
    (borrowed) => { Raw };
    (is_set) => { Raw };
    (nothing) => { () };
    (address) => { *mut c_void };
}

macro_rules! declare {
    (
        any_time { $($any:ident: fn() -> $any_out:ty = $($any_symbol:literal)|+;)* }
        safe { $($safe:ident($($name:ident: $kind:ident),*) -> $result:ident = $($safe_symbol:literal)|+;)* }
        required { $($field:ident: fn($($arg:ty),*) $(-> $out:ty)? = $($symbol:literal)|+;)* }
        optional { $($maybe:ident: fn($($maybe_arg:ty),*) $(-> $maybe_out:ty)? = $($maybe_symbol:literal)|+;)* }
    ) => {
        /// The C API functions and objects of one CPython interpreter, which is in libpython or in an executable.
        pub struct Api {
            $($any: extern "C" fn() -> $any_out,)*
            $(pub(crate) $safe: unsafe extern "C" fn($(c_type!($kind)),*) -> c_type!($result),)*
            $(pub(crate) $field: unsafe extern "C" fn($($arg),*) $(-> $out)?,)*
            $(pub(crate) $maybe: Option<unsafe extern "C" fn($($maybe_arg),*) $(-> $maybe_out)?>,)*
            /// `_PyEval_EvalFrameDefault`, CPython's own frame evaluator. It takes two arguments in 3.8, and three in
            /// later versions.
            pub(crate) evaluate: Option<NonNull<c_void>>,
            /// `Py_None`, borrowed.
            pub(crate) none: Raw,
            /// `PyCode_Type`, borrowed.
            pub(crate) code_type: Raw,
            /// `_PyRuntime`; null if it is not exported.
            pub(crate) runtime: Raw,
            pub(crate) types: Types,
            pub(crate) version: Version,
            /// True for a build that can run threads without a GIL.
            pub(crate) is_free_threaded: bool,
            /// The interpreter's version as text, such as `3.12.1`.
            pub(crate) version_text: &'static str,
        }

        impl Api {
            /// Finds the functions in `module`. Returns `None` if the module is not CPython 3.8 or later, or lacks
            /// a required function.
            pub fn find(module: &ElfModule) -> Option<Self> {
                type GetVersion = unsafe extern "C" fn() -> *const c_char;
                let find = |names: &[&CStr]| names.iter().find_map(|name| module.defines(name, None));
                let get_version = find(&[c"Py_GetVersion"])?;
                // SAFETY: this is the type of `Py_GetVersion` in Python's headers. The function may
                // be called at any time, and returns a terminated text that lives as long as the
                // module.
                let text: &'static CStr = unsafe {
                    let get = core::mem::transmute::<*mut c_void, GetVersion>(get_version);
                    CStr::from_ptr(get())
                };
                let text = text.to_str().ok()?;
                Some(Self {
                    $($any: {
                        type Function = extern "C" fn() -> $any_out;
                        let address = find(&[$($any_symbol),+])?;
                        // SAFETY: these are the functions' types in Python's headers. The functions
                        // may be called at any time.
                        unsafe { core::mem::transmute::<*mut c_void, Function>(address) }
                    },)*
                    $($safe: {
                        type Function =
                            unsafe extern "C" fn($(c_type!($kind)),*) -> c_type!($result);
                        let address = find(&[$($safe_symbol),+])?;
                        // SAFETY: this is the function's type in Python's headers.
                        unsafe { core::mem::transmute::<*mut c_void, Function>(address) }
                    },)*
                    $($field: {
                        type Function = unsafe extern "C" fn($($arg),*) $(-> $out)?;
                        let address = find(&[$($symbol),+])?;
                        // SAFETY: this is the function's type in Python's headers.
                        unsafe { core::mem::transmute::<*mut c_void, Function>(address) }
                    },)*
                    $($maybe: find(&[$($maybe_symbol),+]).map(|address| {
                        type Function = unsafe extern "C" fn($($maybe_arg),*) $(-> $maybe_out)?;
                        // SAFETY: this is the function's type in Python's headers.
                        unsafe { core::mem::transmute::<*mut c_void, Function>(address) }
                    }),)*
                    evaluate: find(&[c"_PyEval_EvalFrameDefault"]).and_then(NonNull::new),
                    none: find(&[c"_Py_NoneStruct"])?,
                    code_type: find(&[c"PyCode_Type"])?,
                    runtime: find(&[c"_PyRuntime"]).unwrap_or(core::ptr::null_mut()),
                    types: Types::find(find)?,
                    version: Version::parse(text)?,
                    is_free_threaded: text.contains("free-threading"),
                    version_text: text.split_whitespace().next()?,
                })
            }
        }
    };
}

/// Calls the macro `$then` with the table of C API functions. Each row has our name of a function, its argument and
/// result types, and the symbols under which it is looked up.
macro_rules! with_functions {
    ($then:ident) => {
        $then! {
            any_time {
                is_initialized: fn() -> c_int = c"Py_IsInitialized";
                own_thread_state: fn() -> ThreadState = c"PyGILState_GetThisThreadState";
                current_thread_state: fn() -> ThreadState = c"PyThreadState_GetUnchecked" | c"_PyThreadState_UncheckedGet";
            }
            safe {
                sys_object(name: text) -> borrowed = c"PySys_GetObject";
                import(name: text) -> new = c"PyImport_ImportModule";
                add_module(name: text) -> borrowed = c"PyImport_AddModule";
                modules() -> borrowed = c"PyImport_GetModuleDict";
                attr(object: object, name: text) -> new = c"PyObject_GetAttrString";
                type_of(object: object) -> new = c"PyObject_Type";
                own_dict(object: object, context: maybe) -> new = c"PyObject_GenericGetDict";
                module_dict(module: object) -> borrowed = c"PyModule_GetDict";
                function_code(function: object) -> borrowed = c"PyFunction_GetCode";
                is_true(object: object) -> int = c"PyObject_IsTrue";
                size(object: object) -> size = c"PyObject_Size";
                intern(text: text) -> new = c"PyUnicode_InternFromString";
                tuple_new(length: size) -> new = c"PyTuple_New";
                tuple_set(tuple: object, index: size, element: taken) -> int = c"PyTuple_SetItem";
                tuple_get(tuple: object, index: size) -> borrowed = c"PyTuple_GetItem";
                tuple_size(tuple: object) -> size = c"PyTuple_Size";
                as_tuple(sequence: object) -> new = c"PySequence_Tuple";
                sequence_get(sequence: object, index: size) -> new = c"PySequence_GetItem";
                list_append(list: object, element: object) -> int = c"PyList_Append";
                dict_new() -> new = c"PyDict_New";
                dict_values(dict: object) -> new = c"PyDict_Values";
                dict_set(dict: object, key: text, value: object) -> int = c"PyDict_SetItemString";
                dict_remove(dict: object, key: text) -> int = c"PyDict_DelItemString";
                long_from(value: number) -> new = c"PyLong_FromLongLong";
                long_as(object: object) -> number = c"PyLong_AsLongLong";
                c_function(definition: method, first: maybe, module: maybe) -> new = c"PyCFunction_NewEx";
                weak_reference(object: object, callback: object) -> new = c"PyWeakref_NewRef";
                compile(source: text, file: text, start: int) -> new = c"Py_CompileString";
                builtins() -> borrowed = c"PyEval_GetBuiltins";
                call(callable: object, args: object) -> result = c"PyObject_CallObject";
                cell_get(cell: object) -> new = c"PyCell_Get";
                err_clear() -> nothing = c"PyErr_Clear";
                err_occurred() -> is_set = c"PyErr_Occurred";
                interpreter() -> address = c"PyInterpreterState_Get" | c"_PyInterpreterState_Get";
            }
            required {
                add_audit_hook: fn(AuditHook, *mut c_void) -> c_int = c"PySys_AddAuditHook";
                is_subtype: fn(Raw, Raw) -> c_int = c"PyType_IsSubtype";
                generic_attr: fn(Raw, Raw) -> Raw = c"PyObject_GenericGetAttr";
                dict_next: fn(Raw, *mut isize, *mut Raw, *mut Raw) -> c_int = c"PyDict_Next";
                text_from: fn(*const c_char, isize) -> Raw = c"PyUnicode_FromStringAndSize";
                text_as: fn(Raw, *mut isize) -> *const c_char = c"PyUnicode_AsUTF8AndSize";
                inc_ref: fn(Raw) = c"Py_IncRef";
                dec_ref: fn(Raw) = c"Py_DecRef";
                err_fetch: fn(*mut Raw, *mut Raw, *mut Raw) = c"PyErr_Fetch";
                err_restore: fn(Raw, Raw, Raw) = c"PyErr_Restore";
                class_attr: fn(Raw, Raw) -> Raw = c"_PyType_Lookup";
                dict_get: fn(Raw, *const c_char) -> Raw = c"PyDict_GetItemString";
                dict_find: fn(Raw, Raw) -> Raw = c"PyDict_GetItemWithError";
                save_thread: fn() -> ThreadState = c"PyEval_SaveThread";
                restore_thread: fn(ThreadState) = c"PyEval_RestoreThread";
                gil_ensure: fn() -> c_int = c"PyGILState_Ensure";
                gil_release: fn(c_int) = c"PyGILState_Release";
                add_pending_call: fn(PendingCall, *mut c_void) -> c_int = c"Py_AddPendingCall";
                eval_code: fn(Raw, Raw, Raw) -> Raw = c"PyEval_EvalCode";
                interpreter_id: fn(*mut c_void) -> i64 = c"PyInterpreterState_GetID";
            }
            optional {
                is_finalizing: fn() -> c_int = c"Py_IsFinalizing" | c"_Py_IsFinalizing";
                dict_get_new: fn(Raw, *const c_char, *mut Raw) -> c_int = c"PyDict_GetItemStringRef";
                dict_find_new: fn(Raw, Raw, *mut Raw) -> c_int = c"PyDict_GetItemRef";
                class_attr_new: fn(Raw, Raw) -> Raw = c"_PyType_LookupRef";
                current_frame: fn() -> Raw = c"PyEval_GetFrame";
                frame_variable: fn(Raw, Raw) -> Raw = c"PyFrame_GetVar";
                evaluator: fn(*mut c_void) -> *mut c_void = c"_PyInterpreterState_GetEvalFrameFunc";
                set_evaluator: fn(*mut c_void, *mut c_void) = c"_PyInterpreterState_SetEvalFrameFunc";
                main_interpreter: fn() -> *mut c_void = c"PyInterpreterState_Main";
                first_interpreter: fn() -> *mut c_void = c"PyInterpreterState_Head";
                new_state: fn(*mut c_void) -> ThreadState = c"PyThreadState_New";
                clear_state: fn(ThreadState) = c"PyThreadState_Clear";
                delete_current_state: fn() = c"PyThreadState_DeleteCurrent";
            }
        }
    };
}
pub(crate) use with_functions;

with_functions!(declare);

// SAFETY: the pointers lead to functions and statics of the interpreter's library. Any thread may compare the
// pointers, and call the functions that may be called at any time. The other functions are used only by threads that
// may use the interpreter.
unsafe impl Sync for Api {}

/// Borrowed references to built-in types of the interpreter.
pub struct Types {
    pub function: Raw,
    pub method: Raw,
    pub static_method: Raw,
    pub class_method: Raw,
    pub property: Raw,
    pub class: Raw,
    pub integer: Raw,
    pub text: Raw,
    pub list: Raw,
    pub tuple: Raw,
    pub dict: Raw,
    pub set: Raw,
    /// The type of the descriptors that `__slots__` creates.
    pub member: Raw,
    /// The type of the descriptors for attributes that C code computes.
    pub computed: Raw,
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
            integer: find(&[c"PyLong_Type"])?,
            text: find(&[c"PyUnicode_Type"])?,
            list: find(&[c"PyList_Type"])?,
            tuple: find(&[c"PyTuple_Type"])?,
            dict: find(&[c"PyDict_Type"])?,
            set: find(&[c"PySet_Type"])?,
            member: find(&[c"PyMemberDescr_Type"])?,
            computed: find(&[c"PyGetSetDescr_Type"])?,
        })
    }
}

/// Methods that any thread may call at any time, with and without the GIL.
impl Api {
    pub fn is_initialized(&self) -> bool {
        (self.is_initialized)() != 0
    }

    /// Returns true if an interpreter is initialized and not ending.
    pub fn runs(&self) -> bool {
        // SAFETY: the function may be called at any time.
        let is_finalizing = || self.is_finalizing.is_some_and(|is| unsafe { is() != 0 });
        self.is_initialized() && !is_finalizing()
    }

    /// Returns true if the calling thread has a current thread state. Up to Python 3.11, returns true if any thread has
    /// one.
    pub fn has_thread_state(&self) -> bool {
        !(self.current_thread_state)().is_null()
    }

    /// Returns the thread state of the calling thread if the thread holds the GIL. Up to Python 3.11, returns the state
    /// of the thread that holds the GIL.
    #[inline]
    pub fn current_state(&self) -> ThreadState {
        (self.current_thread_state)()
    }

    /// Returns the calling thread's state, even if the thread does not hold the GIL. Returns null
    /// if the thread has none.
    pub fn state_of_thread(&self) -> ThreadState {
        let current = if self.version.has_current_state_per_thread() {
            (self.current_thread_state)()
        } else {
            core::ptr::null_mut()
        };
        if current.is_null() {
            (self.own_thread_state)()
        } else {
            current
        }
    }

    /// Returns true if the calling thread holds the GIL or, in a build without a GIL, may use the
    /// interpreter.
    ///
    /// `PyGILState_Check` cannot be used, because it returns true for every thread once a sub-interpreter exists. Up to
    /// Python 3.11, this function may return false for a thread that holds the GIL in a sub-interpreter.
    pub fn has_gil(&self) -> bool {
        let current = (self.current_thread_state)();
        !current.is_null()
            && (self.version.has_current_state_per_thread() || current == (self.own_thread_state)())
    }
}

/// Operations for which versions of CPython need different functions or arguments. The calling thread must be allowed
/// to use the interpreter.
impl Api {
    /// Returns an attribute of a class or of its bases, as a new reference or null.
    ///
    /// # Safety
    /// The thread may use the interpreter; `class` is a class and `name` a str.
    pub(crate) unsafe fn class_attr(&self, class: Raw, name: Raw) -> Raw {
        // SAFETY: both functions take a class and a str. A borrowed result belongs to the class,
        // which is alive.
        unsafe {
            match self.class_attr_new {
                Some(attr) => attr(class, name),
                None => self.shared((self.class_attr)(class, name)),
            }
        }
    }

    /// Returns `dict[name]` as a new reference. Returns null if there is no such key or the look-up fails, which may
    /// set an exception. Without a GIL, another thread could free a borrowed item at any time. So from 3.13 on, a C
    /// function is called that returns a new reference itself.
    ///
    /// # Safety
    /// The thread may use the interpreter; `dict` is a live object.
    pub(crate) unsafe fn dict_item(&self, dict: Raw, name: &CStr) -> Raw {
        // SAFETY: `dict` is a live object, whose type the functions check, and `name` is
        // terminated. The functions write only to the local variable. A borrowed result belongs to
        // the dictionary, which is alive.
        unsafe {
            let Some(get) = self.dict_get_new else {
                return self.shared((self.dict_get)(dict, name.as_ptr()));
            };
            let mut found = core::ptr::null_mut();
            get(dict, name.as_ptr(), &raw mut found);
            found
        }
    }

    /// Returns `dict[key]`, in the same way as [`Api::dict_item`].
    ///
    /// # Safety
    /// The thread may use the interpreter; `dict` and `key` are live objects.
    pub(crate) unsafe fn dict_find(&self, dict: Raw, key: Raw) -> Raw {
        // SAFETY: both objects are alive, and the functions check the type of the first. They write
        // only to the local variable. A borrowed result belongs to the dictionary, which is alive.
        unsafe {
            let Some(find) = self.dict_find_new else {
                return self.shared((self.dict_find)(dict, key));
            };
            let mut found = core::ptr::null_mut();
            find(dict, key, &raw mut found);
            found
        }
    }

    /// Takes and clears the exception that is set. Returns its parts as owned references, or nulls if none is set.
    ///
    /// # Safety
    /// The thread may use the interpreter.
    pub(crate) unsafe fn take_exception(&self) -> [Raw; 3] {
        let mut kept: [Raw; 3] = [core::ptr::null_mut(); 3];
        let [kind, value, trace] = &mut kept;
        // SAFETY: the thread may use the interpreter. The function writes only to the local
        // variables.
        unsafe { (self.err_fetch)(kind, value, trace) };
        kept
    }

    /// Sets the exception, or clears it if the references are null.
    ///
    /// # Safety
    /// The thread may use the interpreter. The references are owned, like those from
    /// [`Api::take_exception`], and this function takes them over.
    pub(crate) unsafe fn set_exception(&self, [kind, value, trace]: [Raw; 3]) {
        // SAFETY: the caller owns the references and passes them on.
        unsafe { (self.err_restore)(kind, value, trace) };
    }

    /// Returns a new reference to a borrowed object, or null for null.
    ///
    /// # Safety
    /// The thread may use the interpreter; `borrowed` is null or a live object.
    unsafe fn shared(&self, borrowed: Raw) -> Raw {
        if !borrowed.is_null() {
            // SAFETY: the object is alive.
            unsafe { (self.inc_ref)(borrowed) };
        }
        borrowed
    }
}
