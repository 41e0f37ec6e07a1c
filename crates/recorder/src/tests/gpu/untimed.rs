//! Tests of iterations whose GPU times are not measured because only some iterations are sampled, and of measured
//! iterations among them. A span is the work of one stream in one iteration.

use super::*;
use crate::gpu::sampling::BLOCK;

#[test]
fn times_are_taken_in_some_blocks_of_short_iterations_and_none_of_the_others_is_lost() {
    let gpu = Gpu::new(23);
    let stream = gpu.stream(1);
    let before = gpu.lost();
    let spans = gpu.spans(|| {
        for n in 5..5 + 17 * BLOCK {
            if n > 5 {
                begin_iteration(n);
            }
            launch_and_wait(stream, 1);
        }
    });
    let taken: Vec<_> = shown(&spans).into_iter().map(|(n, _)| n - 5).collect();
    // The number of measured blocks (of `BLOCK` consecutive iterations each) depends on how long the iterations take on
    // a busy machine, so the test accepts a range.
    assert!(
        (BLOCK as usize..17 * BLOCK as usize).contains(&taken.len()),
        "{taken:?}"
    );
    let (blocks, rest) = taken.as_chunks::<{ BLOCK as usize }>();
    assert!(rest.is_empty(), "{taken:?}");
    assert_eq!(blocks[0][0], 0);
    for block in blocks {
        let first = block[0];
        assert!(
            first % BLOCK == 0 && block.iter().copied().eq(first..first + BLOCK),
            "{taken:?}"
        );
    }
    assert_eq!(gpu.lost(), before);
}

#[test]
fn threads_that_take_turns_in_iterations_that_are_not_timed_do_not_make_a_stream_shared() {
    let gpu = Gpu::new(24);
    let stream = gpu.stream(1);
    let turn = || {
        on_a_thread(|| launch(stream));
        launch(stream);
        launch(stream);
    };
    let spans = gpu.spans(|| {
        turn();
        for n in 6..50 {
            begin_iteration(n);
            take_not();
            turn();
        }
        begin_iteration(50);
        take(50);
        turn();
    });
    let is_later = |span: &&Recorded| matches!(span.what, What::GpuSpan { iteration: 50, .. });
    let later = spans.iter().filter(is_later).map(|span| span.cut);
    // The last launch of iteration 50 is predicted from the latest iteration that was measured before it. So the span's
    // end event is recorded right after that launch. The span is not cut, that is, no work outside the span ran before
    // its end event.
    assert_eq!(later.collect::<Vec<_>>(), [false]);
    assert_eq!(spans.len(), 2);
}

#[test]
fn streams_for_which_there_is_no_room_are_not_missing_in_iterations_that_are_not_timed() {
    let gpu = Gpu::new(25);
    let before = gpu.lost();
    let stream = |number: usize| StreamArgument {
        handle: gpu.context + 0x100 * number,
        per_thread: false,
    };
    gpu.spans(|| {
        let driver = Driver::get().unwrap();
        let open = |number| {
            let stream = streams::insert(stream(number).key(driver), gpu.context)?;
            let mut open = stream.span.try_lock()?;
            stream.begin(&mut open, None, 6, 0);
            Some(stream)
        };
        begin_iteration(6);
        take_not();
        let opened: Vec<_> = (1..4000).filter_map(open).collect();
        (4000..6000).map(stream).for_each(launch);
        opened.into_iter().for_each(streams::Stream::forget);
    });
    assert_eq!(gpu.lost(), before);
}

/// Launches work like [`launch`], but does nothing unless GPU times are being measured. The library's hooks treat the
/// program's calls in the same way.
fn launch_if_followed(target: StreamArgument) {
    if is_timing() {
        launch(target);
    }
}

#[test]
fn calls_are_not_followed_in_iterations_that_are_not_timed_once_no_span_is_open() {
    let gpu = Gpu::new(27);
    let stream = gpu.stream(1);
    let before = gpu.lost();
    // The simulated iterations are so short that measuring them is relatively expensive. Therefore only the window's
    // first block of iterations (`timed`) and a few later blocks are measured, but not the block right after `timed`.
    let timed = 5..5 + BLOCK;
    for waits_at_last in [true, false] {
        let spans = gpu.spans(|| {
            for n in timed.clone() {
                if n > timed.start {
                    begin_iteration(n);
                }
                assert!(is_timing());
                launch_if_followed(stream);
                if waits_at_last || n + 1 < timed.end {
                    before_wait(Wait::Stream(stream));
                }
            }
            begin_iteration(timed.end);
            assert_eq!(is_timing(), !waits_at_last, "a span is open");
            launch_if_followed(stream);
            begin_iteration(timed.end + 1);
            assert!(!is_timing());
            launch_if_followed(stream);
        });
        let iterations = shown(&spans).into_iter().map(|(n, _)| n);
        assert!(iterations.eq(timed.clone()), "{spans:?}");
    }
    assert_eq!(gpu.lost(), before);
}

#[test]
fn what_another_thread_launches_late_is_not_timed_as_the_next_iteration_is() {
    let gpu = Gpu::new(26);
    gpu.spans(|| {
        take_not();
        assert!(!is_taken(5));
        begin_iteration(6);
        take(6);
        // Iteration 5 was not measured. It must still count as not measured for a thread that works on it, although
        // another thread has begun iteration 6, which is measured.
        assert!(is_taken(6) && !is_taken(5));
    });
}
