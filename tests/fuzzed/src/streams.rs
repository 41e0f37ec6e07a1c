//! Recorded streams of calls.

#[path = "../../../crates/cli/src/streams/replay.rs"]
mod replay;

/// Whatever a stream says, it is refused or replayed.
pub fn streams(bytes: &[u8]) {
    let Ok(replay) = replay::replay(bytes) else {
        return;
    };
    let lines = bytes.split(|byte| *byte == b'\n').count() as u64;
    assert!(replay.detected <= lines, "{replay:?}");
    assert!(!replay.rule.is_empty());
    let share = replay.share().unwrap_or(1.0);
    assert!((0.0..=1.0).contains(&share), "{replay:?}");
}
