//! Stores rows sorted by start and packed into about ten bytes each, because there may be ten
//! million rows.
//!
//! Rows are added in any order. Groups of rows, called pieces, are sorted and packed. Iteration
//! merges the pieces: it starts to unpack a piece only when it reaches that piece's first row. If
//! rows were added nearly in order, only a few pieces are unpacked at a time.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

/// Maximum number of rows in a piece, which is sorted and packed as a whole.
pub(crate) const PIECE: usize = 1 << 13;

/// A row type that is stored as the difference from the preceding row.
pub trait Packed: Copy + Default {
    fn start(&self) -> i64;
    fn pack(&self, before: &Self, bytes: &mut Vec<u8>);
    /// Reads a row that [`pack`](Self::pack) wrote. `before` is the preceding row.
    fn unpack(bytes: &mut &[u8], before: &Self) -> Self;
}

/// Rows, sorted by start. Rows with the same start keep the order in which they were added.
#[derive(Debug)]
pub struct Pieces<R> {
    /// Packed rows in groups ("pieces"). [`finish`](Self::finish) sorts the pieces by their first
    /// row's start.
    packed: Vec<Piece>,
    /// The rows that were added last and do not form a complete piece (group of rows) yet.
    open: Vec<R>,
    len: usize,
}

/// A piece: a group of rows that were sorted by start and then packed as a whole.
#[derive(Debug)]
struct Piece {
    /// Number of pieces that were packed before this piece. Of rows with the same start, those of
    /// the piece with the lowest number come first.
    number: usize,
    start: i64,
    rows: usize,
    bytes: Box<[u8]>,
}

/// A position in a piece (a group of packed rows) that is being read: the next row to return, and the packed rows
/// that follow.
struct Cursor<'a, R> {
    row: R,
    number: usize,
    /// Number of rows that follow `row` in the piece.
    left: usize,
    bytes: &'a [u8],
}

/// An iterator over the rows of all pieces (groups of packed rows), sorted by start.
pub struct Merged<'a, R> {
    waiting: std::iter::Peekable<std::slice::Iter<'a, Piece>>,
    open: BinaryHeap<Reverse<Cursor<'a, R>>>,
}

impl<R> Default for Pieces<R> {
    fn default() -> Self {
        Self {
            packed: Vec::new(),
            open: Vec::new(),
            len: 0,
        }
    }
}

impl<R: Packed> Pieces<R> {
    pub fn push(&mut self, row: R) {
        self.len += 1;
        self.open.push(row);
        if self.open.len() == PIECE {
            self.pack();
        }
    }

    /// Finishes adding rows. Rows can be read only after this call.
    pub fn finish(&mut self) {
        self.pack();
        self.open = Vec::new();
        self.packed.sort_by_key(|piece| piece.start);
    }

    /// Adds the rows of `other`, for which [`finish`](Self::finish) must have been called. A row of `other` comes
    /// after the rows of `self` with the same start. The rows of `self` are finished, too.
    pub fn append(&mut self, other: Self) {
        self.pack();
        let number = self.packed.len();
        self.len += other.len;
        let others = other.packed.into_iter();
        self.packed.extend(others.map(|piece| Piece {
            number: number + piece.number,
            ..piece
        }));
        self.finish();
    }

    fn pack(&mut self) {
        if !self.open.is_sorted_by_key(R::start) {
            self.open.sort_by_key(R::start);
        }
        let Some(first) = self.open.first() else {
            return;
        };
        let start = first.start();
        let mut bytes = Vec::with_capacity(self.open.len() * size_of::<R>() / 2);
        let mut before = R::default();
        for row in &self.open {
            row.pack(&before, &mut bytes);
            before = *row;
        }
        self.packed.push(Piece {
            number: self.packed.len(),
            start,
            rows: self.open.len(),
            bytes: bytes.into_boxed_slice(),
        });
        self.open.clear();
    }

    pub const fn len(&self) -> usize {
        self.len
    }

    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns an iterator over the rows, sorted by start.
    pub fn iter(&self) -> Merged<'_, R> {
        Merged {
            waiting: self.packed.iter().peekable(),
            open: BinaryHeap::new(),
        }
    }
}

impl<'a, R: Packed> IntoIterator for &'a Pieces<R> {
    type Item = R;
    type IntoIter = Merged<'a, R>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<R: Packed> Iterator for Merged<'_, R> {
    type Item = R;

    fn next(&mut self) -> Option<R> {
        loop {
            let next = self.open.peek().map(|Reverse(cursor)| cursor.row.start());
            let is_next = |piece: &&Piece| next.is_none_or(|next| piece.start <= next);
            let Some(piece) = self.waiting.next_if(is_next) else {
                break;
            };
            let mut bytes = &*piece.bytes;
            self.open.push(Reverse(Cursor {
                row: R::unpack(&mut bytes, &R::default()),
                number: piece.number,
                left: piece.rows - 1,
                bytes,
            }));
        }
        let mut top = self.open.peek_mut()?;
        let Reverse(cursor) = &mut *top;
        let row = cursor.row;
        match cursor.left.checked_sub(1) {
            Some(left) => {
                cursor.row = R::unpack(&mut cursor.bytes, &row);
                cursor.left = left;
            }
            None => {
                PeekMut::pop(top);
            }
        }
        Some(row)
    }
}

impl<R: Packed> Cursor<'_, R> {
    fn key(&self) -> (i64, usize) {
        (self.row.start(), self.number)
    }
}

impl<R: Packed> Ord for Cursor<'_, R> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl<R: Packed> PartialOrd for Cursor<'_, R> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<R: Packed> PartialEq for Cursor<'_, R> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<R: Packed> Eq for Cursor<'_, R> {}

/// Writes an integer with seven bits in each byte, the lowest bits first. The top bit of a byte is
/// set if another byte follows.
pub(crate) fn put(mut value: u64, bytes: &mut Vec<u8>) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

/// Reads an integer that [`put`] wrote.
pub(crate) fn take(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let Some((byte, rest)) = bytes.split_first() else {
            break;
        };
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if *byte < 0x80 {
            break;
        }
    }
    value
}

/// Writes an integer as its signed difference from `before`.
pub(crate) fn put_step(value: u64, before: u64, bytes: &mut Vec<u8>) {
    let step = value.wrapping_sub(before) as i64;
    put((step << 1 ^ step >> 63) as u64, bytes);
}

/// Reads an integer that [`put_step`] wrote. `before` is the same value as in the writing call.
pub(crate) fn take_step(bytes: &mut &[u8], before: u64) -> u64 {
    let folded = take(bytes);
    before.wrapping_add((folded >> 1) ^ (folded & 1).wrapping_neg())
}
