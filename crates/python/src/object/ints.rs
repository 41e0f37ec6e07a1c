//! Reads the integers of Python lists directly from memory. With the C API, a check for 0 takes
//! five calls for each element.
//!
//! Lists and ints have had the same layout since 3.8 in builds with a GIL. An object begins with its reference count
//! and its type. A list continues with its length and the address of its elements. An int continues with a word for its
//! sign and size. [`Ints::detect`] checks this layout with a list that it creates, and returns `None` if the layout
//! differs.

use super::{Held, Object, Python};
use crate::api::Raw;

/// Indexes of words in an object: `TYPE` in every object, `LENGTH` and `ELEMENTS` in a list, and `SIGN` in an int.
const TYPE: usize = 1;
const LENGTH: usize = 2;
const ELEMENTS: usize = 3;
const SIGN: usize = 2;
/// A bit of the sign word that comparisons ignore. Since 3.14, this bit is set for small ints, which are never freed.
/// Before 3.12, it is part of the int's size. [`Ints::is_zero`] then cannot distinguish an int of 91 to 120 bits from
/// 0, and returns `None` for it.
const SMALL: usize = 1 << 2;

/// The memory layout of ints in this interpreter, with which ints in lists are read without the C
/// API.
pub struct Ints {
    /// The int 0. The interpreter has one object for each small number.
    zero: Held,
    /// The value of the sign word in the object of the int 0.
    sign: usize,
}

impl Ints {
    /// Checks the expected layout of lists and ints with a list of known numbers. Returns `None` if
    /// the interpreter's layout differs.
    #[cold]
    pub fn detect(py: Python<'_>) -> Option<Self> {
        /// The expected results of `is_zero`, element by element: true for 0. The last element is a
        /// bool, which is not exactly an int, so the result is `None`.
        const EXPECTED: [Option<bool>; 8] = {
            let mut expected = [Some(false); 8];
            expected[0] = Some(true);
            expected[7] = None;
            expected
        };
        let source = c"numbers = [0, 1, -1, 256, 257, -1 << 40, 1 << 70, False]\n";
        let names = py.run(source, c"<tllmprof>")?;
        let list = names.item(c"numbers")?;
        let known = EXPECTED.len();
        // SAFETY: a list of any build has at least four words.
        let is_list = unsafe {
            word(list.raw(), TYPE) == py.api.types.list.addr() && word(list.raw(), LENGTH) == known
        };
        let lies_there = |index: usize| {
            let element = list.at(index.cast_signed());
            // SAFETY: this runs only if the first words are those of a list, and the next word is
            // then the address of its elements.
            element.is_some_and(|one| one.raw() == unsafe { element_of(list.raw(), index) })
        };
        let is_known = is_list && (0..known).all(lies_there);
        let zero = list.at(0)?;
        // SAFETY: the elements are where they were expected, so objects have the known layout.
        let sign = is_known.then(|| unsafe { word(zero.raw(), SIGN) })?;
        let ints = Self {
            zero: Held::new(zero),
            sign,
        };
        let is_right =
            |(index, expected): (usize, &Option<bool>)| ints.is_zero(&list, index) == *expected;
        if EXPECTED.iter().enumerate().all(is_right) {
            return Some(ints);
        }
        ints.release(py);
        None
    }

    /// Returns true if the list's element is 0, and false if it is another int. Returns `None` if
    /// the object is not a list, the index is too large, or the element is not exactly an int.
    #[inline]
    pub fn is_zero(&self, list: &Object<'_>, index: usize) -> Option<bool> {
        let types = &list.py().api.types;
        // SAFETY: `detect` has checked the layout of this interpreter's lists and numbers. The list
        // is alive, the thread has the interpreter's GIL, which no other thread has, and an element
        // of a list is alive.
        unsafe {
            if word(list.raw(), TYPE) != types.list.addr() || index >= word(list.raw(), LENGTH) {
                return None;
            }
            let element = element_of(list.raw(), index);
            if element.addr() == self.zero.addr() {
                return Some(true);
            }
            let is_other = word(element, TYPE) == types.integer.addr()
                && word(element, SIGN) & !SMALL != self.sign & !SMALL;
            is_other.then_some(false)
        }
    }

    /// Returns the first index in `from..to` at which the element is 0 or is not exactly an int. Returns `to` if
    /// there is no such index.
    #[inline]
    pub fn skip_others(&self, list: &Object<'_>, from: usize, to: usize) -> usize {
        let is_other = |index: &usize| self.is_zero(list, *index) == Some(false);
        (from..to).find(|index| !is_other(index)).unwrap_or(to)
    }

    /// Releases the reference to the int 0.
    #[cold]
    pub fn release(&self, py: Python<'_>) {
        drop(self.zero.take(py));
    }
}

/// Returns the word number `at` of an object.
///
/// # Safety
/// The object has more than `at` words.
unsafe fn word(object: Raw, at: usize) -> usize {
    // SAFETY: the caller promises that the object has more than `at` words; objects are aligned.
    unsafe { object.cast::<usize>().add(at).read() }
}

/// Returns the element `index` of a list.
///
/// # Safety
/// The list has the known layout and more than `index` elements.
unsafe fn element_of(list: Raw, index: usize) -> Raw {
    // SAFETY: the caller promises that `ELEMENTS` is the address of the list's elements, and that
    // `index` is one of them.
    unsafe {
        list.cast::<*const Raw>()
            .add(ELEMENTS)
            .read()
            .add(index)
            .read()
    }
}
