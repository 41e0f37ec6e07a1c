//! What an event of the timeline is, as the page's script tells it (`web/src/kinds.ts`).

use tllmprof_record::CallKind;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    Range = 0,
    Mark = 1,
    Function = 2,
    Call = 3,
    Launch = 4,
    Wait = 5,
    CopyCall = 6,
    Gc = 7,
    GilWait = 8,
    GilHold = 9,
    GilForced = 10,
    /// What a stream did in an iteration.
    Step = 11,
    Kernel = 12,
    Copy = 13,
    Set = 14,
}

impl From<CallKind> for Kind {
    fn from(kind: CallKind) -> Self {
        match kind {
            CallKind::GraphLaunch | CallKind::KernelLaunch => Self::Launch,
            CallKind::AsyncCopy => Self::CopyCall,
            CallKind::Wait => Self::Wait,
            CallKind::Other | CallKind::Capture => Self::Call,
        }
    }
}
