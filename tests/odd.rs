//! Situations in which other profilers and preloaded libraries failed, by public reports: a limit is reached, a file
//! system that lacks something, a process that is stopped, copied, restarted or stripped of what it had. One row each
//! (`tests/odd/situations.rs`): the program does the same with the library as without, and what the library then says and
//! writes is true. `docs/harmless.md` shows the rows.

mod common;

#[path = "odd/harness.rs"]
mod harness;
#[path = "odd/page.rs"]
mod page;
#[path = "odd/situations.rs"]
mod situations;
