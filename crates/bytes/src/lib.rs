//! `memcpy`, `memmove`, `memset`, `memcmp`, `bcmp` and `strlen`, only for the preloaded library.
//!
//! The compiler may insert calls of these functions anywhere, and `core` and `std` call them, too. Through the PLT such
//! a call would reach the host program's function of that name. That function could belong to a sanitizer that is not
//! initialised yet. Or it could be an interposer that finds the C library's function with `dlsym`: this library hooks
//! `dlsym`, and the hook would call the interposer again. So this crate defines the names as hidden symbols:
//! references within the library are bound to them when it is linked, and the host program never sees them.
//!
//! The crate is `no_builtins`, so that the compiler does not turn the loops of these functions into calls of the
//! functions themselves. The compiler excludes such a crate from link-time optimization.

#![cfg_attr(not(test), no_std)]
#![no_builtins]

use core::ffi::c_int;

/// The largest value that a copy loads and stores at once: 16 bytes.
type Word = u128;
const WORD: usize = size_of::<Word>();

/// Implements `memcpy` and `memmove`.
///
/// # Safety
/// The requirements of `memmove`.
pub unsafe extern "C" fn copy(to: *mut u8, from: *const u8, length: usize) -> *mut u8 {
    // No panic: the code computes only with addresses, and with numbers that cannot overflow.
    /// Copies `length` bytes as two values of type `T`: the first bytes and the last bytes. The two values may overlap.
    ///
    /// # Safety
    /// `length` is at least the size of one `T` and at most the size of two. `length` bytes may be read at `from` and
    /// written at `to`.
    #[inline(always)]
    unsafe fn ends<T: Copy>(to: *mut u8, from: *const u8, length: usize) {
        let last = length - size_of::<T>();
        // SAFETY: these are the first and last bytes of two areas of `length` bytes. Both are loaded before either is
        // stored, because the areas may overlap.
        unsafe {
            let (first, end) = (load::<T>(from), load::<T>(from.add(last)));
            store(to, first);
            store(to.add(last), end);
        }
    }
    // SAFETY: the caller guarantees that both areas have `length` bytes, and each branch stays within them.
    unsafe {
        match length {
            0 => {}
            1 => store(to, load::<u8>(from)),
            2..4 => ends::<u16>(to, from, length),
            4..8 => ends::<u32>(to, from, length),
            8..WORD => ends::<u64>(to, from, length),
            WORD..=32 => ends::<Word>(to, from, length),
            // If the target begins inside the source, the copy must proceed from the end to the
            // start, so that no byte is overwritten before it is copied.
            _ if to.addr().wrapping_sub(from.addr()) < length => backwards(to, from, length),
            _ => forwards(to, from, length),
        }
    }
    to
}

/// Copies more than one [`WORD`], from the first byte to the last.
///
/// # Safety
/// The same as for `memmove`. In addition, `length` exceeds [`WORD`], and `to` does not lie inside the source.
unsafe fn forwards(to: *mut u8, from: *const u8, length: usize) {
    let last = length - WORD;
    let mut at = 0;
    // SAFETY: all accesses are within the two areas of `length` bytes. `to` is not inside the source, so each store
    // overwrites only source bytes that are already loaded. The last word is loaded before the loop.
    unsafe {
        let end = load::<Word>(from.add(last));
        while at < last {
            store(to.add(at), load::<Word>(from.add(at)));
            at += WORD;
        }
        store(to.add(last), end);
    }
}

/// Copies more than one [`WORD`], from the last byte to the first.
///
/// # Safety
/// The same as for `memmove`. In addition, `length` exceeds [`WORD`], and `to` lies inside the source.
unsafe fn backwards(to: *mut u8, from: *const u8, length: usize) {
    let mut at = length;
    // SAFETY: all accesses are within the two areas of `length` bytes. `to` is inside the source and bytes are copied
    // from the end, so each store overwrites only source bytes that are already loaded. The first word is loaded before
    // the loop.
    unsafe {
        let first = load::<Word>(from);
        while at > WORD {
            at -= WORD;
            store(to.add(at), load::<Word>(from.add(at)));
        }
        store(to, first);
    }
}

/// Implements `memset`.
///
/// # Safety
/// The requirements of `memset`.
pub unsafe extern "C" fn fill(to: *mut u8, byte: c_int, length: usize) -> *mut u8 {
    // No panic: the code computes only with addresses, and with numbers that cannot overflow.
    let word = Word::from_ne_bytes([byte as u8; WORD]);
    // SAFETY: each branch stays within the `length` bytes that the caller may write.
    unsafe {
        match length {
            0 => {}
            1 => store(to, word as u8),
            2..4 => {
                store(to, word as u16);
                store(to.add(length - 2), word as u16);
            }
            4..8 => {
                store(to, word as u32);
                store(to.add(length - 4), word as u32);
            }
            8..WORD => {
                store(to, word as u64);
                store(to.add(length - 8), word as u64);
            }
            _ => {
                let (mut at, last) = (0, length - WORD);
                while at < last {
                    store(to.add(at), word);
                    at += WORD;
                }
                store(to.add(last), word);
            }
        }
    }
    to
}

/// Implements `memcmp` and `bcmp`.
///
/// # Safety
/// The requirements of `memcmp`.
pub unsafe extern "C" fn compare(one: *const u8, other: *const u8, length: usize) -> c_int {
    // No panic: the code computes only with addresses, and with numbers that cannot overflow.
    let mut at = 0;
    // SAFETY: all loads lie within the `length` bytes that the caller may read at both addresses.
    unsafe {
        while at + 8 <= length {
            let [one, other] = [load::<u64>(one.add(at)), load::<u64>(other.add(at))];
            if one != other {
                // The first pair of bytes that differ decides. After a conversion to big-endian order, these bytes are
                // the most significant ones that differ, so comparing the two numbers compares these bytes.
                return if one.to_be() < other.to_be() { -1 } else { 1 };
            }
            at += 8;
        }
        while at < length {
            let [one, other] = [load::<u8>(one.add(at)), load::<u8>(other.add(at))];
            if one != other {
                return c_int::from(one) - c_int::from(other);
            }
            at += 1;
        }
    }
    0
}

/// Implements `strlen`. Reads byte by byte, because memory checkers would report a read after the end of the text.
///
/// # Safety
/// The requirements of `strlen`.
pub unsafe extern "C" fn length(text: *const u8) -> usize {
    // No panic: the code computes only with addresses, and with numbers that cannot overflow.
    let mut length = 0;
    // SAFETY: no byte before this one is the terminator, so this byte belongs to the text.
    while unsafe { load::<u8>(text.add(length)) } != 0 {
        length += 1;
    }
    length
}

/// Loads an unaligned integer.
///
/// # Safety
/// `T` is an integer, and its bytes may be read at `from`.
#[inline(always)]
unsafe fn load<T: Copy>(from: *const u8) -> T {
    // SAFETY: the caller guarantees that the bytes may be read, and any bytes are a valid integer.
    unsafe { from.cast::<T>().read_unaligned() }
}

/// Stores an unaligned integer.
///
/// # Safety
/// The bytes of a `T` may be written at `to`.
#[inline(always)]
unsafe fn store<T: Copy>(to: *mut u8, value: T) {
    // SAFETY: the caller guarantees that the bytes may be written.
    unsafe { to.cast::<T>().write_unaligned(value) }
}

// Defines the names with which the compiler and C call these functions. They are hidden, so the library does not export
// them.
#[cfg(not(test))]
macro_rules! names {
    ($($name:literal = $function:ident;)*) => {
        core::arch::global_asm!(
            $(concat!(".hidden ", $name),
            concat!(".globl ", $name),
            concat!(".type ", $name, ",@function"),
            concat!(".set ", $name, ", {", stringify!($function), "}"),)*
            copy = sym copy,
            fill = sym fill,
            compare = sym compare,
            length = sym length,
        );
    };
}
#[cfg(not(test))]
names! {
    "memcpy" = copy;
    "memmove" = copy;
    "memset" = fill;
    "memcmp" = compare;
    "bcmp" = compare;
    "strlen" = length;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lengths, in bytes, of the areas that the tests copy, fill or compare, and of the texts that they measure. With
    /// these lengths, each branch of the tested functions runs.
    const LENGTHS: core::ops::Range<usize> = 0..200;
    const ROOM: usize = 512;

    fn numbered() -> Vec<u8> {
        (0..ROOM).map(|at| (at * 7 + at / 251) as u8).collect()
    }

    #[test]
    fn areas_are_copied_wherever_they_lie() {
        for length in LENGTHS {
            for to in [0, 1, 3, 8, 15, 16, 17, 31, 33, 100, 250] {
                for from in [0, 2, 7, 9, 16, 30, 32, 99, 101, 260] {
                    let (mut wanted, mut bytes) = (numbered(), numbered());
                    wanted.copy_within(from..from + length, to);
                    let start = bytes.as_mut_ptr();
                    // SAFETY: both areas lie in the buffer.
                    let result = unsafe { copy(start.add(to), start.add(from), length) };
                    assert_eq!(result, start.wrapping_add(to));
                    assert!(bytes == wanted, "{length} bytes from {from} to {to}");
                }
            }
        }
    }

    #[test]
    fn areas_are_filled() {
        for length in LENGTHS {
            for to in [0, 1, 9, 16] {
                let (mut wanted, mut bytes) = (numbered(), numbered());
                wanted[to..to + length].fill(0xa5);
                // SAFETY: the area lies in the buffer. (`memset` uses only the lowest byte of its argument, which is
                // 0xa5 of 0x7a5.)
                unsafe { fill(bytes.as_mut_ptr().add(to), 0x7a5, length) };
                assert!(bytes == wanted, "{length} bytes at {to}");
            }
        }
    }

    #[test]
    fn the_first_byte_that_differs_decides() {
        for length in LENGTHS {
            let (one, mut other) = (numbered(), numbered());
            let order = |one: &[u8], other: &[u8]| {
                // SAFETY: both slices have at least `length` bytes.
                unsafe { compare(one.as_ptr(), other.as_ptr(), length) }.signum()
            };
            other[length] ^= 1;
            assert_eq!(order(&one, &other), 0, "{length}");
            for at in (0..length).rev() {
                other[at] = one[at].wrapping_add(0x80);
                let wanted = one[at].cmp(&other[at]) as c_int;
                assert_eq!(order(&one, &other), wanted, "byte {at} of {length}");
                assert_eq!(order(&other, &one), -wanted);
            }
        }
    }

    #[test]
    fn a_text_ends_at_its_first_zero() {
        for wanted in LENGTHS {
            let mut text = vec![b'a'; wanted];
            text.extend([0, b'b', 0]);
            // SAFETY: the text is terminated.
            assert_eq!(unsafe { length(text.as_ptr()) }, wanted);
        }
    }
}
