//! Durations, sizes, rates and pairs as people write them.

use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use quorate_client::MessageState;

/// `500ms`, `30s`, `5m`, `12h`, `1d`, or 0.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|error| format!("{error}; write it like 500ms, 30s, 5m or 12h"))
}

/// Whole milliseconds at least, so that nothing shorter turns into zero on the
/// way.
pub(crate) fn positive_duration(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        span if span < Duration::from_millis(1) => Err("it must be at least 1ms".to_owned()),
        span => Ok(span),
    }
}

/// Text of a duration: `5m`, `1s 500ms`.
pub(crate) fn span(span: Duration) -> String {
    humantime::format_duration(span).to_string()
}

/// `4096`, `64KiB`, `1.5MiB`, `2GB`.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 13] = [
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("TiB", 1 << 40),
        ("KB", 1_000),
        ("kB", 1_000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("TB", 1_000_000_000_000),
        ("K", 1 << 10),
        ("M", 1 << 20),
        ("G", 1 << 30),
        ("B", 1),
    ];
    let malformed = || format!("{text:?} is not a size; write it like 4096, 64KiB, 1.5MiB or 2GB");
    let text = text.trim();
    let unit = UNITS
        .iter()
        .find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, *bytes)));
    let (number, bytes) = unit.unwrap_or((text, 1));
    let number = number.trim_end();
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if fraction.len() > 9 || !fraction.bytes().all(|digit| digit.is_ascii_digit()) {
        return Err(malformed());
    }
    let whole = whole
        .parse::<u64>()
        .ok()
        .and_then(|whole| whole.checked_mul(bytes))
        .ok_or_else(malformed)?;
    let fraction = fraction
        .bytes()
        .rev()
        .fold(0.0, |sum, digit| (sum + f64::from(digit - b'0')) / 10.0);
    whole
        .checked_add((fraction * bytes as f64).round() as u64)
        .ok_or_else(malformed)
}

/// Text of a size: the largest unit that keeps it above one.
pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// `name=value`; the value may contain `=`.
pub(crate) fn header(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write it like name=value".to_owned()),
    }
}

/// `queue=body`; the body may contain `=`, and may be empty.
pub(crate) fn queue_and_body(text: &str) -> Result<(String, String), String> {
    header(text).map_err(|_| "write it like queue=body".to_owned())
}

/// `group=weight`: the weight is from 1 to 1,000.
pub(crate) fn group_weight(text: &str) -> Result<(String, u32), String> {
    // The weight has no `=`, the name of a group may have.
    let (group, weight) = text
        .rsplit_once('=')
        .filter(|(group, _)| !group.is_empty())
        .ok_or("write it like group=5")?;
    match weight.parse() {
        Ok(weight @ 1..=1_000) => Ok((group.to_owned(), weight)),
        _ => Err(format!("{weight:?} is not a weight from 1 to 1,000")),
    }
}

/// `50/s`, or 50: a whole number per second, at least 1.
pub(crate) fn rate(text: &str) -> Result<u32, String> {
    let number = text.strip_suffix("/s").unwrap_or(text);
    match number.parse() {
        Ok(rate @ 1..) => Ok(rate),
        _ => Err(format!("{text:?} is not a rate; write it like 50/s")),
    }
}

/// One of the states of these names.
pub(crate) fn state(names: &'static [&'static str]) -> impl TypedValueParser<Value = MessageState> + use<> {
    PossibleValuesParser::new(names).try_map(|name| name.parse::<MessageState>())
}

/// `3 messages`, `1 message`.
pub(crate) fn messages(count: u64) -> String {
    if count == 1 {
        "1 message".to_owned()
    } else {
        format!("{count} messages")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(size("4096"), Ok(4096));
        assert_eq!(size("64KiB"), Ok(65_536));
        assert_eq!(size("1.5MiB"), Ok(1_572_864));
        assert_eq!(size("2 GB"), Ok(2_000_000_000));
        assert_eq!(size("1k".to_uppercase().as_str()), Ok(1_024));
        for bad in ["", "x", "-1", "1XB", "1.x", "99999999999999999999", "20000000TiB"] {
            assert!(size(bad).is_err(), "{bad}");
        }
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(u64::MAX), "16.0 EiB");
    }

    #[test]
    fn durations() {
        assert_eq!(duration("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(duration("1h 30m"), Ok(Duration::from_secs(5_400)));
        assert!(duration("30").is_err());
        assert!(positive_duration("0s").is_err());
        assert_eq!(span(Duration::from_millis(61_500)), "1m 1s 500ms");
    }

    #[test]
    fn headers() {
        assert_eq!(header("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
        assert_eq!(header("a="), Ok(("a".to_owned(), String::new())));
        assert!(header("a").is_err() && header("=b").is_err());
        assert_eq!(queue_and_body("q="), Ok(("q".to_owned(), String::new())));
        assert_eq!(queue_and_body("q"), Err("write it like queue=body".to_owned()));
    }

    #[test]
    fn weights() {
        assert_eq!(group_weight("tenant-a=5"), Ok(("tenant-a".to_owned(), 5)));
        assert_eq!(group_weight("a=b=1000"), Ok(("a=b".to_owned(), 1_000)));
        for bad in ["", "a", "=5", "a=", "a=0", "a=1001", "a=-1", "a=x"] {
            assert!(group_weight(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn rates() {
        assert_eq!(rate("50/s"), Ok(50));
        assert_eq!(rate("1"), Ok(1));
        for bad in [
            "",
            "0",
            "0/s",
            "/s",
            "50/m",
            "fast",
            "-1/s",
            "1.5/s",
            "5000000000/s",
        ] {
            assert!(rate(bad).is_err(), "{bad}");
        }
    }
}
