//! Prints every symbol of the table of calls, one per line. `scripts/check-library` compares the library's exports with
//! this list.

use tllmprof_calls::{CALLS, CUPTI_CALLS, CallInfo, LOOK_UPS, NCCL_CALLS};

fn main() {
    let of_cupti = CUPTI_CALLS.iter().flat_map(|(_, names)| *names);
    let of_nccl = NCCL_CALLS.iter().flat_map(|(_, names)| *names);
    for name in CALLS
        .iter()
        .flat_map(CallInfo::names)
        .chain(LOOK_UPS.iter().chain(of_cupti).chain(of_nccl).copied())
    {
        println!("{name}");
    }
}
