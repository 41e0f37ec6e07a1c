//! Thunks: what a caller gets in place of a real function.
//!
//! A thunk stands for one real function, never for a name: the driver hands out different
//! functions under one name (legacy and per-thread default stream), and a process may hold two
//! runtimes. All doors lead to the same thunk for the same real function.

use core::ffi::{CStr, c_void};
use core::mem::offset_of;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use tllmprof_calls::{
    CALLS, Call, Calls, CuptiCall, Direction, Kind, NcclCall, Wait, is_per_thread,
};
use tllmprof_platform::lifecycle;

use super::handlers::{Handler, Noting, handlers};
use super::{fed, stubs, watched};
use tllmprof_platform::gate;
use tllmprof_platform::libcuda;
use tllmprof_platform::log;
use tllmprof_recorder as recorder;
use tllmprof_session as session;
use tllmprof_steps::step::counted::Counted;
use tllmprof_steps::step::threads;

/// Bytes of a [`Thunk`]; the pool's stubs count on it.
pub const THUNK_SIZE: usize = size_of::<Thunk>();

lifecycle::global! {
    stage: Doors;

    /// The pool. Entries below [`USED`] are complete and, but for the handler, never change.
    #[fork(keep = "pointers to thunks were handed out")]
    pub static THUNKS: [Thunk; stubs::COUNT] = [const { Thunk::new() }; stubs::COUNT];
    #[fork(keep = "as the pool")]
    static USED: AtomicUsize = AtomicUsize::new(0);
    /// Serialises creation; held for a few stores, never across a call out.
    #[fork(hold)]
    static CREATING: tllmprof_sync::Lock<()> = tllmprof_sync::Lock::new(());
}

/// What a thunk's function is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// A function of the driver.
    Driver(Call),
    /// A function of another library's that stands in for the driver's of the same name, and will call that.
    Front(Call),
    /// A function of the runtime, which will call the driver.
    Runtime(Call),
    /// `cuGetProcAddress` in either of its ABIs: the result is what matters.
    ProcAddress,
    /// A function by which a profiler takes CUPTI, or gives it back.
    Cupti(CuptiCall),
    /// A function by which a program makes communicators of NCCL.
    Nccl(NcclCall),
}

impl Role {
    /// What a function is that has the same name and lies in another library than the driver.
    const fn of_another_library(self) -> Self {
        match self {
            Self::Driver(call) => Self::Front(call),
            role => role,
        }
    }

    const fn encode(self) -> u32 {
        match self {
            Self::Driver(call) => call as u32,
            Self::Runtime(call) => 0x100 | call as u32,
            Self::ProcAddress => 0x200,
            Self::Cupti(call) => 0x300 | call as u32,
            Self::Front(call) => 0x400 | call as u32,
            Self::Nccl(call) => 0x500 | call as u32,
        }
    }

    /// The handler that a thunk of this role has now.
    fn handler(self) -> *mut c_void {
        match self {
            Self::Driver(call) => Wanted::now().handler(call) as *mut c_void,
            Self::Runtime(_)
            | Self::Front(_)
            | Self::ProcAddress
            | Self::Cupti(_)
            | Self::Nccl(_) => handlers().slow as *mut c_void,
        }
    }

    /// Where in a thread's cells the fast path counts, in bytes.
    fn cell(self) -> usize {
        match self {
            Self::Driver(call) | Self::Runtime(call) | Self::Front(call) => {
                threads::cell_offset(Counted::Call(call))
            }
            Self::ProcAddress | Self::Cupti(_) | Self::Nccl(_) => 0,
        }
    }
}

/// What is wanted of the driver's calls in this process.
#[derive(Clone, Copy)]
struct Wanted {
    /// They are given NVTX ranges.
    ranges: bool,
    /// They are recorded.
    recorded: bool,
    /// Those that wait are timed, outside windows, too.
    timed: bool,
    /// Iterations are learnt from them.
    learnt: bool,
}

impl Wanted {
    /// What is wanted now.
    fn now() -> Self {
        Self {
            ranges: watched::are(),
            recorded: recorder::is_keeping(),
            timed: recorder::watch::is_watching(),
            learnt: session::learns(),
        }
    }

    /// What may be wanted as long as the process lives.
    fn ever() -> Self {
        Self {
            recorded: recorder::is_wanted(),
            ..Self::now()
        }
    }

    /// Where the stubs of the driver's function for `call` go.
    fn handler(self, call: Call) -> Handler {
        if self.ranges {
            return handlers().slow;
        }
        let noting = self.learnt.then(|| noting(call)).flatten();
        let [plain, recording] = noting.unwrap_or([handlers().count, handlers().record]);
        if self.is_timed(call) {
            recording
        } else {
            plain
        }
    }

    /// Whether it matters how long `call` takes.
    fn is_timed(self, call: Call) -> bool {
        self.recorded || self.timed && call.kind().waits()
    }

    /// Whether `call` is counted and no more.
    fn is_counted_only(self, call: Call) -> bool {
        !(self.ranges || self.is_timed(call) || self.learnt && noting(call).is_some())
    }
}

/// The handlers that note `call` as well as counting it, if what is learnt depends on it.
fn noting(call: Call) -> Option<Noting> {
    Some(match call.kind() {
        Kind::KernelLaunch { handle: 0 } => handlers().first_argument,
        Kind::KernelLaunch { .. } => handlers().second_argument,
        Kind::GraphLaunch => handlers().graph,
        Kind::AsyncCopy(Direction::ToHost) => handlers().copy_to_host,
        Kind::AsyncCopy(Direction::ToDevice) => handlers().copy_to_device,
        Kind::Wait(Wait::Stream) => handlers().stream_wait,
        Kind::Wait(Wait::Event) => handlers().event_wait,
        Kind::Wait(Wait::Context) => handlers().context_wait,
        Kind::Wait(Wait::CopyToHost) => handlers().blocking_copy,
        _ => return None,
    })
}

/// One entry of the pool.
#[repr(C)]
pub struct Thunk {
    handler: AtomicPtr<c_void>,
    real: AtomicPtr<c_void>,
    cell: AtomicUsize,
    role: AtomicU32,
    /// 1: stream 0 is the calling thread's own.
    per_thread: AtomicU32,
}

/// Where the assembler finds the fields, in bytes.
impl Thunk {
    pub const HANDLER: usize = offset_of!(Self, handler);
    pub const REAL: usize = offset_of!(Self, real);
    pub const CELL: usize = offset_of!(Self, cell);
}

impl Thunk {
    /// A thunk that is in no pool.
    #[cfg(test)]
    pub fn made(real: *mut c_void, role: Role) -> &'static Self {
        let thunk = Self::new();
        thunk.real.store(real, Ordering::Relaxed);
        thunk.cell.store(role.cell(), Ordering::Relaxed);
        thunk.role.store(role.encode(), Ordering::Relaxed);
        thunk.handler.store(role.handler(), Ordering::Relaxed);
        Box::leak(Box::new(thunk))
    }

    const fn new() -> Self {
        Self {
            handler: AtomicPtr::new(core::ptr::null_mut()),
            real: AtomicPtr::new(core::ptr::null_mut()),
            cell: AtomicUsize::new(0),
            role: AtomicU32::new(0),
            per_thread: AtomicU32::new(0),
        }
    }

    /// The thunk for `real`, made on first sight; `None` when the pool is used up.
    pub fn of(function: *mut c_void, role: Role) -> Option<&'static Self> {
        let real = match role {
            Role::Driver(call) | Role::Front(call) => gate::before(function, gate::Work::of(call)),
            Role::Runtime(_) | Role::ProcAddress | Role::Cupti(_) | Role::Nccl(_) => function,
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
        thunk.real.store(real, Ordering::Relaxed);
        thunk.cell.store(role.cell(), Ordering::Relaxed);
        thunk.role.store(role.encode(), Ordering::Relaxed);
        thunk.handler.store(role.handler(), Ordering::Relaxed);
        USED.store(index + 1, Ordering::Release);
        Some(thunk)
    }

    fn find(real: *mut c_void, role: Role) -> Option<&'static Self> {
        let code = role.encode();
        THUNKS[..USED.load(Ordering::Acquire)].iter().find(|t| {
            t.real.load(Ordering::Relaxed) == real && t.role.load(Ordering::Relaxed) == code
        })
    }

    /// What to hand to the program in place of the real function.
    pub fn stub(&self) -> *mut c_void {
        let offset = core::ptr::from_ref(self).addr() - THUNKS.as_ptr().addr();
        let index = offset / THUNK_SIZE;
        match self.role() {
            Role::Driver(call) if Wanted::ever().is_counted_only(call) => {
                stubs::counting_stub(index)
            }
            _ => stubs::stub(index),
        }
    }

    /// The real function, or the gate in front of it.
    pub fn real(&self) -> *mut c_void {
        self.real.load(Ordering::Relaxed)
    }

    /// What the function is.
    pub fn role(&self) -> Role {
        let code = self.role.load(Ordering::Relaxed);
        let [number, library, ..] = code.to_le_bytes();
        let call = CALLS[usize::from(number)].call;
        match library {
            0 => Role::Driver(call),
            1 => Role::Runtime(call),
            3 => CuptiCall::of(number).map_or(Role::ProcAddress, Role::Cupti),
            4 => Role::Front(call),
            5 => NcclCall::of(number).map_or(Role::ProcAddress, Role::Nccl),
            _ => Role::ProcAddress,
        }
    }

    /// Whether stream 0 is the calling thread's own to the function.
    #[inline]
    pub fn is_per_thread(&self) -> bool {
        self.per_thread.load(Ordering::Relaxed) != 0
    }

    /// Remembers by what name the function was found, which says whose the default stream is.
    pub fn named(&'static self, name: &CStr) -> &'static Self {
        if is_per_thread(name) {
            self.set_per_thread();
        }
        self
    }

    /// Stream 0 is the calling thread's own to the function.
    pub fn set_per_thread(&self) {
        self.per_thread.store(1, Ordering::Relaxed);
    }

    /// Whether the module of the real function gets its driver function for `call` through us: what it does
    /// is counted and recorded there.
    pub fn is_fed(&self, call: Call) -> bool {
        fed::is_fed(gate::behind(self.real()).addr(), call)
    }

    /// Makes functions that lead to the driver's for `calls` seen again, or lets them become transparent.
    pub fn attend(calls: Calls) {
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

    /// Has the driver's calls recorded, or not any more.
    pub fn record() {
        let _creating = CREATING.lock();
        for thunk in &THUNKS[..USED.load(Ordering::Acquire)] {
            let role = thunk.role();
            if matches!(role, Role::Driver(_)) {
                thunk.handler.store(role.handler(), Ordering::Release);
            }
        }
    }

    /// From now on calls go straight to the real function.
    pub fn make_transparent(&self) {
        self.handler.store(self.real(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use core::ptr::without_provenance_mut;

    use tllmprof_calls::{CUPTI_CALLS, NCCL_CALLS};

    use super::*;
    use crate::made::alone;

    const NONE: Wanted = Wanted {
        ranges: false,
        recorded: false,
        timed: false,
        learnt: false,
    };

    /// The roles that functions of the table have.
    fn roles() -> impl Iterator<Item = Role> {
        let of_call = |call| [Role::Driver(call), Role::Runtime(call), Role::Front(call)];
        let of_calls = CALLS.iter().flat_map(move |row| of_call(row.call));
        let of_cupti = CUPTI_CALLS.iter().map(|(call, _)| Role::Cupti(*call));
        let of_nccl = NCCL_CALLS.iter().map(|(call, _)| Role::Nccl(*call));
        let others = [Role::ProcAddress]
            .into_iter()
            .chain(of_cupti)
            .chain(of_nccl);
        of_calls.chain(others)
    }

    #[test]
    fn a_thunk_says_what_it_was_made_as() {
        let mut codes = Vec::new();
        for role in roles() {
            let real = without_provenance_mut(0x1000);
            let thunk = Thunk::made(real, role);
            assert_eq!((thunk.real(), thunk.role()), (real, role));
            assert!(!codes.contains(&role.encode()), "{role:?}");
            codes.push(role.encode());
        }
    }

    #[test]
    fn a_handler_does_what_is_wanted_and_no_more() {
        for row in CALLS {
            let of = |wanted: Wanted| wanted.handler(row.call) as usize;
            let both = |wanted: Wanted| {
                let recorded = true;
                [of(wanted), of(Wanted { recorded, ..wanted })]
            };
            let learnt = Wanted {
                learnt: true,
                ..NONE
            };
            let plain = [handlers().count, handlers().record].map(|handler| handler as usize);
            assert_eq!(both(NONE), plain, "{}", row.call);
            // What is learnt from is what counts, but for copies within devices.
            let is_noted = row.kind.counts() && row.kind != Kind::AsyncCopy(Direction::Other);
            assert_eq!(noting(row.call).is_some(), is_noted, "{}", row.call);
            let noted = noting(row.call).map(|both| both.map(|handler| handler as usize));
            assert_eq!(both(learnt), noted.unwrap_or(plain), "{}", row.call);
            let ranges = Wanted {
                ranges: true,
                ..learnt
            };
            assert_eq!(both(ranges), [handlers().slow as usize; 2], "{}", row.call);

            // Where times are watched those that wait alone are looked at.
            let timed = Wanted {
                timed: true,
                ..NONE
            };
            let waits = usize::from(row.kind.waits());
            assert_eq!(both(timed), [plain[waits], plain[1]], "{}", row.call);
            assert_eq!(timed.is_counted_only(row.call), waits == 0, "{}", row.call);

            let counts = |wanted: Wanted| wanted.is_counted_only(row.call);
            assert!(counts(NONE), "{}", row.call);
            assert_eq!(counts(learnt), !is_noted, "{}", row.call);
            assert!(
                !counts(Wanted {
                    recorded: true,
                    ..NONE
                }) && !counts(ranges),
                "{}",
                row.call
            );
        }
    }

    #[test]
    fn kinds_that_differ_have_handlers_of_their_own() {
        let mut known: Vec<(Kind, [usize; 2])> = Vec::new();
        for row in CALLS {
            let Some(both) = noting(row.call) else {
                continue;
            };
            let both = both.map(|handler| handler as usize);
            assert_ne!(both[0], both[1], "{}: one records", row.call);
            match known.iter().find(|(kind, _)| *kind == row.kind) {
                Some((_, same)) => assert_eq!(both, *same, "{}", row.call),
                None => {
                    assert!(
                        known.iter().all(|(_, other)| *other != both),
                        "{}",
                        row.call
                    );
                    known.push((row.kind, both));
                }
            }
        }
        assert!(known.len() >= 8, "{known:?}");
    }

    #[test]
    fn one_function_has_one_thunk_in_each_role() {
        alone(&[], || {
            let call = Call::GraphLaunch;
            let real = without_provenance_mut::<c_void>(0x1000);
            let of = |role| Thunk::of(real, role).unwrap();
            let (driver, runtime) = (of(Role::Driver(call)), of(Role::Runtime(call)));
            assert!(core::ptr::eq(driver, of(Role::Driver(call))));
            assert!(!core::ptr::eq(driver, runtime));
            assert_ne!(driver.stub(), runtime.stub());
            let other = Thunk::of(without_provenance_mut(0x2000), Role::Driver(call)).unwrap();
            assert_ne!(driver.stub(), other.stub());

            assert!(!driver.named(c"cuGraphLaunch").is_per_thread());
            assert!(driver.named(c"cuGraphLaunch_ptsz").is_per_thread());
            assert!(!other.is_per_thread());
        });
    }

    #[test]
    fn a_runtime_is_transparent_until_it_is_attended() {
        alone(&[], || {
            let slow = handlers().slow as *mut c_void;
            let handler = |thunk: &Thunk| thunk.handler.load(Ordering::Relaxed);
            let real = without_provenance_mut::<c_void>(0x1000);
            let of = |role| Thunk::of(real, role).unwrap();
            let launch = of(Role::Runtime(Call::GraphLaunch));
            let wait = of(Role::Runtime(Call::StreamSynchronize));
            let driver = of(Role::Driver(Call::GraphLaunch));
            let before = handler(driver);
            for thunk in [launch, wait, driver] {
                thunk.make_transparent();
                assert_eq!(handler(thunk), real);
            }
            Thunk::attend(Calls::which(|call| call == Call::GraphLaunch));
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
                Thunk::of(real, Role::Driver(Call::GraphLaunch))
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
