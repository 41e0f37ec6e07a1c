//! NVTX ranges and marks for events inside the program: collections, the GIL, functions.
//!
//! They are in the domain `tllmprof`, like the iterations, with names that are registered once.

use core::mem::ManuallyDrop;
use std::ffi::CString;

use ::nvtx::Payload;
use ::nvtx::domain::{LocalRange, Range};
use once_cell::race::OnceBox;
use tllmprof_platform::lifecycle;

use super::nvtx::{Text, domain};
use tllmprof_platform::injection;
use tllmprof_recorder as recorder;
use tllmprof_recorder::Label;
use tllmprof_recorder::RangeKind;
use tllmprof_recorder::What;
use tllmprof_scopes as scopes;
use tllmprof_sync::Published;

/// The name of ranges and marks.
#[derive(Clone, Copy)]
pub struct Name {
    /// `None` if no NVTX tool is attached.
    nvtx: Option<&'static Text>,
    /// The form in which the record keeps pushed ranges; `None` if it does not keep them under this name.
    kept: Option<MarkKind>,
}

/// The kind of event that a range is in the record.
#[derive(Clone, Copy)]
enum MarkKind {
    Function(&'static Label),
    /// A range of the domain `tllmprof`.
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

/// A range that a thread began, and that the same thread ends.
pub struct Pushed {
    name: Name,
    shown: Shown,
    /// The record's window in which it began, and the time in ticks; 0 if it is not recorded.
    window: u32,
    since: u64,
    /// True if it is part of the thread's scope.
    is_scope: bool,
}

/// The NVTX range that a tool was given for a [`Pushed`] range.
enum Shown {
    Nothing,
    /// A range on the thread's stack of ranges, which end in the reverse order of their beginnings.
    Nested(#[expect(dead_code, reason = "it is dropped")] LocalRange<'static>),
    /// A range that may end before ranges that began later.
    Apart(#[expect(dead_code, reason = "it is dropped")] Range<'static>),
}

/// A range that may end on another thread, and may overlap others.
pub struct Started(Option<Range<'static>>);

/// A range that was pushed once. All such ranges are alike: a range on a thread's stack only refers to the domain.
struct AnyPushed(ManuallyDrop<LocalRange<'static>>);

// SAFETY: it is never dropped, so it ends no range on another thread; it is only copied.
unsafe impl Send for AnyPushed {}
// SAFETY: it is only used to make copies of it, which any thread may do at once.
unsafe impl Sync for AnyPushed {}

lifecycle::global! {
    stage: Sinks;

    #[fork(reset)]
    static ANY_PUSHED: Published<AnyPushed> = Published::none();
}

/// Ends the thread's most recent range of [`Name::push_until_pop`].
pub fn pop() {
    if let Some(any) = ANY_PUSHED.get() {
        // SAFETY: the value is never dropped itself and owns no memory: dropping a copy of it pops one range off the
        // calling thread's stack, which the caller has pushed.
        drop(unsafe { core::ptr::read(&raw const *any.0) });
    }
}

/// Returns true if an NVTX tool is attached, so that names are worth registering.
///
/// Call it when something must be marked, not earlier: another preloaded profiler sets its variables in its
/// constructor.
pub fn are_wanted() -> bool {
    tllmprof_session::activity::settings().is_some_and(|settings| settings.nvtx)
        && injection::has_tool()
}

impl Name {
    /// Registers `text`. Loads the tool if it is not loaded yet, so a hook must not call this. Returns `None` if no
    /// tool is attached.
    pub fn new(text: &str) -> Option<Self> {
        let text = CString::new(text).ok()?;
        are_wanted().then(|| Self::register(text))
    }

    /// Does the same as [`Name::new`], for functions that the record also keeps by this name.
    pub fn of_function(text: &str) -> Option<Self> {
        Self::kept_as(text, MarkKind::Function)
    }

    /// Does the same as [`Name::new`], for ranges that the record also keeps.
    pub fn of_range(text: &str) -> Option<Self> {
        Self::kept_as(text, MarkKind::Range)
    }

    fn kept_as(text: &str, kind: fn(&'static Label) -> MarkKind) -> Option<Self> {
        let nvtx = Self::new(text).and_then(|name| name.nvtx);
        let kept = recorder::is_wanted().then(|| kind(Label::new(text)));
        (nvtx.is_some() || kept.is_some()).then_some(Self { nvtx, kept })
    }

    /// Does the same as [`Name::new`], whether a tool is attached or not.
    pub fn register(text: CString) -> Self {
        Self {
            nvtx: Some(Text::register(text)),
            kept: None,
        }
    }

    /// Returns the text that the record keeps, if it does.
    pub fn text(&self) -> Option<&'static [u8]> {
        let (MarkKind::Function(label) | MarkKind::Range(label)) = self.kept?;
        Some(label.text())
    }

    /// Begins a range that ends on this thread, before any range that was pushed earlier.
    #[must_use = "the range ends when it is dropped"]
    pub fn push(self) -> Pushed {
        self.begin(self.nested())
    }

    /// Does the same as [`Name::push`], for a range that may end before ranges that began later. An NVTX tool gets it
    /// as a start/end range.
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

    /// Makes it part of the thread's scope, if scopes are followed. Returns true if it is.
    fn begin_scope(self) -> bool {
        match self.kept {
            Some(MarkKind::Function(label) | MarkKind::Range(label)) if scopes::are_on() => {
                scopes::push(scopes::OWN, label.text());
                true
            }
            _ => false,
        }
    }

    /// Begins a range that ends with the thread's next [`pop`].
    pub fn push_until_pop(self) {
        let Some(name) = self.nvtx else { return };
        let range = ManuallyDrop::new(domain().local_range(name.get()));
        ANY_PUSHED.get_or(|| AnyPushed(range));
    }

    /// Begins a range that may overlap others, with a number if that is not 0.
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

    /// Marks this moment, with a number.
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
    /// Drops the range without ending it: it belongs to another process.
    pub fn forget(self) {
        let _range = ManuallyDrop::new(self);
    }

    /// Pops the range off the thread's stack if it is the last, so that a range that began before it can end. The
    /// record is not changed.
    pub fn interrupt(&mut self) {
        self.end_scope();
        if let Shown::Nested(_) = self.shown {
            self.shown = Shown::Nothing;
        }
    }

    /// Pushes the range on the thread's stack again, after [`Pushed::interrupt`].
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
    /// Does the same as [`Pushed::forget`].
    pub fn forget(self) {
        let _range = ManuallyDrop::new(self.0);
    }
}
