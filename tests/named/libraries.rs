//! Checks rules that name functions of libraries: libraries that are loaded and unloaded, and functions whose address
//! differs from their symbol's.

use crate::common::is_x86_64;
use crate::seen::{BY_NAME, assert_exact, lines_with};
use crate::workshop::Workshop;

#[test]
fn a_plugin_that_comes_and_goes() {
    let shop = Workshop::new();
    let host = shop.program("plugin_host.c", "plugin_host", &[]);
    shop.library("plugin.c", "plugin.so", &[]);
    for args in ["1", "40", "40 thread"] {
        let both = host
            .clone()
            .args(args)
            .window("1000000000-", "sym:^plugin_step$")
            .run();
        assert_exact(&both);
        assert_eq!(
            lines_with(&both, "plugin_step"),
            2,
            "it is reported once: {:#?}",
            both.said()
        );
    }
}

#[test]
fn a_plugin_that_is_reached_by_look_up() {
    let shop = Workshop::new();
    let host = shop.program("plugin_host.c", "plugin_host", &[]);
    // Compiled with these options, the function begins with instructions in which a jump cannot be written by a single
    // store. So its entry is not patched while other threads run.
    let (options, reason): (&[&str], _) = if is_x86_64() {
        let options = &["-fcf-protection=full", "-fno-omit-frame-pointer"];
        (options, "other threads are running")
    } else {
        (&[], "entries are patched on x86-64 only")
    };
    shop.library("plugin.c", "plugin.so", options);
    let both = host
        .args("20 thread")
        .window("1000000000-", "sym:^plugin_step$")
        .run();
    assert_exact(&both);
    assert_eq!(lines_with(&both, reason), 1, "{:#?}", both.said());
}

/// The library patches GOT slots of new libraries, and forgets the slots of unloaded libraries, while several threads
/// load and unload libraries.
#[test]
fn libraries_that_come_and_go_in_all_threads() {
    let shop = Workshop::new();
    let lender = shop.library("lender.c", "liblender.so", &[]);
    for n in 0..4 {
        let binding = ["-Wl,-z,lazy", "-Wl,-z,now", "-fno-plt", "-Wl,-z,norelro"][n];
        let importer = format!("importer{n}.so");
        shop.library("importer.c", &importer, &[binding, &lender]);
    }
    let program = shop.program("importers.c", "importers", &[&lender]);
    let both = program.window("1000000000-", "sym:^lent_step$").run();
    assert_exact(&both);
    assert_eq!(lines_with(&both, BY_NAME), 1);
}

/// A thread looks up a symbol while the loader relocates a library of another thread. tllmprof patches such a library
/// once the loader has finished. This must work even if the library has no pages whose protection shows that the loader
/// has finished.
#[test]
fn a_library_that_is_still_being_relocated_is_patched_later() {
    let shop = Workshop::new();
    let lender = shop.library("lender.c", "liblender.so", &[]);
    for (n, binding) in ["-Wl,-z,norelro", "-Wl,-z,relro"].into_iter().enumerate() {
        let options = [binding, "-Wl,-z,lazy", &lender];
        let importer = format!("slow_importer{n}.so");
        shop.library("slow_importer.c", &importer, &options);
    }
    let program = shop.program("slow_importers.c", "slow_importers", &[&lender]);
    let both = program.window("1000000000-", "sym:^lent_step$").run();
    assert_exact(&both);
}

#[test]
fn a_function_that_compares_its_own_address() {
    let shop = Workshop::new();
    let library = shop.unsized_library("itself.c");
    for (name, options) in [("plt", &["-fplt"][..]), ("no_plt", &["-fno-plt"])] {
        let options = [options, &[library.as_str()]].concat();
        let program = shop.program("compares.c", name, &options);
        let both = program.window("1000000000-", "sym:^self_step$").run();
        assert_exact(&both);
        assert_eq!(lines_with(&both, BY_NAME), 1, "{:#?}", both.said());
    }
}

#[test]
fn a_function_that_is_chosen_at_start() {
    let shop = Workshop::new();
    let library = shop.library("ifunc_library.c", "libchosen.so", &[]);
    for (name, options) in [
        ("lazy", &["-Wl,-z,lazy"][..]),
        ("now", &["-Wl,-z,now"]),
        ("no_plt", &["-fno-plt"]),
    ] {
        let options = [options, &[library.as_str()]].concat();
        let both = shop
            .program("ifunc.c", name, &options)
            .window("1000000000-", "sym:^chosen_step$")
            .run();
        assert_exact(&both);
    }
}
