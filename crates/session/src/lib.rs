//! The session of the process: turns intercepted calls into iterations, and iterations into windows.
//!
//! The hooks that intercept calls (the *doors*) report them to this crate. The counter turns calls into
//! iterations, the schedule turns iterations into windows, and profilers and the record are switched for each
//! window. The state is locked only for moments. Switching may take long, so it happens without the lock, and
//! only the thread that has the *turn* may switch. A thread that makes a counted call meanwhile waits for the
//! turn to end, for a limited time, before its call gets a number. The thread that switches waits for threads
//! whose calls have a number but have not entered the intercepted function itself yet.

pub mod activity;
mod beginning;
mod by;
pub mod by_name;
mod calls;
mod demand;
mod end;
mod ending;
pub mod engines;
mod filtered;
mod learning;
pub mod live;
mod outcome;
mod rank;
mod ranks;
mod recording;
mod refusal;
mod sample;
mod slots;
mod span;
mod state;
mod stream_capture;
mod switch;
#[cfg(test)]
mod tests;
mod threads;
mod trigger;
mod turn;
mod wiring;

pub use activity::uses_cuda;
pub use calls::{closes_after, entered, goes_on, named_entered, returned};
pub use demand::{counts_drafts, wants_facts};
pub use end::EndReason;
pub use ending::{finish, finish_at_once, has_begun};
pub use filtered::filter_comes;
pub use learning::{learns, note};
pub use rank::Rank;
pub use ranks::communicator;
pub use slots::{count, is_capturing, slot};
pub use state::{Gating, attends};
pub(crate) use state::{OWNER, STATE, SessionState};
pub use stream_capture::is_any_under_way as is_any_capturing;
pub use threads::new_thread;
pub use wiring::{
    Doors, Interpreter, Listener, LostData, Place, SessionFacts, Sink, WIRING, Wiring,
};
