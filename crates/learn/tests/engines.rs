//! Tests of the learner, which finds the iterations in a stream of CUDA calls. The streams are synthetic, and differ
//! from the recorded streams of real processes in `tests/streams`.

use tllmprof_calls::Wait;
use tllmprof_learn::{Boundary, Call, Learner, LearnerState, Trails};

const KERNEL: u64 = 1 << 32;

/// A simulated process, whose calls are reported to a learner.
struct Process {
    trails: Trails,
    learner: Box<Learner>,
    /// For each iteration that [`Process::iteration`] has begun, the number of boundaries that the learner
    /// has reported in it.
    boundaries: Vec<u32>,
    last: Option<Boundary>,
    /// The simulated time, in nanoseconds.
    time: u64,
}

impl Process {
    fn new() -> Self {
        Self {
            trails: Trails::new(),
            learner: Box::new(Learner::new()),
            boundaries: Vec::new(),
            last: None,
            time: 0,
        }
    }

    fn call(&mut self, thread: u32, call: Call) {
        self.time += 1000;
        let time = self.time;
        if let Some(boundary) = self.learner.event(&self.trails, thread, call, &|| time) {
            self.last = Some(boundary);
            if let Some(count) = self.boundaries.last_mut() {
                *count += 1;
            }
        }
    }

    fn iteration(&mut self) {
        self.boundaries.push(0);
    }

    /// Launches `count` kernels with successive handles from `first` on.
    fn launch(&mut self, thread: u32, first: u64, count: u64) {
        for kernel in first..first + count {
            self.call(thread, Call::Launch(KERNEL + kernel));
        }
    }

    /// Copies results to the host and waits for them.
    fn read(&mut self, thread: u32) {
        self.call(thread, Call::CopyToHost);
        self.call(thread, Call::Returned(Wait::Stream));
    }

    /// Asserts that the learner reports exactly one boundary in each iteration. The first `learning` iterations are
    /// not checked.
    fn assert_each_once(&self, learning: usize) {
        let wrong: Vec<_> = self.boundaries[learning..]
            .iter()
            .enumerate()
            .filter(|&(_, &count)| count != 1)
            .collect();
        assert!(wrong.is_empty(), "{wrong:?} {:?}", self.learner.rule());
    }
}

#[test]
fn kernels_and_a_wait() {
    let mut process = Process::new();
    for _ in 0..100 {
        process.iteration();
        process.launch(0, 0, 10);
        process.call(0, Call::Returned(Wait::Stream));
    }
    process.assert_each_once(32);
    assert_eq!(process.learner.detected(), 100);
    assert_eq!(process.last.unwrap().iteration, 100);
}

#[test]
fn another_thread_waits_one_step_late() {
    let mut process = Process::new();
    for step in 0..200u64 {
        process.iteration();
        process.launch(1, 0, 1);
        process.call(1, Call::GraphLaunch);
        for kernel in 0..5 {
            if step > 0 && kernel == step % 4 {
                process.call(2, Call::Returned(Wait::Event));
            }
            process.launch(1, 10 + kernel, 1);
        }
        process.call(1, Call::CopyToHost);
    }
    process.assert_each_once(32);
}

#[test]
fn another_thread_waits_and_nobody_copies() {
    let mut process = Process::new();
    for step in 0..200u64 {
        process.iteration();
        for kernel in 0..60 {
            if step > 0 && kernel == 10 + step % 4 {
                process.call(2, Call::Returned(Wait::Event));
            }
            process.launch(1, kernel, 1);
        }
    }
    process.assert_each_once(32);
}

/// A program in which one thread launches and another waits. The waiting thread is not scheduled in time, so it
/// handles the results of several steps in a row.
#[test]
fn another_thread_waits_for_several_steps_at_a_time() {
    for steps_at_a_time in [[1, 1, 2, 3, 1], [1, 3, 2, 1, 2], [3, 1, 3, 1, 3]] {
        let mut process = Process::new();
        let mut pending = 0;
        let mut turns = steps_at_a_time.iter().cycle();
        let mut turn = turns.next().copied().unwrap_or_default();
        for _ in 0..1000 {
            process.iteration();
            process.launch(1, 0, 1);
            process.call(1, Call::GraphLaunch);
            process.launch(1, 10, 3);
            pending += 1;
            if pending == turn {
                (0..pending).for_each(|_| process.call(2, Call::Returned(Wait::Event)));
                pending = 0;
                turn = turns.next().copied().unwrap_or_default();
            }
        }
        process.assert_each_once(400);
    }
}

#[test]
fn two_waits_a_step() {
    let mut process = Process::new();
    for _ in 0..100 {
        process.iteration();
        for half in 0..2 {
            process.launch(0, 0, 60);
            process.launch(0, 100 + half, 1);
            process.call(0, Call::Returned(Wait::Stream));
        }
    }
    process.assert_each_once(32);
}

#[test]
fn every_layer_reads_back() {
    for (layers, work) in [(24, 12), (48, 12), (60, 24), (32, 60)] {
        let mut process = Process::new();
        for _ in 0..60 {
            process.iteration();
            process.launch(0, 1000, 20);
            for _ in 0..layers {
                process.launch(0, 0, work / 2);
                process.read(0);
                process.launch(0, 100, work / 2);
            }
            process.launch(0, 2000, 15);
            process.read(0);
        }
        process.assert_each_once(32);
        assert_eq!(process.learner.detected(), 60, "{layers} layers of {work}");
    }
}

#[test]
fn drafts_vary_in_number() {
    let mut process = Process::new();
    for step in 0..150u64 {
        process.iteration();
        for _ in 0..1 + (step * 7 + step / 3) % 6 {
            process.launch(0, 0, 60);
            process.launch(0, 100, 2);
            process.read(0);
        }
        process.launch(0, 200, 120);
        process.launch(0, 101, 1);
        process.read(0);
    }
    process.assert_each_once(32);
}

#[test]
fn idle_polling_is_no_iteration() {
    let mut process = Process::new();
    for step in 0..200u64 {
        process.iteration();
        for _ in 0..step % 5 * 20 {
            process.call(1, Call::Returned(Wait::Stream));
        }
        process.call(1, Call::GraphLaunch);
        process.launch(1, 0, 3);
        process.read(1);
    }
    process.assert_each_once(32);
    // For a long time the process only polls a stream. Then it makes iterations again.
    for _ in 0..100_000 {
        process.call(1, Call::Returned(Wait::Stream));
    }
    process.iteration();
    process.call(1, Call::GraphLaunch);
    process.launch(1, 0, 3);
    process.read(1);
    process.assert_each_once(32);
}

#[test]
fn the_count_starts_again() {
    // The count of iterations is restarted at three stages: before the learner has a rule, while it checks its rule,
    // and after it has stopped checking.
    for at in [5, 20, 150] {
        let mut process = Process::new();
        for iteration in 0..200 {
            if iteration == at {
                process.learner.restart();
            }
            process.launch(0, 0, 80);
            process.read(0);
        }
        assert_eq!(process.learner.detected(), 200 - at);
        assert!(process.learner.understands());
    }
}

#[test]
fn layers_are_not_understood_as_steps() {
    let mut process = Process::new();
    for step in 0..4 {
        for _ in 0..61 {
            process.launch(0, 0, 60);
            process.read(0);
        }
        process.launch(0, 2000, 15);
        process.read(0);
        assert!(!process.learner.understands(), "step {step}");
    }
}

/// In this test the model is so small that the kernels between two requests resemble a model's first and last kernels.
/// Requests must not count as iterations.
#[test]
fn requests_are_no_iterations() {
    // Each pair is the number of tokens in a request, and the number of reads between two requests.
    for (tokens, reads) in [(50, 12), (40, 1), (80, 20), (100, 0)] {
        let mut process = Process::new();
        for iteration in 0..1000 {
            process.iteration();
            process.launch(0, 0, 63);
            process.read(0);
            if iteration % tokens == tokens - 1 {
                process.launch(0, 1000, 1);
                for read in 0..reads {
                    process.launch(0, 2000 + read, 1);
                    process.read(0);
                }
                process.launch(0, 3000, if reads > 8 { 80 } else { 1 });
            }
            if iteration == 136 {
                assert!(process.learner.understands(), "{tokens} {reads}");
            }
        }
        process.assert_each_once(32);
        assert_eq!(process.learner.detected(), 1000, "{tokens} {reads}");
    }
}

/// Requests differ in length, but a model always has the same number of layers. So the learner must not take the tokens
/// of a request for layers, even if the model is small.
#[test]
fn a_model_always_has_as_many_layers() {
    let mut process = Process::new();
    for request in 0..30 {
        for token in 0..30 + request * 7 % 23 {
            process.iteration();
            process.launch(0, if token == 0 { 500 } else { 0 }, 63);
            if token == 0 {
                process.launch(0, 600, 60);
            }
            process.launch(0, 100, 1);
            process.read(0);
        }
        process.launch(0, 2000, 1);
        process.read(0);
    }
    process.assert_each_once(32);
}

#[test]
fn nothing_recurs() {
    let mut process = Process::new();
    let mut random = 1u64;
    for _ in 0..20_000 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        process.launch(0, random % 100_000, 1);
    }
    assert_eq!(process.learner.state(), LearnerState::Learning);
    assert!(process.last.is_none());
    assert!(process.learner.rule().is_none());
}

#[test]
fn a_copy_to_the_device_begins_each_step_of_a_single_kernel() {
    let mut process = Process::new();
    for _ in 0..300 {
        process.iteration();
        process.call(0, Call::CopyToDevice);
        for _ in 0..20 {
            process.launch(0, 0, 1);
        }
    }
    assert!(process.learner.understands());
    process.assert_each_once(40);
    let text = process.learner.rule().unwrap().to_string();
    let start = "the launch of kernel 0x100000000 after kernel 0x100000000, a host-to-device copy \
                 (once every 20 launches, ";
    assert!(text.starts_with(start), "{text}");
}

#[test]
fn captured_calls_are_no_iterations() {
    let mut process = Process::new();
    for _ in 0..100 {
        process.call(0, Call::CaptureBegin);
        process.launch(0, 0, 60);
        process.read(0);
        process.call(0, Call::CaptureEnd);
    }
    assert_eq!(process.learner.state(), LearnerState::Learning);
    assert_eq!(process.learner.detected(), 0);
}

#[test]
fn the_pattern_changes() {
    let mut process = Process::new();
    for _ in 0..200 {
        process.iteration();
        process.launch(0, 0, 80);
        process.read(0);
    }
    process.assert_each_once(32);
    let before = process.boundaries.len();
    for _ in 0..100 {
        process.iteration();
        process.launch(0, 1000, 200);
        process.call(0, Call::Returned(Wait::Event));
    }
    process.assert_each_once(before + 32);
    assert_eq!(process.learner.detected(), 300);
}

#[test]
fn the_pattern_is_gone() {
    let mut process = Process::new();
    for _ in 0..100 {
        process.launch(0, 0, 80);
        process.read(0);
    }
    assert_eq!(process.learner.state(), LearnerState::Settled);
    process.last = None;
    let mut random = 1u64;
    for _ in 0..2000 {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        process.launch(0, 5000 + (random >> 40), 1 + random % 50);
        let wait = [Wait::Stream, Wait::Event, Wait::Context][(random >> 33) as usize % 3];
        process.call(0, Call::Returned(wait));
        if process.learner.state() == LearnerState::Lost {
            return;
        }
    }
    panic!("still {:?}", process.learner.rule());
}

#[test]
fn each_request_has_its_thread() {
    let mut process = Process::new();
    for request in 0..8 {
        for _ in 0..48 {
            process.iteration();
            process.launch(request, 0, 150);
            process.read(request);
            process.launch(request, 200, 1);
        }
    }
    process.assert_each_once(32);
}

#[test]
fn two_engines_and_one_is_followed() {
    let mut process = Process::new();
    for step in 0..200u32 {
        process.iteration();
        for part in 0..4 {
            process.launch(1, part * 50, 50);
            process.launch(2, 1000 + part * 20, 20);
        }
        process.read(1);
        if step % 2 == 0 {
            process.read(2);
        }
    }
    process.assert_each_once(32);
    assert_eq!(process.learner.rule().unwrap().thread(), 1);
}

#[test]
fn two_engines_of_the_same_kernels() {
    let mut process = Process::new();
    for step in 0..200u32 {
        process.iteration();
        for part in 0..4 {
            process.launch(1, part * 50, 50);
            process.launch(2, part * 50, 30);
        }
        process.read(1);
        if step % 2 == 0 {
            process.read(2);
        }
    }
    process.assert_each_once(32);
    assert_eq!(process.learner.rule().unwrap().thread(), 1);
}

#[test]
fn another_thread_launches_the_larger_part_and_never_waits() {
    let mut process = Process::new();
    for _ in 0..100 {
        process.iteration();
        process.launch(0, 0, 100);
        process.launch(1, 200, 180);
        process.launch(0, 100, 20);
        process.read(0);
    }
    process.assert_each_once(32);
    assert_eq!(process.learner.detected(), 100);
    assert_eq!(process.learner.rule().unwrap().thread(), 0);
}

#[test]
fn a_pool_takes_turns() {
    let mut process = Process::new();
    for request in 0..200u64 {
        let thread = (request * request / 3 % 5) as u32;
        process.iteration();
        process.launch(thread, 0, 60);
        process.read(thread);
        process.launch(thread, 100, 40);
        process.launch(thread, 160 + request / 3 % 2, 1);
        process.read(thread);
    }
    process.assert_each_once(32);
    assert_eq!(process.learner.detected(), 200);
}

#[test]
fn each_iteration_has_its_thread() {
    let mut process = Process::new();
    for request in 0..300 {
        process.iteration();
        process.launch(request, 0, 60);
        process.read(request);
    }
    process.assert_each_once(32);
    assert_eq!(process.learner.detected(), 300);
}

#[test]
fn the_bulk_comes_before_reads_of_all_kinds() {
    let mut process = Process::new();
    let mut random = 1u64;
    for _ in 0..120 {
        process.iteration();
        process.launch(0, 0, 133);
        process.read(0);
        for _ in 0..6 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            for _ in 0..(random >> 60) % 3 {
                process.launch(0, 300 + (random >> 40) % 4, 1);
                process.read(0);
            }
        }
        process.launch(0, 400, 3);
        process.read(0);
        process.launch(0, 500, 6);
    }
    process.assert_each_once(32);
}

#[test]
fn the_choice_is_described() {
    let mut process = Process::new();
    for _ in 0..40 {
        process.launch(0, 0, 80);
        process.read(0);
    }
    let text = process.learner.rule().unwrap().to_string();
    assert!(
        text.starts_with("the device-to-host copy after kernel 0x10000004f (once every 2 waits, "),
        "{text}"
    );
    assert!(text.ends_with(" periods agree)"), "{text}");
}
