//! Fuzzes the reader of recorded sequences of CUDA calls ("streams"), from which the step learner finds iterations.

#[path = "../../../crates/cli/src/streams/replay.rs"]
mod replay;

/// Reads a sequence of calls with any content. It is either refused or replayed through the step learner.
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
