//! NVTX strings of the program, in either of two encodings.

use core::ffi::{CStr, c_char};
use core::marker::PhantomData;

use tllmprof_steps::ranges::pattern::CompiledPattern;

/// A terminated string of the program in one of NVTX's two encodings. The string lives for `'a`.
#[derive(Clone, Copy)]
pub(super) struct NvtxText<'a> {
    place: Pointer,
    of: PhantomData<&'a c_char>,
}

#[derive(Clone, Copy)]
enum Pointer {
    /// The string consists of bytes.
    Narrow(*const c_char),
    /// The string is UTF-32, like `wchar_t` on Linux.
    Wide(*const u32),
}

impl<'a> NvtxText<'a> {
    /// Returns a string of bytes, or `None` for null.
    pub(crate) unsafe fn narrow(text: *const c_char) -> Option<Self> {
        Self::unless_null(text.is_null(), Pointer::Narrow(text))
    }

    /// Returns a string of wide characters, or `None` for null.
    pub(crate) unsafe fn wide(text: *const u32) -> Option<Self> {
        Self::unless_null(text.is_null(), Pointer::Wide(text))
    }

    fn unless_null(is_null: bool, place: Pointer) -> Option<Self> {
        let of = PhantomData;
        (!is_null).then_some(Self { place, of })
    }

    /// Returns the whole string, if it consists of bytes. Returns `None` for wide characters.
    pub(crate) fn as_c_str(self) -> Option<&'a CStr> {
        match self.place {
            // SAFETY: the caller of `narrow` promised a terminated string for `'a`; `unless_null` has refused null.
            Pointer::Narrow(text) => Some(unsafe { CStr::from_ptr(text) }),
            Pointer::Wide(_) => None,
        }
    }

    /// Returns true if `pattern` matches the string. Each encoding has its own loop, so that the encoding is not tested
    /// again for each byte.
    #[inline]
    pub(super) fn matches(self, pattern: &CompiledPattern) -> bool {
        match self.place {
            // SAFETY: the caller of `narrow` promised a terminated string; `unless_null` has refused null.
            Pointer::Narrow(text) => pattern.matches(unsafe { narrow_bytes(text) }),
            // SAFETY: the caller of `wide` promised a terminated string; `unless_null` has refused null.
            Pointer::Wide(text) => pattern.matches(unsafe { wide_bytes(text) }),
        }
    }

    /// Returns the bytes of the string. Wide characters are converted to UTF-8.
    pub(crate) fn bytes(self) -> impl Iterator<Item = u8> + 'a {
        let (narrow, wide) = match self.place {
            Pointer::Narrow(text) => (Some(text), None),
            Pointer::Wide(text) => (None, Some(text)),
        };
        // SAFETY: the caller of `narrow` promised a terminated string for `'a`; `unless_null` has refused null.
        let narrow = narrow.map(|text| unsafe { narrow_bytes(text) });
        // SAFETY: the caller of `wide` promised a terminated string for `'a`; `unless_null` has refused null.
        let wide = wide.map(|text| unsafe { wide_bytes(text) });
        narrow
            .into_iter()
            .flatten()
            .chain(wide.into_iter().flatten())
    }
}

/// Returns the bytes of a string of bytes, up to its end.
///
/// # Safety
/// `text` is terminated, and does not change while the iterator is used.
#[inline]
unsafe fn narrow_bytes(text: *const c_char) -> impl Iterator<Item = u8> {
    let mut next = text.cast::<u8>();
    core::iter::from_fn(move || {
        // SAFETY: the string is terminated, and nothing after its end is read.
        let byte = unsafe { *next };
        next = next.wrapping_add(usize::from(byte != 0));
        (byte != 0).then_some(byte)
    })
}

/// Returns the bytes in UTF-8 of a string of wide characters, up to its end.
///
/// # Safety
/// `text` is terminated, and does not change while the iterator is used.
#[inline]
unsafe fn wide_bytes(text: *const u32) -> impl Iterator<Item = u8> {
    let (mut index, mut utf8, mut at, mut end) = (0, [0; 4], 0, 0);
    core::iter::from_fn(move || {
        if at == end {
            // SAFETY: the string is terminated, and nothing after its end is read. The read is unaligned because a
            // string in a packed structure may have any address.
            let wide = unsafe { text.add(index).read_unaligned() };
            if wide == 0 {
                return None;
            }
            index += 1;
            let character = char::from_u32(wide).unwrap_or(char::REPLACEMENT_CHARACTER);
            (at, end) = (0, character.encode_utf8(&mut utf8).len());
        }
        at += 1;
        Some(utf8[at - 1])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_and_wide_strings_have_the_same_bytes() {
        for text in ["", "step 12", "é", "x\u{10ffff}"] {
            let narrow = std::ffi::CString::new(text).unwrap();
            let wide: Vec<u32> = text.chars().map(u32::from).chain([0]).collect();
            // SAFETY: both strings are terminated and outlive the calls.
            let both = unsafe {
                [
                    NvtxText::narrow(narrow.as_ptr()),
                    NvtxText::wide(wide.as_ptr()),
                ]
            };
            for spelt in both.map(Option::unwrap) {
                assert_eq!(spelt.bytes().collect::<Vec<_>>(), text.as_bytes());
            }
        }
    }
}
