//! Safe references to Python objects. Exceptions that the library causes stay hidden from the program.
//!
//! The functions of this module need the GIL or, in a build without a GIL, a thread state. A [`Python`] proves that the
//! thread has it.

use core::ffi::{CStr, c_int};
use core::marker::PhantomData;

use super::api::{Api, MethodDef, Raw, ThreadState};

mod held;
mod ints;
mod safe;

pub use held::{AttributeName, Held};
pub use ints::Ints;
pub use safe::C;

/// Proof that the calling thread may use the interpreter. The thread holds the GIL or, in a build
/// without a GIL, has a thread state.
#[derive(Clone, Copy)]
pub struct Python<'py> {
    pub api: &'static Api,
    thread: PhantomData<(&'py (), *mut ())>,
}

/// An owned reference to a Python object.
pub struct Object<'py> {
    py: Python<'py>,
    raw: Raw,
}

impl Drop for Object<'_> {
    fn drop(&mut self) {
        // SAFETY: the reference is owned, and the thread may use the interpreter.
        unsafe { (self.py.api.dec_ref)(self.raw) };
    }
}

impl Clone for Object<'_> {
    fn clone(&self) -> Self {
        // SAFETY: the object is alive: a reference to it is owned.
        unsafe { (self.py.api.inc_ref)(self.raw) };
        Self { ..*self }
    }
}

/// An exception as `PyErr_Fetch` returns it: its type, value and traceback, as owned references or
/// nulls.
pub struct Exception([Raw; 3]);

// SAFETY: the references are used only in `raise`, by a thread that may use the interpreter.
unsafe impl Send for Exception {}

impl<'py> Python<'py> {
    /// Returns the proof that the calling thread may use the interpreter, without a check.
    ///
    /// # Safety
    /// The calling thread holds the GIL during `'py`, or has a thread state if the build has no GIL.
    pub const unsafe fn assume(api: &'static Api) -> Self {
        Self {
            api,
            thread: PhantomData,
        }
    }

    /// Runs `act` if the calling thread holds the GIL ([`Api::has_gil`]), and otherwise returns
    /// `None`.
    pub fn if_held<R>(api: &'static Api, act: impl FnOnce(Python<'_>) -> R) -> Option<R> {
        // SAFETY: the thread has the GIL, and keeps it until `act` has returned.
        api.has_gil().then(|| act(unsafe { Python::assume(api) }))
    }

    /// Gives access to the C API functions that need no `unsafe`.
    pub const fn c(self) -> C<'py> {
        C(self)
    }

    /// Runs `act` with no exception set, and then restores the exception that was set before, also if `act` panics.
    /// Drops any exception that `act` raised.
    pub fn quietly<R>(self, act: impl FnOnce(Self) -> R) -> R {
        struct RestoredException<'py>(Python<'py>, [Raw; 3]);
        impl Drop for RestoredException<'_> {
            fn drop(&mut self) {
                self.0.clear_exception();
                self.0.raise(Exception(self.1));
            }
        }
        let _kept = RestoredException(self, self.take_exception().0);
        act(self)
    }

    /// Releases the GIL, runs `act`, and takes the GIL again. `act` may therefore block. The `Send`
    /// bound keeps Python objects, which need the GIL, out of `act`.
    pub fn without_gil<R: Send>(self, act: impl FnOnce() -> R + Send) -> R {
        struct Saved<'a>(&'a Api, ThreadState);
        impl Drop for Saved<'_> {
            fn drop(&mut self) {
                // SAFETY: the thread state was saved below, on this thread.
                unsafe { (self.0.restore_thread)(self.1) };
            }
        }
        // SAFETY: the thread has a state, and `_saved` gives it back before the thread continues,
        // also if `act` panics.
        let _saved = Saved(self.api, unsafe { (self.api.save_thread)() });
        act()
    }

    /// Takes and clears the exception that is set. Returns nulls if there is none.
    fn take_exception(self) -> Exception {
        // SAFETY: the thread may use the interpreter, as `self` proves.
        Exception(unsafe { self.api.take_exception() })
    }

    /// Sets the exception as the calling thread's current exception, as `raise` in Python does.
    pub fn raise(self, exception: Exception) {
        // SAFETY: the exception owns the references, and passes them to `set_exception`.
        unsafe { self.api.set_exception(exception.0) };
    }

    pub fn clear_exception(self) {
        self.c().err_clear();
    }

    /// Returns true if an exception is set on this thread.
    pub fn has_raised(self) -> bool {
        self.c().err_occurred()
    }

    /// Clears the exception that is set, if any. Returns true if one was set.
    pub(crate) fn raised(self) -> bool {
        let has_raised = self.has_raised();
        if has_raised {
            self.clear_exception();
        }
        has_raised
    }

    /// Returns true if `result` of a C API function means success. For a failure, clears the
    /// exception that the function raised.
    fn succeeded(self, result: c_int) -> bool {
        if result < 0 {
            self.raised();
        }
        result >= 0
    }

    /// Wraps a new reference. If `raw` is null, clears the exception and returns `None`.
    ///
    /// # Safety
    /// `raw` is null or a reference that the caller owns.
    pub unsafe fn own(self, raw: Raw) -> Option<Object<'py>> {
        if raw.is_null() {
            self.clear_exception();
            return None;
        }
        Some(Object { py: self, raw })
    }

    /// Wraps a new reference. If `raw` is null, takes and returns the exception that is set.
    ///
    /// # Safety
    /// `raw` is null or a reference that the caller owns.
    pub(crate) unsafe fn own_or_exception(self, raw: Raw) -> Result<Object<'py>, Exception> {
        if raw.is_null() {
            return Err(self.take_exception());
        }
        Ok(Object { py: self, raw })
    }

    /// Returns a new reference to a borrowed object, or `None` for null.
    ///
    /// # Safety
    /// `raw` is null or a reference to a live object.
    pub unsafe fn share(self, raw: Raw) -> Option<Object<'py>> {
        // SAFETY: `raw` is null or a live object. The added reference is the one that the result
        // owns.
        unsafe {
            if !raw.is_null() {
                (self.api.inc_ref)(raw);
            }
            self.own(raw)
        }
    }

    /// Imports a module and returns it. Returns `None` if the import raises an exception, which is then cleared.
    pub fn import(self, name: &CStr) -> Option<Object<'py>> {
        self.c().import(name)
    }

    /// Imports a module, and removes it from `sys.modules` unless it was there before, so that the program does not
    /// see it. This is possible only for modules such as `gc`, whose state is kept by the interpreter.
    pub fn import_unseen(self, name: &CStr) -> Option<Object<'py>> {
        let was_there = self.imported(name).is_some();
        let module = self.import(name)?;
        if !was_there && let Some(modules) = self.c().modules() {
            self.succeeded(self.c().dict_remove(&modules, name));
        }
        Some(module)
    }

    /// Returns `sys.modules.get(name)`, without an import.
    pub fn imported(self, name: &CStr) -> Option<Object<'py>> {
        self.c().modules()?.item(name)
    }

    /// Returns `sys.name`.
    pub fn sys(self, name: &CStr) -> Option<Object<'py>> {
        self.c().sys_object(name)
    }

    /// Returns the id of the current interpreter; 0 for the main one.
    pub fn interpreter(self) -> i64 {
        // SAFETY: the thread has a state, and so an interpreter.
        unsafe { (self.api.interpreter_id)(self.c().interpreter()) }
    }

    /// Returns the address of the current interpreter. It differs from the addresses of all other running interpreters.
    pub fn interpreter_address(self) -> usize {
        self.c().interpreter().addr()
    }

    /// Returns the innermost Python frame of the calling thread. Returns `None` if there is none, or if CPython does
    /// not export `PyEval_GetFrame`.
    pub fn frame(self) -> Option<PythonFrame<'py>> {
        // SAFETY: the thread may use the interpreter; the frame is borrowed.
        unsafe { self.share((self.api.current_frame?)()) }.map(PythonFrame)
    }

    /// Makes a Python function that calls the C function in `definition`.
    pub fn function(self, definition: &'static MethodDef) -> Option<Object<'py>> {
        self.c().c_function(definition, None, None)
    }

    /// Makes a Python function that calls the C function in `definition` with `first` as its `self`.
    pub fn function_of(
        self,
        definition: &'static MethodDef,
        first: &Object<'py>,
    ) -> Option<Object<'py>> {
        self.c().c_function(definition, Some(first), None)
    }

    pub fn text(self, text: &str) -> Option<Object<'py>> {
        let length = text.len().cast_signed();
        // SAFETY: the text has `length` bytes; the result is a new reference.
        unsafe { self.own((self.api.text_from)(text.as_ptr().cast(), length)) }
    }

    pub fn int(self, value: i64) -> Option<Object<'py>> {
        self.c().long_from(value)
    }

    /// Runs `source` as the body of a module in a new namespace, and returns the namespace.
    ///
    /// `file` is the file name that tracebacks show.
    pub fn run(self, source: &CStr, file: &CStr) -> Option<Object<'py>> {
        let names = self.c().dict_new()?;
        self.run_in(names, source, file)
    }

    /// Runs `source` like [`Self::run`], in a module that the program can import by `name`.
    pub fn run_as_module(self, name: &CStr, source: &CStr, file: &CStr) -> Option<Object<'py>> {
        let names = self.c().module_dict(&self.c().add_module(name)?)?;
        self.run_in(names, source, file)
    }

    fn run_in(self, names: Object<'py>, source: &CStr, file: &CStr) -> Option<Object<'py>> {
        /// The value of `Py_file_input`: the source is a whole module.
        const FILE: c_int = 257;
        let code = self.c().compile(source, file, FILE)?;
        if !names.set_item(c"__builtins__", &self.c().builtins()?) {
            return None;
        }
        // SAFETY: the arguments are a code object that was compiled above, and a dictionary; the
        // result is a new reference.
        unsafe { self.own((self.api.eval_code)(code.raw, names.raw, names.raw)) }?;
        Some(names)
    }

    /// Returns the Python object None.
    pub fn nothing(self) -> Object<'py> {
        let raw = self.none();
        Object { py: self, raw }
    }

    /// Returns a new reference to None, as the result of a C function.
    pub fn none(self) -> Raw {
        // SAFETY: None lives as long as the interpreter.
        unsafe { (self.api.inc_ref)(self.api.none) };
        self.api.none
    }
}

/// A Python frame: one call of a Python function.
pub struct PythonFrame<'py>(Object<'py>);

impl<'py> PythonFrame<'py> {
    /// Returns the dictionary of the global variables of the frame's function.
    pub fn globals(&self) -> Option<Object<'py>> {
        self.0.attr(c"f_globals")
    }

    /// Returns the value of the frame's variable `name`. `name` has to be a str.
    pub fn variable(&self, name: &Object<'py>) -> Option<Object<'py>> {
        let py = self.0.py;
        name.as_text()?;
        // SAFETY: the arguments are a frame and a str; the result is a new reference.
        unsafe { py.own((py.api.frame_variable?)(self.0.raw, name.raw)) }
    }
}

impl<'py> Object<'py> {
    /// Returns the object's address as a borrowed reference, which is valid while `self` lives.
    pub const fn raw(&self) -> Raw {
        self.raw
    }

    /// Returns the object's address. No other object has this address while the object lives.
    pub fn addr(&self) -> usize {
        self.raw.addr()
    }

    /// Gives up ownership of the reference without releasing it, so that another owner can take it
    /// over.
    pub fn release(self) -> Raw {
        core::mem::ManuallyDrop::new(self).raw
    }

    pub const fn py(&self) -> Python<'py> {
        self.py
    }

    pub fn is_none(&self) -> bool {
        self.raw == self.py.api.none
    }

    pub fn is_code(&self) -> bool {
        self.kind() == self.py.api.code_type
    }

    /// Returns `self.name`, or `None` if there is no such attribute.
    pub fn attr(&self, name: &CStr) -> Option<Object<'py>> {
        self.py.c().attr(self, name)
    }

    /// Returns `type(self)`.
    pub fn class(&self) -> Option<Object<'py>> {
        self.py.c().type_of(self)
    }

    /// Returns the address of the object's type. The address may only be compared.
    pub fn kind(&self) -> Raw {
        self.class()
            .map_or(core::ptr::null_mut(), |class| class.raw())
    }

    pub fn is_class(&self) -> bool {
        self.is_a(self.py.api.types.class)
    }

    /// Returns true if the object is an int, or an instance of a subclass of int.
    pub fn is_integer(&self) -> bool {
        self.is_a(self.py.api.types.integer)
    }

    /// Returns true if the object is a tuple, or an instance of a subclass of tuple.
    pub fn is_tuple(&self) -> bool {
        self.is_a(self.py.api.types.tuple)
    }

    /// Returns true if the object is an instance of the built-in type `class`, or of a subclass.
    fn is_a(&self, class: Raw) -> bool {
        // SAFETY: both are types, because callers pass a type of `api.types`.
        let is_a = |kind: Object<'_>| unsafe { (self.py.api.is_subtype)(kind.raw, class) != 0 };
        self.class().is_some_and(is_a)
    }

    /// Returns an attribute of a class or of its bases, or `None` if the object is not a class. Runs no code of the
    /// program.
    pub fn class_attr(&self, name: &str) -> Option<Object<'py>> {
        if !self.is_class() {
            return None;
        }
        let name = self.py.text(name)?;
        // SAFETY: the object is a class, and the name a str; the result is a new reference.
        unsafe { self.py.own(self.py.api.class_attr(self.raw, name.raw)) }
    }

    /// Returns an attribute of the object's class or of that class's bases. Runs no code of the
    /// program.
    pub fn attr_of_class(&self, name: &AttributeName) -> Option<Object<'py>> {
        let (class, name) = (self.class()?, name.raw()?);
        // SAFETY: the first argument is a class, and the second is the str that `AttributeName`
        // keeps. The result is a new reference.
        unsafe {
            let found = self.py.api.class_attr(class.raw, name);
            (!found.is_null()).then(|| self.py.own(found))?
        }
    }

    /// Returns `self.name` without calling a `__getattribute__` or `__getattr__` of the object's
    /// class. Code of the program runs only if the class's attribute of that name
    /// ([`Self::attr_of_class`]) has a `__get__` in Python.
    pub fn generic_attr(&self, name: &AttributeName) -> Option<Object<'py>> {
        let name = name.raw()?;
        // SAFETY: the reference is owned, and the name holds a str; the result is a new reference.
        unsafe { self.py.own((self.py.api.generic_attr)(self.raw, name)) }
    }

    /// Returns the dictionary of a module's or an instance's own attributes. Returns `None` for a
    /// class, or if the object has no such dictionary. Runs no code of the program.
    pub fn own_attrs(&self) -> Option<Object<'py>> {
        if self.is_class() {
            return None; // the `__dict__` of a class is a `mappingproxy`, not a dictionary
        }
        let c = self.py.c();
        c.module_dict(self).or_else(|| c.own_dict(self, None))
    }

    /// Returns the code object of a Python function; `None` for any other object.
    pub fn code(&self) -> Option<Object<'py>> {
        self.py.c().function_code(self)
    }

    /// Calls `act` for each str among the keys of a dictionary.
    pub fn each_key(&self, mut act: impl FnMut(&str)) {
        let mut position = 0;
        let (mut key, mut value) = (core::ptr::null_mut(), core::ptr::null_mut());
        let mut next = || {
            // SAFETY: the reference is owned; the function writes only to the local variables.
            let is_there = unsafe {
                let next = self.py.api.dict_next;
                next(self.raw, &raw mut position, &raw mut key, &raw mut value) != 0
            };
            // SAFETY: the key is borrowed from the dictionary, which has not changed since.
            is_there.then(|| unsafe { self.py.share(key) })
        };
        while let Some(key) = next() {
            if let Some(key) = key.as_ref().and_then(Object::as_text) {
                act(key);
            }
        }
    }

    /// Returns `self[name]` for a dictionary, or `None` if it has no such key.
    pub fn item(&self, name: &CStr) -> Option<Object<'py>> {
        // SAFETY: the reference is owned, so the object is alive; the result is a new reference, or
        // null.
        unsafe { self.py.own(self.py.api.dict_item(self.raw, name)) }
    }

    /// Returns `self[key]` for a dictionary, or `None` if it has no such key.
    pub fn find(&self, key: &Object<'py>) -> Option<Object<'py>> {
        // SAFETY: both references are owned, so the objects are alive. The result is a new
        // reference, or null.
        unsafe { self.py.own(self.py.api.dict_find(self.raw, key.raw)) }
    }

    /// Sets `self[name] = value` in a dictionary. Returns true on success.
    pub fn set_item(&self, name: &CStr, value: &Object<'py>) -> bool {
        let py = self.py;
        py.succeeded(py.c().dict_set(self, name, value))
    }

    /// Appends the value to a list. Returns true on success.
    pub fn append(&self, value: &Object<'py>) -> bool {
        let py = self.py;
        py.succeeded(py.c().list_append(self, value))
    }

    /// Returns a weak reference to the object. Python calls `callback` when the object is freed.
    pub fn weak_reference(&self, callback: &Object<'py>) -> Option<Object<'py>> {
        self.py.c().weak_reference(self, callback)
    }

    /// Returns the content of a cell, which is a variable that functions share.
    pub fn content(&self) -> Option<Object<'py>> {
        self.py.c().cell_get(self)
    }

    /// Calls `self(*args)`. Returns `None` if the call raises an exception, which is then cleared.
    pub fn call(&self, args: &[&Object<'py>]) -> Option<Object<'py>> {
        let drop_exception = |raised| {
            self.py.raise(raised);
            self.py.clear_exception();
        };
        self.try_call(args).map_err(drop_exception).ok()
    }

    /// Calls `self(*args)`. If the call raises an exception, returns the exception.
    pub fn try_call(&self, args: &[&Object<'py>]) -> Result<Object<'py>, Exception> {
        let py = self.py;
        let tuple = py.tuple(args).ok_or_else(|| py.take_exception())?;
        py.c().call(self, &tuple)
    }

    /// Returns the object's value as an integer, or `None` if it is no integer or does not fit into 64 bits.
    pub fn as_int(&self) -> Option<i64> {
        let value = self.py.c().long_as(self);
        (value != -1 || !self.py.raised()).then_some(value)
    }

    /// Returns the object's text, or `None` if it is not a str.
    pub fn as_text(&self) -> Option<&str> {
        let mut length = 0;
        // SAFETY: the reference is owned; the function writes only to the local variable.
        let text = unsafe { (self.py.api.text_as)(self.raw, &raw mut length) };
        if text.is_null() {
            self.py.clear_exception();
            return None;
        }
        let length = usize::try_from(length).ok()?;
        // SAFETY: the text has `length` bytes and is part of the str, which never changes it.
        str::from_utf8(unsafe { core::slice::from_raw_parts(text.cast(), length) }).ok()
    }

    /// Returns true if Python considers the object true. Returns false if the test raises.
    pub fn is_true(&self) -> bool {
        let answer = self.py.c().is_true(self);
        self.py.succeeded(answer) && answer > 0
    }

    /// Returns the values of a dictionary as a tuple.
    pub fn values(&self) -> Option<Object<'py>> {
        let c = self.py.c();
        c.as_tuple(&c.dict_values(self)?)
    }

    /// Returns `self[index]` of a sequence. Returns `None` if the access raises an exception, which is then cleared.
    pub fn at(&self, index: isize) -> Option<Object<'py>> {
        self.py.c().sequence_get(self, index)
    }

    /// Returns the elements of a tuple; none for any other object.
    pub fn elements(&self) -> impl Iterator<Item = Object<'py>> {
        let size = self.py.c().tuple_size(self);
        if size < 0 {
            self.py.raised();
        }
        (0..size).filter_map(|index| self.py.c().tuple_get(self, index))
    }
}

impl<'py> Python<'py> {
    /// Returns the tuple `(*elements,)`.
    fn tuple(self, elements: &[&Object<'py>]) -> Option<Object<'py>> {
        let tuple = self.c().tuple_new(elements.len().cast_signed())?;
        for (index, element) in elements.iter().enumerate() {
            let element = Object::clone(element);
            self.c().tuple_set(&tuple, index.cast_signed(), element);
        }
        Some(tuple)
    }
}
