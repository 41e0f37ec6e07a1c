//! Thunks: what a caller gets in place of a real function.
//!
//! A thunk stands for one real function, never for a name: the driver hands out different
//! functions under one name (legacy and per-thread default stream), and a process may hold two
//! runtimes. All doors lead to the same thunk for the same real function.

use core::ffi::{CStr, c_void};
use core::mem::offset_of;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use tllmprof_calls::{Call, Calls, Direction, Kind, Wait, is_per_thread};
use tllmprof_platform::lifecycle;

use super::handlers::{Noting, handlers};
use super::{stubs, watched};
use tllmprof_platform::gate;
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
    /// A function of the runtime, which will call the driver.
    Runtime(Call),
    /// `cuGetProcAddress` in either of its ABIs: the result is what matters.
    ProcAddress,
}

impl Role {
    const fn encode(self) -> u32 {
        match self {
            Self::Driver(call) => call as u32,
            Self::Runtime(call) => 0x100 | call as u32,
            Self::ProcAddress => 0x200,
        }
    }

    /// The handler that a thunk of this role starts with.
    fn handler(self) -> *mut c_void {
        match self {
            Self::Driver(_) if watched::are() => handlers().slow as *mut c_void,
            Self::Driver(call) => {
                let records = tllmprof_recorder::is_recording();
                noting(call, records).unwrap_or(if records {
                    handlers().record as *mut c_void
                } else {
                    handlers().count as *mut c_void
                })
            }
            Self::Runtime(_) | Self::ProcAddress => handlers().slow as *mut c_void,
        }
    }

    /// Where in a thread's cells the fast path counts, in bytes.
    fn cell(self) -> usize {
        match self {
            Self::Driver(call) | Self::Runtime(call) => threads::cell_offset(Counted::Call(call)),
            Self::ProcAddress => 0,
        }
    }
}

/// The handler that notes `call` as well as counting it, where iterations are learnt from that.
/// `records`: and records it.
fn noting(call: Call, records: bool) -> Option<*mut c_void> {
    let noting: Noting = match call.kind() {
        _ if !session::learns() => return None,
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
    };
    Some(noting[usize::from(records)] as *mut c_void)
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
    pub fn of(real: *mut c_void, role: Role) -> Option<&'static Self> {
        let real = match role {
            Role::Driver(call) => gate::before(real, gate::Work::of(call)),
            Role::Runtime(_) | Role::ProcAddress => real,
        };
        if let Some(known) = Self::find(real, role) {
            return Some(known);
        }
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
            Role::Driver(call)
                if noting(call, false).is_none() && !watched::are() && !recorder::is_wanted() =>
            {
                stubs::counting_stub(index)
            }
            Role::Driver(_) | Role::Runtime(_) | Role::ProcAddress => stubs::stub(index),
        }
    }

    /// The real function, or the gate in front of it.
    pub fn real(&self) -> *mut c_void {
        self.real.load(Ordering::Relaxed)
    }

    /// What the function is.
    pub fn role(&self) -> Role {
        use tllmprof_calls::CALLS;
        let code = self.role.load(Ordering::Relaxed);
        let call = CALLS[(code & 0xff) as usize].call;
        match code >> 8 {
            0 => Role::Driver(call),
            1 => Role::Runtime(call),
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

    /// Makes the runtime's functions for `calls` seen again, or lets them become transparent.
    pub fn attend(calls: Calls) {
        for thunk in &THUNKS[..USED.load(Ordering::Acquire)] {
            if let Role::Runtime(call) = thunk.role()
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
