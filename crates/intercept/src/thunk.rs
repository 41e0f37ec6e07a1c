//! Thunks: structures that describe hooked functions, such as functions of the CUDA driver. The program gets the
//! address of a thunk's stub in place of the hooked function's address.
//!
//! A thunk stands for one hooked function, never for a name: the driver has several functions under one name (legacy
//! and per-thread default stream), and a process may contain two runtimes. A program may get a function by linking, by
//! `dlsym` or from the driver. In each case, the same hooked function in the same role has the same thunk.

mod role;
mod wanted;

use core::ffi::{CStr, c_void};
use core::mem::offset_of;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicUsize, Ordering};

use tllmprof_calls::{Call, CallSet, is_per_thread};
use tllmprof_platform::entry::jumps::original;
use tllmprof_platform::gate;
use tllmprof_platform::libcuda;
use tllmprof_platform::lifecycle;
use tllmprof_platform::log;

use super::handlers::handlers;
use super::{fed, stubs};
pub(crate) use role::Role;
use wanted::CallUses;

/// Size of a [`Thunk`] in bytes. The assembly code of the stubs contains the addresses of the thunks, which depend on
/// this size.
pub(crate) const THUNK_SIZE: usize = size_of::<Thunk>();

lifecycle::global! {
    stage: Doors;

    /// The pool of thunks (descriptions of hooked functions). The entries with an index below [`USED`] are complete:
    /// from then on only their fields `handler` and `per_thread` change.
    #[fork(keep = "pointers to thunks were handed out")]
    #[together(tables)]
    pub static THUNKS: [Thunk; stubs::COUNT] = [const { Thunk::new() }; stubs::COUNT];
    #[fork(keep = "as the pool")]
    static USED: AtomicUsize = AtomicUsize::new(0);
    /// Serialises the creation of thunks (descriptions of hooked functions). Held while a thunk is created and during
    /// [`Thunk::record`], never during a call of a hooked function.
    #[fork(hold)]
    static CREATING: tllmprof_sync::Lock<()> = tllmprof_sync::Lock::new(());
}

/// One entry of the pool of thunks: it describes a hooked function and how its calls are handled. An entry lies within
/// one cache line.
#[repr(C, align(32))]
pub(crate) struct Thunk {
    handler: AtomicPtr<c_void>,
    real: AtomicPtr<c_void>,
    cell: AtomicUsize,
    role: AtomicU32,
    /// The kind of call, if it is [`Simple`]; otherwise 0. `stream` is the index of the argument with the stream, plus
    /// one. `bytes` is the index of the argument with the size, plus one. Both are 0 if there is no such argument.
    does: AtomicU8,
    stream: AtomicU8,
    bytes: AtomicU8,
    /// True if the function takes stream 0 to be the calling thread's default stream, not the
    /// legacy one.
    per_thread: AtomicBool,
}

/// Properties of a driver call that enqueues work or waits, and whose stream, if it has one, is one of its arguments.
/// Most recorded calls are simple. The thunk (the description of the hooked function) contains these properties, so
/// that the table of calls need not be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Simple {
    pub does: Does,
    /// Index of the argument with the stream, or `None` if the call has no stream.
    pub stream: Option<u8>,
    /// Index of the argument with the number of bytes, for copies that may be small. Otherwise `None`.
    pub bytes: Option<u8>,
}

/// The kind of a [`Simple`] call: it enqueues work, or waits for a stream, for an event, or for all work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Does {
    Enqueues = 1,
    /// The call waits for the stream that its argument names.
    WaitsForStream,
    WaitsForEvent,
    /// Waits for all work of a context, or for the copy that the call itself makes.
    WaitsForAll,
}

impl Does {
    const fn decode(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Enqueues,
            2 => Self::WaitsForStream,
            3 => Self::WaitsForEvent,
            4 => Self::WaitsForAll,
            _ => return None,
        })
    }

    /// Returns true if the call waits for the GPU.
    #[inline]
    pub(crate) const fn waits(self) -> bool {
        !matches!(self, Self::Enqueues)
    }
}

/// Offsets of the fields in bytes, for the assembly code.
impl Thunk {
    pub(crate) const HANDLER: usize = offset_of!(Self, handler);
    pub(crate) const REAL: usize = offset_of!(Self, real);
    pub(crate) const CELL: usize = offset_of!(Self, cell);
    #[cfg(target_arch = "x86_64")]
    pub(crate) const DOES: usize = offset_of!(Self, does);
}

impl Thunk {
    /// Returns a thunk (a description of a hooked function) that is not in the pool, for tests.
    #[cfg(test)]
    pub(crate) fn made(real: *mut c_void, role: Role) -> &'static Self {
        let thunk = Self::new();
        thunk.become_the(real, role);
        Box::leak(Box::new(thunk))
    }

    const fn new() -> Self {
        Self {
            handler: AtomicPtr::new(core::ptr::null_mut()),
            real: AtomicPtr::new(core::ptr::null_mut()),
            cell: AtomicUsize::new(0),
            role: AtomicU32::new(0),
            does: AtomicU8::new(0),
            stream: AtomicU8::new(0),
            bytes: AtomicU8::new(0),
            per_thread: AtomicBool::new(false),
        }
    }

    fn become_the(&self, real: *mut c_void, role: Role) {
        self.real.store(real, Ordering::Relaxed);
        self.cell.store(role.cell(), Ordering::Relaxed);
        self.role.store(role.encode(), Ordering::Relaxed);
        if let Some(simple) = role.simple() {
            let place = |word: Option<u8>| word.map_or(0, |word| word + 1);
            self.does.store(simple.does as u8, Ordering::Relaxed);
            self.stream.store(place(simple.stream), Ordering::Relaxed);
            self.bytes.store(place(simple.bytes), Ordering::Relaxed);
        }
        self.handler.store(role.handler(), Ordering::Relaxed);
    }

    /// Returns the thunk that describes `function` in the role `role`. Creates the thunk at first use. Returns `None`
    /// if the pool is full.
    pub(crate) fn for_function(function: *mut c_void, role: Role) -> Option<&'static Self> {
        let real = match role {
            Role::Driver(call) | Role::Front(call) => {
                gate::before(original(function), gate::GpuUse::from_call(call))
            }
            Role::ProcAddress => original(function),
            Role::Runtime(_) | Role::Cupti(_) | Role::Nccl(_) => function,
        };
        let known = Self::find(real, role).or_else(|| Self::find(real, role.of_another_library()));
        if known.is_some() {
            return known;
        }
        let role = match role {
            Role::Driver(_) if libcuda::is_elsewhere(function.addr()) => role.of_another_library(),
            role => role,
        };
        let _creating = CREATING.lock();
        if let Some(known) = Self::find(real, role) {
            return Some(known);
        }
        let index = USED.load(Ordering::Relaxed);
        let Some(thunk) = THUNKS.get(index) else {
            log::once!(
                Warn,
                "over {} CUDA functions were looked up: later ones are not counted",
                stubs::COUNT
            );
            return None;
        };
        thunk.become_the(real, role);
        USED.store(index + 1, Ordering::Release);
        Some(thunk)
    }

    fn find(real: *mut c_void, role: Role) -> Option<&'static Self> {
        let code = role.encode();
        THUNKS[..USED.load(Ordering::Acquire)].iter().find(|t| {
            t.real.load(Ordering::Relaxed) == real && t.role.load(Ordering::Relaxed) == code
        })
    }

    /// Returns the address of the thunk's stub, which the program gets in place of the hooked function.
    pub(crate) fn stub(&self) -> *mut c_void {
        let offset = core::ptr::from_ref(self).addr() - THUNKS.as_ptr().addr();
        let index = offset / THUNK_SIZE;
        match self.role() {
            Role::Driver(call) if CallUses::ever().is_counted_only(call) => {
                stubs::counting_stub(index)
            }
            _ => stubs::stub(index),
        }
    }

    /// Returns the hooked function itself, or the gate in front of it (code that can hold threads back from the
    /// driver).
    pub(crate) fn real(&self) -> *mut c_void {
        self.real.load(Ordering::Relaxed)
    }

    /// Returns the role of the thunk's function: its library and its call.
    pub(crate) fn role(&self) -> Role {
        Role::decode(self.role.load(Ordering::Relaxed))
    }

    /// Returns the kind of the call, if the call is [`Simple`]. For any other call the thunk knows neither the stream
    /// nor the size, and the result is `None`.
    #[inline(always)]
    pub(crate) fn does(&self) -> Option<Does> {
        Does::decode(self.does.load(Ordering::Relaxed))
    }

    /// Returns true if the call is [`Simple`].
    #[inline(always)]
    pub(crate) fn is_simple(&self) -> bool {
        self.does.load(Ordering::Relaxed) != 0
    }

    /// Returns the number of the call's row in the table of calls (the CUDA functions that the library knows).
    #[inline(always)]
    pub(crate) fn row(&self) -> u8 {
        self.role.load(Ordering::Relaxed) as u8
    }

    /// Returns the index of the argument with the stream, or `None` if the call has no stream or is not [`Simple`].
    #[inline(always)]
    pub(crate) fn stream_word(&self) -> Option<usize> {
        Some(usize::from(
            self.stream.load(Ordering::Relaxed).checked_sub(1)?,
        ))
    }

    /// Returns the index of the argument with the number of bytes, for a copy that may be small. Otherwise returns
    /// `None`.
    #[inline(always)]
    pub(crate) fn bytes_word(&self) -> Option<usize> {
        Some(usize::from(
            self.bytes.load(Ordering::Relaxed).checked_sub(1)?,
        ))
    }

    /// Returns true if the function takes stream 0 to be the calling thread's default stream.
    #[inline]
    pub(crate) fn is_per_thread(&self) -> bool {
        self.per_thread.load(Ordering::Relaxed)
    }

    /// Sets the default stream from the function's name: a name that ends with `_ptsz` or `_ptds` means the per-thread
    /// default stream.
    pub(crate) fn named(&'static self, name: &CStr) -> &'static Self {
        if is_per_thread(name) {
            self.set_per_thread();
        }
        self
    }

    /// Notes that the function takes stream 0 to be the calling thread's default stream.
    pub(crate) fn set_per_thread(&self) {
        self.per_thread.store(true, Ordering::Relaxed);
    }

    /// Returns true if the hooked function's module gets its driver function for `call` through this library. Then the
    /// driver calls are counted and recorded, and calls of the hooked function are not.
    pub(crate) fn is_fed(&self, call: Call) -> bool {
        fed::is_fed(gate::behind(self.real()).addr(), call)
    }

    /// Makes the runtime's functions for `calls`, and the functions of other libraries that replace driver functions,
    /// take the slow path again. The slow path then decides for each function whether its calls may jump directly to
    /// the hooked function.
    pub(crate) fn attend(calls: CallSet) {
        for thunk in &THUNKS[..USED.load(Ordering::Acquire)] {
            if let Role::Runtime(call) | Role::Front(call) = thunk.role()
                && calls.contains(call)
            {
                thunk
                    .handler
                    .store(handlers().slow as *mut c_void, Ordering::Release);
            }
        }
    }

    /// Updates the handlers of all thunks (descriptions of hooked functions) for driver functions. Called when the
    /// purposes for which calls are needed have changed, for example when recording has started.
    pub(crate) fn record() {
        let _creating = CREATING.lock();
        for thunk in &THUNKS[..USED.load(Ordering::Acquire)] {
            let role = thunk.role();
            if matches!(role, Role::Driver(_)) {
                thunk.handler.store(role.handler(), Ordering::Release);
            }
        }
    }

    /// Makes the stub of this thunk (the code that callers got) jump to the handler of calls that ask whether GPU work
    /// has finished.
    pub(crate) fn watch_queries(&self) {
        let handler = handlers().query as *mut c_void;
        self.handler.store(handler, Ordering::Release);
    }

    /// Makes the stub of this thunk (the code that callers got) jump directly to the hooked function from now on, so
    /// that calls have nearly no cost and are not counted.
    pub(crate) fn make_transparent(&self) {
        self.handler.store(self.real(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use core::ptr::without_provenance_mut;

    use tllmprof_calls::{CALLS, CallPurpose, Library, Stream};

    use super::*;
    use crate::made::alone;

    #[test]
    fn one_function_has_one_thunk_in_each_role() {
        alone(&[], || {
            let call = Call::GraphLaunch;
            let real = without_provenance_mut::<c_void>(0x1000);
            let of = |role| Thunk::for_function(real, role).unwrap();
            let (driver, runtime) = (of(Role::Driver(call)), of(Role::Runtime(call)));
            assert!(core::ptr::eq(driver, of(Role::Driver(call))));
            assert!(!core::ptr::eq(driver, runtime));
            assert_ne!(driver.stub(), runtime.stub());
            let other =
                Thunk::for_function(without_provenance_mut(0x2000), Role::Driver(call)).unwrap();
            assert_ne!(driver.stub(), other.stub());

            assert!(!driver.named(c"cuGraphLaunch").is_per_thread());
            assert!(driver.named(c"cuGraphLaunch_ptsz").is_per_thread());
            assert!(!other.is_per_thread());
        });
    }

    #[test]
    fn a_simple_call_is_known_without_the_table() {
        let of = |role| Thunk::made(without_provenance_mut(0x1000), role);
        for row in CALLS {
            let stream = row.call.stream(Library::Driver);
            let is_simple = row.kind.enqueues() || matches!(row.kind, CallPurpose::Wait(_));
            let thunk = of(Role::Driver(row.call));
            assert_eq!(
                thunk.does().is_some(),
                is_simple && !matches!(stream, Stream::Configured(_)),
                "{}",
                row.call
            );
            assert_eq!(of(Role::Runtime(row.call)).does(), None, "{}", row.call);
            assert_eq!(of(Role::Front(row.call)).does(), None, "{}", row.call);
            let Some(does) = thunk.does() else { continue };
            assert_eq!(thunk.row(), row.call as u8);
            assert_eq!(does.waits(), !row.kind.enqueues(), "{}", row.call);
            let bytes = row.small_by.map(usize::from);
            assert_eq!(thunk.bytes_word(), bytes, "{}", row.call);
            let word = thunk.stream_word().map_or(Stream::None, |word| {
                Stream::Word(u8::try_from(word).unwrap())
            });
            assert_eq!(word, stream, "{}", row.call);
        }
        let does = |call| of(Role::Driver(call)).does();
        assert_eq!(does(Call::GraphLaunch), Some(Does::Enqueues));
        assert_eq!(does(Call::StreamSynchronize), Some(Does::WaitsForStream));
        assert_eq!(does(Call::EventSynchronize), Some(Does::WaitsForEvent));
        assert_eq!(does(Call::CtxSynchronize), Some(Does::WaitsForAll));
        assert_eq!(does(Call::MemcpyDtoH), Some(Does::WaitsForAll));
        assert_eq!(of(Role::ProcAddress).does(), None);
    }

    #[test]
    fn a_runtime_is_transparent_until_it_is_attended() {
        alone(&[], || {
            let slow = handlers().slow as *mut c_void;
            let handler = |thunk: &Thunk| thunk.handler.load(Ordering::Relaxed);
            let real = without_provenance_mut::<c_void>(0x1000);
            let of = |role| Thunk::for_function(real, role).unwrap();
            let launch = of(Role::Runtime(Call::GraphLaunch));
            let wait = of(Role::Runtime(Call::StreamSynchronize));
            let driver = of(Role::Driver(Call::GraphLaunch));
            let before = handler(driver);
            for thunk in [launch, wait, driver] {
                thunk.make_transparent();
                assert_eq!(handler(thunk), real);
            }
            Thunk::attend(CallSet::which(|call| call == Call::GraphLaunch));
            assert_eq!([launch, wait, driver].map(handler), [slow, real, real]);
            Thunk::record();
            assert_eq!([launch, wait, driver].map(handler), [slow, real, before]);
        });
    }

    #[test]
    fn a_process_that_looks_up_too_many_functions_is_warned_once() {
        let said = alone(&[], || {
            let of = |number: usize| {
                let real = without_provenance_mut(0x1000 * (1 + number));
                Thunk::for_function(real, Role::Driver(Call::GraphLaunch))
            };
            for number in 0..stubs::COUNT {
                assert!(of(number).is_some(), "{number}");
            }
            assert!(of(stubs::COUNT).is_none());
            assert!(of(stubs::COUNT + 1).is_none());
            assert!(of(0).is_some(), "those that are there stay");
        });
        if let Some(said) = said {
            let warned = "over 1024 CUDA functions were looked up: later ones are not counted";
            assert_eq!(said.matches(warned).count(), 1, "{said}");
        }
    }
}
