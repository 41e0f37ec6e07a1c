//! Parses times such as `5ms`, and decimal numbers.

use std::time::Duration;

/// Units of time, with their length in nanoseconds.
const UNITS: [(&str, u64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("min", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Parses a time: a decimal number followed by a unit. Returns `None` if the text is not a time.
#[must_use]
pub fn parse(text: &str) -> Option<Duration> {
    let at = text.find(|c: char| !(c.is_ascii_digit() || c == '.'))?;
    let (number, unit) = text.split_at(at);
    let (_, ns) = UNITS.iter().find(|(name, _)| *name == unit)?;
    let whole = u128::from(thousandths(number)?) * u128::from(*ns) / 1000;
    Some(Duration::from_nanos(u64::try_from(whole).ok()?))
}

/// Parses a decimal number with at most three decimals. Returns the number in thousandths, or `None` if the text is not
/// such a number.
#[must_use]
pub fn thousandths(text: &str) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let is_number = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit());
    if part.is_empty() || part.len() > 3 || !is_number(whole) || !is_number(part) {
        return None;
    }
    let part = format!("{part:0<3}").parse::<u64>().ok()?;
    whole
        .parse::<u64>()
        .ok()?
        .checked_mul(1000)?
        .checked_add(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_a_number_and_a_unit() {
        let ns = |text| parse(text).map(|time| time.as_nanos());
        assert_eq!(ns("5ms"), Some(5_000_000));
        assert_eq!(ns("1.5s"), Some(1_500_000_000));
        assert_eq!(ns("0.25us"), Some(250));
        assert_eq!(ns("1h"), Some(3_600_000_000_000));
        assert_eq!((ns("2m"), ns("2min")), (Some(120_000_000_000), ns("120s")));
        for bad in [
            "",
            "5",
            "ms",
            "5 ms",
            "-5ms",
            "5.ms",
            "5.1234ms",
            "1e3ms",
            "5d",
            "99999999999999999999s",
            "9999999999h",
            ".5s",
        ] {
            assert_eq!(ns(bad), None, "{bad}");
        }
    }
}
