//! Synthetic programs with typical loops of servers, of training and of media processing. Each program contains marks
//! where the author of such a program would say that a step begins.

use super::Program;
use crate::recorded::Record;
use tllmprof_calls::Wait;

/// Returns the programs of this module with their names.
pub(crate) fn all() -> Vec<(String, Vec<Record>)> {
    let all: [(&str, Vec<Record>); 15] = [
        ("stage_in_the_middle", stage_in_the_middle()),
        (
            "drafts_as_graphs_of_two_sizes",
            drafts_as_graphs_of_two_sizes(),
        ),
        ("chunks_mixed_with_decode", chunks_mixed_with_decode()),
        ("guidance_in_two_passes", guidance_in_two_passes()),
        ("beams_with_two_reads", beams_with_two_reads()),
        ("encoder_and_decoder", encoder_and_decoder()),
        ("embeddings_tokenised_beside", embeddings_tokenised_beside()),
        ("batching_with_idle_polls", batching_with_idle_polls()),
        ("adapters_switched", adapters_switched()),
        (
            "experts_counted_in_each_layer",
            experts_counted_in_each_layer(),
        ),
        ("transducer", transducer()),
        ("two_models", two_models()),
        ("video_frames", video_frames()),
        ("accumulate_8_with_norm", accumulate_8_with_norm()),
        ("loader_thread", loader_thread()),
    ];
    all.map(|(name, records)| (name.to_owned(), records)).into()
}

/// A middle stage of a pipeline. It receives each micro-batch from the previous stage and sends it to the
/// next one. Before it reuses one of two send buffers, it waits for the send of two steps earlier.
fn stage_in_the_middle() -> Vec<Record> {
    let mut program = Program::new(401);
    let mut sent = [0; 2];
    for step in 0..600 {
        program.mark(0);
        program.work(0, 30);
        program.launch(0, 900, 1);
        program.launch(0, 100, 64);
        program.launch(0, 910, 1);
        let before = core::mem::replace(&mut sent[step % 2], program.done());
        program.wait_until(0, Wait::Event, before);
    }
    program.records()
}

/// Speculative decoding: three passes of a draft model, then one pass of the target model that verifies the drafts.
/// Each pass is a graph whose result is read.
fn drafts_as_graphs_of_two_sizes() -> Vec<Record> {
    let mut program = Program::new(402);
    program.capture(0, 10, 30);
    program.capture(0, 50, 200);
    for _ in 0..400 {
        program.mark(0);
        program.work(0, 90);
        for _ in 0..3 {
            program.upload(0);
            program.graph(0, 30);
            program.launch(0, 300, 2);
            program.read(0);
        }
        program.upload(0);
        program.graph(0, 200);
        program.launch(0, 310, 6);
        program.read(0);
    }
    program.records()
}

/// Decode steps that launch a graph. A quarter of them also compute a chunk of a prompt, with eager kernels.
fn chunks_mixed_with_decode() -> Vec<Record> {
    let mut program = Program::new(403);
    program.capture(0, 10, 90);
    for _ in 0..500 {
        program.mark(0);
        program.work(0, 140);
        program.upload(0);
        if program.random.below(4) == 0 {
            program.launch(0, 400, 110);
        }
        program.graph(0, 90);
        program.launch(0, 300, 4);
        program.read(0);
    }
    program.records()
}

/// Denoising steps of two passes each, with one read of the noise level. An image has twenty steps, then a pass of
/// the decoder.
fn guidance_in_two_passes() -> Vec<Record> {
    let mut program = Program::new(404);
    for _ in 0..25 {
        program.work(0, 900);
        program.launch(0, 700, 40);
        for _ in 0..20 {
            program.mark(0);
            program.launch(0, 100, 130);
            program.launch(0, 100, 130);
            program.launch(0, 300, 6);
            program.read(0);
        }
        program.launch(0, 800, 90);
        program.read(0);
    }
    program.records()
}

/// Tokens of a beam search, with two reads each: the scores, before the beams are reordered, and then a flag that
/// says if all beams have ended.
fn beams_with_two_reads() -> Vec<Record> {
    let mut program = Program::new(405);
    for _ in 0..500 {
        program.mark(0);
        program.work(0, 60);
        program.launch(0, 100, 92);
        program.launch(0, 300, 5);
        program.read(0);
        program.work(0, 70);
        program.upload(0);
        program.launch(0, 320, 8);
        program.launch(0, 340, 1);
        program.read(0);
    }
    program.records()
}

/// Requests that consist of one encoder pass and 20 to 60 decoder passes, one for each token.
fn encoder_and_decoder() -> Vec<Record> {
    let mut program = Program::new(406);
    for _ in 0..15 {
        program.work(0, 400);
        program.upload(0);
        program.launch(0, 500, 150);
        for _ in 0..program.random.between(20, 60) {
            program.mark(0);
            program.work(0, 50);
            program.launch(0, 100, 74);
            program.read(0);
        }
    }
    program.records()
}

/// Computes embeddings of batches that have one of three lengths. Another thread tokenises and uploads the tokens.
fn embeddings_tokenised_beside() -> Vec<Record> {
    let mut program = Program::new(407);
    for _ in 0..500 {
        let idle = program.random.below(900);
        program.work(1, 100 + idle);
        program.upload(1);
        program.wait(1, Wait::Stream);
        let given = program.now(1);
        program.until(0, given);
        program.mark(0);
        let length = program.random.below(3);
        program.launch(0, 100 + 200 * length, 84);
        program.launch(0, 900, 2);
        program.read(0);
        let taken = program.now(0);
        program.until(1, taken);
    }
    program.records()
}

/// A batching server whose step is a graph of one of four sizes. While it has no requests, it polls the stream.
fn batching_with_idle_polls() -> Vec<Record> {
    let mut program = Program::new(408);
    for size in 0..4 {
        program.capture(0, 10, 60 + size);
    }
    let mut sequences = 0;
    for _ in 0..700 {
        if sequences == 0 {
            for _ in 0..program.random.between(3, 40) {
                program.work(0, 500);
                program.wait(0, Wait::Stream);
            }
            sequences = program.random.between(20, 80);
        }
        sequences -= 1;
        program.mark(0);
        program.work(0, 100);
        program.upload(0);
        program.upload(0);
        let kernels = 60 + program.random.below(4);
        program.graph(0, kernels);
        program.launch(0, 300, 3);
        program.call(0, tllmprof_learn::Call::CopyToHost);
        program.wait(0, Wait::Event);
    }
    program.records()
}

/// Tokens of requests, every second of which uses an adapter. The adapter's weights are uploaded when it is switched
/// on.
fn adapters_switched() -> Vec<Record> {
    let mut program = Program::new(409);
    for request in 0..20 {
        if request % 2 == 1 {
            for _ in 0..8 {
                program.upload(0);
            }
            program.wait(0, Wait::Stream);
        }
        for _ in 0..program.random.between(15, 40) {
            program.mark(0);
            program.work(0, 70);
            program.launch(0, 100, 80);
            if request % 2 == 1 {
                program.launch(0, 400, 32);
            }
            program.launch(0, 300, 3);
            program.read(0);
        }
    }
    program.records()
}

/// A mixture-of-experts model: six layers, each of which reads back the number of tokens for each expert, then an
/// output head.
fn experts_counted_in_each_layer() -> Vec<Record> {
    let mut program = Program::new(410);
    for _ in 0..400 {
        program.mark(0);
        program.work(0, 60);
        program.launch(0, 50, 5);
        for _ in 0..6 {
            program.launch(0, 100, 22);
            program.read(0);
            for _ in 0..program.random.between(3, 8) {
                program.launch(0, 200, 4);
            }
        }
        program.launch(0, 300, 14);
        program.read(0);
    }
    program.records()
}

/// Chunks of audio: one encoder pass, then a small network for each symbol, whose result is read.
fn transducer() -> Vec<Record> {
    let mut program = Program::new(411);
    for _ in 0..300 {
        program.mark(0);
        program.work(0, 120);
        program.upload(0);
        program.launch(0, 100, 160);
        for _ in 0..program.random.between(3, 12) {
            program.launch(0, 400, 6);
            program.read(0);
        }
    }
    program.records()
}

/// A server in which each request runs one of two models.
fn two_models() -> Vec<Record> {
    let mut program = Program::new(412);
    for _ in 0..500 {
        program.mark(0);
        program.work(0, 110);
        program.upload(0);
        if program.random.below(2) == 0 {
            program.launch(0, 100, 96);
        } else {
            program.launch(0, 400, 52);
        }
        program.launch(0, 900, 2);
        program.read(0);
    }
    program.records()
}

/// Video frames of three types, in a pattern that recurs every twelve frames, as in compressed video. Each type has a
/// separate graph.
fn video_frames() -> Vec<Record> {
    let mut program = Program::new(413);
    for kind in 0..3 {
        program.capture(0, 10 + 100 * kind, 20 + 30 * kind);
    }
    for frame in 0..600_u64 {
        program.mark(0);
        program.work(0, 200);
        program.upload(0);
        let kind = match frame % 12 {
            0 => 2,
            n if n % 3 == 0 => 1,
            _ => 0,
        };
        program.graph(0, 20 + 30 * kind);
        program.call(0, tllmprof_learn::Call::CopyToHost);
        program.wait(0, Wait::Event);
    }
    program.records()
}

/// Training with eight micro-batches per step. The loss of each micro-batch is read, then the norm of the
/// gradients; then the optimizer runs.
fn accumulate_8_with_norm() -> Vec<Record> {
    let mut program = Program::new(414);
    for _ in 0..120 {
        program.mark(0);
        for _ in 0..8 {
            program.work(0, 40);
            program.upload(0);
            program.launch(0, 100, 150);
            program.read(0);
        }
        program.launch(0, 500, 30);
        program.read(0);
        program.launch(0, 600, 60);
    }
    program.records()
}

/// Training in which another thread uploads batches ahead of time. The loss is read in each step.
fn loader_thread() -> Vec<Record> {
    let mut program = Program::new(415);
    for _ in 0..400 {
        program.work(1, 300);
        for _ in 0..3 {
            program.upload(1);
        }
        program.wait(1, Wait::Stream);
        let loaded = program.now(1);
        program.until(0, loaded.saturating_sub(2_000_000));
        program.mark(0);
        program.launch(0, 100, 200);
        program.launch(0, 500, 40);
        program.read(0);
        let trained = program.now(0);
        program.until(1, trained.saturating_sub(1_000_000));
    }
    program.records()
}
