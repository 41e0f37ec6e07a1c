//! References to Python objects, and exceptions that are kept out of the program's way.
//!
//! Everything here needs the GIL, which whoever has a [`Python`] has.

use core::ffi::{CStr, c_int};
use core::marker::PhantomData;

use super::api::{Api, MethodDef, Raw, ThreadState};

mod held;
mod ints;
mod safe;

pub use held::{AttributeName, Held};
pub use ints::Ints;
pub use safe::C;

/// The proof that the calling thread may use the interpreter: it has the GIL, or, in a build
/// without one, a thread state.
#[derive(Clone, Copy)]
pub struct Python<'py> {
    pub api: &'static Api,
    thread: PhantomData<(&'py (), *mut ())>,
}

/// An owned reference.
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

/// An exception as `PyErr_Fetch` gives it: owned references, or nulls.
pub struct Exception([Raw; 3]);

// SAFETY: the references are used by a thread that may use the interpreter alone (`restore`).
unsafe impl Send for Exception {}

impl<'py> Python<'py> {
    /// # Safety
    /// The calling thread has the GIL, or a thread state where there is no GIL, as long as `'py`.
    pub const unsafe fn assume(api: &'static Api) -> Self {
        Self {
            api,
            thread: PhantomData,
        }
    }

    /// Runs `act` if the calling thread has the GIL ([`Api::has_gil`]).
    pub fn if_held<R>(api: &'static Api, act: impl FnOnce(Python<'_>) -> R) -> Option<R> {
        // SAFETY: the thread has the GIL, and keeps it until `act` has returned.
        api.has_gil().then(|| act(unsafe { Python::assume(api) }))
    }

    /// The C API.
    pub const fn c(self) -> C<'py> {
        C(self)
    }

    /// Runs `act` with no exception set, and puts back the one that was, whatever `act` raised, and where it
    /// panics.
    pub fn quietly<R>(self, act: impl FnOnce(Self) -> R) -> R {
        struct Kept<'py>(Python<'py>, [Raw; 3]);
        impl Drop for Kept<'_> {
            fn drop(&mut self) {
                self.0.clear_exception();
                self.0.raise(Exception(self.1));
            }
        }
        let _kept = Kept(self, self.take_exception().0);
        act(self)
    }

    /// Runs `act` without the GIL: it may wait. `Send` keeps what needs the GIL out of it.
    pub fn without_gil<R: Send>(self, act: impl FnOnce() -> R + Send) -> R {
        struct Saved<'a>(&'a Api, ThreadState);
        impl Drop for Saved<'_> {
            fn drop(&mut self) {
                // SAFETY: the state is this thread's, which was saved below.
                unsafe { (self.0.restore_thread)(self.1) };
            }
        }
        // SAFETY: the thread has a state, which it gets back before it goes on, also where `act` panics.
        let _saved = Saved(self.api, unsafe { (self.api.save_thread)() });
        act()
    }

    /// The exception that is set, or nulls; none is set any more.
    fn take_exception(self) -> Exception {
        // SAFETY: the thread may use the interpreter, as `self` proves.
        Exception(unsafe { self.api.take_exception() })
    }

    /// Sets the exception.
    pub fn raise(self, exception: Exception) {
        // SAFETY: the references are owned by the exception, which is given up.
        unsafe { self.api.set_exception(exception.0) };
    }

    pub fn clear_exception(self) {
        self.c().err_clear();
    }

    /// Whether an exception is set.
    pub fn has_raised(self) -> bool {
        self.c().err_occurred()
    }

    /// Whether an exception is set; it is cleared.
    pub(crate) fn raised(self) -> bool {
        let has_raised = self.has_raised();
        if has_raised {
            self.clear_exception();
        }
        has_raised
    }

    /// Whether a function of the C API has succeeded, by its result; its exception is cleared.
    fn succeeded(self, result: c_int) -> bool {
        if result < 0 {
            self.raised();
        }
        result >= 0
    }

    /// Takes over a new reference; none, and the exception cleared, for null.
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

    /// Takes over a new reference, or, for null, the exception that is set.
    ///
    /// # Safety
    /// `raw` is null or a reference that the caller owns.
    pub(crate) unsafe fn own_or_exception(self, raw: Raw) -> Result<Object<'py>, Exception> {
        if raw.is_null() {
            return Err(self.take_exception());
        }
        Ok(Object { py: self, raw })
    }

    /// A new reference to what is borrowed; none for null.
    ///
    /// # Safety
    /// `raw` is null or a reference to a live object.
    pub unsafe fn share(self, raw: Raw) -> Option<Object<'py>> {
        // SAFETY: null, or a live object, to which the new reference is owned from here on.
        unsafe {
            if !raw.is_null() {
                (self.api.inc_ref)(raw);
            }
            self.own(raw)
        }
    }

    /// `import name`.
    pub fn import(self, name: &CStr) -> Option<Object<'py>> {
        self.c().import(name)
    }

    /// As [`Self::import`], of a module that keeps its state elsewhere: a program that has not
    /// imported it itself does not find it among its modules.
    pub fn import_unseen(self, name: &CStr) -> Option<Object<'py>> {
        let was_there = self.imported(name).is_some();
        let module = self.import(name)?;
        if !was_there && let Some(modules) = self.c().modules() {
            self.succeeded(self.c().dict_remove(&modules, name));
        }
        Some(module)
    }

    /// `sys.modules.get(name)`: nothing is imported.
    pub fn imported(self, name: &CStr) -> Option<Object<'py>> {
        self.c().modules()?.item(name)
    }

    /// `sys.name`.
    pub fn sys(self, name: &CStr) -> Option<Object<'py>> {
        self.c().sys_object(name)
    }

    /// The number of the interpreter, 0 for the main one.
    pub fn interpreter(self) -> i64 {
        // SAFETY: the thread has a state, and so an interpreter.
        unsafe { (self.api.interpreter_id)(self.c().interpreter()) }
    }

    /// Where the interpreter lies.
    pub fn interpreter_address(self) -> usize {
        self.c().interpreter().addr()
    }

    /// The frame of Python code that the thread is in.
    pub fn frame(self) -> Option<Frame<'py>> {
        // SAFETY: the thread may use the interpreter; the frame is borrowed.
        unsafe { self.share((self.api.current_frame?)()) }.map(Frame)
    }

    /// A Python function that calls ours.
    pub fn function(self, definition: &'static MethodDef) -> Option<Object<'py>> {
        self.c().c_function(definition, None, None)
    }

    /// A Python function that calls ours with `first`.
    pub fn function_of(
        self,
        definition: &'static MethodDef,
        first: &Object<'py>,
    ) -> Option<Object<'py>> {
        self.c().c_function(definition, Some(first), None)
    }

    pub fn text(self, text: &str) -> Option<Object<'py>> {
        let length = text.len().cast_signed();
        // SAFETY: the text has that many bytes; a new reference.
        unsafe { self.own((self.api.text_from)(text.as_ptr().cast(), length)) }
    }

    pub fn int(self, value: i64) -> Option<Object<'py>> {
        self.c().long_from(value)
    }

    /// Runs `source` as a module's body in a new namespace, which is returned.
    ///
    /// `file` is what tracebacks call it.
    pub fn run(self, source: &CStr, file: &CStr) -> Option<Object<'py>> {
        let names = self.c().dict_new()?;
        self.run_in(names, source, file)
    }

    /// As [`Self::run`], as a module that can be found by `name`.
    pub fn run_as_module(self, name: &CStr, source: &CStr, file: &CStr) -> Option<Object<'py>> {
        let names = self.c().module_dict(&self.c().add_module(name)?)?;
        self.run_in(names, source, file)
    }

    fn run_in(self, names: Object<'py>, source: &CStr, file: &CStr) -> Option<Object<'py>> {
        /// `Py_file_input`.
        const FILE: c_int = 257;
        let code = self.c().compile(source, file, FILE)?;
        if !names.set_item(c"__builtins__", &self.c().builtins()?) {
            return None;
        }
        // SAFETY: a code object that was compiled above, and a dictionary; a new reference.
        unsafe { self.own((self.api.eval_code)(code.raw, names.raw, names.raw)) }?;
        Some(names)
    }

    /// None.
    pub fn nothing(self) -> Object<'py> {
        let raw = self.none();
        Object { py: self, raw }
    }

    /// A new reference to None, for a C function to return.
    pub fn none(self) -> Raw {
        // SAFETY: None lives as long as the interpreter.
        unsafe { (self.api.inc_ref)(self.api.none) };
        self.api.none
    }
}

/// A frame of Python code.
pub struct Frame<'py>(Object<'py>);

impl<'py> Frame<'py> {
    /// The names of the module that its function was made in.
    pub fn globals(&self) -> Option<Object<'py>> {
        self.0.attr(c"f_globals")
    }

    /// The value of its variable `name`, a str.
    pub fn variable(&self, name: &Object<'py>) -> Option<Object<'py>> {
        let py = self.0.py;
        name.as_text()?;
        // SAFETY: a frame and a str; a new reference.
        unsafe { py.own((py.api.frame_variable?)(self.0.raw, name.raw)) }
    }
}

impl<'py> Object<'py> {
    /// The reference, borrowed.
    pub const fn raw(&self) -> Raw {
        self.raw
    }

    /// Where it lies, which no other object does as long as it lives.
    pub fn addr(&self) -> usize {
        self.raw.addr()
    }

    /// Gives the reference up to somebody else, or for good.
    pub fn release(self) -> Raw {
        core::mem::ManuallyDrop::new(self).raw
    }

    pub const fn py(&self) -> Python<'py> {
        self.py
    }

    pub fn is_none(&self) -> bool {
        self.raw == self.py.api.none
    }

    /// Whether it is a code object.
    pub fn is_code(&self) -> bool {
        self.kind() == self.py.api.code_type
    }

    /// `self.name`; none if there is no such attribute.
    pub fn attr(&self, name: &CStr) -> Option<Object<'py>> {
        self.py.c().attr(self, name)
    }

    /// Its type.
    pub fn class(&self) -> Option<Object<'py>> {
        self.py.c().type_of(self)
    }

    /// Its type, to be compared alone.
    pub fn kind(&self) -> Raw {
        self.class()
            .map_or(core::ptr::null_mut(), |class| class.raw())
    }

    /// Whether it is a class.
    pub fn is_class(&self) -> bool {
        self.is_a(self.py.api.types.class)
    }

    /// Whether it is a whole number: of int or of a class that is based on it.
    pub fn is_integer(&self) -> bool {
        self.is_a(self.py.api.types.integer)
    }

    /// Whether it is a tuple, or of a class that is based on it.
    pub fn is_tuple(&self) -> bool {
        self.is_a(self.py.api.types.tuple)
    }

    /// Whether it is an instance of that class of the interpreter's own, or of one that is based on it.
    fn is_a(&self, class: Raw) -> bool {
        // SAFETY: both are types: the caller gives one of the table's.
        let is_a = |kind: Object<'_>| unsafe { (self.py.api.is_subtype)(kind.raw, class) != 0 };
        self.class().is_some_and(is_a)
    }

    /// What a class, or a base of it, has by that name. No code of the program's runs.
    pub fn class_attr(&self, name: &str) -> Option<Object<'py>> {
        if !self.is_class() {
            return None;
        }
        let name = self.py.text(name)?;
        // SAFETY: the object is a class, and the name a str; a new reference.
        unsafe { self.py.own(self.py.api.class_attr(self.raw, name.raw)) }
    }

    /// What its class, or a base of that, has by that name. No code of the program's runs.
    pub fn attr_of_class(&self, name: &AttributeName) -> Option<Object<'py>> {
        let (class, name) = (self.class()?, name.raw()?);
        // SAFETY: a class, and a str, which the name holds; a new reference.
        unsafe {
            let found = self.py.api.class_attr(class.raw, name);
            (!found.is_null()).then(|| self.py.own(found))?
        }
    }

    /// `self.name`, without a `__getattribute__` or `__getattr__` of its class. Code of the program runs if
    /// what its class has by that name ([`Self::attr_of_class`]) has a `__get__` that is such.
    pub fn generic_attr(&self, name: &AttributeName) -> Option<Object<'py>> {
        let name = name.raw()?;
        // SAFETY: the reference is owned, and the name holds a str; a new reference.
        unsafe { self.py.own((self.py.api.generic_attr)(self.raw, name)) }
    }

    /// The attributes of a module, or that an object that is no class has itself, as a dictionary;
    /// none if it has none. No code of the program's runs.
    pub fn own_attrs(&self) -> Option<Object<'py>> {
        if self.is_class() {
            return None; // what a built-in one has lies elsewhere
        }
        let c = self.py.c();
        c.module_dict(self).or_else(|| c.own_dict(self, None))
    }

    /// The code of a function.
    pub fn code(&self) -> Option<Object<'py>> {
        self.py.c().function_code(self)
    }

    /// The keys of a dictionary that are texts.
    pub fn each_key(&self, mut act: impl FnMut(&str)) {
        let mut position = 0;
        let (mut key, mut value) = (core::ptr::null_mut(), core::ptr::null_mut());
        let mut next = || {
            // SAFETY: the reference is owned; writes to the locals.
            let is_there = unsafe {
                let next = self.py.api.dict_next;
                next(self.raw, &raw mut position, &raw mut key, &raw mut value) != 0
            };
            // SAFETY: the key is borrowed from the dictionary, which nothing has changed since.
            is_there.then(|| unsafe { self.py.share(key) })
        };
        while let Some(key) = next() {
            if let Some(key) = key.as_ref().and_then(Object::as_text) {
                act(key);
            }
        }
    }

    /// `self[name]` of a dictionary.
    pub fn item(&self, name: &CStr) -> Option<Object<'py>> {
        // SAFETY: the reference is owned, so that the object is alive; a new reference, or null.
        unsafe { self.py.own(self.py.api.dict_item(self.raw, name)) }
    }

    /// `self[key]` of a dictionary.
    pub fn find(&self, key: &Object<'py>) -> Option<Object<'py>> {
        // SAFETY: both references are owned, so that the objects are alive; a new reference, or null.
        unsafe { self.py.own(self.py.api.dict_find(self.raw, key.raw)) }
    }

    /// `self[name] = value` of a dictionary; whether that worked.
    pub fn set_item(&self, name: &CStr, value: &Object<'py>) -> bool {
        let py = self.py;
        py.succeeded(py.c().dict_set(self, name, value))
    }

    /// `self.append(value)` of a list; whether that worked.
    pub fn append(&self, value: &Object<'py>) -> bool {
        let py = self.py;
        py.succeeded(py.c().list_append(self, value))
    }

    /// A weak reference to it, which calls `callback` when it goes.
    pub fn weak_reference(&self, callback: &Object<'py>) -> Option<Object<'py>> {
        self.py.c().weak_reference(self, callback)
    }

    /// What a cell holds.
    pub fn content(&self) -> Option<Object<'py>> {
        self.py.c().cell_get(self)
    }

    /// `self(*args)`; none if it raised.
    pub fn call(&self, args: &[&Object<'py>]) -> Option<Object<'py>> {
        let drop_exception = |raised| {
            self.py.raise(raised);
            self.py.clear_exception();
        };
        self.try_call(args).map_err(drop_exception).ok()
    }

    /// `self(*args)`, or the exception that it raised.
    pub fn try_call(&self, args: &[&Object<'py>]) -> Result<Object<'py>, Exception> {
        let py = self.py;
        let tuple = py.tuple(args).ok_or_else(|| py.take_exception())?;
        py.c().call(self, &tuple)
    }

    /// Its whole-number value; none if it has none in 64 bits.
    pub fn as_int(&self) -> Option<i64> {
        let value = self.py.c().long_as(self);
        (value != -1 || !self.py.raised()).then_some(value)
    }

    /// Its text; none if it is no str.
    pub fn as_text(&self) -> Option<&str> {
        let mut length = 0;
        // SAFETY: the reference is owned; writes to the local.
        let text = unsafe { (self.py.api.text_as)(self.raw, &raw mut length) };
        if text.is_null() {
            self.py.clear_exception();
            return None;
        }
        let length = usize::try_from(length).ok()?;
        // SAFETY: the text has that many bytes and lies in the object, which does not change it, as
        // long as that lives.
        str::from_utf8(unsafe { core::slice::from_raw_parts(text.cast(), length) }).ok()
    }

    /// Whether Python takes it for true; not, where it cannot say.
    pub fn is_true(&self) -> bool {
        let answer = self.py.c().is_true(self);
        self.py.succeeded(answer) && answer > 0
    }

    /// The values of a dictionary, as a tuple.
    pub fn values(&self) -> Option<Object<'py>> {
        let c = self.py.c();
        c.as_tuple(&c.dict_values(self)?)
    }

    /// `self[index]` of a sequence.
    pub fn at(&self, index: isize) -> Option<Object<'py>> {
        self.py.c().sequence_get(self, index)
    }

    /// The elements of a tuple.
    pub fn elements(&self) -> impl Iterator<Item = Object<'py>> {
        let size = self.py.c().tuple_size(self);
        if size < 0 {
            self.py.raised();
        }
        (0..size).filter_map(|index| self.py.c().tuple_get(self, index))
    }
}

impl<'py> Python<'py> {
    /// `(*elements,)`.
    fn tuple(self, elements: &[&Object<'py>]) -> Option<Object<'py>> {
        let tuple = self.c().tuple_new(elements.len().cast_signed())?;
        for (index, element) in elements.iter().enumerate() {
            let element = Object::clone(element);
            self.c().tuple_set(&tuple, index.cast_signed(), element);
        }
        Some(tuple)
    }
}
