//! Numbers with units, formatted for people to read.

use std::fmt;

/// A duration in nanoseconds. It is shown in a suitable unit with at most three digits; from 1000 s on, with all digits
/// of the seconds.
pub struct Time(pub u64);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = self.0 as f64;
        let (value, unit) = match self.0 {
            0 => return f.pad("0"),
            1..1_000 => return f.pad(&format!("{} ns", self.0)),
            1_000..999_500 => (ns / 1e3, "µs"),
            999_500..999_500_000 => (ns / 1e6, "ms"),
            _ => (ns / 1e9, "s"),
        };
        let digits = match value {
            ..9.995 => 2,
            ..99.95 => 1,
            _ => 0,
        };
        f.pad(&format!("{value:.digits$} {unit}"))
    }
}

/// A difference between durations in nanoseconds, shown with its sign.
pub struct Change(pub i64);

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { '−' } else { '+' };
        f.pad(&format!("{sign}{}", Time(self.0.unsigned_abs())))
    }
}

/// A number of bytes. It is shown in a suitable unit with at most three digits; from 1000 TiB on, with all digits of
/// the TiB.
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = ["B", "KiB", "MiB", "GiB", "TiB"];
        let mut value = self.0 as f64;
        let mut unit = 0;
        while value >= 999.5 && unit + 1 < units.len() {
            value /= 1024.0;
            unit += 1;
        }
        let digits = match value {
            _ if unit == 0 => 0,
            ..9.995 => 2,
            ..99.95 => 1,
            _ => 0,
        };
        f.pad(&format!("{value:.digits$} {}", units[unit]))
    }
}

/// A value of a GPU metric with its unit, which is one of those of [`Metric::unit`](tllmprof_record::Metric::unit).
pub struct Quantity(pub f64, pub &'static str);

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(value, unit) = *self;
        match unit {
            "%" => Share(value / 100.0).fmt(f),
            "MiB" => Bytes((value * 1_048_576.0) as u64).fmt(f),
            _ => f.pad(&format!("{value:.0} {unit}")),
        }
    }
}

/// A fraction (0.02 is 2 %), shown in percent.
pub struct Share(pub f64);

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = self.0 * 100.0;
        if self.0 > 0.0 && percent < 0.05 {
            return f.pad("< 0.1 %");
        }
        let digits = if percent >= 99.95 { 0 } else { 1 };
        f.pad(&format!("{percent:.digits$} %"))
    }
}

/// A number per second or per iteration. At least three digits are shown.
pub struct Rate(pub f64);

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = match self.0 {
            ..9.995 => 2,
            ..99.95 => 1,
            _ => 0,
        };
        f.pad(&format!("{:.digits$}", self.0))
    }
}

/// Returns the number of iterations on which a figure is based (`some`), in brackets; empty if the figure is based on
/// all iterations (`all`).
pub(crate) fn of_some(some: u64, all: u64) -> String {
    match some < all {
        true => format!(" ({some})"),
        false => String::new(),
    }
}

/// A count with its noun, such as `1 step` or `2 steps`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Count(pub u64, pub &'static str);

impl Count {
    /// Returns the count with its noun and a verb in the present tense: `1 step is` or `2 steps are`.
    pub(crate) fn are(self) -> String {
        format!("{self} {}", if self.0 == 1 { "is" } else { "are" })
    }

    /// Returns the count with its noun and a verb in the past tense: `1 step was` or `2 steps were`.
    pub(crate) fn were(self) -> String {
        format!("{self} {}", if self.0 == 1 { "was" } else { "were" })
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(count, noun) = self;
        let ending = match *count {
            1 => "",
            _ if noun.ends_with('s') => "es",
            _ => "s",
        };
        write!(f, "{count} {noun}{ending}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_has_its_plural() {
        let shown = [0, 1, 2].map(|count| Count(count, "more process").to_string());
        assert_eq!(
            shown,
            ["0 more processes", "1 more process", "2 more processes"]
        );
        let [one, two] = [1, 2].map(|count| Count(count, "event"));
        assert_eq!(
            [one.are(), two.are(), one.were(), two.were()],
            ["1 event is", "2 events are", "1 event was", "2 events were"]
        );
    }

    #[test]
    fn small_shares_are_not_shown_as_nothing() {
        let shown = [0.0, 0.0001, 0.0005, 0.931, 1.0].map(|share| Share(share).to_string());
        assert_eq!(shown, ["0.0 %", "< 0.1 %", "0.1 %", "93.1 %", "100 %"]);
    }

    #[test]
    fn bytes_have_three_or_four_digits() {
        for (bytes, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "0.98 KiB"),
            (1 << 20, "1.00 MiB"),
            (150 << 30, "150 GiB"),
            (u64::MAX, "16777216 TiB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }

    #[test]
    fn times_have_three_or_four_digits() {
        for (ns, text) in [
            (0, "0"),
            (999, "999 ns"),
            (1000, "1.00 µs"),
            (12_345, "12.3 µs"),
            (999_499, "999 µs"),
            (999_500, "1.00 ms"),
            (123_456_789, "123 ms"),
            (1_234_567_890, "1.23 s"),
            (4_000_000_000_000, "4000 s"),
        ] {
            assert_eq!(Time(ns).to_string(), text);
        }
        assert_eq!(format!("{:>8}", Time(999)), "  999 ns");
    }
}
