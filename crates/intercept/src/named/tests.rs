//! Tests of the hooks for native functions that `sym:` rules name. The tests patch entries of functions in their own
//! process, hook functions by name, and forget functions of unloaded libraries.

use core::arch::global_asm;
use core::ffi::CStr;

use regex::bytes::Regex;
use tllmprof_platform::elf::ElfModule;
use tllmprof_platform::entry::{JUMP, PatchRefusal};
use tllmprof_platform::maps::Maps;
use tllmprof_platform::modules::LoadedModule;
use tllmprof_session as session;
use tllmprof_steps::step::counted::Counted;
use tllmprof_symbols::Pattern;

use super::patch::{HookCandidate, NamedFunction, prepare};
use super::*;
use crate::made::{alone, stranger};

// A function that takes a number and returns three times the number plus 0x101. On x86-64, its first instruction is
// long enough to be replaced by a jump. Its second instruction is not.
#[cfg(target_arch = "x86_64")]
global_asm!(
    ".pushsection .text.tllmprof_made_named,\"ax\",@progbits",
    ".p2align 4",
    ".hidden tllmprof_made_named",
    ".globl tllmprof_made_named",
    ".type tllmprof_made_named,@function",
    "tllmprof_made_named:",
    "lea rax, [rdi + 2 * rdi + 0x100]",
    "add rax, 1",
    "ret",
    ".size tllmprof_made_named, . - tllmprof_made_named",
    ".popsection",
);
#[cfg(target_arch = "aarch64")]
global_asm!(
    ".pushsection .text.tllmprof_made_named,\"ax\",@progbits",
    ".p2align 4",
    ".hidden tllmprof_made_named",
    ".globl tllmprof_made_named",
    ".type tllmprof_made_named,@function",
    "tllmprof_made_named:",
    "add x0, x0, x0, lsl #1",
    "add x0, x0, #0x101",
    "ret",
    ".size tllmprof_made_named, . - tllmprof_made_named",
    ".popsection",
);
// SAFETY: the assembly code above defines a function of this type.
unsafe extern "C" {
    pub(crate) safe fn tllmprof_made_named(number: usize) -> usize;
}

const RULE: [(&str, &str); 2] = [
    ("TLLMPROF_STEP", "sym:^tllmprof_made_named$"),
    ("TLLMPROF_START_STOP", "3"),
];

pub(super) fn us() -> (ElfModule, Maps) {
    let us = elf::containing(prepare as *const () as usize).unwrap();
    (us, Maps::read().unwrap())
}

/// Returns `tllmprof_made_named` as a candidate for patching, as the symbol table of the test program describes it.
pub(super) fn candidate() -> HookCandidate {
    let (us, _) = us();
    let path = std::env::current_exe().unwrap();
    let pattern = Pattern::new(&Regex::new("^tllmprof_made_named$").unwrap());
    let (mut functions, _) = functions::matching(&path, &pattern, 1).unwrap();
    assert_eq!(functions.len(), 1);
    let address = us.base.wrapping_add(functions[0].address);
    assert_eq!(address, tllmprof_made_named as *const () as usize);
    HookCandidate {
        module: us.start,
        path,
        function: functions.remove(0),
        is_step: true,
        is_scope: false,
    }
}

fn count() -> u64 {
    session::slot().map_or(0, |slot| slot.live(Counted::Named).count())
}

#[test]
fn what_cannot_be_patched_is_refused_with_its_reason() {
    let (us, maps) = us();
    let good = candidate();
    let check = |refusal, change: fn(&mut HookCandidate)| {
        let mut candidate = good.clone();
        change(&mut candidate);
        assert_eq!(prepare(&candidate, &us, &maps, true).err(), Some(refusal));
    };
    check(PatchRefusal::EntryPoint, |bad| {
        bad.function.is_entry_point = true
    });
    check(PatchRefusal::Go, |bad| bad.function.is_go = true);
    check(PatchRefusal::VariantCall, |bad| {
        bad.function.is_variant_call = true
    });
    check(PatchRefusal::Ifunc, |bad| bad.function.is_ifunc = true);
    check(PatchRefusal::UnknownSize, |bad| bad.function.size = 0);
    check(PatchRefusal::NotMapped, |bad| bad.function.size = 1 << 40);
    check(PatchRefusal::NotMapped, |bad| {
        bad.function.address = 1 << 40
    });
    check(PatchRefusal::Unreadable(libc::ENOENT), |bad| {
        bad.path = "/no/such/file".into()
    });
    check(PatchRefusal::NotMapped, |bad| {
        let data = core::ptr::from_ref(&RULE).addr();
        bad.function.address = data.wrapping_sub(elf::containing(data).unwrap().base);
    });
}

#[test]
#[cfg(target_arch = "x86_64")]
fn other_threads_forbid_an_entry_that_one_store_cannot_replace() {
    let (us, maps) = us();
    let mut candidate = candidate();
    assert!(prepare(&candidate, &us, &maps, false).is_ok());
    // Move the start to the second instruction, which is shorter than a jump, so that the entry is refused.
    candidate.function.address += 8;
    candidate.function.size -= 8;
    assert_eq!(
        prepare(&candidate, &us, &maps, false).err(),
        Some(PatchRefusal::Threads)
    );
}

/// Returns the number of known functions, and the number of regions of trampolines.
#[cfg(target_arch = "x86_64")]
fn sizes(followed: &NamedRules) -> (usize, usize) {
    (followed.functions.len(), followed.regions.len())
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_patched_function_counts_and_its_end_closes_the_window() {
    let said = alone(&RULE, || {
        follow(&tllmprof_session::activity::settings().unwrap().step);
        processor::start();
        // A window (a recorded interval) opens only in a process that uses CUDA, so this simulates a CUDA call.
        session::new_thread(true);
        session::entered(tllmprof_calls::Call::MemAlloc);
        report();
        let (us, maps) = us();
        with_followed(|followed| followed.patch(vec![candidate()], &[us], &maps));
        let (address, trampoline) = with_followed(|followed| {
            let function = &followed.functions[0];
            let Means::Entry { trampoline, .. } = &function.means else {
                panic!("it is not patched");
            };
            assert!(function.is_in_place());
            (function.address, trampoline.clone())
        })
        .unwrap();
        assert_eq!(address, tllmprof_made_named as *const () as usize);
        assert!(may_await_end(trampoline.start) && !may_await_end(address));
        let ends = &pool::AWAITED[0];
        for number in 0..8 {
            assert_eq!(tllmprof_made_named(number), 3 * number + 0x101);
            assert_eq!(count(), 1 + number as u64);
            // The window (the recorded interval) consists of iteration 3. So the library replaces a return address only
            // to see the end of this iteration. `AWAITED[0]` keeps the iteration's number afterwards.
            let iteration = ends.iteration.load(Ordering::Relaxed);
            let awaited = number >= 3 && !processor::has_shadow_stack();
            assert_eq!(iteration, if awaited { 3 } else { 0 }, "{number}");
            assert_eq!(ends.address.load(Ordering::Relaxed), 0);
        }
        with_followed(|followed| {
            let known = || LoadedModule {
                start: us.start,
                end: us.end,
                path: "/deleted (deleted)".into(),
                name: us.path().to_owned(),
                soname: None,
                is_left_alone: false,
            };
            followed.loaded.push(known());
            followed.forget(&modules::listed());
            assert_eq!(sizes(followed), (1, 1), "only its file is gone");
            let Means::Entry { jump, .. } = &mut followed.functions[0].means else {
                panic!("it is not patched");
            };
            jump[1] ^= 1;
            followed.forget(&modules::listed());
            assert_eq!(sizes(followed), (0, 1), "the jump may come back");
            assert_eq!(tllmprof_made_named(1), 0x104, "it is still there");
            followed.loaded.push(known());
            followed.forget(&[]);
            assert_eq!(sizes(followed), (0, 0));
        });
        assert!(!may_await_end(trampoline.start), "its module is gone");
    });
    if let Some(said) = said {
        assert!(!said.contains("cannot be followed"), "{said}");
    }
}

#[test]
fn a_breakpoint_at_a_patched_entry_leaves_the_jump_in_place() {
    static ENTRIES: [[u8; JUMP]; 3] = {
        let mut entries = [[7; JUMP]; 3];
        entries[1][0] = 0xcc;
        entries[2][1] = 0xcc;
        entries
    };
    let is_in_place = |entry: &'static [u8; JUMP]| {
        let function = NamedFunction {
            address: 0,
            module: 0,
            name: String::new(),
            file: String::new(),
            means: Means::Entry {
                at: core::ptr::from_ref(entry).expose_provenance(),
                jump: [7; JUMP],
                trampoline: 0..1,
                looks_back: false,
            },
            is_step: true,
            scope: None,
        };
        function.is_in_place()
    };
    let are_in_place = ENTRIES.each_ref().map(is_in_place);
    assert_eq!(are_in_place, [true, true, false]);
}

#[test]
fn a_function_that_is_refused_is_followed_by_name_or_not_at_all() {
    alone(&RULE, || {
        follow(&tllmprof_session::activity::settings().unwrap().step);
        let (us, maps) = us();
        let good = candidate();
        let refused = |exported: &[&CStr], is_variant_call| {
            let mut refused = good.clone();
            refused.function.is_go = true;
            refused.function.is_variant_call = is_variant_call;
            refused.function.exported = exported.iter().map(|&name| name.to_owned()).collect();
            refused
        };
        let made = vec![
            refused(&[], false),
            refused(&[c"getppid"], false),
            {
                let mut variant = refused(&[c"getppid"], true);
                variant.function.is_go = false;
                variant
            },
            HookCandidate {
                module: 0x10,
                ..good.clone()
            },
        ];
        with_followed(|followed| {
            followed.patch(made, &[us], &maps);
            let means = followed
                .functions
                .iter()
                .map(|function| match function.means {
                    Means::Entry { .. } => "entry",
                    Means::Name(PatchRefusal::Go) => "name",
                    Means::None(PatchRefusal::Go) => "none",
                    Means::None(PatchRefusal::VariantCall) => "variant",
                    _ => "else",
                });
            let means: Vec<_> = means.collect();
            assert_eq!(
                means,
                ["none", "name", "variant"],
                "and none of a module that is gone"
            );
            assert_eq!((followed.matched, followed.by_name.len()), (4, 1));
            followed.by_name[0].found.address = stranger();
        });

        // This closure returns the address that a look-up with `dlsym` or `dlvsym` by code at `caller` must return, or
        // 0 if the library does not change the result of the look-up.
        let ask = |handle, name: &CStr, version: Option<&CStr>, caller| {
            let version = version.map_or(core::ptr::null(), CStr::as_ptr);
            // SAFETY: the handles are valid for dlsym, and the strings are terminated.
            unsafe { lookup(handle, name.as_ptr(), version, caller) }.addr()
        };
        let version = if cfg!(target_arch = "x86_64") {
            c"GLIBC_2.2.5"
        } else {
            c"GLIBC_2.17"
        };
        let stub = ask(libc::RTLD_DEFAULT, c"getppid", None, stranger());
        assert!(pool::is_stub(stub));
        assert_eq!(
            ask(libc::RTLD_DEFAULT, c"getppid", Some(version), stranger()),
            stub
        );
        assert_eq!(
            ask(libc::RTLD_DEFAULT, c"getppid", Some(c"NONE_1"), stranger()),
            0
        );
        assert_eq!(ask(libc::RTLD_NEXT, c"getppid", None, stranger()), 0);
        assert_eq!(ask(libc::RTLD_DEFAULT, c"getpid", None, stranger()), 0);
        let us = prepare as *const () as usize;
        assert_eq!(
            ask(libc::RTLD_DEFAULT, c"getppid", None, us),
            0,
            "we ask ourselves"
        );
        // SAFETY: the C library is already loaded, so no constructor runs.
        let libc = unsafe { libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY) };
        assert_eq!(ask(libc, c"getppid", None, stranger()), stub, "by a handle");
    });
}

#[test]
fn a_library_that_comes_is_looked_at_and_one_that_goes_is_forgotten() {
    let rule = [
        ("TLLMPROF_STEP", "sym:^(cbrt|erf|fmod|hypot)$@libm"),
        ("TLLMPROF_START_STOP", "1000"),
    ];
    alone(&rule, || {
        start();
        let matched =
            || with_followed(|followed| (followed.matched, followed.functions.len())).unwrap();
        // SAFETY: this is a system library, whose constructors may run here.
        let libm =
            unsafe { libc::dlopen(c"libm.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
        assert!(!libm.is_null());
        // SAFETY: `dlopen` returned the handle, and the name is terminated.
        let found = unsafe { libc::dlsym(libm, c"cbrt".as_ptr()) };
        let cbrt = |place| {
            // SAFETY: the address is that of `cbrt` or of its stub, and `cbrt` has this type.
            let cbrt =
                unsafe { tllmprof_platform::function::at::<extern "C" fn(f64) -> f64>(place) };
            cbrt.unwrap()(27.0)
        };
        let root = cbrt(found);
        assert!((root - 3.0).abs() < 1e-9);
        look();
        let (all, there) = matched();
        assert!(all >= 4 && there == all, "{all} {there}");
        look();
        assert_eq!(matched(), (all, there), "nothing has changed");

        // Each hooking method must count a call once if the program calls through the address that `dlsym` returns.
        // SAFETY: `dlopen` returned the handle, and the name is terminated.
        let instead = unsafe { lookup(libm, c"cbrt".as_ptr(), core::ptr::null(), stranger()) };
        let before = count();
        assert_eq!(cbrt(if instead.is_null() { found } else { instead }), root);
        assert_eq!(count(), before + 1);

        with_followed(|followed| followed.forget(&[])).unwrap();
        assert_eq!(matched(), (all, 0));
        with_followed(|followed| {
            assert!(followed.by_name.is_empty() && followed.loaded.is_empty())
        });
    });
}

#[test]
fn a_rule_that_matches_too_much_follows_nothing() {
    let rule = [
        ("TLLMPROF_STEP", "sym:.@libm"),
        ("TLLMPROF_START_STOP", "1000"),
    ];
    alone(&rule, || {
        // SAFETY: this is a system library, whose constructors may run here.
        unsafe { libc::dlopen(c"libm.so.6".as_ptr(), libc::RTLD_LAZY) };
        start();
        with_followed(|followed| assert!(followed.too_many && followed.functions.is_empty()))
            .unwrap();
    });
}

#[test]
fn a_rules_library_is_a_path_or_a_soname() {
    let loaded = |path: &str, soname: Option<&str>, is_left_alone| LoadedModule {
        start: 0,
        end: 1,
        path: path.into(),
        name: c"".to_owned(),
        soname: soname.map(|name| name.as_bytes().to_owned()),
        is_left_alone,
    };
    let rule = |library: Option<&str>| {
        let library = library.map(|library| Regex::new(library).unwrap());
        FunctionRule::new(&Regex::new(".").unwrap(), library)
    };
    let module = loaded("/usr/lib/libm-2.31.so", Some("libm.so.6"), false);
    for (library, is_wanted) in [
        (None, true),
        (Some("libm-2"), true),
        (Some("^libm.so"), true),
        (Some("libz"), false),
    ] {
        assert_eq!(rule(library).is_for(&module), is_wanted, "{library:?}");
    }
    assert!(!rule(Some("libm")).is_for(&loaded("/bin/true", None, false)));
    assert!(!rule(None).is_for(&loaded("/lib/libc.so.6", None, true)));
}

#[test]
fn a_process_without_a_rule_for_functions_looks_at_nothing() {
    alone(
        &[
            ("TLLMPROF_STEP", "cuGraphLaunch"),
            ("TLLMPROF_START_STOP", "5"),
        ],
        || {
            start();
            assert!(!ARE_WATCHED.load(Ordering::Relaxed));
            look();
            assert!(with_followed(|_| ()).is_none() && !follows_nothing_yet());
        },
    );
}

#[test]
fn an_engine_that_may_come_is_waited_for() {
    alone(
        &[("TLLMPROF_STEP", "auto"), ("TLLMPROF_START_STOP", "5")],
        || {
            start();
            assert!(ARE_WATCHED.load(Ordering::Relaxed) && follows_nothing_yet());
            look();
            assert!(with_followed(|_| ()).is_none(), "there is none");
        },
    );
}

#[test]
fn a_thread_that_looks_finds_nothing_in_what_that_looks_up() {
    alone(&RULE, || {
        follow(&tllmprof_session::activity::settings().unwrap().step);
        assert_eq!(
            with_followed(|_| with_followed(|_| ()).is_none()),
            Some(true)
        );
        assert!(with_followed(|_| ()).is_some(), "and everything afterwards");
    });
}
