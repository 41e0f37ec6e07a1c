//! Synthetic programs with typical loops. Kernels with the same number are launched at the same place in a program's
//! code.

use super::Program;
use crate::recorded::Record;
use tllmprof_calls::Wait;

/// Returns the programs of this module with their names.
pub(crate) fn all() -> Vec<(String, Vec<Record>)> {
    let mut all: Vec<(String, Vec<Record>)> = Vec::new();
    let mut add = |name: &str, records| all.push((name.into(), records));
    for parts in [2, 5, 8] {
        add(&format!("items_{parts}_pause"), items(parts, 150, 0));
        add(&format!("items_{parts}_short_pause"), items(parts, 25, 0));
        add(&format!("items_{parts}_embedding"), items(parts, 60, 2));
        add(&format!("items_{parts}_kernels"), items(parts, 60, 9));
    }
    add("tied_drift", tied_drift(9));
    add("tied_drift_fast", tied_drift(1));
    add("chunked_prefill", chunked_prefill(true));
    add("chunked_prefill_eager", chunked_prefill(false));
    add("draft_varies", draft_varies(true));
    add("draft_varies_eager", draft_varies(false));
    add("late_read_1", late_read(1));
    add("late_read_2", late_read(2));
    add("late_read_eager", late_read_eager());
    add("recapture_20", recapture(20));
    add("recapture_64", recapture(64));
    add("recapture_7", recapture(7));
    add("reranker", reranker(false));
    add("reranker_graph", reranker(true));
    add("accumulate_each", accumulate(true));
    add("accumulate_once", accumulate(false));
    add("cfg_synced", cfg(true));
    add("cfg", cfg(false));
    add("cfg_batched_synced", cfg_batched());
    add("speech", speech());
    add("moe_16", moe(16, false));
    add("moe_16_uneven", moe(16, true));
    add("moe_32", moe(32, false));
    add("moe_8", moe(8, true));
    add("tiny_step", tiny_step(5, true));
    add("tiny_step_12", tiny_step(12, true));
    add("tiny_no_wait", tiny_step(12, false));
    add("tiny_no_wait_20", tiny_step(20, false));
    add("no_wait", no_wait());
    add("beam_reorder", beam_reorder());
    add("embed_batches", embed_batches());
    add("jax_every_4", jax_every(4));
    add("jax_every_4_late", jax_every_late(4));
    add("requests_varied", requests_varied());
    add("stop_check_4", stop_check(4));
    add("stop_check_16", stop_check(16));
    add("pipeline_stages", pipeline_stages());
    add("rl_rollout_train", rollout_train());
    add("items_8_kinds", items_of_kinds(8));
    add("items_5_kinds", items_of_kinds(5));
    add("read_ahead", read_ahead());
    add("second_read_at_times", second_read_at_times());
    add("log_each_10", log_each(10));
    add("codebooks", codebooks());
    add("tiles", tiles());
    add("recurrent", recurrent());
    add("boxes", boxes());
    add("graph_sizes", graph_sizes());
    add("two_threads_tied", two_threads_tied());
    add("polled", polled());
    for seed in [0, 118] {
        add(&format!("other_kernels_{seed}"), other_kernels(seed));
    }
    add("depth_passes", depth_passes());
    add("tree_drafts", tree_drafts());
    add("synced_layers", synced_layers());
    for parts in [2, 3] {
        add(&format!("sleep_within_{parts}"), sleep_within(parts));
    }
    add("masks_read_24", masks_read(24, 110));
    add("masks_read_8", masks_read(8, 40));
    all
}

/// Steps of one pass of `kernels` kernels, after which `masks` masks are computed. The host reads the size of each
/// mask.
fn masks_read(masks: u64, kernels: u64) -> Vec<Record> {
    let mut program = Program::new(331 + masks);
    for _ in 0..400 {
        program.mark(0);
        program.launch(0, 100, kernels);
        for _ in 0..masks {
            program.launch(0, 0, 3);
            program.read(0);
            program.launch(0, 5, 2);
        }
    }
    program.records()
}

/// Steps that consist of two or three equal parts, each waited for. The host sleeps for 3 ms before the last part; the
/// next step follows without a pause.
fn sleep_within(parts: u64) -> Vec<Record> {
    let mut program = Program::new(211 + parts);
    program.kernel = 200_000;
    for _ in 0..600 {
        program.mark(0);
        for part in 0..parts {
            if part + 1 == parts {
                program.work(0, 3000);
            }
            program.launch(0, 0, 4);
            program.wait(0, Wait::Stream);
        }
    }
    program.records()
}

/// 24 layers with a device wait after each of them, as in a program that is being debugged.
pub(crate) fn synced_layers() -> Vec<Record> {
    let mut program = Program::new(77);
    for _ in 0..400 {
        program.mark(0);
        program.work(0, 40);
        program.launch(0, 900, 1);
        for _ in 0..24 {
            for kernel in 0..13 {
                program.launch(0, kernel, 1);
                program.work(0, 20);
            }
            program.wait(0, Wait::Context);
            program.work(0, 15);
        }
        program.launch(0, 950, 3);
        program.read(0);
    }
    program.records()
}

/// An embedding server. Three in ten inputs are long and run different kernels, so that different calls
/// precede the read of their result.
fn other_kernels(seed: u64) -> Vec<Record> {
    let mut program = Program::new(200 + seed);
    for _ in 0..500 {
        for _ in 0..program.random.below(7) {
            program.work(0, 300);
            program.wait(0, Wait::Stream);
        }
        program.mark(0);
        program.work(0, 150);
        program.upload(0);
        program.upload(0);
        let is_long = program.random.below(10) < 3;
        program.launch(0, 100, if is_long { 104 } else { 100 });
        program.read(0);
    }
    program.records()
}

/// An audio codec. Each frame is one pass of the model, then seven small passes. The program reads back the result of
/// each of these eight passes.
fn depth_passes() -> Vec<Record> {
    let mut program = Program::new(221);
    for _ in 0..400 {
        program.mark(0);
        program.work(0, 80);
        program.launch(0, 100, 60);
        program.read(0);
        for _ in 0..7 {
            program.launch(0, 300, 21);
            program.read(0);
        }
        program.launch(0, 400, 3);
    }
    program.records()
}

/// Speculative decoding: five graphs compute a tree of drafts, a pass verifies the drafts, and then one kernel runs for
/// each accepted token.
fn tree_drafts() -> Vec<Record> {
    let mut program = Program::new(222);
    program.capture(0, 10, 30);
    for _ in 0..500 {
        program.mark(0);
        program.work(0, 120);
        for _ in 0..5 {
            program.graph(0, 12);
            program.launch(0, 40, 3);
        }
        program.upload(0);
        program.launch(0, 100, 120);
        program.launch(0, 300, 2);
        program.read(0);
        program.work(0, 40);
        for _ in 0..program.random.between(1, 8) {
            program.launch(0, 320, 1);
        }
    }
    program.records()
}

/// Steps of several parts like those of [`items`], but each part runs different kernels.
fn items_of_kinds(parts: u64) -> Vec<Record> {
    let mut program = Program::new(101);
    for _ in 0..600 {
        program.work(0, 100);
        program.mark(0);
        for part in 0..parts {
            program.launch(0, 100 * part, 20);
            program.work(0, 30);
            program.read(0);
        }
    }
    program.records()
}

/// A loop that waits for the result of each step only after it has launched the next step.
fn read_ahead() -> Vec<Record> {
    let mut program = Program::new(103);
    let mut done = 0;
    for step in 0..500u64 {
        program.mark(0);
        program.work(0, 50);
        program.upload(0);
        if program.random.below(8) == 0 {
            program.launch(0, 300, 90);
        } else {
            program.graph(0, 100);
        }
        program.launch(0, 10, 4);
        program.call(0, tllmprof_learn::Call::CopyToHost);
        if step > 0 {
            program.wait_until(0, Wait::Event, done);
        }
        done = program.done();
    }
    program.records()
}

/// Each step reads a token, and also its probability if the request asked for it.
fn second_read_at_times() -> Vec<Record> {
    let mut program = Program::new(107);
    for step in 0..500u64 {
        program.mark(0);
        for _ in 0..8 {
            program.launch(0, 0, 15);
        }
        program.launch(0, 200, 5);
        program.read(0);
        if step / 40 % 2 == 1 || program.random.below(10) == 0 {
            program.launch(0, 300, 3);
            program.read(0);
        }
    }
    program.records()
}

/// Training that reads the loss only once in `steps` steps. The iteration that ends with the read then consists of
/// `steps` steps.
fn log_each(steps: u64) -> Vec<Record> {
    let mut program = Program::new(109);
    for step in 0..800u64 {
        program.mark(0);
        program.upload(0);
        for _ in 0..4 {
            program.launch(0, 0, 14);
        }
        program.launch(0, 100, 6);
        program.until(1, program.now(0));
        program.launch(1, 300, 12);
        for _ in 0..4 {
            program.launch(1, 200, 25);
        }
        program.until(0, program.now(1));
        program.launch(0, 400, 25);
        if step % steps == steps - 1 {
            program.read(0);
        }
    }
    program.records()
}

/// Text to speech: a sentence has 20 to 60 frames. Each frame has a large and a small part of eight blocks
/// each, and its result is read at the end.
fn codebooks() -> Vec<Record> {
    let mut program = Program::new(113);
    for _ in 0..16 {
        program.work(0, 3000);
        program.launch(0, 900, 50);
        for _ in 0..program.random.between(20, 60) {
            program.mark(0);
            for _ in 0..8 {
                program.launch(0, 0, 15);
            }
            for _ in 0..8 {
                program.launch(0, 100, 22);
            }
            program.read(0);
        }
        program.launch(0, 700, 80);
        program.read(0);
    }
    program.records()
}

/// Video generation: 12 denoising steps, each of which is read, then 9 tiles that are decoded and read one by
/// one.
fn tiles() -> Vec<Record> {
    let mut program = Program::new(127);
    for _ in 0..40 {
        for _ in 0..12 {
            program.mark(0);
            for _ in 0..10 {
                program.launch(0, 0, 18);
            }
            program.read(0);
        }
        for _ in 0..9 {
            program.launch(0, 500, 6);
            program.read(0);
        }
    }
    program.records()
}

/// A recurrent network: 64 small steps without a wait between them, and one read at the end.
fn recurrent() -> Vec<Record> {
    let mut program = Program::new(131);
    for _ in 0..200 {
        program.mark(0);
        program.upload(0);
        program.launch(0, 100, 4);
        for _ in 0..64 {
            program.launch(0, 0, 6);
        }
        program.launch(0, 200, 5);
        program.read(0);
    }
    program.records()
}

/// An object detector: a large pass, then 2 to 15 small reads, one for each class of boxes.
fn boxes() -> Vec<Record> {
    let mut program = Program::new(137);
    for _ in 0..400 {
        program.work(0, 150);
        program.mark(0);
        program.upload(0);
        for _ in 0..10 {
            program.launch(0, 0, 16);
        }
        for _ in 0..program.random.between(2, 15) {
            program.launch(0, 300, 5);
            program.read(0);
        }
    }
    program.records()
}

/// A network for graph data: three layers, each of which reads a size that varies, and one read at the end.
fn graph_sizes() -> Vec<Record> {
    let mut program = Program::new(139);
    for _ in 0..400 {
        program.work(0, 80);
        program.mark(0);
        program.upload(0);
        for _ in 0..3 {
            program.launch(0, 0, 18);
            program.read(0);
            let more = program.random.below(3);
            program.launch(0, 50, 12 + more);
        }
        program.launch(0, 200, 14);
        program.read(0);
    }
    program.records()
}

/// Two threads launch on a stream each, and the streams wait for each other by events. The first thread reads a
/// result at a changing place in the step.
fn two_threads_tied() -> Vec<Record> {
    let mut program = Program::new(149);
    for step in 0..500u64 {
        program.mark(0);
        let place = (step / 9) % 5;
        for block in 0..8 {
            program.launch(0, 0, 12);
            if block == 2 {
                program.until(1, program.now(0));
                program.launch(1, 300, 40);
            }
            if block == 3 + place {
                program.read(0);
            }
        }
        program.launch(0, 200, 6);
    }
    program.records()
}

/// Another thread polls the device while steps run.
fn polled() -> Vec<Record> {
    let mut program = Program::new(157);
    for _ in 0..500 {
        program.mark(0);
        program.work(0, 100);
        program.upload(0);
        for _ in 0..8 {
            program.launch(0, 0, 15);
            program.until(2, program.now(0));
            if program.random.below(3) == 0 {
                program.call_event(2);
            }
        }
        program.launch(0, 200, 4);
        program.until(1, program.now(0));
        program.read(1);
        program.until(0, program.now(1));
    }
    program.records()
}

/// A step of equal parts with an `.item()` call after each part. Before each step, `pause` microseconds of code
/// and `kernels` additional kernels run.
fn items(parts: u64, pause: u64, kernels: u64) -> Vec<Record> {
    let mut program = Program::new(parts * 1000 + pause + kernels);
    for _ in 0..600 {
        program.work(0, pause);
        program.mark(0);
        program.launch(0, 500, kernels);
        for _ in 0..parts {
            program.launch(0, 0, 20);
            program.work(0, 30);
            program.read(0);
        }
    }
    program.records()
}

/// Each step waits once for the result of a second stream. The place of that wait in the step changes every `every`
/// steps.
fn tied_drift(every: u64) -> Vec<Record> {
    let mut program = Program::new(7);
    for step in 0..600u64 {
        program.mark(0);
        program.upload(0);
        let place = 4 + (step / every) % 7;
        for block in 0..12 {
            program.launch(0, 10, 9);
            if block == place && step > 0 {
                program.call_event(0);
            }
        }
        program.launch(0, 100, 3);
        program.launch(0, 200, 6);
        program.work(0, 80);
    }
    program.records()
}

/// Decode steps mixed with chunks of prompts. If `graphs` is true, a decode step launches a graph.
fn chunked_prefill(graphs: bool) -> Vec<Record> {
    let mut program = Program::new(11);
    let mut chunks = 0;
    for _ in 0..500 {
        program.work(0, 120);
        program.mark(0);
        if chunks == 0 && program.random.below(12) == 0 {
            chunks = program.random.between(1, 4);
        }
        program.upload(0);
        program.upload(0);
        if chunks > 0 {
            chunks -= 1;
            program.launch(0, 300, 4);
            for _ in 0..16 {
                program.launch(0, 310, 11);
            }
        } else if graphs {
            program.graph(0, 180);
        } else {
            program.launch(0, 400, 3);
            for _ in 0..16 {
                program.launch(0, 410, 9);
            }
        }
        program.launch(0, 600, 5);
        if program.random.below(3) == 0 {
            program.launch(0, 620, 4);
        }
        program.read(0);
    }
    program.records()
}

/// A draft model proposes one to six tokens and reads each back. Then the target model verifies them.
fn draft_varies(graphs: bool) -> Vec<Record> {
    let mut program = Program::new(13);
    for _ in 0..400 {
        program.mark(0);
        program.work(0, 60);
        for _ in 0..program.random.between(1, 6) {
            if graphs {
                program.graph(0, 20);
                program.launch(0, 20, 3);
            } else {
                program.launch(0, 0, 22);
            }
            program.read(0);
        }
        if graphs {
            program.graph(0, 150);
        } else {
            program.launch(0, 100, 8);
            for _ in 0..12 {
                program.launch(0, 110, 10);
            }
        }
        program.launch(0, 300, 6);
        program.read(0);
    }
    program.records()
}

/// A second thread copies each step's result to the host, `lag` steps later.
fn late_read(lag: usize) -> Vec<Record> {
    let mut program = Program::new(17);
    let mut done = Vec::new();
    for step in 0..600usize {
        program.mark(0);
        program.work(0, 40);
        program.upload(0);
        program.graph(0, 60);
        program.launch(0, 10, 4);
        done.push(program.done());
        if step >= lag {
            program.until(0, done[step - lag]);
            let at = done[step - lag];
            program.until(1, at);
            program.call(1, tllmprof_learn::Call::CopyToHost);
            program.wait_until(1, Wait::Event, at);
        }
    }
    program.records()
}

/// A second thread that reads results late, like in [`late_read`]. The kernels are launched without a graph,
/// and the thread reads at random times.
fn late_read_eager() -> Vec<Record> {
    let mut program = Program::new(19);
    program.kernel = 8_000;
    let mut done = Vec::new();
    for step in 0..600usize {
        program.mark(0);
        program.work(0, 40);
        for _ in 0..6 {
            program.launch(0, 10, 9);
        }
        program.launch(0, 30, 4);
        done.push(program.done());
        let at = done[step] + program.random.below(400_000);
        program.until(1, at);
        program.call(1, tllmprof_learn::Call::CopyToHost);
        program.wait_until(1, Wait::Stream, at);
        if step >= 2 {
            program.until(0, done[step - 2]);
        }
    }
    program.records()
}

/// Four graphs that are captured again every `every` steps, each after a warm-up pass.
fn recapture(every: u64) -> Vec<Record> {
    let mut program = Program::new(23);
    for step in 0..600u64 {
        program.mark(0);
        if step % every == 0 {
            for graph in 0..4 {
                program.launch(0, 50 * graph, 30);
                program.capture(0, 50 * graph, 30);
            }
            program.wait(0, Wait::Context);
        }
        for _ in 0..4 {
            program.graph(0, 30);
        }
        program.launch(0, 300, 2);
        program.read(0);
    }
    program.records()
}

/// A language model's tokens. Every seventh step is followed by a pass and a read of another model.
fn reranker(graphs: bool) -> Vec<Record> {
    let mut program = Program::new(29);
    for step in 0..500u64 {
        program.mark(0);
        program.work(0, 30);
        if graphs {
            program.graph(0, 80);
            program.launch(0, 200, 4);
        } else {
            for _ in 0..8 {
                program.launch(0, 10, 14);
            }
            program.launch(0, 200, 4);
        }
        program.read(0);
        if step % 7 == 6 {
            // The pass of the other model is an iteration as well.
            program.mark(0);
            for _ in 0..6 {
                program.launch(0, 500, 12);
            }
            program.launch(0, 600, 3);
            program.read(0);
        }
    }
    program.records()
}

/// Training with four micro-batches, which run forward on one thread and backward on another, then the optimizer. If
/// `each` is true, the loss of each micro-batch is read, otherwise only once per step.
fn accumulate(each: bool) -> Vec<Record> {
    let mut program = Program::new(31);
    for _ in 0..200 {
        program.mark(0);
        for _ in 0..4 {
            program.upload(0);
            for _ in 0..4 {
                program.launch(0, 10, 12);
            }
            program.launch(0, 100, 5);
            program.until(1, program.now(0));
            program.launch(1, 200, 8);
            for _ in 0..4 {
                program.launch(1, 220, 20);
            }
            program.until(0, program.now(1));
            if each {
                program.read(0);
            }
        }
        for _ in 0..6 {
            program.launch(0, 400, 5);
        }
        if !each {
            program.read(0);
        }
    }
    program.records()
}

/// Images of 30 denoising steps with two passes each (classifier-free guidance), then a decoder pass. If `synced` is
/// true, the scheduler reads a number in each step.
fn cfg(synced: bool) -> Vec<Record> {
    let mut program = Program::new(37);
    for _ in 0..20 {
        program.launch(0, 900, 40);
        for _ in 0..30 {
            program.mark(0);
            for _ in 0..2 {
                program.launch(0, 0, 5);
                for _ in 0..5 {
                    program.launch(0, 10, 14);
                }
                program.launch(0, 100, 4);
            }
            program.launch(0, 200, 6);
            if synced {
                program.read(0);
            }
        }
        for _ in 0..4 {
            program.launch(0, 700, 15);
        }
        program.read(0);
        program.work(0, 3000);
    }
    program.records()
}

/// Images like those of [`cfg`], but with both passes batched into one.
fn cfg_batched() -> Vec<Record> {
    let mut program = Program::new(41);
    for _ in 0..20 {
        program.launch(0, 900, 40);
        for _ in 0..30 {
            program.mark(0);
            for _ in 0..10 {
                program.launch(0, 10, 14);
            }
            program.launch(0, 200, 6);
            program.read(0);
        }
        for _ in 0..4 {
            program.launch(0, 700, 15);
        }
        program.read(0);
        program.work(0, 3000);
    }
    program.records()
}

/// Speech recognition: one encoder pass for each utterance, then 5 to 60 tokens.
fn speech() -> Vec<Record> {
    let mut program = Program::new(43);
    for _ in 0..24 {
        program.work(0, 4000);
        program.upload(0);
        let tokens = program.random.between(5, 60);
        for token in 0..tokens {
            program.mark(0);
            if token == 0 {
                program.launch(0, 700, 3);
                for _ in 0..8 {
                    program.launch(0, 710, 10);
                }
            }
            program.launch(0, 0, 2);
            for _ in 0..4 {
                program.launch(0, 10, 16);
            }
            program.launch(0, 100, 5);
            program.read(0);
        }
    }
    program.records()
}

/// A mixture-of-experts model whose layers read back which experts were chosen. If `uneven` is true, the number
/// of experts that run varies between layers.
fn moe(layers: u64, uneven: bool) -> Vec<Record> {
    let mut program = Program::new(47);
    for _ in 0..150 {
        program.mark(0);
        program.work(0, 50);
        program.launch(0, 900, 3);
        for _ in 0..layers {
            program.launch(0, 0, 14);
            program.read(0);
            let experts = if uneven {
                program.random.between(2, 6)
            } else {
                2
            };
            for _ in 0..experts {
                program.launch(0, 40, 5);
            }
        }
        program.launch(0, 950, 6);
        program.read(0);
    }
    program.records()
}

/// Steps with only a few kernels each. If `waits` is true, each step reads a result.
fn tiny_step(kernels: u64, waits: bool) -> Vec<Record> {
    let mut program = Program::new(53);
    for _ in 0..800 {
        program.mark(0);
        program.launch(0, 0, kernels);
        if waits {
            program.read(0);
        }
        program.work(0, 20);
    }
    program.records()
}

/// Steps without any wait, with an evaluation after every 50th step.
fn no_wait() -> Vec<Record> {
    let mut program = Program::new(59);
    for step in 0..600u64 {
        program.mark(0);
        for _ in 0..8 {
            program.launch(0, 0, 12);
        }
        program.launch(0, 100, 7);
        if step % 50 == 49 {
            program.launch(0, 300, 40);
        }
        program.work(0, 20);
    }
    program.records()
}

/// A beam search with two reads in each step. The cache is reordered if a beam was replaced.
fn beam_reorder() -> Vec<Record> {
    let mut program = Program::new(61);
    for step in 0..400u64 {
        program.mark(0);
        if step % 40 == 0 {
            program.work(0, 2000);
            program.launch(0, 800, 30);
        }
        for _ in 0..6 {
            program.launch(0, 0, 13);
        }
        program.launch(0, 100, 9);
        program.read(0);
        program.launch(0, 150, 5);
        program.read(0);
        if program.random.below(3) > 0 {
            for _ in 0..6 {
                program.launch(0, 200, 2);
            }
        }
    }
    program.records()
}

/// Batches of 0 to 4 items. Each size runs different kernels, and larger batches run more kernels.
fn embed_batches() -> Vec<Record> {
    let mut program = Program::new(67);
    for _ in 0..400 {
        program.work(0, 200);
        program.mark(0);
        let size = program.random.below(5);
        program.upload(0);
        program.upload(0);
        program.launch(0, 700, 3);
        for _ in 0..6 {
            program.launch(0, 100 * size, 12 + size);
        }
        program.launch(0, 800, 4);
        program.read(0);
    }
    program.records()
}

/// One graph per step. Two other threads take turns to read a result, once in `every` steps.
fn jax_every(every: u64) -> Vec<Record> {
    let mut program = Program::new(71);
    for step in 0..1200u64 {
        program.mark(0);
        program.work(0, 60);
        program.graph(0, 100);
        if step % every == every - 1 {
            let reader = 1 + (step / every % 2) as u32;
            program.until(reader, program.now(0));
            program.call(reader, tllmprof_learn::Call::CopyToHost);
            program.wait(reader, Wait::Stream);
            program.until(0, program.now(reader));
        }
    }
    program.records()
}

/// The same loop as [`jax_every`], but the launching thread does not wait for the reading threads.
fn jax_every_late(every: u64) -> Vec<Record> {
    let mut program = Program::new(73);
    for step in 0..1200u64 {
        program.mark(0);
        program.work(0, 350);
        program.graph(0, 100);
        if step % every == every - 1 {
            let reader = 1 + (step / every % 2) as u32;
            program.until(reader, program.done());
            program.work(reader, 20);
            program.call(reader, tllmprof_learn::Call::CopyToHost);
            program.wait_until(reader, Wait::Stream, 0);
        }
    }
    program.records()
}

/// Requests of a few tokens: a prompt pass first, then one graph for each further token.
fn requests_varied() -> Vec<Record> {
    let mut program = Program::new(79);
    for _ in 0..160 {
        program.work(0, 500);
        let tokens = program.random.between(2, 6);
        for token in 0..tokens {
            program.mark(0);
            if token == 0 {
                program.upload(0);
                for _ in 0..10 {
                    program.launch(0, 10, 11);
                }
            } else {
                program.graph(0, 100);
            }
            program.launch(0, 300, 4);
            program.read(0);
        }
    }
    program.records()
}

/// One graph per token, without a wait. Every `every` steps the program reads whether to stop.
fn stop_check(every: u64) -> Vec<Record> {
    let mut program = Program::new(83);
    for step in 0..1000u64 {
        program.mark(0);
        program.graph(0, 50);
        program.launch(0, 300, 6);
        if step % every == every - 1 {
            program.read(0);
        }
    }
    program.records()
}

/// Four pipeline stages, each on a separate thread. The first receives a batch, and the last reads the result.
fn pipeline_stages() -> Vec<Record> {
    let mut program = Program::new(89);
    for _ in 0..400 {
        program.mark(0);
        for stage in 0..4u32 {
            program.launch(stage, 100 * u64::from(stage), 25);
            let next = (stage + 1) % 4;
            program.until(next, program.now(stage));
        }
        program.launch(3, 900, 3);
        program.read(3);
        program.until(0, program.now(3));
    }
    program.records()
}

/// Reinforcement learning: 20 tokens are generated, then a training step runs. Each token is an iteration.
fn rollout_train() -> Vec<Record> {
    let mut program = Program::new(97);
    for _ in 0..40 {
        for _ in 0..20 {
            program.mark(0);
            for _ in 0..8 {
                program.launch(0, 0, 13);
            }
            program.launch(0, 100, 4);
            program.read(0);
        }
        // The training step is an iteration as well.
        program.mark(0);
        for _ in 0..5 {
            program.launch(0, 300, 30);
        }
        program.launch(0, 500, 6);
        program.read(0);
    }
    program.records()
}
