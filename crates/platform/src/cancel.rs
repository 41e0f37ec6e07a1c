//! Protects code from thread cancellation.

// SAFETY: the declaration is that of pthread.h.
unsafe extern "C" {
    fn pthread_setcancelstate(state: libc::c_int, old: *mut libc::c_int) -> libc::c_int;
}

/// Prevents the calling thread from being cancelled while this value exists, for example while it opens or closes a
/// window (a recorded interval) or writes a log line.
pub struct Uncancelled(libc::c_int);

impl Uncancelled {
    /// Disables cancellation of the calling thread, until the result is dropped.
    pub fn new() -> Self {
        const DISABLE: libc::c_int = 1; // the value of PTHREAD_CANCEL_DISABLE in glibc
        Self(set(DISABLE))
    }
}

impl Default for Uncancelled {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        set(self.0);
    }
}

/// Sets the calling thread's cancellation state, and returns the previous state.
fn set(state: libc::c_int) -> libc::c_int {
    let mut old = 0;
    // SAFETY: `pthread_setcancelstate` writes the old state to the local variable, and rejects an unknown state.
    unsafe { pthread_setcancelstate(state, &raw mut old) };
    old
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cancellation_is_held_off_until_the_last_is_dropped() {
        const ENABLED: libc::c_int = 0;
        const DISABLED: libc::c_int = 1;
        let state = || {
            let state = set(DISABLED);
            set(state);
            state
        };
        assert_eq!(state(), ENABLED);
        let outer = Uncancelled::new();
        let inner = Uncancelled::default();
        drop(inner);
        assert_eq!(state(), DISABLED);
        drop(outer);
        assert_eq!(state(), ENABLED);
    }
}
