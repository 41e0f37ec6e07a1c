//! Tests that call several modules of this crate together, as the library does when it starts and records.

use tllmprof_calls::Call;
use tllmprof_capture::marks;
use tllmprof_session::Doors;

use super::*;
use crate::made::{alone, call_by, library, open, real_address};
use crate::thunk::Role;

#[test]
fn the_session_opens_and_closes_the_doors() {
    alone(&[("TLLMPROF_START_STOP", "5")], || {
        start();
        let thunk = Thunk::for_function(real_address(), Role::Runtime(Call::GraphLaunch)).unwrap();
        thunk.make_transparent();
        AllDoors.attend(CallSet::ALL);
        AllDoors.record_calls();
        AllDoors.report_named();
        let rule = Step::parse("sym:no_function").unwrap();
        AllDoors.report_unmatched(&rule, true);
        call_by(thunk.stub(), 0, true);
        modules_have_gone();
        let mut text = String::new();
        AllDoors.write_no_range(&mut text).unwrap();
        assert!(text.starts_with("; "), "{text}");
    });
}

#[test]
fn cudas_names_are_hooked_and_no_others() {
    assert!(is_hooked(c"cuGraphLaunch") && is_hooked(c"cuGetProcAddress"));
    assert!(!is_hooked(c"cuMemGetInfo_v2") && !is_hooked(c"malloc"));
}

/// Source of an NVTX tool that counts pushes and pops in domains. On each push or pop, it also changes `errno` and the
/// registers that a function may change.
const TOOL: &str = "
    #include <errno.h>
    #include <stddef.h>
    typedef struct { size_t size; int (*table)(unsigned, void ***, unsigned *); } Callbacks;
    int counts[2];
    static double take(double a, double b, double c, double d, double e, double f, double g, double h) {
        return a + b + c + d + e + f + g + h;
    }
    static double (*volatile noise)(double, double, double, double, double, double, double, double) = take;
    static int change(int which) {
        noise(-1, -2, -3, -4, -5, -6, -7, -8);
        errno = EIO;
        return counts[which]++;
    }
    static int push(void *domain, const void *attributes) { return change(0); }
    static int pop(void *domain) { return change(1); }
    int InitializeInjectionNvtx2(const void *(*export)(unsigned)) {
        const Callbacks *callbacks = export(1);
        void **places;
        unsigned size;
        if (!callbacks->table(5, &places, &size) || size < 6) return 0;
        *(void **)places[4] = (void *)push;
        *(void **)places[5] = (void *)pop;
        return 1;
    }";

#[test]
fn calls_are_given_ranges_where_that_is_asked_for_and_a_tool_listens() {
    let tool = library("libcounts.so", TOOL);
    let variables = [
        ("TLLM_NVTX_DEBUG", "1"),
        ("TLLMPROF_STEP", "cuStreamSynchronize"),
        ("TLLMPROF_START_STOP", "1000"),
        ("NVTX_INJECTION64_PATH", tool.as_str()),
    ];
    alone(&variables, || {
        let path = std::env::var_os("NVTX_INJECTION64_PATH").unwrap();
        let tool = open(path.as_ref());
        // SAFETY: the address is that of the tool's counters, which only this thread uses.
        let counts = || unsafe { *libc::dlsym(tool, c"counts".as_ptr()).cast::<[i32; 2]>() };
        assert!(watched::are());
        watched::push_runtime(Call::GraphLaunch);
        assert_eq!(counts(), [1, 0]);
        marks::pop();
        for call in [Call::GraphLaunch, Call::StreamSynchronize] {
            let thunk = Thunk::for_function(real_address(), Role::Driver(call)).unwrap();
            call_by(thunk.stub(), 0, true);
            let slot = tllmprof_session::slot().unwrap();
            assert_eq!(slot.live(call).count(), 1, "{call}");
        }
        assert_eq!(counts(), [3, 3]);
    });
}

#[test]
fn calls_are_given_no_ranges_unasked() {
    alone(&[("TLLMPROF_START_STOP", "1000")], || {
        assert!(!watched::are() && !watched::are())
    });
}
