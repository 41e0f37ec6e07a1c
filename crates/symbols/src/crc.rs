//! The checksum of `.gnu_debuglink`: CRC-32, like in zlib (the GDB manual, "Separate Debug Files").

use std::io;

use crate::source::Source;

const TABLE: [u32; 256] = table();

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let mut value = index as u32;
        let mut bit = 0;
        while bit < 8 {
            value = if value & 1 == 1 {
                0xedb8_8320 ^ (value >> 1)
            } else {
                value >> 1
            };
            bit += 1;
        }
        table[index] = value;
        index += 1;
    }
    table
}

/// Computes the checksum of a whole file.
pub(crate) fn checksum(source: &(impl Source + ?Sized)) -> io::Result<u32> {
    let length = source.length()?;
    let mut buffer = vec![0; 1 << 16];
    let (mut at, mut crc) = (0, !0_u32);
    while at < length {
        let size = (length - at).min(buffer.len() as u64) as usize;
        let Some(part) = buffer.get_mut(..size) else {
            break;
        };
        source.fill(part, at)?;
        for &byte in &*part {
            crc = TABLE[((crc ^ u32::from(byte)) & 0xff) as usize] ^ (crc >> 8);
        }
        at += size as u64;
    }
    Ok(!crc)
}

#[cfg(test)]
mod tests {
    #[test]
    fn of_the_usual_check_string() {
        assert_eq!(super::checksum(&b"123456789"[..]).unwrap(), 0xcbf4_3926);
        assert_eq!(super::checksum(&b""[..]).unwrap(), 0);
    }
}
