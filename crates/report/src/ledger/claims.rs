//! What findings may claim of the ledger. Each nanosecond has one cause, so no two claim the same.

use super::LedgerKind;
use super::groups::Groups;
use super::host::Sums;
use super::keys::Named;

/// How many causes a finding names.
pub const NAMED: usize = 2;

/// Times in nanoseconds, of the iterations that the ledger is of, without waiting for requests.
#[derive(Clone, Debug, Default)]
pub struct Claims {
    /// All of the host's time.
    pub host: u64,
    /// Calls that copy without waiting.
    pub copies: u64,
    /// All of the time of iterations of which the GPU's time is known.
    pub gpu: u64,
    /// What of that the host's thread waited for a processor, beside other waits.
    pub delayed: u64,
    /// What of that the GPU had nothing to do while the host ran code that no call explains.
    pub code: u64,
    /// The greatest parts of that, and the rows of the ledger that they are.
    pub named: Vec<(String, u64)>,
    /// The same of code in which the host's thread was asleep or blocked.
    pub blocked: u64,
    pub blocked_in: Vec<(String, u64)>,
}

impl Groups {
    /// What findings may claim, of all windows.
    pub fn claims(&self, sums: &Sums, named: Named<'_>) -> Claims {
        let mut claims = Claims::default();
        for (spent, times) in sums.of(&self.hosts(None)) {
            match named.cause(spent).0 {
                LedgerKind::Requests => continue,
                LedgerKind::Copy => claims.copies += times.all,
                _ => (),
            }
            claims.host += times.all;
        }
        let is_code = |spent| named.is_code(spent);
        for (spent, times) in self.spent(&self.counted(None), sums, named, is_code) {
            let (kind, cause) = named.cause(spent);
            if kind == LedgerKind::Requests {
                continue;
            }
            claims.gpu += times.all;
            if kind == LedgerKind::Delayed {
                claims.delayed += times.all;
            }
            if named.is_code(spent) && times.idle > 0 {
                let (sum, rows) = match kind {
                    LedgerKind::Blocked => (&mut claims.blocked, &mut claims.blocked_in),
                    _ => (&mut claims.code, &mut claims.named),
                };
                *sum += times.idle;
                let same = rows.iter_mut().find(|(known, _)| *known == cause);
                match same {
                    Some((_, idle)) => *idle += times.idle,
                    None => rows.push((cause, times.idle)),
                }
            }
        }
        for rows in [&mut claims.named, &mut claims.blocked_in] {
            rows.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
            rows.truncate(NAMED);
        }
        claims
    }
}
