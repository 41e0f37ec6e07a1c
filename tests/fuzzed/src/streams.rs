//! Fuzzes recorded streams of CUDA calls.

#[path = "../../../crates/cli/src/streams/replay.rs"]
mod replay;

/// Reads a stream with any content. The stream is either refused or replayed.
pub fn streams(bytes: &[u8]) {
    let Ok(replay) = replay::replay(bytes) else {
        return;
    };
    let lines = bytes.split(|byte| *byte == b'\n').count() as u64;
    assert!(replay.detected <= lines, "{replay:?}");
    assert!(!replay.rule.is_empty());
    let inner = replay.inner.as_ref();
    assert!(inner.is_none_or(|inner| !inner.rule.is_empty()));
    let levels = [
        Some(&replay.boundaries),
        inner.map(|inner| &inner.boundaries),
    ];
    for level in levels.into_iter().flatten() {
        let share = level.share().unwrap_or(1.0);
        assert!((0.0..=1.0).contains(&share), "{replay:?}");
        assert!(level.len() <= lines as usize, "{replay:?}");
    }
}
