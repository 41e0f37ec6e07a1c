//! The collection that is under way on a thread.

use core::cell::Cell;

use tllmprof_capture::marks::Pushed;

/// A collection that is under way.
pub struct Collecting {
    /// Start, on the clock of [`super::time`].
    pub since: u64,
    /// Start, in the record's ticks.
    pub ticks: u64,
    pub range: Option<Pushed>,
    /// Number of collections of other interpreters that began inside this one; a finalizer may run one.
    pub inner: u32,
}

impl Collecting {
    /// Begins a collection on the thread that owns `place`. `begin` makes it, unless one is under way: then
    /// this one is counted as an inner one.
    pub fn begins(place: &Cell<Option<Self>>, begin: impl FnOnce() -> Self) {
        let collecting = match place.take() {
            Some(outer) => Self {
                inner: outer.inner + 1,
                ..outer
            },
            None => begin(),
        };
        place.set(Some(collecting));
    }

    /// Ends the innermost collection. Returns it if it was the outermost one. Returns `None` for a collection
    /// that began before collections were followed.
    pub fn ends(place: &Cell<Option<Self>>) -> Option<Self> {
        let collecting = place.take()?;
        if collecting.inner == 0 {
            return Some(collecting);
        }
        place.set(Some(Self {
            inner: collecting.inner - 1,
            ..collecting
        }));
        None
    }

    /// Drops its range without ending it, as the range belongs to another process.
    pub fn forget(self) {
        if let Some(range) = self.range {
            range.forget();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begun(since: u64) -> Collecting {
        Collecting {
            since,
            ticks: 0,
            range: None,
            inner: 0,
        }
    }

    #[test]
    fn the_outermost_collection_counts() {
        let place = Cell::new(None);
        Collecting::begins(&place, || begun(10));
        Collecting::begins(&place, || unreachable!("it is within another"));
        Collecting::begins(&place, || unreachable!("it is within another"));
        assert!(Collecting::ends(&place).is_none());
        assert!(Collecting::ends(&place).is_none());
        assert_eq!(Collecting::ends(&place).unwrap().since, 10);
        assert!(place.take().is_none());
        Collecting::begins(&place, || begun(20));
        assert_eq!(Collecting::ends(&place).unwrap().since, 20);
    }

    #[test]
    fn the_end_of_an_unknown_collection_is_passed_over() {
        let place = Cell::new(None);
        assert!(Collecting::ends(&place).is_none());
        Collecting::begins(&place, || begun(10));
        place.take().unwrap().forget();
        assert!(Collecting::ends(&place).is_none());
    }
}
