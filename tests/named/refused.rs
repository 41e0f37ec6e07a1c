//! Checks cases in which the library does not hook a function (because of the function, the rule or the process), and
//! its messages about them.

use crate::common::{is_x86_64, skipped, standin};
use crate::seen::{BY_ENTRY, BY_NAME, assert_exact, is_left_out, lines_with};
use crate::twice::Situation;
use crate::workshop::Workshop;

#[test]
fn entries_that_cannot_be_patched_are_left_with_a_warning() {
    if is_left_out() {
        return;
    }
    let shop = Workshop::new();
    let both = shop
        .program("refused.c", "refused", &[])
        .window("1000000000-", "sym:^(odd|fine)_")
        .run();
    let said = both.said();
    for (function, reason) in [
        (
            "odd_short",
            "cannot be followed: it is too short for a jump",
        ),
        (
            "odd_loop",
            "cannot be followed: it branches back to its entry",
        ),
        ("odd_call", "cannot be followed: it begins with a call"),
        (
            "odd_jrcxz",
            "cannot be followed: it begins with an instruction that cannot be moved",
        ),
        ("odd_unsized", "cannot be followed: its size is not known"),
        (
            "odd_table",
            "cannot be followed: a jump table leads to its entry",
        ),
        ("fine_branch", BY_ENTRY),
        ("fine_relative", BY_ENTRY),
        ("fine_cet", BY_ENTRY),
    ] {
        let line = said
            .iter()
            .find(|line| line.starts_with(&format!("{function} ")));
        assert!(
            line.is_some_and(|line| line.ends_with(reason)),
            "{function}: {said:#?}"
        );
    }
    assert_eq!(both.total(), 30);
}

#[test]
fn a_function_with_a_call_of_its_own_kind() {
    if is_x86_64() {
        return skipped("only AArch64 marks such functions");
    }
    let shop = Workshop::new();
    let library = shop.library("vector_library.c", "libvector.so", &[]);
    let both = shop
        .program("vector_call.c", "vector_call", &[&library])
        .window("1000000000-", "sym:^(vector|plain)_step$")
        .run();
    assert_exact(&both);
    let refusal = "vector_step in libvector.so cannot be followed: it may take arguments in";
    assert_eq!(lines_with(&both, refusal), 1, "{:#?}", both.said());
    assert_eq!(lines_with(&both, BY_NAME), 1, "{:#?}", both.said());
}

#[test]
fn a_rule_that_matches_nothing_or_too_much_is_reported() {
    let shop = Workshop::new();
    let program = shop.program("calls.cpp", "calls", &["-DALONE"]);
    let both = program.clone().window("5-9", "sym:named_fibonaci").run();
    assert!(
        lines_with(&both, "sym:named_fibonaci matched no function in") == 1
            && lines_with(&both, "; nearest: named_fibonacci(int)") == 1,
        "{:#?}",
        both.said()
    );
    let both = program.window("5-9", "sym:.").run();
    assert_eq!(
        lines_with(
            &both,
            "sym:. matches over 64 functions, and at most 64 can be followed: none is"
        ),
        1
    );
    assert_eq!(both.total(), 0);
}

#[test]
fn a_process_without_cuda_is_left_alone() {
    let shop = Workshop::new();
    let program = shop.compile("no_cuda.c", "no_cuda", &[]);
    let program = Situation::new(program.to_str().expect("cargo's folders have UTF-8 names"));
    let both = program.window("5-9", "sym:lonely_step").run();
    assert_eq!(both.output.status.code(), Some(5));
    both.assert_untouched();
}

/// After a library was mapped, its file was replaced by another one under the same name. The library under test must
/// not use the new file's symbols.
#[test]
fn a_library_whose_file_was_replaced() {
    let shop = Workshop::new();
    let library = shop.library("replaced_library.c", "original.so", &[]);
    let [copied, newer] = ["libold.so", "libnew.so"].map(|name| shop.0.path(name));
    let arguments = format!("{library} {} {}", copied.display(), newer.display());
    let both = shop
        .program("replaced.c", "replaced", &["-ldl"])
        .args(arguments)
        .window("5-9", "sym:^replaced_step$")
        .run();
    let said = both.said();
    let line = said
        .iter()
        .find(|line| line.starts_with("sym:^replaced_step$ matched no function in "));
    let why = "; libold.so was replaced after being loaded, and not searched: restart the program";
    assert!(line.is_some_and(|line| line.contains(why)), "{said:#?}");
}

/// The process forbids new executable memory. The message must give this reason, and not that there is no free memory
/// near the function.
#[test]
fn a_process_that_may_not_make_memory_executable() {
    if is_left_out() {
        return;
    }
    let shop = Workshop::new();
    let starter = shop.compile("no_exec.c", "no_exec", &[]);
    let program = shop.compile(
        "refused.c",
        "refused",
        &[
            &format!("-L{}", standin().display()),
            "-Wl,--no-as-needed",
            "-l:libcudart.so.12",
        ],
    );
    let starter = starter.to_str().expect("cargo's folders have UTF-8 names");
    let situation = Situation::new(starter)
        .args(program.display().to_string())
        .window("1000000000-", "sym:^fine_branch$");
    if situation.run_plain().output.status.code() == Some(77) {
        return skipped("this kernel has no PR_SET_MDWE");
    }
    let said = situation.run().said();
    let line = "fine_branch in refused cannot be followed: the process may not make memory executable: PR_SET_MDWE is set, \
                as by systemd's MemoryDenyWriteExecute=yes";
    assert!(said.iter().any(|said| said == line), "{said:#?}");
}
