# Runs cargo, which may be a proxy that executes another program, and builds a tiny crate.
command -v cargo > /dev/null || { echo 'skipped: no cargo'; exit 77; }
unset CARGO_TARGET_DIR RUSTFLAGS MAKEFLAGS
export CARGO_NET_OFFLINE=true CARGO_TERM_QUIET=true CARGO_INCREMENTAL=0
cargo --version && rustc --version
# The crate is written by hand, because `cargo new` would add it to the workspace around this folder.
mkdir -p tiny/src && cd tiny || exit
printf '[package]\nname = "tiny"\nversion = "0.1.0"\nedition = "2021"\n[workspace]\n' > Cargo.toml
cat > src/main.rs << 'R'
fn main() {
    let sum: u64 = std::thread::scope(|scope| {
        let parts: Vec<_> = (0..4u64).map(|i| scope.spawn(move || (0..1000).sum::<u64>() * i)).collect();
        parts.into_iter().map(|part| part.join().unwrap()).sum()
    });
    println!("{sum}");
    eprintln!("{:?}", std::panic::catch_unwind(|| panic!("caught")).is_err());
    std::process::exit(9);
}
R
# A panic's message contains the thread's id, which differs between runs.
cargo build && ./target/debug/tiny 2>&1 | sed 's/ ([0-9]*) panicked/ panicked/'
echo "tiny: ${PIPESTATUS[0]}"
echo 'fn main() { missing() }' > src/main.rs
cargo build; echo "wrong: $?"
