//! References to Python objects, and exceptions that are kept out of the program's way.
//!
//! Everything here needs the GIL, which whoever has a [`Python`] has.

use core::ffi::{CStr, c_int};
use core::marker::PhantomData;

use super::api::{Api, MethodDef, Raw};

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

impl<'py> Python<'py> {
    /// # Safety
    /// The calling thread has the GIL, or a thread state where there is no GIL, as long as `'py`.
    pub const unsafe fn assume(api: &'static Api) -> Self {
        Self {
            api,
            thread: PhantomData,
        }
    }

    /// Runs `act` with no exception set, and puts back the one that was, whatever `act` raised.
    pub fn quietly<R>(self, act: impl FnOnce(Self) -> R) -> R {
        let mut kept: [Raw; 3] = [core::ptr::null_mut(); 3];
        let [kind, value, trace] = &mut kept;
        // SAFETY: the thread may use the interpreter; the references that are fetched are put back.
        unsafe {
            (self.api.err_fetch)(kind, value, trace);
            let result = act(self);
            (self.api.err_clear)();
            (self.api.err_restore)(kept[0], kept[1], kept[2]);
            result
        }
    }

    /// Takes over a new reference; none, and the exception cleared, for null.
    ///
    /// # Safety
    /// `raw` is null or a reference that the caller owns.
    pub unsafe fn own(self, raw: Raw) -> Option<Object<'py>> {
        if raw.is_null() {
            // SAFETY: the thread may use the interpreter.
            unsafe { (self.api.err_clear)() };
            return None;
        }
        Some(Object { py: self, raw })
    }

    /// A new reference to what is borrowed; none for null.
    ///
    /// # Safety
    /// `raw` is null or a reference to a live object.
    pub unsafe fn share(self, raw: Raw) -> Option<Object<'py>> {
        // SAFETY: the caller's promise.
        unsafe {
            if !raw.is_null() {
                (self.api.inc_ref)(raw);
            }
            self.own(raw)
        }
    }

    /// `import name`.
    pub fn import(self, name: &CStr) -> Option<Object<'py>> {
        // SAFETY: the text is terminated; a new reference.
        unsafe { self.own((self.api.import)(name.as_ptr())) }
    }

    /// As [`Self::import`], of a module that keeps its state elsewhere: a program that has not
    /// imported it itself does not find it among its modules.
    pub fn import_unseen(self, name: &CStr) -> Option<Object<'py>> {
        let was_there = self.imported(name).is_some();
        let module = self.import(name)?;
        // SAFETY: the text is terminated; the modules are borrowed.
        if !was_there && unsafe { (self.api.dict_remove)((self.api.modules)(), name.as_ptr()) } != 0
        {
            self.raised();
        }
        Some(module)
    }

    /// `sys.modules.get(name)`: nothing is imported.
    pub fn imported(self, name: &CStr) -> Option<Object<'py>> {
        // SAFETY: the text is terminated; a borrowed reference.
        unsafe { self.get((self.api.modules)(), name) }
    }

    /// `dictionary[name]`. Where threads run without a GIL, another may take away meanwhile what is
    /// borrowed: from 3.13 on the reference is new.
    ///
    /// # Safety
    /// `dictionary` is a reference to a live object.
    unsafe fn get(self, dictionary: Raw, name: &CStr) -> Option<Object<'py>> {
        // SAFETY: the caller's promise; the text is terminated, and what is found is new or borrowed.
        unsafe {
            let Some(get) = self.api.dict_get_new else {
                return self.share((self.api.dict_get)(dictionary, name.as_ptr()));
            };
            let mut found = core::ptr::null_mut();
            get(dictionary, name.as_ptr(), &raw mut found);
            self.own(found)
        }
    }

    /// `sys.name`.
    pub fn sys(self, name: &CStr) -> Option<Object<'py>> {
        // SAFETY: the text is terminated; a borrowed reference.
        unsafe { self.share((self.api.sys_object)(name.as_ptr())) }
    }

    /// The number of the interpreter, 0 for the main one.
    pub fn interpreter(self) -> i64 {
        // SAFETY: the thread has a state, and so an interpreter.
        unsafe { (self.api.interpreter_id)((self.api.interpreter)()) }
    }

    /// A Python function that calls ours.
    pub fn function(self, definition: &'static MethodDef) -> Option<Object<'py>> {
        let null = core::ptr::null_mut();
        // SAFETY: the definition is a static, as the function object will refer to it.
        unsafe { self.own((self.api.c_function)(definition, null, null)) }
    }

    /// A Python function that calls ours with `first` before its arguments.
    pub fn function_of(
        self,
        definition: &'static MethodDef,
        first: &Object<'py>,
    ) -> Option<Object<'py>> {
        let null = core::ptr::null_mut();
        // SAFETY: as above; the function object takes a reference of its own.
        unsafe { self.own((self.api.c_function)(definition, first.raw, null)) }
    }

    pub fn text(self, text: &str) -> Option<Object<'py>> {
        let length = text.len().cast_signed();
        // SAFETY: the text has that many bytes.
        unsafe { self.own((self.api.text_from)(text.as_ptr().cast(), length)) }
    }

    pub fn int(self, value: i64) -> Option<Object<'py>> {
        // SAFETY: a new reference.
        unsafe { self.own((self.api.long_from)(value)) }
    }

    /// Runs `source` as a module's body in a new namespace, which is returned.
    ///
    /// `file` is what tracebacks call it.
    pub fn run(self, source: &CStr, file: &CStr) -> Option<Object<'py>> {
        // SAFETY: a new reference.
        let names = unsafe { self.own((self.api.dict_new)()) }?;
        self.run_in(names, source, file)
    }

    /// As [`Self::run`], as a module that can be found by `name`.
    pub fn run_as_module(self, name: &CStr, source: &CStr, file: &CStr) -> Option<Object<'py>> {
        // SAFETY: the text is terminated; the module and its names are borrowed.
        let names = unsafe {
            let module = self.share((self.api.add_module)(name.as_ptr()))?;
            self.share((self.api.module_dict)(module.raw))?
        };
        self.run_in(names, source, file)
    }

    fn run_in(self, names: Object<'py>, source: &CStr, file: &CStr) -> Option<Object<'py>> {
        /// `Py_file_input`.
        const FILE: c_int = 257;
        // SAFETY: the texts are terminated; the builtins are borrowed; the rest is owned.
        unsafe {
            let api = self.api;
            let code = self.own((api.compile)(source.as_ptr(), file.as_ptr(), FILE))?;
            if (api.dict_set)(names.raw, c"__builtins__".as_ptr(), (api.builtins)()) != 0 {
                return self.own(core::ptr::null_mut());
            }
            self.own((api.eval_code)(code.raw, names.raw, names.raw))?;
            Some(names)
        }
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

impl<'py> Object<'py> {
    /// The reference, borrowed.
    pub const fn raw(&self) -> Raw {
        self.raw
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
        // SAFETY: the reference is owned and the text terminated; a new reference.
        unsafe { self.py.own((self.py.api.attr)(self.raw, name.as_ptr())) }
    }

    /// Its type.
    pub fn class(&self) -> Option<Object<'py>> {
        // SAFETY: the reference is owned; a new reference.
        unsafe { self.py.own((self.py.api.type_of)(self.raw)) }
    }

    /// Its type, to be compared alone.
    pub fn kind(&self) -> Raw {
        self.class()
            .map_or(core::ptr::null_mut(), |class| class.raw())
    }

    /// Whether it is a class.
    pub fn is_class(&self) -> bool {
        // SAFETY: both are types.
        unsafe { (self.py.api.is_subtype)(self.kind(), self.py.api.types.class) != 0 }
    }

    /// What a class, or a base of it, has by that name. No code of the program's runs.
    pub fn class_attr(&self, name: &str) -> Option<Object<'py>> {
        if !self.is_class() {
            return None;
        }
        let name = self.py.text(name)?;
        // SAFETY: the object is a class; a new reference, or a borrowed one.
        unsafe {
            match self.py.api.class_attr_new {
                Some(attr) => self.py.own(attr(self.raw, name.raw)),
                None => self.py.share((self.py.api.class_attr)(self.raw, name.raw)),
            }
        }
    }

    /// The attributes of a module, or that an object that is no class has itself, as a dictionary;
    /// none if it has none. No code of the program's runs.
    pub fn own_attrs(&self) -> Option<Object<'py>> {
        if self.is_class() {
            return None; // what a built-in one has lies elsewhere
        }
        // SAFETY: the reference is owned; a module's dictionary is borrowed, the other is new.
        unsafe {
            self.py
                .share((self.py.api.module_dict)(self.raw))
                .or_else(|| {
                    let none = core::ptr::null_mut();
                    self.py.own((self.py.api.own_dict)(self.raw, none))
                })
        }
    }

    /// The code of a function.
    pub fn code(&self) -> Option<Object<'py>> {
        // SAFETY: the reference is owned; a borrowed one, null for what is no function.
        unsafe { self.py.share((self.py.api.function_code)(self.raw)) }
    }

    /// The keys of a dictionary that are texts.
    pub fn each_key(&self, mut act: impl FnMut(&str)) {
        let mut position = 0;
        let (mut key, mut value) = (core::ptr::null_mut(), core::ptr::null_mut());
        // SAFETY: the reference is owned; nothing below changes the dictionary, and what it gives
        // is borrowed from it.
        unsafe {
            let next = self.py.api.dict_next;
            while next(self.raw, &raw mut position, &raw mut key, &raw mut value) != 0 {
                if let Some(key) = self.py.share(key)
                    && let Some(key) = key.as_text()
                {
                    act(key);
                }
            }
        }
    }

    /// `self[name]` of a dictionary.
    pub fn item(&self, name: &CStr) -> Option<Object<'py>> {
        // SAFETY: the reference is owned.
        unsafe { self.py.get(self.raw, name) }
    }

    /// `self(*args)`; none if it raised.
    pub fn call(&self, args: &[&Object<'py>]) -> Option<Object<'py>> {
        // SAFETY: a new reference, or null.
        unsafe { self.py.own(self.raw_call(args)) }
    }

    /// `self(*args)`, or the exception that it raised, as `PyErr_Fetch` gives it.
    pub fn try_call(&self, args: &[&Object<'py>]) -> Result<Object<'py>, [Raw; 3]> {
        let raw = self.raw_call(args);
        if raw.is_null() {
            let mut raised: [Raw; 3] = [core::ptr::null_mut(); 3];
            let [kind, value, trace] = &mut raised;
            // SAFETY: the thread may use the interpreter.
            unsafe { (self.py.api.err_fetch)(kind, value, trace) };
            return Err(raised);
        }
        Ok(Object { py: self.py, raw })
    }

    /// A new reference to `self(*args)`, or null and an exception.
    fn raw_call(&self, args: &[&Object<'py>]) -> Raw {
        let api = self.py.api;
        // SAFETY: the tuple takes references of its own to the arguments.
        unsafe {
            let tuple = (api.tuple_new)(args.len().cast_signed());
            if tuple.is_null() {
                return tuple;
            }
            for (index, arg) in args.iter().enumerate() {
                (api.inc_ref)(arg.raw);
                (api.tuple_set)(tuple, index.cast_signed(), arg.raw);
            }
            let result = (api.call)(self.raw, tuple);
            (api.dec_ref)(tuple);
            result
        }
    }

    /// Its whole-number value; none if it has none in 64 bits.
    pub fn as_int(&self) -> Option<i64> {
        // SAFETY: the reference is owned.
        let value = unsafe { (self.py.api.long_as)(self.raw) };
        (value != -1 || !self.py.raised()).then_some(value)
    }

    /// Its text; none if it is no str.
    pub fn as_text(&self) -> Option<&str> {
        let mut length = 0;
        // SAFETY: the reference is owned; the text lies in the object, as long as that lives, and
        // is UTF-8 of that many bytes.
        unsafe {
            let text = (self.py.api.text_as)(self.raw, &raw mut length);
            if text.is_null() {
                (self.py.api.err_clear)();
                return None;
            }
            let bytes = core::slice::from_raw_parts(text.cast(), usize::try_from(length).ok()?);
            str::from_utf8(bytes).ok()
        }
    }

    /// Whether Python takes it for true; not, where it cannot say.
    pub fn is_true(&self) -> bool {
        // SAFETY: the reference is owned; -1 for an exception.
        let answer = unsafe { (self.py.api.is_true)(self.raw) };
        if answer < 0 {
            self.py.raised();
        }
        answer > 0
    }

    /// The values of a dictionary, as a tuple.
    pub fn values(&self) -> Option<Object<'py>> {
        // SAFETY: the reference is owned; a new reference to a list each, or null.
        unsafe {
            let list = self.py.own((self.py.api.dict_values)(self.raw))?;
            self.py.own((self.py.api.as_tuple)(list.raw))
        }
    }

    /// `self[index]` of a sequence.
    pub fn at(&self, index: isize) -> Option<Object<'py>> {
        // SAFETY: the reference is owned; a new reference.
        unsafe { self.py.own((self.py.api.sequence_get)(self.raw, index)) }
    }

    /// The elements of a tuple.
    pub fn elements(&self) -> impl Iterator<Item = Object<'py>> {
        // SAFETY: the reference is owned; -1 for what is no tuple.
        let size = unsafe { (self.py.api.tuple_size)(self.raw) };
        if size < 0 {
            self.py.raised();
        }
        // SAFETY: as above; the elements are borrowed.
        (0..size)
            .filter_map(|index| unsafe { self.py.share((self.py.api.tuple_get)(self.raw, index)) })
    }
}

impl Python<'_> {
    /// Whether an exception is set; it is cleared.
    fn raised(self) -> bool {
        // SAFETY: the thread may use the interpreter.
        unsafe {
            let raised = !(self.api.err_occurred)().is_null();
            if raised {
                (self.api.err_clear)();
            }
            raised
        }
    }
}
