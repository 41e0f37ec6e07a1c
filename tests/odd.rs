//! Checks situations in which, according to public reports, other profilers and preloaded libraries failed. A limit
//! is reached, a file system lacks a feature, or a process is stopped, copied, restarted or loses its environment.
//! Each situation is a row in `tests/odd/situations.rs`. The program must do the same with the library as without it,
//! and the library's messages and record must be true. `docs/harmless.md` shows the rows.

mod common;

#[path = "odd/harness.rs"]
mod harness;
#[path = "odd/page.rs"]
mod page;
#[path = "odd/situations.rs"]
mod situations;
