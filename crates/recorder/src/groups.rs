//! The groups that the process is in: those that a program makes before there is a record are kept for it.

use tllmprof_platform::lifecycle::{self, OnlyThread};
use tllmprof_record::{GroupRank, Info, Member};
use tllmprof_sync::Lock;

use super::facts::write_shown;
use super::{is_on, is_wanted};

/// How many communicators are kept: of those that come then nothing is known.
const MOST: usize = 256;

/// Communicators that were made, and how many of them are in the record.
struct Made {
    all: [Member; MOST],
    count: usize,
    written: usize,
}

lifecycle::global! {
    stage: Sinks;

    #[fork(by = in_child)]
    static MADE: Lock<Made> = Lock::new(Made {
        all: [Member::UNKNOWN; MOST],
        count: 0,
        written: 0,
    });
}

/// The program makes a communicator of NCCL.
pub fn communicator(member: Member) {
    if !is_wanted() {
        return;
    }
    {
        let mut made = MADE.lock();
        let at = made.count;
        if let Some(place) = made.all.get_mut(at) {
            // The last one stands for all that are too many.
            *place = if at + 1 < MOST {
                member
            } else {
                Member::UNKNOWN
            };
            made.count += 1;
        }
    }
    if is_on() {
        write_pending();
    }
}

/// Writes the communicators that are not in the record yet.
pub fn write_pending() {
    while let Some(member) = next() {
        write_shown(Info::Communicator, &member);
    }
}

fn next() -> Option<Member> {
    let mut made = MADE.lock();
    let member = *made.all[..made.count].get(made.written)?;
    made.written += 1;
    Some(member)
}

/// Writes the process's place in a group. Of each name what is written last holds.
pub fn write_group(group: &GroupRank<&str>) {
    if is_on() {
        write_shown(Info::Group, group);
    }
}

/// The child of a fork has made none.
fn in_child(alone: &OnlyThread) {
    MADE.break_open(alone);
    let mut made = MADE.lock();
    (made.count, made.written) = (0, 0);
}
