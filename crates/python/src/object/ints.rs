//! Lists of whole numbers, read where they lie: the C API needs five calls to tell that an element is not 0.
//!
//! Lists and numbers have had the same words since 3.8, in builds with a GIL: an object begins with its count of references and
//! its type, a list goes on with its length and where its elements lie, and a number with what tells its sign and size.
//! [`Ints::of`] tries that with a list of its own, and does not hold in other builds.

use super::{Held, Object, Python};
use crate::api::Raw;

/// Words of an object.
const TYPE: usize = 1;
const LENGTH: usize = 2;
const ELEMENTS: usize = 3;
const SIGN: usize = 2;
/// Since 3.14 the word has this bit for small numbers, which live forever. Before 3.12 it is one of those of its size: numbers
/// of 91 to 120 bits cannot be told from 0.
const SMALL: usize = 1 << 2;

/// How this interpreter's numbers lie in lists.
pub struct Ints {
    /// Small numbers exist once.
    zero: Held,
    /// The word of 0 that tells its sign.
    sign: usize,
}

impl Ints {
    /// None where lists or numbers lie otherwise than they are known to.
    #[cold]
    pub fn of(py: Python<'_>) -> Option<Self> {
        /// Whether an element is 0. A bool is none of the interpreter's own whole numbers.
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
        // SAFETY: a list of any build has four words and more.
        let is_list = unsafe {
            word(list.raw(), TYPE) == py.api.types.list.addr() && word(list.raw(), LENGTH) == known
        };
        let lies_there = |index: usize| {
            let element = list.at(index.cast_signed());
            // SAFETY: asked where the first words are a list's, and the next one leads to its elements.
            element.is_some_and(|one| one.raw() == unsafe { element_of(list.raw(), index) })
        };
        let is_known = is_list && (0..known).all(lies_there);
        let zero = list.at(0)?;
        // SAFETY: the elements were found where they were looked for, so that objects have the known words.
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

    /// Whether the element of a list is 0; None where it is none that can be told so, or no whole number of the
    /// interpreter's own.
    #[inline]
    pub fn is_zero(&self, list: &Object<'_>, index: usize) -> Option<bool> {
        let types = &list.py().api.types;
        // SAFETY: `of` has proved the words of lists and numbers of this interpreter. The list is alive, the thread may use the
        // interpreter, whose GIL nobody else has, and an element that lies in a list lives.
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

    /// The first element from `from` on that may be 0; `to` where there is none before.
    #[inline]
    pub fn skip_others(&self, list: &Object<'_>, from: usize, to: usize) -> usize {
        let is_other = |index: &usize| self.is_zero(list, *index) == Some(false);
        (from..to).find(|index| !is_other(index)).unwrap_or(to)
    }

    /// Gives its reference up.
    #[cold]
    pub fn release(&self, py: Python<'_>) {
        drop(self.zero.take(py));
    }
}

/// # Safety
/// The object has that many words.
unsafe fn word(object: Raw, at: usize) -> usize {
    // SAFETY: as the caller says; objects are aligned.
    unsafe { object.cast::<usize>().add(at).read() }
}

/// # Safety
/// The words of a list are those that are known, and it has that element.
unsafe fn element_of(list: Raw, index: usize) -> Raw {
    // SAFETY: the word is where the elements lie, one behind the other.
    unsafe {
        list.cast::<*const Raw>()
            .add(ELEMENTS)
            .read()
            .add(index)
            .read()
    }
}
