//! The wrappers: NVTX functions of this library. They count or record the program's range, and then call the function
//! of another NVTX tool (a profiler), if there is one.
//!
//! If a range counts as a step, the step begins before the push is passed to the other tool. So if a window (a recorded
//! interval) opens with this step, the window contains the tool's event for the range. The step ends after the pop has
//! returned. In the record the range does not include the time that the other tool takes.
//!
//! The wrappers are `C-unwind`, because `pthread_cancel` may cancel the thread in the other tool's function. The stack
//! is then unwound through the wrapper.

use core::ffi::{c_char, c_int};

use super::abi::{Attributes, CORE, CORE2, FunctionPointer, Handle, NO_TRACKING, RangeId, Wide};
use super::chains::{self, CHAINS, ROWS};
use super::kept;
use super::name::NvtxRangeName;
use super::ranges;
use tllmprof_platform::function;
use tllmprof_platform::panics::contained;

/// An NVTX function that is wrapped: the kind of its table and its index in the table.
pub(crate) struct Wrapped {
    pub kind: u32,
    pub index: usize,
}

/// Handle of the program's default domain.
const DEFAULT: Handle = 0;

macro_rules! wrappers {
    ($($name:ident: $kind:ident[$index:literal]($($arg:ident: $type:ty),*) $(-> $result:ty)? = |$next:ident| $body:expr;)*) => {
        /// The wrapped functions, in the same order as the functions of a chain (the functions of another tool that
        /// the wrappers call).
        pub(crate) const WRAPPED: [Wrapped; ROWS] =
            [$(Wrapped { kind: $kind, index: $index }),*];

        #[allow(non_camel_case_types, reason = "the rows are named like the functions")]
        enum Row { $($name),* }

        $(
            unsafe extern "C-unwind" fn $name<const CHAIN: usize>($($arg: $type),*) $(-> $result)? {
                // No panic: this only calls the function below, which exists once for all chains (sets of next
                // functions).
                #[inline(never)]
                #[allow(unused_unsafe, reason = "not every function reads its arguments")]
                unsafe extern "C-unwind" fn wrapper($($arg: $type,)* chain: usize) $(-> $result)? {
                    // No panic: each body catches panics of this library's code, and the tool's function is not part of
                    // this library.
                    type Next = unsafe extern "C-unwind" fn($($type),*) $(-> $result)?;
                    let next = chains::ALL[chain].next(Row::$name as usize);
                    // SAFETY: the pointer is null, or the tool's replacement for this NVTX function, which has this
                    // type.
                    let next: Option<Next> = unsafe { function::at(next) };
                    // SAFETY: the arguments are those of the program, which are valid for NVTX.
                    let $next = || next.map(|next| unsafe { next($($arg),*) });
                    // SAFETY: the program passed arguments that are valid for NVTX, for the duration of the call.
                    unsafe { $body }
                }
                // SAFETY: the arguments are those of the program, which are valid for NVTX.
                unsafe { wrapper($($arg,)* CHAIN) }
            }
        )*

        fn all<const CHAIN: usize>() -> [FunctionPointer; WRAPPED.len()] {
            [$($name::<CHAIN> as *mut _),*]
        }
    };
}

#[inline]
fn start(
    domain: Handle,
    name: &NvtxRangeName<'_>,
    next: impl FnOnce() -> Option<RangeId>,
) -> RangeId {
    let begins = contained(ranges::Begins::Nothing, || ranges::begins(domain, name));
    let id = next().unwrap_or(0);
    contained(id, || {
        ranges::started(kept::started(domain, id, name), begins)
    })
}

#[inline]
fn end(id: RangeId, next: impl FnOnce() -> Option<()>) {
    contained((), || kept::ended(id));
    next();
    contained((), || ranges::ended(id));
}

#[inline]
fn push(domain: Handle, name: &NvtxRangeName<'_>, next: impl FnOnce() -> Option<c_int>) -> c_int {
    let begins = contained(ranges::Begins::Nothing, || ranges::begins(domain, name));
    let level = next().unwrap_or(NO_TRACKING);
    contained((), || {
        kept::pushed(domain, name);
        ranges::pushed(domain, begins);
    });
    level
}

#[inline]
fn pop(domain: Handle, next: impl FnOnce() -> Option<c_int>) -> c_int {
    contained((), || kept::popped(domain));
    let level = next().unwrap_or(NO_TRACKING);
    contained((), || ranges::popped(domain));
    level
}

#[inline]
fn mark(domain: Handle, name: &NvtxRangeName<'_>, next: impl FnOnce() -> Option<()>) {
    contained((), || kept::marked(domain, name));
    next();
}

fn register(
    domain: Handle,
    text: &NvtxRangeName<'_>,
    next: impl FnOnce() -> Option<Handle>,
) -> Handle {
    let given = next();
    contained(given.unwrap_or(0), || {
        ranges::registered(domain, kept::registered(domain, given, text), text)
    })
}

fn create_domain(name: &NvtxRangeName<'_>, next: impl FnOnce() -> Option<Handle>) -> Handle {
    let given = next();
    contained(given.unwrap_or(0), || {
        ranges::domain_created(kept::domain_created(given, name), name)
    })
}

wrappers! {
    mark_ex: CORE[1](attributes: *const Attributes) = |next| {
        mark(DEFAULT, &NvtxRangeName::from_attributes(attributes), next);
    };
    mark_a: CORE[2](message: *const c_char) = |next| {
        mark(DEFAULT, &NvtxRangeName::narrow(message), next);
    };
    mark_w: CORE[3](message: *const Wide) = |next| {
        mark(DEFAULT, &NvtxRangeName::wide(message), next);
    };
    range_start_ex: CORE[4](attributes: *const Attributes) -> RangeId = |next| {
        start(DEFAULT, &NvtxRangeName::from_attributes(attributes), next)
    };
    range_start_a: CORE[5](message: *const c_char) -> RangeId = |next| {
        start(DEFAULT, &NvtxRangeName::narrow(message), next)
    };
    range_start_w: CORE[6](message: *const Wide) -> RangeId = |next| {
        start(DEFAULT, &NvtxRangeName::wide(message), next)
    };
    range_end: CORE[7](id: RangeId) = |next| {
        end(id, next);
    };
    range_push_ex: CORE[8](attributes: *const Attributes) -> c_int = |next| {
        push(DEFAULT, &NvtxRangeName::from_attributes(attributes), next)
    };
    range_push_a: CORE[9](message: *const c_char) -> c_int = |next| {
        push(DEFAULT, &NvtxRangeName::narrow(message), next)
    };
    range_push_w: CORE[10](message: *const Wide) -> c_int = |next| {
        push(DEFAULT, &NvtxRangeName::wide(message), next)
    };
    range_pop: CORE[11]() -> c_int = |next| {
        pop(DEFAULT, next)
    };
    domain_mark_ex: CORE2[1](domain: Handle, attributes: *const Attributes) = |next| {
        mark(domain, &NvtxRangeName::from_attributes(attributes), next);
    };
    domain_range_start_ex: CORE2[2](domain: Handle, attributes: *const Attributes) -> RangeId = |next| {
        start(domain, &NvtxRangeName::from_attributes(attributes), next)
    };
    domain_range_end: CORE2[3](domain: Handle, id: RangeId) = |next| {
        end(id, next);
    };
    domain_range_push_ex: CORE2[4](domain: Handle, attributes: *const Attributes) -> c_int = |next| {
        push(domain, &NvtxRangeName::from_attributes(attributes), next)
    };
    domain_range_pop: CORE2[5](domain: Handle) -> c_int = |next| {
        pop(domain, next)
    };
    domain_register_string_a: CORE2[10](domain: Handle, text: *const c_char) -> Handle = |next| {
        register(domain, &NvtxRangeName::narrow(text), next)
    };
    domain_register_string_w: CORE2[11](domain: Handle, text: *const Wide) -> Handle = |next| {
        register(domain, &NvtxRangeName::wide(text), next)
    };
    domain_create_a: CORE2[12](name: *const c_char) -> Handle = |next| {
        create_domain(&NvtxRangeName::narrow(name), next)
    };
    domain_create_w: CORE2[13](name: *const Wide) -> Handle = |next| {
        create_domain(&NvtxRangeName::wide(name), next)
    };
    domain_destroy: CORE2[14](domain: Handle) = |next| {
        contained((), || ranges::domain_destroyed(domain));
        next();
    };
}

/// Returns the wrappers that call the functions of chain number `chain` (a set of another tool's functions).
pub(super) fn for_chain(chain: usize) -> [FunctionPointer; WRAPPED.len()] {
    const _: () = assert!(CHAINS == 8);
    match chain {
        0 => all::<0>(),
        1 => all::<1>(),
        2 => all::<2>(),
        3 => all::<3>(),
        4 => all::<4>(),
        5 => all::<5>(),
        6 => all::<6>(),
        _ => all::<7>(),
    }
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;
    use core::mem::transmute;

    use super::*;
    use crate::made::alone;

    /// Type with which the tests call any wrapped function: none has more than two arguments.
    type Any = unsafe extern "C-unwind" fn(usize, usize) -> usize;

    std::thread_local! {
        /// Number of calls that the simulated tool has received, and the arguments of the last call.
        static CALLS: Cell<(usize, [usize; 2])> = const { Cell::new((0, [0; 2])) };
    }

    /// A function of the test's simulated tool. Stores its arguments in [`CALLS`] and returns 77.
    unsafe extern "C-unwind" fn tools(first: usize, second: usize) -> usize {
        CALLS.set((CALLS.get().0 + 1, [first, second]));
        77
    }

    /// Returns the number of arguments of the wrapped function, and true if it returns a value.
    fn shape(row: &Wrapped) -> (usize, bool) {
        match (row.kind, row.index) {
            (CORE, 1..=3) => (1, false),
            (CORE, 7) => (1, false),
            (CORE, 11) => (0, true),
            (CORE, _) => (1, true),
            (_, 1 | 3) => (2, false),
            (_, 2 | 4 | 10 | 11) => (2, true),
            (_, 14) => (1, false),
            _ => (1, true),
        }
    }

    fn call(wrapper: FunctionPointer, first: usize, second: usize) -> usize {
        // SAFETY: this is a wrapper, which takes at most two arguments.
        unsafe { transmute::<FunctionPointer, Any>(wrapper)(first, second) }
    }

    /// Returns zeros, which are valid as an empty text of either encoding, and as attributes of size 0.
    fn zeros() -> &'static [u64; 8] {
        Box::leak(Box::new([0; 8]))
    }

    #[test]
    fn a_wrapper_goes_on_to_the_tools_function_with_what_it_was_given() {
        alone(&[], || {
            let next = [tools as Any as FunctionPointer; WRAPPED.len()];
            let chain = chains::chain_for(&next).unwrap();
            let [first, second] =
                [zeros(), zeros()].map(|zeros| zeros.as_ptr().expose_provenance());
            for (row, wrapper) in WRAPPED.iter().zip(for_chain(chain)) {
                CALLS.set((0, [0; 2]));
                let result = call(wrapper, first, second);
                let (count, args) = CALLS.get();
                let (takes, returns) = shape(row);
                let what = (row.kind, row.index);
                assert_eq!(count, 1, "{what:?}");
                assert_eq!(args[..takes], [first, second][..takes], "{what:?}");
                assert!(!returns || result as u32 == 77, "{what:?}: {result}");
            }
        });
    }

    #[test]
    fn without_a_tool_a_wrapper_returns_what_nvtx_returns() {
        alone(&[], || {
            let chain = chains::chain_for(&[core::ptr::null_mut(); WRAPPED.len()]).unwrap();
            let [first, second] =
                [zeros(), zeros()].map(|zeros| zeros.as_ptr().expose_provenance());
            let mut domains = Vec::new();
            for (row, wrapper) in WRAPPED.iter().zip(for_chain(chain)) {
                let result = call(wrapper, first, second);
                match (row.kind, row.index) {
                    (CORE, 8..=11) | (CORE2, 4 | 5) => assert_eq!(result as c_int, NO_TRACKING),
                    (CORE, 4..=6) | (CORE2, 2 | 10 | 11) => assert_eq!(result, 0, "{}", row.index),
                    (CORE2, 12 | 13) => domains.push(result),
                    _ => {}
                }
            }
            assert!(domains.len() == 2 && domains[0] != domains[1] && !domains.contains(&0));
        });
    }

    #[test]
    fn each_chain_has_wrappers_of_its_own() {
        let all: Vec<_> = (0..CHAINS).flat_map(for_chain).collect();
        for (index, wrapper) in all.iter().enumerate() {
            assert!(!all[..index].contains(wrapper), "{index}");
        }
    }
}
