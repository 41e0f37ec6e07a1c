//! Divides the rows of a screen among the tables of a report.

/// For each table, the number of rows that it gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rows<const TABLES: usize>(pub [usize; TABLES]);

impl<const TABLES: usize> Rows<TABLES> {
    /// Divides `room` rows: each table in turn gets one row, the first table first, until no table
    /// wants more rows or no rows are left.
    pub(crate) fn share(wanted: [usize; TABLES], room: usize) -> Self {
        let mut rows = [0; TABLES];
        let mut left = room;
        while left > 0 && rows != wanted {
            for (rows, wanted) in rows.iter_mut().zip(wanted) {
                if *rows < wanted && left > 0 {
                    *rows += 1;
                    left -= 1;
                }
            }
        }
        Self(rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_shared_out_evenly() {
        for (wanted, room, rows) in [
            ([4, 0, 3], 100, [4, 0, 3]),
            ([4, 0, 3], 5, [3, 0, 2]),
            ([4, 2, 3], 7, [3, 2, 2]),
            ([4, 2, 3], 2, [1, 1, 0]),
            ([4, 2, 3], 0, [0, 0, 0]),
        ] {
            assert_eq!(Rows::share(wanted, room), Rows(rows));
        }
    }
}
