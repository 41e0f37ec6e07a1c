//! Parses times as traces write them: microseconds with a fraction.

/// Converts microseconds to nanoseconds. `json` is a JSON number, or a JSON string that contains a number. The digits
/// are parsed as integers, because a double is too imprecise for microseconds since 1970: today it can represent only
/// multiples of 0.25. Returns `None` if `json` is not a number, or if the result does not fit.
pub(crate) fn nanoseconds(json: &str) -> Option<i64> {
    let text = json.trim().trim_matches('"').trim();
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(whole) || !is_number(fraction) || whole.is_empty() {
        return with_exponent(text);
    }
    let mut ns = whole.parse::<i64>().ok()?.checked_mul(1000)?;
    let mut unit = 100;
    for digit in fraction.bytes().take(3) {
        ns = ns.checked_add(i64::from(digit - b'0') * unit)?;
        unit /= 10;
    }
    let rounds_up = fraction
        .as_bytes()
        .get(3)
        .is_some_and(|digit| *digit >= b'5');
    ns = ns.checked_add(i64::from(rounds_up))?;
    Some(if is_negative { -ns } else { ns })
}

/// Converts microseconds, written as a number with an exponent such as `1.5e3`, to nanoseconds. The
/// number is parsed as a double.
fn with_exponent(text: &str) -> Option<i64> {
    let is_number = text.bytes().all(|byte| b"+-.eE0123456789".contains(&byte));
    let ns = text.parse::<f64>().ok().filter(|_| is_number)? * 1000.0;
    // A larger number of nanoseconds might not fit into an `i64`.
    (ns.abs() < 9e18).then_some(ns.round() as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_beyond_those_of_a_double_count() {
        assert_eq!(
            nanoseconds("1712195495519689.047"),
            Some(1_712_195_495_519_689_047)
        );
        assert_eq!(
            nanoseconds("1712195495519689"),
            Some(1_712_195_495_519_689_000)
        );
        assert_eq!(nanoseconds("\"12.5\""), Some(12_500));
        assert_eq!(nanoseconds("0.0005"), Some(1));
        assert_eq!(nanoseconds("-3.25"), Some(-3250));
        assert_eq!(nanoseconds("1.5e3"), Some(1_500_000));
        for none in [
            "",
            "\"\"",
            "null",
            "nan",
            "inf",
            "1e300",
            "99999999999999999999",
            "--1",
            "1.2.3",
        ] {
            assert_eq!(nanoseconds(none), None, "{none}");
        }
    }
}
