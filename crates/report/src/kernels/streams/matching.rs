//! Finds the CUDA call that enqueued each piece of work of a stream.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::tally::{PieceCall, PieceKind, StreamTally};
use crate::events::launches::{Launches, MAX_CLOCK_ERROR_NS};

impl StreamTally<'_> {
    /// Returns the call that enqueued each piece of work; `None` if it is not known. Kernels are matched by correlation
    /// number. Copies and memory sets have no such number. They are matched in order to the calls on the same stream,
    /// if there are equally many of both. These calls are found by the stream's CUDA handle, but the record has only
    /// CUPTI's number of the stream for a piece of work.
    pub(super) fn piece_calls(&self, launches: &Launches) -> Vec<Option<PieceCall>> {
        let mut calls: Vec<Option<PieceCall>> = vec![None; self.pieces.len()];
        let mut handles: HashMap<(u8, u16), HashMap<u64, u32>> = HashMap::new();
        let mut others: BTreeMap<(u8, u16, u8), Vec<usize>> = BTreeMap::new();
        for (at, piece) in self.pieces.iter().enumerate() {
            let place = (piece.device, piece.stream);
            if piece.kind != PieceKind::Kernel {
                let key = (place.0, place.1, piece.kind as u8);
                others.entry(key).or_default().push(at);
                continue;
            }
            calls[at] = launches
                .of_kernel(piece.correlation, piece.start)
                .map(|launch| PieceCall {
                    thread: launch.thread,
                    row: 0,
                    stream: launch.stream,
                    start: launch.start,
                    end: launch.end,
                });
            if let Some(call) = calls[at] {
                *(handles.entry(place).or_default())
                    .entry(call.stream)
                    .or_default() += 1;
            }
        }
        let taken: HashSet<u64> = handles.values().flat_map(HashMap::keys).copied().collect();
        for ((device, stream, _), pieces) in others {
            let kind = self.pieces[pieces[0]].kind;
            let fits = |made: &Vec<PieceCall>| {
                let mut pairs = made.iter().zip(&pieces);
                made.len() == pieces.len()
                    && pairs
                        .all(|(call, at)| call.start <= self.pieces[*at].start + MAX_CLOCK_ERROR_NS)
            };
            let own = handles.get(&(device, stream));
            // If the stream has kernels, their calls show the stream's handle. Otherwise the stream must have a handle
            // on which no kernel was launched.
            let is_own = |handle: &u64| match own {
                Some(own) => own.len() == 1 && own.contains_key(handle),
                None => !taken.contains(handle),
            };
            let made = self
                .copies
                .iter()
                .filter(|((handle, of), made)| *of == kind && is_own(handle) && fits(made));
            let mut made = made.map(|(_, made)| made);
            if let (Some(made), None) = (made.next(), made.next()) {
                for (call, at) in made.iter().zip(&pieces) {
                    calls[*at] = Some(*call);
                }
            }
        }
        calls
    }
}
