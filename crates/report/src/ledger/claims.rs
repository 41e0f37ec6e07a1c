//! What findings may claim of the ledger. Each nanosecond has one cause, so no two claim the same.

use super::LedgerKind;
use super::groups::Groups;
use super::host::Sums;
use super::keys::Named;
use super::split::split;

/// How many causes are named.
const NAMED: usize = 2;

/// Times in nanoseconds, of the iterations that the ledger is of, without waiting for requests.
#[derive(Clone, Debug, Default)]
pub struct Claims {
    /// All of the host's time.
    pub host: u64,
    /// Calls that copy without waiting.
    pub copies: u64,
    /// All of the time of iterations of which the GPU's time is known.
    pub gpu: u64,
    /// What of that the GPU had nothing to do while the host ran code that no call explains.
    pub code: u64,
    /// The greatest parts of that, and the rows of the ledger that they are.
    pub named: Vec<(String, u64)>,
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
        for (spent, times) in split(sums, &self.counted(None), is_code) {
            let (kind, cause) = named.cause(spent);
            if kind == LedgerKind::Requests {
                continue;
            }
            claims.gpu += times.all;
            if named.is_code(spent) && times.idle > 0 {
                claims.code += times.idle;
                let same = claims.named.iter_mut().find(|(known, _)| *known == cause);
                match same {
                    Some((_, idle)) => *idle += times.idle,
                    None => claims.named.push((cause, times.idle)),
                }
            }
        }
        claims
            .named
            .sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        claims.named.truncate(NAMED);
        claims
    }
}
