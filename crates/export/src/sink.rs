//! The output of a trace. While one block is being produced, a separate thread compresses and writes the block before
//! it.

use std::io::{self, Write};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use flate2::Compression;
use flate2::write::GzEncoder;

/// Minimum size, in bytes, at which a block is passed to the writer thread.
const BLOCK_BYTES: usize = 1 << 20;
/// Maximum number of blocks that can wait for the writer thread. If more are produced, the producer waits.
const MAX_WAITING_BLOCKS: usize = 4;

/// The output of a trace: the current block, and the channel to the writer thread.
pub(crate) struct Sink {
    block: Vec<u8>,
    writer: SyncSender<Vec<u8>>,
}

impl Sink {
    /// Returns the current block of output. The caller appends the next bytes to it.
    pub(crate) const fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.block
    }

    /// Passes the current block to the writer thread if the block has reached `BLOCK_BYTES`.
    ///
    /// # Errors
    /// Returns an error if the writer thread has failed. [`through`] returns the reason for the failure.
    pub(crate) fn ready(&mut self) -> io::Result<()> {
        if self.block.len() < BLOCK_BYTES {
            return Ok(());
        }
        self.hand_over()
    }

    fn hand_over(&mut self) -> io::Result<()> {
        let block = std::mem::replace(
            &mut self.block,
            Vec::with_capacity(BLOCK_BYTES + BLOCK_BYTES / 8),
        );
        let sent = self.writer.send(block);
        sent.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

/// Calls `make` with a sink, and writes the contents of the sink to `to`, compressed if `gzip` is true. Returns the
/// result of `make`.
///
/// # Errors
/// Returns an error if writing fails, or else the error of `make`.
pub(crate) fn through<T>(
    to: impl Write + Send,
    gzip: bool,
    make: impl FnOnce(&mut Sink) -> io::Result<T>,
) -> io::Result<T> {
    thread::scope(|scope| {
        let (writer, blocks) = sync_channel::<Vec<u8>>(MAX_WAITING_BLOCKS);
        let writing = scope.spawn(move || {
            if gzip {
                let mut encoder = GzEncoder::new(to, Compression::fast());
                for block in blocks {
                    encoder.write_all(&block)?;
                }
                encoder.finish()?.flush()
            } else {
                let mut to = to;
                for block in blocks {
                    to.write_all(&block)?;
                }
                to.flush()
            }
        });
        let mut sink = Sink {
            block: Vec::with_capacity(BLOCK_BYTES + BLOCK_BYTES / 8),
            writer,
        };
        let made = make(&mut sink).and_then(|made| sink.hand_over().map(|()| made));
        drop(sink);
        match writing.join() {
            Ok(written) => written.and(made),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn numbers(sink: &mut Sink) -> io::Result<u32> {
        for n in 0..500_000_u32 {
            sink.bytes().extend_from_slice(&n.to_le_bytes());
            sink.ready()?;
        }
        Ok(500_000)
    }

    fn are_numbers(bytes: &[u8]) -> bool {
        let (words, rest) = bytes.as_chunks::<4>();
        let mut all = (0_u32..).zip(words);
        words.len() == 500_000 && rest.is_empty() && all.all(|(n, word)| n.to_le_bytes() == *word)
    }

    #[test]
    fn what_is_put_in_is_written_in_order() {
        let mut plain = Vec::new();
        assert_eq!(through(&mut plain, false, numbers).unwrap(), 500_000);
        assert!(are_numbers(&plain));
        let mut packed = Vec::new();
        through(&mut packed, true, numbers).unwrap();
        let mut unpacked = Vec::new();
        flate2::read::GzDecoder::new(&packed[..])
            .read_to_end(&mut unpacked)
            .unwrap();
        assert!(are_numbers(&unpacked));
    }

    #[test]
    fn a_full_disk_is_reported() {
        struct Full(usize);
        impl Write for Full {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0 = self
                    .0
                    .checked_sub(bytes.len())
                    .ok_or(io::ErrorKind::StorageFull)?;
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let error = through(Full(BLOCK_BYTES + BLOCK_BYTES / 2), false, numbers).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }
}
