//! GPU time of iterations, from what each stream did.

/// How many spans are kept; more are counted.
const LIMIT: usize = 1 << 21;

/// What a stream did in an iteration.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct GpuSpan {
    pub iteration: u64,
    pub device: u8,
    /// In nanoseconds.
    pub start: u64,
    pub duration: u64,
}

/// The spans of a record.
#[derive(Debug, Default)]
pub struct GpuSpans {
    spans: Vec<GpuSpan>,
    pub left_out: u64,
}

impl GpuSpans {
    pub fn add(&mut self, span: GpuSpan) {
        if self.spans.len() < LIMIT {
            self.spans.push(span);
        } else {
            self.left_out += 1;
        }
    }

    /// The GPU time of each iteration, in the order of their numbers: what at least one stream of
    /// a device was at work, of the device where that is longest.
    pub fn times(mut self) -> Vec<(u64, u64)> {
        self.spans.sort_unstable();
        let mut times: Vec<(u64, u64)> = Vec::new();
        for device in self
            .spans
            .chunk_by(|a, b| (a.iteration, a.device) == (b.iteration, b.device))
        {
            let time = covered(device);
            let n = device[0].iteration;
            match times.last_mut() {
                Some((last, longest)) if *last == n => *longest = time.max(*longest),
                _ => times.push((n, time)),
            }
        }
        times
    }
}

/// How long at least one of the spans, in the order of their starts, lasted.
fn covered(spans: &[GpuSpan]) -> u64 {
    let (mut total, mut until) = (0_u64, 0);
    for span in spans {
        let start = span.start.max(until);
        let end = span.start.saturating_add(span.duration);
        total = total.saturating_add(end.saturating_sub(start));
        until = until.max(end);
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_at_once_count_once_and_devices_apart() {
        let mut spans = GpuSpans::default();
        for (iteration, device, start, duration) in [
            (7, 0, 100, 50),
            (7, 0, 120, 10),
            (7, 0, 140, 30),
            (7, 0, 200, 5),
            (7, 1, 100, 60),
            (3, 0, 1, 2),
        ] {
            spans.add(GpuSpan {
                iteration,
                device,
                start,
                duration,
            });
        }
        assert_eq!(spans.times(), [(3, 2), (7, 75)]);
    }
}
