//! The session of the process: it leads from calls to captures.
//!
//! The doors report calls here. The counter turns them into iterations, the schedule turns those into
//! windows, and the capture is switched for them. The state is locked only for moments. Switching may take
//! long, so it happens outside the lock: one thread at a time has the *turn*. A thread that makes a counted
//! call during that time waits for the turn to end, for a bounded time, before its call gets a number. The
//! thread that switches waits for threads whose calls already have a number but have not continued yet.

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
pub use end::End;
pub use ending::{finish, finish_at_once, has_begun};
pub use filtered::filter_comes;
pub use learning::{learns, note};
pub use rank::Rank;
pub use ranks::communicator;
pub use slots::{count, is_capturing, slot};
pub use state::{Gating, attends};
pub(crate) use state::{OWNER, STATE, State};
pub use stream_capture::is_any_under_way as is_any_capturing;
pub use threads::new_thread;
pub use wiring::{Doors, Facts, Interpreter, Listener, Place, Sink, WIRING, Wiring};
