//! Tests of reports on simulated and stored records. They form a single test binary, because
//! building several would take long.

mod batches;
mod brief;
#[path = "../common/mod.rs"]
mod common;
mod compare;
mod diagnosis;
mod event_loops;
mod gpu;
mod groups;
mod layers;
mod ledger;
mod odd;
mod ranks;
mod report;
mod requests;
mod routing;
mod seeds;
#[path = "../../../../tests/common/skipped.rs"]
mod skipped;
mod slow;
mod stacks;
mod stored;
