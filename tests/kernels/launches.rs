//! Checks that the report assigns each recorded kernel to the call that launched it.

use super::*;

#[test]
fn every_kernel_has_its_launch() {
    for reach in [Reach::Linked, Reach::LookedUp] {
        let ran = two_windows(reach);
        let launches = ran.launches();
        assert_eq!(launches.len(), 4 * 13);
        // Each step launches two kernels, then a graph with two kernels.
        let mut before = 0;
        for (place, (name, _, call)) in launches.iter().enumerate() {
            let call = call.unwrap_or_else(|| panic!("{name} has no launch"));
            assert_eq!(
                name,
                [
                    "_Z5firstPm",
                    "_Z6secondPm",
                    "_Z8in_graphPm",
                    "_Z8in_graphPm"
                ][place % 4]
            );
            assert_eq!(call.is_graph, place % 4 > 1);
            if place % 4 == 3 {
                assert_eq!(call.start, before, "one graph's kernels have one launch");
            } else {
                assert!(call.start > before);
            }
            before = call.start;
        }
    }
}

/// Two threads launch at once. How many kernels get a known launch depends on the threads' timing, but no kernel may be
/// assigned to the other thread's launch.
#[test]
fn launches_of_threads_that_launch_at_once_are_not_mixed_up() {
    let ran = two_threads(Program::new(Reach::LookedUp).env("PROGRAM_PAUSE_US", "3000"));
    assert_launches_of_two_threads(&ran);
}

#[test]
fn launches_of_threads_that_launch_in_turns_are_all_known() {
    let ran = two_threads(Program::new(Reach::LookedUp).env("PROGRAM_TURNS", "1"));
    assert_launches_of_two_threads(&ran);
    let launches = ran.launches();
    assert!(launches.iter().all(|(_, _, call)| call.is_some()));
    // The threads take turns. So in each of the 20 recorded iterations, the main thread runs four kernels and the other
    // thread five.
    assert_eq!(launches.len(), 20 * (4 + 5));
}

fn two_threads(program: Program) -> Ran {
    let ran = program
        .windows("15-40")
        .kernels("20")
        .env("STANDIN_CALL_US", "30")
        .run("steps", 1, 60);
    ran.assert_well();
    ran
}

/// Asserts that each kernel whose launch is known is assigned to a launch of the thread that launched the kernel.
fn assert_launches_of_two_threads(ran: &Ran) {
    // Each thread uses its own stream, and only the main thread launches the kernels of `STEP`. So the stream and the
    // name of a kernel show which thread launched it.
    let mut streams: BTreeMap<(u32, u64), u16> = BTreeMap::new();
    let main = ran.record().header.pid;
    let launches = ran.launches().into_iter();
    let known = launches.filter_map(|(name, stream, call)| Some((name, stream, call?)));
    for (name, stream, call) in known {
        let own = *streams.entry((call.thread, call.stream)).or_insert(stream);
        assert_eq!(own, stream, "{name}: {call:?}");
        let is_main = STEP.iter().any(|(own, _)| *own == name);
        assert_eq!(is_main, call.thread == main, "{name}: {call:?}");
        assert_eq!(call.is_graph, name == "_Z8in_graphPm");
    }
}
