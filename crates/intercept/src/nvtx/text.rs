//! Strings of the program.

use core::ffi::c_char;

/// A terminated string as NVTX has it.
#[derive(Clone, Copy)]
pub enum Text {
    /// Bytes.
    Narrow(*const c_char),
    /// UTF-32, as `wchar_t` is on Linux.
    Wide(*const u32),
}

impl Text {
    /// Its bytes, wide characters in UTF-8.
    ///
    /// # Safety
    /// The string is terminated and stays as long as the iterator; not null.
    pub unsafe fn bytes(self) -> impl Iterator<Item = u8> {
        let (mut index, mut utf8, mut at, mut end) = (0, [0; 4], 0, 0);
        core::iter::from_fn(move || match self {
            Self::Narrow(text) => {
                // SAFETY: the caller's promise; nothing behind the end is read.
                let byte = unsafe { *text.cast::<u8>().add(index) };
                index += usize::from(byte != 0);
                (byte != 0).then_some(byte)
            }
            Self::Wide(text) => {
                if at == end {
                    // SAFETY: as above.
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
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_and_wide_strings_have_the_same_bytes() {
        for text in ["", "step 12", "é", "x\u{10ffff}"] {
            let narrow = std::ffi::CString::new(text).unwrap();
            let wide: Vec<u32> = text.chars().map(u32::from).chain([0]).collect();
            // SAFETY: both are terminated and outlive the calls.
            let both = unsafe {
                [
                    Text::Narrow(narrow.as_ptr()).bytes().collect::<Vec<_>>(),
                    Text::Wide(wide.as_ptr()).bytes().collect(),
                ]
            };
            assert_eq!(both, [text.as_bytes(), text.as_bytes()]);
        }
    }
}
