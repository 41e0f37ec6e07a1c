//! Prints every symbol of the table, one a line. `scripts/check-library` compares the library's exports with them.

use tllmprof_calls::{CALLS, CallInfo, LOOK_UPS};

fn main() {
    for name in CALLS
        .iter()
        .flat_map(CallInfo::names)
        .chain(LOOK_UPS.iter().copied())
    {
        println!("{name}");
    }
}
