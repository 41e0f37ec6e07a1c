//! The collection that is under way on a thread.

use core::cell::Cell;

use tllmprof_capture::marks::Pushed;

/// A collection that is under way.
pub struct Collecting {
    /// When it began, on the clock of [`super::time`].
    pub since: u64,
    /// When it began, in the record's ticks.
    pub ticks: u64,
    pub range: Option<Pushed>,
    /// Collections of other interpreters' that began in it, as a finaliser may run one.
    pub inner: u32,
}

impl Collecting {
    /// A collection begins on the thread whose `place` it is: the one that `begin` makes, or one
    /// within that which is under way.
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

    /// The innermost collection ends. It is given back if no other is under way then; nothing for one
    /// that began before it was followed.
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

    /// Gives its range up without ending it: it is another process's.
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
