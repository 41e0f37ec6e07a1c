//! The state of a garbage collection of Python while it runs.

use core::cell::Cell;

use tllmprof_capture::marks::Pushed;

/// A garbage collection that has begun on a thread and has not ended.
pub(crate) struct Collecting {
    /// The start of the collection in ns, on the clock of [`super::time`].
    pub since: u64,
    /// The start of the collection in ticks, the record's unit of time.
    pub ticks: u64,
    pub range: Option<Pushed>,
    /// Number of collections in other interpreters that have begun on the thread during this collection and have not
    /// ended. They occur if a finalizer runs code in another interpreter.
    pub inner: u32,
}

impl Collecting {
    /// Begins a collection on the thread that owns `place`. If another collection is already
    /// running on this thread, counts the new one as an inner collection. Otherwise `begin` creates
    /// its state.
    pub(crate) fn begins(place: &Cell<Option<Self>>, begin: impl FnOnce() -> Self) {
        let collecting = match place.take() {
            Some(outer) => Self {
                inner: outer.inner + 1,
                ..outer
            },
            None => begin(),
        };
        place.set(Some(collecting));
    }

    /// Ends the innermost collection. Returns the state if this was the outermost collection. Returns `None` for an
    /// inner one, or if the collection began before the library counted collections.
    pub(crate) fn ends(place: &Cell<Option<Self>>) -> Option<Self> {
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

    /// Drops the NVTX range of the collection without ending the range. Called in the child of a fork, because the
    /// range belongs to the parent.
    pub(crate) fn forget(self) {
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
