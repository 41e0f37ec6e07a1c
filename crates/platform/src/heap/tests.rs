use core::ops::Range;
use std::sync::Mutex;
use std::time::Instant;

use super::*;

/// Lock that each test holds while it uses the heap: all tests share one heap.
static ONE: Mutex<()> = Mutex::new(());

/// A block of memory that a test has allocated. It is filled with a pattern, by which overlaps with
/// other blocks are detected.
struct Block {
    place: *mut u8,
    layout: Layout,
    pattern: u8,
}

// SAFETY: only the owner of a block uses its memory.
unsafe impl Send for Block {}

impl Block {
    fn new(size: usize, align: usize, pattern: u8) -> Self {
        let layout = Layout::from_size_align(size, align).unwrap();
        // SAFETY: the size is not 0.
        let place = unsafe { OwnHeap.alloc(layout) };
        assert!(!place.is_null() && place.addr().is_multiple_of(align));
        let block = Self {
            place,
            layout,
            pattern,
        };
        block.fill(0..size);
        block
    }

    fn fill(&self, range: Range<usize>) {
        // SAFETY: the range lies within this block.
        unsafe {
            self.place
                .add(range.start)
                .write_bytes(self.pattern, range.len());
        };
    }

    fn is_whole(&self, size: usize) -> bool {
        // SAFETY: the bytes lie within this block and were filled.
        let bytes = unsafe { core::slice::from_raw_parts(self.place, size) };
        bytes.iter().all(|&byte| byte == self.pattern)
    }

    fn resize(&mut self, size: usize) {
        let old = self.layout.size();
        // SAFETY: the block has this layout, and the size is not 0.
        let place = unsafe { OwnHeap.realloc(self.place, self.layout, size) };
        assert!(!place.is_null());
        self.place = place;
        self.layout = Layout::from_size_align(size, self.layout.align()).unwrap();
        assert!(self.is_whole(old.min(size)), "{old} to {size}");
        self.fill(0..size);
    }

    fn is_own(&self) -> bool {
        REGIONS.contain(self.place)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        assert!(self.is_whole(self.layout.size()));
        // SAFETY: the block was allocated with this layout, and is no longer used.
        unsafe { OwnHeap.dealloc(self.place, self.layout) };
    }
}

const SIZES: [usize; 12] = [
    1,
    16,
    100,
    4000,
    4096,
    70_000,
    LARGE - 1,
    LARGE,
    LARGE + 1,
    1 << 20,
    5_000_000,
    33,
];

/// Allocates a block of each size in [`SIZES`] with each alignment, and resizes each block to all of these sizes.
fn use_it(seed: usize) {
    let mut blocks: Vec<Block> = Vec::new();
    for (n, &size) in SIZES.iter().enumerate() {
        for align in [1, 8, 64, 4096, 16384] {
            blocks.push(Block::new(size, align, (seed + n * 5 + align % 251) as u8));
        }
    }
    assert!(blocks.iter().all(Block::is_own));
    for (n, block) in blocks.iter_mut().enumerate() {
        for step in 0..SIZES.len() {
            block.resize(SIZES[(n + step * 7 + seed) % SIZES.len()]);
        }
        assert!(block.is_own());
    }
    while !blocks.is_empty() {
        blocks.swap_remove((seed * 31) % blocks.len());
    }
}

#[test]
fn blocks_keep_what_is_in_them() {
    let _one = ONE.lock();
    use_it(0);
}

#[test]
fn threads_share_it() {
    let _one = ONE.lock();
    std::thread::scope(|scope| {
        for seed in 0..4 {
            scope.spawn(move || use_it(seed));
        }
    });
    // These blocks are allocated on one thread and freed on another.
    let blocks: Vec<_> = (1..500).map(|n| Block::new(n * 3, 8, n as u8)).collect();
    std::thread::spawn(move || drop(blocks)).join().unwrap();
}

#[test]
fn what_is_given_back_is_used_again() {
    let _one = ONE.lock();
    let regions = || {
        let words = REGIONS.words();
        words.filter(|&word| word > regions::GONE).count()
    };
    use_it(1);
    let before = regions();
    let large = Block::new(3 * LARGE, 8, 7);
    assert_eq!(regions(), before + 1);
    let place = large.place;
    drop(large);
    assert!(!REGIONS.contain(place));
    for seed in 0..3 {
        use_it(seed);
        for n in 0..10_000 {
            drop(Block::new(n % 3000 + 1, 8, n as u8));
        }
    }
    assert_eq!(regions(), before);
}

#[test]
fn a_zeroed_block_is_zeros() {
    let _one = ONE.lock();
    drop(Block::new(5000, 8, 255));
    for size in [5000, LARGE * 2] {
        let layout = Layout::from_size_align(size, 8).unwrap();
        // SAFETY: the size is not 0. The block is read only within its size, and then freed.
        unsafe {
            let place = OwnHeap.alloc_zeroed(layout);
            let bytes = core::slice::from_raw_parts(place, size);
            assert!(bytes.iter().all(|&byte| byte == 0));
            OwnHeap.dealloc(place, layout);
        }
    }
}

/// Simulates a signal handler that has interrupted an allocation: the heap's lock is held while the test allocates.
#[test]
fn the_system_serves_where_the_heap_is_locked() {
    let _one = ONE.lock();
    let mut before = Block::new(100, 8, 1);
    let lost = Block::new(10, 8, 1);
    let held = HEAP.lock();
    let since = Instant::now();
    let mut others: Vec<_> = (1..200).map(|n| Block::new(n, 8, n as u8)).collect();
    assert!(!others.iter().any(Block::is_own));
    before.resize(2000);
    drop(lost);
    assert!(!before.is_own());
    // Only the first of these about 200 allocations waits for the lock (`LOCK_TIMEOUT`). The limit of 150 waits
    // shows that not every allocation has waited.
    assert!(
        since.elapsed() < LOCK_TIMEOUT * 150,
        "{:?}",
        since.elapsed()
    );
    drop(held);
    for other in &mut others {
        other.resize(1000);
    }
    assert!(Block::new(10, 8, 2).is_own());
}

/// Runs `act` in a forked child, and returns the result of `act` in the parent.
fn in_fork(act: impl FnOnce() -> bool) -> bool {
    // SAFETY: the process has several threads, so the child may do little: it allocates only from this heap.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::_exit((!act()).into());
        }
        let mut status = -1;
        libc::waitpid(child, &raw mut status, 0);
        status == 0
    }
}

#[test]
fn a_child_has_a_heap_that_is_whole() {
    let _one = ONE.lock();
    lifecycle::register();
    let kept = Block::new(100, 8, 3);
    assert!(in_fork(|| {
        let new = Block::new(100, 8, 4);
        new.is_own() && kept.is_whole(100)
    }));
    // Simulates a thread that is in the middle of an allocation while the process forks.
    let held = HEAP.lock();
    let is_served = in_fork(|| {
        let blocks: Vec<_> = (1..50).map(|n| Block::new(n, 8, 4)).collect();
        kept.is_whole(100) && !blocks.iter().any(Block::is_own)
    });
    drop(held);
    assert!(is_served);
    assert!(Block::new(10, 8, 2).is_own());
}
