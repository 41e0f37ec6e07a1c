//! Tests with records that older versions of the library wrote. They are in the fuzzer's corpus and must remain
//! readable.

#[path = "../../../../tests/fuzzed/src/packed.rs"]
#[allow(unreachable_pub)] // `tests/fuzzed` is a library with this module
mod packed;

use crate::common::process;

fn seed(name: &str) -> Vec<u8> {
    let folder = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../fuzz/corpus/seeds/records/"
    );
    packed::unpack(&std::fs::read(folder.to_owned() + name).unwrap())
}

#[test]
fn an_engine_in_c_is_read() {
    let engine = process("engine", &seed("engine-1"));
    assert!(engine.record.damage.is_none(), "{}", engine.record.damage);
    let windows: Vec<_> = engine
        .windows
        .iter()
        .map(|window| (window.first, window.last))
        .collect();
    assert_eq!(windows, [(5, 9), (20, 22)]);
    assert!(engine.windows.iter().all(|window| window.closed));
    let iterations = engine
        .sum
        .as_ref()
        .map(|sum| (sum.iterations, sum.launches));
    assert_eq!(iterations, Some((8, 1.0)));
    assert_eq!(engine.others.outside.all.iterations, 32);
    assert_eq!(engine.facts.command, "./engine");
    assert_eq!(engine.facts.rule, "cudaGraphLaunch");
}

#[test]
fn a_python_program_is_read() {
    let python = process("python", &seed("python-1"));
    assert!(python.record.damage.is_none(), "{}", python.record.damage);
    assert_eq!(python.sum.as_ref().map(|sum| sum.iterations), Some(136));
    assert_eq!(
        (python.python.gil_wait.count, python.python.gc.len()),
        (1, 3)
    );
}
