//! ELF files, as the command and the hooks of native functions read them.

use regex::bytes::Regex;
use tllmprof_symbols::{Image, LIMIT, Nearest, Pattern, reach};

/// A damaged file gives an error or fewer symbols.
pub fn symbols(bytes: &[u8]) {
    let Ok(image) = Image::read(bytes) else {
        return;
    };
    for function in image.functions() {
        reach(&function, &image);
    }
    let pattern = Pattern::new(&Regex::new("step|Class.*f").expect("a pattern"));
    assert!(image.matching(&pattern, LIMIT).functions.len() <= LIMIT);
    let mut nearest = Nearest::new(&pattern);
    nearest.look(&image);
    assert!(nearest.names(3).len() <= 3);
}
