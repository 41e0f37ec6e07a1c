use core::ptr::without_provenance_mut;

use tllmprof_steps::step::counted::Counted;

use super::super::abi::made::{Module, export, extension_of_nothing};
use super::super::abi::{CORE, CORE2};
use super::super::chains::ALL;
use super::*;
use crate::made::{Temporary, alone, library};

const RULE: [(&str, &str); 2] = [
    ("TLLMPROF_STEP", "nvtx:^step"),
    ("TLLMPROF_START_STOP", "1000"),
];

fn own() -> FunctionPointer {
    without_provenance_mut(0x1000)
}

/// Returns a function that calls [`export`] and lies outside all modules. A function of the test program would seem to
/// belong to this library, which is part of the test program. The library would then not wrap the simulated module's
/// functions.
fn foreign_export() -> GetExportTable {
    let target = (export as *const () as u64).to_le_bytes();
    let jump: &[u8] = if cfg!(target_arch = "x86_64") {
        &[0xff, 0x25, 2, 0, 0, 0, 0x0f, 0x0b] // jmp [rip + 2]; ud2
    } else {
        &[0x50, 0, 0, 0x58, 0, 2, 0x1f, 0xd6] // ldr x16, #8; br x16
    };
    let code = [jump, &target].concat();
    // SAFETY: the mapping is new. It is written before it is executable, and never freed. The code jumps to `export`,
    // which has this type.
    unsafe {
        let (write, run) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::PROT_READ | libc::PROT_EXEC,
        );
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let place = libc::mmap(core::ptr::null_mut(), 4096, write, flags, -1, 0);
        assert_ne!(place, libc::MAP_FAILED);
        core::ptr::copy_nonoverlapping(code.as_ptr(), place.cast(), code.len());
        assert_eq!(libc::mprotect(place, 4096, run), 0);
        core::mem::transmute::<*mut c_void, GetExportTable>(place)
    }
}

fn initialize_by(export: GetExportTable) -> c_int {
    // SAFETY: the export belongs to a simulated module, which is never freed.
    unsafe { initialize(export) }
}

#[test]
fn modules_with_the_same_tool_share_a_chain_and_there_are_so_many() {
    alone(&[], || {
        let next =
            |tool: usize| core::array::from_fn(|row| without_provenance_mut(0x1000 * tool + row));
        for (tool, chain) in ALL.iter().enumerate() {
            assert_eq!(chain_for(&next(tool)), Some(tool));
            assert_eq!(chain.next(3), next(tool)[3]);
        }
        assert_eq!(chain_for(&next(CHAINS)), None);
        assert_eq!(chain_for(&next(2)), Some(2));
    });
}

#[test]
fn a_tools_functions_are_those_that_it_has_put_there() {
    let module = Module::make(own());
    // SAFETY: the test's module is never freed.
    let places = Places::new(KINDS.map(|kind| unsafe { FunctionTable::offered_by(export, kind) }));
    assert!(
        places.tools().iter().all(|tool| tool.is_null()),
        "there is no tool"
    );
    let row = WRAPPED
        .iter()
        .position(|row| (row.kind, row.index) == (CORE2, 4))
        .unwrap();
    places.wrapped[row]
        .unwrap()
        .store(without_provenance_mut(0x2000), Ordering::Relaxed);
    for (other, tool) in places.tools().iter().enumerate() {
        assert_eq!(tool.addr(), if other == row { 0x2000 } else { 0 });
    }
    places.wrap(&wrappers::for_chain(0));
    assert_eq!(module.now(CORE2, 4), wrappers::for_chain(0)[row]);
    assert_eq!(module.now(CORE, 12), own(), "it is not wrapped");
    places.restore();
    assert!(
        (1..16).all(|index| module.now(CORE, index) == own() && module.now(CORE2, index) == own())
    );
}

#[test]
fn a_module_is_asked_for_once_at_a_time() {
    alone(&[], || {
        let asking: Vec<_> = (1..=ASKED.len())
            .map(|module| Asking::begin(module).unwrap())
            .collect();
        assert!(Asking::begin(3).is_none(), "it is being asked");
        assert!(Asking::begin(100).is_none(), "too many are");
        drop(asking);
        assert!(Asking::begin(3).is_some());
    });
}

#[test]
fn the_ranges_of_a_module_are_counted() {
    alone(&RULE, || {
        let module = Module::make(own());
        assert_eq!(initialize_by(foreign_export()), 1);
        let at = |kind, index| {
            let row = WRAPPED
                .iter()
                .position(|row| (row.kind, row.index) == (kind, index));
            assert_eq!(
                module.now(kind, index),
                wrappers::for_chain(0)[row.unwrap()]
            );
            module.now(kind, index)
        };
        // SAFETY: this is the type of `nvtxRangePushA`.
        let push = unsafe {
            core::mem::transmute::<
                FunctionPointer,
                unsafe extern "C-unwind" fn(*const core::ffi::c_char) -> c_int,
            >(at(CORE, 9))
        };
        // SAFETY: this is the type of `nvtxRangePop`.
        let pop = unsafe {
            core::mem::transmute::<FunctionPointer, unsafe extern "C-unwind" fn() -> c_int>(at(
                CORE, 11,
            ))
        };
        for name in [c"step 1", c"a step", c"step 2", c"prefill", c"step 3"] {
            // SAFETY: the name is a terminated string.
            let levels = unsafe { [push(name.as_ptr()), pop()] };
            assert_eq!(levels, [-2; 2]);
        }
        let slot = tllmprof_session::slot().unwrap();
        assert_eq!(slot.live(Counted::Named).count(), 3);
        let unseen = ranges::Unseen.to_string();
        assert_eq!(
            unseen.split(", ").next(),
            Some("; no NVTX range matched"),
            "{unseen}"
        );
    });
}

#[test]
fn a_module_of_a_process_that_counts_no_ranges_is_left_alone() {
    alone(
        &[
            ("TLLMPROF_STEP", "cuGraphLaunch"),
            ("TLLMPROF_START_STOP", "1000"),
        ],
        || {
            let module = Module::make(own());
            assert_eq!(initialize_by(foreign_export()), 0);
            assert_eq!(module.now(CORE, 9), own());
            // SAFETY: the extension has NVTX's layout and no functions.
            let extension = unsafe { initialize_extension(extension_of_nothing()) };
            assert_eq!(extension, 0);
        },
    );
}

#[test]
fn the_librarys_own_ranges_are_not_counted() {
    alone(&RULE, || {
        let module = Module::make(own());
        assert_eq!(initialize_by(export), 0, "there is no tool");
        assert_eq!(module.now(CORE, 9), own());
        // SAFETY: the extension has NVTX's layout and no functions.
        let extension = unsafe { initialize_extension(extension_of_nothing()) };
        assert_eq!(extension, 1, "somebody listens");
    });
}

#[test]
fn a_tool_without_the_functions_of_one_is_none() {
    let tool = [("NVTX_INJECTION64_PATH", "libm.so.6")];
    alone(&tool, || {
        // SAFETY: `Initialize` is the type of the function of this name.
        let found = unsafe { Tool::<Initialize>::find(c"InitializeInjectionNvtx2", 0) };
        assert!(matches!(found, Tool::Lacks));
        // SAFETY: this is the type of `fabs`.
        let found = unsafe { Tool::<extern "C" fn(f64) -> f64>::find(c"fabs", 0) };
        assert!(matches!(found, Tool::Has(function, _) if function(-2.0) == 2.0));
        // SAFETY: the extension has NVTX's layout and no functions.
        let extension = unsafe { initialize_extension(extension_of_nothing()) };
        assert_eq!(extension, 1, "it may know nothing of extensions");
    });
}

/// Builds a tool that replaces `nvtxRangePushA` by a function that returns 77, and then reports that it accepts the
/// module (`wants` is true) or not.
fn tool(wants: bool) -> Temporary {
    let source = format!(
            "#include <stddef.h>
            typedef struct {{ size_t size; int (*table)(unsigned, void ***, unsigned *); }} Callbacks;
            static int push(const char *text) {{ return 77; }}
            int InitializeInjectionNvtx2(const void *(*export)(unsigned)) {{
                const Callbacks *callbacks = export(1);
                void **places;
                unsigned size;
                if (!callbacks->table(1, &places, &size) || size < 10) return 0;
                *(void **)places[9] = (void *)push;
                return {};
            }}
            int InitializeInjectionNvtxExtension(void *module) {{ return 55; }}",
            u8::from(wants)
        );
    library(&format!("libtool{}.so", u8::from(wants)), &source)
}

#[test]
fn a_tool_comes_behind_the_librarys_own_functions() {
    let path = tool(true);
    let variables = [RULE[0], RULE[1], ("NVTX_INJECTION64_PATH", path.as_str())];
    alone(&variables, || {
        let module = Module::make(own());
        assert_eq!(initialize_by(foreign_export()), 1);
        let row = WRAPPED
            .iter()
            .position(|row| (row.kind, row.index) == (CORE, 9))
            .unwrap();
        assert_eq!(module.now(CORE, 9), wrappers::for_chain(0)[row]);
        assert!(!ALL[0].next(row).is_null() && ALL[0].next(row) != own());
        // SAFETY: this is the type of `nvtxRangePushA`.
        let push = unsafe {
            core::mem::transmute::<
                FunctionPointer,
                unsafe extern "C-unwind" fn(*const core::ffi::c_char) -> c_int,
            >(module.now(CORE, 9))
        };
        // SAFETY: the name is a terminated string.
        assert_eq!(unsafe { push(c"step".as_ptr()) }, 77);
        let slot = tllmprof_session::slot().unwrap();
        assert_eq!(slot.live(Counted::Named).count(), 1);
        // SAFETY: the extension has NVTX's layout and no functions.
        let extension = unsafe { initialize_extension(extension_of_nothing()) };
        assert_eq!(extension, 55, "the tool's answer");
    });
}

#[test]
fn what_a_tool_leaves_that_does_not_want_the_module_is_taken_back() {
    let path = tool(false);
    let variables = [RULE[0], RULE[1], ("NVTX_INJECTION64_PATH", path.as_str())];
    alone(&variables, || {
        Module::make(own());
        assert_eq!(
            initialize_by(foreign_export()),
            1,
            "the ranges are counted all the same"
        );
        assert!((0..WRAPPED.len()).all(|row| ALL[0].next(row).is_null()));
    });
}

#[test]
fn a_tool_that_cannot_be_loaded_is_none() {
    alone(&[("NVTX_INJECTION64_PATH", "/no/such/tool.so")], || {
        // SAFETY: `Initialize` is the type of the function of this name.
        let found = unsafe { Tool::<Initialize>::find(c"InitializeInjectionNvtx2", 0) };
        assert!(matches!(found, Tool::None));
    });
}
