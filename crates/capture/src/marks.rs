//! NVTX ranges and marks for events inside the program: garbage collections, waits for the GIL, and calls of
//! functions.
//!
//! These ranges and marks are in the NVTX domain `tllmprof`, as are the ranges of iterations. Each name is registered
//! once.

use core::mem::ManuallyDrop;
use std::ffi::CString;

use ::nvtx::Payload;
use ::nvtx::domain::{LocalRange, Range};
use once_cell::race::OnceBox;
use tllmprof_platform::lifecycle;

use super::nvtx::{RegisteredText, domain};
use tllmprof_platform::injection;
use tllmprof_recorder as recorder;
use tllmprof_recorder::Label;
use tllmprof_recorder::RangeKind;
use tllmprof_recorder::What;
use tllmprof_scopes as scopes;
use tllmprof_sync::Published;

/// A name for ranges and marks: in the NVTX tool, if one is attached, and in the record.
#[derive(Clone, Copy)]
pub struct RegisteredName {
    /// The name registered with the NVTX tool. `None` if no tool is attached.
    nvtx: Option<&'static RegisteredText>,
    /// The kind of event that the record stores for a pushed range with this name. `None` if the record does not
    /// store such ranges.
    kept: Option<MarkKind>,
}

/// The kind of event that the record stores for a range: a call of a function, or an NVTX range.
#[derive(Clone, Copy)]
enum MarkKind {
    Function(&'static Label),
    /// An NVTX range in the domain `tllmprof` with this name.
    Range(&'static Label),
}

impl MarkKind {
    fn what(self) -> What {
        lifecycle::global! {
            #[fork(keep = "a name")]
            static DOMAIN: OnceBox<&Label> = OnceBox::new();
        }
        match self {
            Self::Function(label) => What::Function {
                name: label.lasting_id(),
            },
            Self::Range(label) => What::Range {
                kind: RangeKind::PushPop,
                domain: DOMAIN.get_or_init(|| Box::new(Label::new("tllmprof"))).id(),
                name: label.id(),
            },
        }
    }
}

/// A named range that must end on the thread on which it began.
pub struct Pushed {
    name: RegisteredName,
    shown: Shown,
    /// Number, in the record, of the window (range of profiled iterations) in which the NVTX range began; 0 if the NVTX
    /// range is not recorded.
    window: u32,
    /// The time at which the range began, in ticks; 0 if the range is not recorded.
    since: u64,
    /// True if the range is part of the thread's scope: the path of modules, ranges and functions that the thread is
    /// in.
    is_scope: bool,
}

/// The NVTX range that shows a [`Pushed`] range in the NVTX tool.
enum Shown {
    Nothing,
    /// A range on the thread's stack of ranges. Such ranges end in the reverse order of their begins.
    Nested(#[expect(dead_code, reason = "it is dropped")] LocalRange<'static>),
    /// A start/end range of NVTX, which may end before ranges that began later.
    Apart(#[expect(dead_code, reason = "it is dropped")] Range<'static>),
}

/// A named range that may end on another thread and may overlap other ranges.
pub struct Started(Option<Range<'static>>);

/// A range that was pushed on a thread's stack of ranges. To end the most recent range of a thread, [`pop`] makes a
/// copy of this value and drops the copy. Any pushed range can be copied for this, because it contains only a reference
/// to the domain.
struct AnyPushed(ManuallyDrop<LocalRange<'static>>);

// SAFETY: the value is never dropped, so it ends no range on another thread. It is only copied.
unsafe impl Send for AnyPushed {}
// SAFETY: the value is only copied, which several threads may do at the same time.
unsafe impl Sync for AnyPushed {}

lifecycle::global! {
    stage: Sinks;

    #[fork(reset)]
    static ANY_PUSHED: Published<AnyPushed> = Published::none();
}

/// Ends the most recent range that [`RegisteredName::push_until_pop`] began on this thread.
pub fn pop() {
    if let Some(any) = ANY_PUSHED.get() {
        // SAFETY: the original is never dropped and owns no memory. Dropping a copy pops one range off the calling
        // thread's stack, and the caller has pushed one.
        drop(unsafe { core::ptr::read(&raw const *any.0) });
    }
}

/// Returns true if an NVTX tool is attached and the settings do not switch NVTX off. Then registering names is useful.
///
/// Call this only when there is something to mark. If it is called too early, it may miss the tool of another preloaded
/// profiler: such a profiler sets the environment variables that announce its tool only when its constructor runs.
pub fn are_wanted() -> bool {
    tllmprof_session::activity::settings().is_some_and(|settings| settings.nvtx)
        && injection::has_tool()
}

impl RegisteredName {
    /// Registers `text` as a name. Loads the NVTX tool if it is not loaded yet. Loading a tool runs its code, so a hook
    /// must not call this function. Returns `None` if no tool is attached.
    pub fn new(text: &str) -> Option<Self> {
        let text = CString::new(text).ok()?;
        are_wanted().then(|| Self::register(text))
    }

    /// Registers a name like [`RegisteredName::new`], for a function whose calls are also stored in the record. Returns
    /// `None` if neither an NVTX tool nor the record uses the name.
    pub fn of_function(text: &str) -> Option<Self> {
        Self::kept_as(text, MarkKind::Function)
    }

    /// Registers a name like [`RegisteredName::new`], for ranges that are also stored in the record. Returns `None` if
    /// neither an NVTX tool nor the record uses the name.
    pub fn of_range(text: &str) -> Option<Self> {
        Self::kept_as(text, MarkKind::Range)
    }

    fn kept_as(text: &str, kind: fn(&'static Label) -> MarkKind) -> Option<Self> {
        let nvtx = Self::new(text).and_then(|name| name.nvtx);
        let kept = recorder::is_wanted().then(|| kind(Label::new(text)));
        (nvtx.is_some() || kept.is_some()).then_some(Self { nvtx, kept })
    }

    /// Registers `text` like [`RegisteredName::new`], but without a check that an NVTX tool is attached.
    pub fn register(text: CString) -> Self {
        Self {
            nvtx: Some(RegisteredText::register(text)),
            kept: None,
        }
    }

    /// Returns the text under which the record stores ranges with this name. Returns `None` if the record does not
    /// store them.
    pub fn text(&self) -> Option<&'static [u8]> {
        let (MarkKind::Function(label) | MarkKind::Range(label)) = self.kept?;
        Some(label.text())
    }

    /// Begins a range that ends on this thread, before all ranges that were pushed earlier.
    #[must_use = "the range ends when it is dropped"]
    pub fn push(self) -> Pushed {
        self.begin(self.nested())
    }

    /// Begins a range that may end before ranges that began later. This is the difference from
    /// [`RegisteredName::push`]. An NVTX tool receives the range as a start/end range.
    #[must_use = "the range ends when it is dropped"]
    pub fn push_apart(self) -> Pushed {
        let range = self.nvtx.map(|name| domain().range(name.get()));
        self.begin(range.map_or(Shown::Nothing, Shown::Apart))
    }

    fn nested(self) -> Shown {
        let range = self.nvtx.map(|name| domain().local_range(name.get()));
        range.map_or(Shown::Nothing, Shown::Nested)
    }

    fn begin(self, shown: Shown) -> Pushed {
        let window = self.kept.map_or(0, |_| recorder::ranges::window());
        Pushed {
            name: self,
            shown,
            is_scope: self.begin_scope(),
            window,
            since: if window == 0 { 0 } else { recorder::ticks() },
        }
    }

    /// Makes the range part of the thread's scope (the path of modules, ranges and functions that the thread is in).
    /// Does nothing and returns false if scopes are not recorded or the record does not store the range.
    fn begin_scope(self) -> bool {
        match self.kept {
            Some(MarkKind::Function(label) | MarkKind::Range(label)) if scopes::are_on() => {
                scopes::push(scopes::OWN, label.text());
                true
            }
            _ => false,
        }
    }

    /// Begins a range that ends with the next call of [`pop`] on this thread.
    pub fn push_until_pop(self) {
        let Some(name) = self.nvtx else { return };
        let range = ManuallyDrop::new(domain().local_range(name.get()));
        ANY_PUSHED.get_or(|| AnyPushed(range));
    }

    /// Begins a range that may overlap other ranges and may end on another thread. If `payload` is not 0, the range
    /// carries this number.
    #[must_use = "the range ends when it is dropped"]
    pub fn start(self, payload: u64) -> Started {
        Started(self.nvtx.map(|name| {
            if payload == 0 {
                return domain().range(name.get());
            }
            let builder = domain().event_attributes_builder();
            let attributes = builder
                .message(name.get())
                .payload(Payload::Uint64(payload));
            domain().range(attributes.build())
        }))
    }

    /// Marks the current moment in the NVTX tool with this name and the number `payload`.
    pub fn mark(self, payload: u64) {
        let Some(name) = self.nvtx else { return };
        let builder = domain().event_attributes_builder();
        let attributes = builder
            .message(name.get())
            .payload(Payload::Uint64(payload));
        domain().mark(attributes.build());
    }
}

impl Pushed {
    /// Drops the range without ending it. Needed in the child process after a fork, because the range belongs to the
    /// parent process.
    pub fn forget(self) {
        let _range = ManuallyDrop::new(self);
    }

    /// Ends the NVTX range until [`Pushed::resume`] begins it again, so that a range that began earlier can end in the
    /// meantime. A range of [`RegisteredName::push_apart`] does not have to end for this, so it continues in the NVTX
    /// tool. In both cases, the range leaves the thread's scope (the path of modules, ranges and functions), and
    /// continues in the record. Call this only for the thread's most recent range.
    pub fn interrupt(&mut self) {
        self.end_scope();
        if let Shown::Nested(_) = self.shown {
            self.shown = Shown::Nothing;
        }
    }

    /// Begins the NVTX range again after [`Pushed::interrupt`], and adds the range to the thread's scope (the path of
    /// modules, ranges and functions) again.
    pub fn resume(&mut self) {
        if let Shown::Nothing = self.shown {
            self.shown = self.name.nested();
        }
        self.is_scope = self.name.begin_scope();
    }

    fn end_scope(&mut self) {
        if core::mem::take(&mut self.is_scope) {
            scopes::pop(scopes::OWN);
        }
    }
}

impl Drop for Pushed {
    fn drop(&mut self) {
        self.end_scope();
        if self.window != 0
            && let Some(kept) = self.name.kept
        {
            recorder::ended(self.window, self.since, || kept.what());
        }
        self.shown = Shown::Nothing;
    }
}

impl Started {
    /// Drops the range without ending it. Needed in the child process after a fork, because the range belongs to the
    /// parent process.
    pub fn forget(self) {
        let _range = ManuallyDrop::new(self.0);
    }
}
