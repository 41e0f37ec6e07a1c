//! Names that the program gives to ranges, marks, domains and strings.

use core::ffi::c_char;

use super::abi::{ASCII, Attributes, Handle, REGISTERED, UNICODE, Wide};
use super::text::NvtxText;

/// The name of a range as the program passed it: a text, the handle of a registered string, or none.
pub(super) enum NvtxRangeName<'a> {
    Text(NvtxText<'a>),
    Registered(Handle),
    None,
}

impl<'a> From<Option<NvtxText<'a>>> for NvtxRangeName<'a> {
    fn from(text: Option<NvtxText<'a>>) -> Self {
        text.map_or(Self::None, Self::Text)
    }
}

impl NvtxRangeName<'_> {
    /// Returns the name for a text of bytes, or [`NvtxRangeName::None`] for null.
    ///
    /// # Safety
    /// The requirements of [`NvtxText::narrow`].
    pub(super) unsafe fn narrow(text: *const c_char) -> Self {
        // SAFETY: null or a terminated string that outlives the name, as `NvtxText::narrow` requires.
        unsafe { NvtxText::narrow(text) }.into()
    }

    /// Returns the name for a text of wide characters, or [`NvtxRangeName::None`] for null.
    ///
    /// # Safety
    /// The requirements of [`NvtxText::wide`].
    pub(super) unsafe fn wide(text: *const Wide) -> Self {
        // SAFETY: null or a terminated string that outlives the name, as `NvtxText::wide` requires.
        unsafe { NvtxText::wide(text) }.into()
    }

    /// Returns the name that NVTX's attributes of a range or mark contain.
    ///
    /// # Safety
    /// `attributes` is null or valid for NVTX.
    pub(crate) unsafe fn from_attributes(attributes: *const Attributes) -> Self {
        // SAFETY: NVTX requires attributes whose size shows whether they contain a message (`is_whole`), and whose
        // message has the type that `message_type` states.
        unsafe {
            let Some(attributes) = attributes.as_ref().filter(|a| a.is_whole()) else {
                return Self::None;
            };
            match attributes.message_type {
                ASCII => Self::narrow(attributes.message.ascii),
                UNICODE => Self::wide(attributes.message.wide),
                REGISTERED => Self::Registered(attributes.message.registered),
                _ => Self::None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::abi::Message;
    use super::*;

    #[test]
    fn a_range_is_called_what_its_attributes_say() {
        let wide: Vec<Wide> = "step".chars().map(Wide::from).chain([0]).collect();
        let ascii = Message {
            ascii: c"step".as_ptr(),
        };
        let of = |attributes: &Attributes| {
            // SAFETY: the attributes have a message of the type that `message_type` states.
            match unsafe { NvtxRangeName::from_attributes(attributes) } {
                NvtxRangeName::Text(text) => String::from_utf8(text.bytes().collect()).unwrap(),
                NvtxRangeName::Registered(handle) => format!("{handle:#x}"),
                NvtxRangeName::None => "none".to_owned(),
            }
        };
        assert_eq!(of(&Attributes::made(ASCII, ascii)), "step");
        assert_eq!(
            of(&Attributes::made(
                UNICODE,
                Message {
                    wide: wide.as_ptr()
                }
            )),
            "step"
        );
        assert_eq!(
            of(&Attributes::made(REGISTERED, Message { registered: 0x70 })),
            "0x70"
        );
        assert_eq!(of(&Attributes::made(0, ascii)), "none");
        assert_eq!(
            of(&Attributes::made(ASCII, ascii).cut_to(40)),
            "none",
            "it has no message"
        );
        let null = Message {
            ascii: core::ptr::null(),
        };
        assert_eq!(of(&Attributes::made(ASCII, null)), "none");
        // SAFETY: the function accepts null.
        let nameless = unsafe { NvtxRangeName::from_attributes(core::ptr::null()) };
        assert!(matches!(nameless, NvtxRangeName::None));
    }
}
