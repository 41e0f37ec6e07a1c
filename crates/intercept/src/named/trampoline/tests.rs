use core::arch::global_asm;

use tllmprof_platform::entry::{Moved, examine};
use tllmprof_steps::step::counted::Counted;
use tllmprof_steps::step::threads::{Slot, UNLIMITED};

use super::*;
use crate::made::alone;
use crate::made::registers::after;
use crate::named::processor;

// Functions with one integer parameter, for tests of trampolines. A label marks the end of each.
global_asm!(
    ".irp name, plain, relative, branch, jump",
    ".globl tllmprof_made_\\name, tllmprof_made_\\name\\()_end",
    ".hidden tllmprof_made_\\name, tllmprof_made_\\name\\()_end",
    ".endr",
    ".p2align 4",
    "tllmprof_made_plain:",
    "push rbx",
    "mov rbx, rdi",
    "lea rax, [rbx + 1]",
    "pop rbx",
    "ret",
    "tllmprof_made_plain_end:",
    ".p2align 4",
    "tllmprof_made_relative:",
    "endbr64",
    "mov rax, qword ptr [rip + tllmprof_made_word]",
    "add rax, rdi",
    "ret",
    "tllmprof_made_relative_end:",
    ".p2align 4",
    "tllmprof_made_branch:",
    "test rdi, rdi",
    "je 2f",
    "mov eax, 7",
    "ret",
    "2: mov eax, 9",
    "ret",
    "tllmprof_made_branch_end:",
    ".p2align 4",
    "tllmprof_made_jump:",
    "jmp 2f",
    "nop",
    "nop",
    "nop",
    "2: lea rax, [rdi + 3]",
    "ret",
    "tllmprof_made_jump_end:",
    ".p2align 3",
    "tllmprof_made_word: .quad 40",
);

// SAFETY: the assembly code above defines these labels.
unsafe extern "C" {
    static tllmprof_made_plain: u8;
    static tllmprof_made_plain_end: u8;
    static tllmprof_made_relative: u8;
    static tllmprof_made_relative_end: u8;
    static tllmprof_made_branch: u8;
    static tllmprof_made_branch_end: u8;
    static tllmprof_made_jump: u8;
    static tllmprof_made_jump_end: u8;
}

fn entry(start: *const u8, end: *const u8) -> PatchableEntry {
    // SAFETY: the bytes between the two labels are code of this program.
    let code = unsafe { core::slice::from_raw_parts(start, end.addr() - start.addr()) };
    examine(start.addr(), code, |_, _| false).unwrap()
}

fn with_module<R>(act: impl FnOnce(&ElfModule, &Maps) -> R) -> R {
    let us = tllmprof_platform::elf::containing(assemble as *const () as usize).unwrap();
    act(&us, &Maps::read().unwrap())
}

#[test]
fn a_trampoline_counts_and_does_what_the_function_does() {
    alone(&[], || {
        processor::start();
        let slot: &Slot = Box::leak(Box::new(Slot::new(0, |_| UNLIMITED)));
        let cells = core::ptr::from_ref(slot.cells(false)).cast();
        let functions = [
            (
                entry(
                    &raw const tllmprof_made_plain,
                    &raw const tllmprof_made_plain_end,
                ),
                [1, 6],
            ),
            (
                entry(
                    &raw const tllmprof_made_relative,
                    &raw const tllmprof_made_relative_end,
                ),
                [40, 45],
            ),
            (
                entry(
                    &raw const tllmprof_made_branch,
                    &raw const tllmprof_made_branch_end,
                ),
                [9, 7],
            ),
            (
                entry(
                    &raw const tllmprof_made_jump,
                    &raw const tllmprof_made_jump_end,
                ),
                [3, 8],
            ),
        ];
        let mut region = with_module(|us, maps| Region::near(us, functions.len(), maps).unwrap());
        let places: Vec<_> = functions
            .iter()
            .map(|(entry, _)| region.add(entry, None).unwrap())
            .collect();
        assert_eq!(region.finish(), Ok(()));
        let mut count = 0;
        for (place, (entry, results)) in places.iter().zip(&functions) {
            assert!(place.len() <= TRAMPOLINE_SIZE && place.start % 16 == 0);
            let address = core::ptr::with_exposed_provenance_mut(place.start);
            // SAFETY: the trampoline continues in a function of this type.
            let function = unsafe {
                tllmprof_platform::function::at::<extern "C" fn(usize) -> usize>(address)
            };
            let function = function.unwrap();
            let original = core::ptr::with_exposed_provenance_mut(entry.at);
            let has_avx = is_x86_feature_detected!("avx");
            let expected = has_avx.then(|| after(original));
            // Test three cases: a thread without cells (call counters), for which the trampoline calls the slow handler
            // and counts nothing; a count within the limit; and a count past it.
            for limit in [None, Some(UNLIMITED), Some(0)] {
                slot.live(Counted::Named).set_limit(limit.unwrap_or(0));
                thread::set_counting(
                    limit.map_or(core::ptr::null(), |_| cells),
                    core::ptr::null(),
                );
                assert_eq!([function(0), function(5)], *results, "{limit:?}");
                count += limit.map_or(0, |_| 2);
                if let Some(expected) = &expected {
                    assert_eq!(after(address), *expected, "{limit:?}");
                    count += limit.map_or(0, |_| 1);
                }
                assert_eq!(slot.live(Counted::Named).count(), count);
            }
        }
        // SAFETY: only the pointers above refer to the region, and they are no longer used.
        unsafe { region.free() };
    });
}

#[test]
fn a_region_is_near_its_module_and_has_room_for_so_many() {
    with_module(|us, maps| {
        let region = Region::near(us, 1, maps).unwrap();
        let range = region.parts[0].range();
        assert_eq!((region.of, range.len()), (us.start, PAGE_SIZE));
        assert!(range.start.abs_diff(us.start) <= reach(us));
        assert!(fill(region) >= PAGE_SIZE / TRAMPOLINE_SIZE);
    });
}

#[test]
fn a_region_has_several_parts_where_no_gap_is_wide_enough() {
    with_module(|us, maps| {
        let wide = maps.free_near(us.start, reach(us));
        let free = wide.iter().find(|gap| gap.len() >= 64 * PAGE_SIZE).unwrap();
        let page = |at: usize| free.start + at * PAGE_SIZE..free.start + (at + 1) * PAGE_SIZE;
        let gaps = [page(2), page(4).start..page(5).end, page(8), page(10)];
        let region = Region::within(&gaps, us.start, 4 * PAGE_SIZE).unwrap();
        let parts: Vec<_> = region.parts.iter().map(TrampolinePages::range).collect();
        assert_eq!(parts, gaps[..3]);
        assert!(fill(region) >= 4 * (PAGE_SIZE / TRAMPOLINE_SIZE));
        let few = Region::within(&gaps[..1], us.start, 4 * PAGE_SIZE).unwrap();
        assert_eq!(few.parts.len(), 1, "what there is");
        assert!(fill(few) >= PAGE_SIZE / TRAMPOLINE_SIZE);
        assert_eq!(
            Region::within(&[], us.start, PAGE_SIZE).err(),
            Some(PatchRefusal::NoRoom)
        );
    });
}

/// Fills a region (executable memory near a module) with trampolines, and returns their number. Checks that each
/// trampoline lies within one of the region's mappings.
fn fill(mut region: Region) -> usize {
    let plain = || {
        entry(
            &raw const tllmprof_made_plain,
            &raw const tllmprof_made_plain_end,
        )
    };
    let parts: Vec<_> = region.parts.iter().map(TrampolinePages::range).collect();
    let mut added = 0;
    while let Ok(place) = region.add(&plain(), None) {
        let is_within = |part: &Range<usize>| part.start <= place.start && place.end <= part.end;
        assert!(parts.iter().any(is_within), "{place:x?}");
        added += 1;
    }
    assert_eq!(region.add(&plain(), None), Err(PatchRefusal::NoRoom));
    assert_eq!(region.finish(), Ok(()));
    // SAFETY: no code jumps to the region.
    unsafe { region.free() };
    added
}

#[test]
fn what_refers_to_something_too_far_away_has_no_trampoline() {
    let at = 0x1_0000_0000_usize;
    let entry = |kind| PatchableEntry {
        ends_in: Vec::new(),
        at,
        moved: vec![Moved {
            bytes: vec![0x48, 0x8b, 0x05, 0, 0, 0, 0],
            kind,
        }],
        length: 7,
        looks_back: false,
    };
    let near = InstructionKind::Relative {
        at: 3,
        target: at + 0x1000,
    };
    assert!(assemble(at + 0x10_0000, &entry(near), None).is_some());
    for far in [
        InstructionKind::Relative {
            at: 3,
            target: at + 0x8000_0000_usize + 0x20_0000,
        },
        InstructionKind::Relative {
            at: 4,
            target: at + 0x1000,
        },
        InstructionKind::Branch {
            opcode: [0, 0xe9],
            target: at + (1 << 33),
        },
        InstructionKind::Branch {
            opcode: [0x0f, 0x84],
            target: at + (1 << 33),
        },
    ] {
        assert!(assemble(at + 0x10_0000, &entry(far), None).is_none());
    }
    assert!(
        assemble(at + (1 << 33), &entry(near), None).is_none(),
        "nor what is too far away itself"
    );
}
