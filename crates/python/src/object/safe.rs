//! The C API functions that need no `unsafe`. The functions take a [`Python`], which proves that
//! the thread may use the interpreter, and any objects, texts and plain values.

use core::ffi::{CStr, c_int, c_void};

use super::{Exception, Object, Python};
use crate::api::{MethodDef, with_functions};

/// Access to the C API for a thread that may use the interpreter ([`Python::c`]).
#[derive(Clone, Copy)]
pub struct C<'py>(pub Python<'py>);

/// Maps a word of the table of C API functions (`with_functions`) to the Rust type of an argument or result.
/// [`crate::api`] explains the words.
macro_rules! rust_type {
    ($py:lifetime object) => { &Object<'_> };
    ($py:lifetime maybe) => { Option<&Object<'_>> };
    ($py:lifetime taken) => { Object<'_> };
    ($py:lifetime text) => { &CStr };
    ($py:lifetime method) => { &'static MethodDef };
    ($py:lifetime int) => { c_int };
    ($py:lifetime size) => { isize };
    ($py:lifetime number) => { i64 };
    ($py:lifetime new) => { Option<Object<$py>> };
    ($py:lifetime result) => { Result<Object<$py>, Exception> };
    ($py:lifetime borrowed) => { Option<Object<$py>> };
    ($py:lifetime is_set) => { bool };
    ($py:lifetime nothing) => { () };
    ($py:lifetime address) => { *mut c_void };
}

/// Converts an argument from its Rust type to its C type.
macro_rules! to_c {
    (object $value:expr) => {
        $value.raw()
    };
    (maybe $value:expr) => {
        $value.map_or(core::ptr::null_mut(), Object::raw)
    };
    (taken $value:expr) => {
        $value.release()
    };
    (text $value:expr) => {
        $value.as_ptr()
    };
    (method $value:expr) => {
        $value
    };
    (int $value:expr) => {
        $value
    };
    (size $value:expr) => {
        $value
    };
    (number $value:expr) => {
        $value
    };
}

/// Converts a result from its C type to its Rust type.
macro_rules! to_rust {
    (new $py:expr, $value:expr) => {
        $py.own($value)
    };
    (result $py:expr, $value:expr) => {
        $py.own_or_exception($value)
    };
    (borrowed $py:expr, $value:expr) => {
        $py.share($value)
    };
    (is_set $py:expr, $value:expr) => {
        !$value.is_null()
    };
    // This arm is for plain values, such as an int or a size.
    ($kind:ident $py:expr, $value:expr) => {
        $value
    };
}

macro_rules! wrap {
    (
        any_time { $($any_time:tt)* }
        safe { $($safe:ident($($name:ident: $kind:ident),*) -> $result:ident = $($symbol:literal)|+;)* }
        required { $($required:tt)* }
        optional { $($optional:tt)* }
    ) => {
        /// The functions that accept any object. The functions raise an exception if an object has
        /// the wrong type.
        impl<'py> C<'py> {
            $(
                #[inline]
                pub fn $safe(self, $($name: rust_type!('py $kind)),*) -> rust_type!('py $result) {
                    // SAFETY: the `Python` proves that the thread may use the interpreter. The
                    // arguments are live objects, zero-terminated texts and plain values, and the
                    // function checks their types. The table states whether the result is owned or
                    // borrowed.
                    unsafe {
                        let result = (self.0.api.$safe)($(to_c!($kind $name)),*);
                        to_rust!($result self.0, result)
                    }
                }
            )*
        }
    };
}

with_functions!(wrap);
