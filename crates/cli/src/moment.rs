//! Moments and ages, as people write and read them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The end of the year 9999, beyond which a moment has no RFC 3339 form.
const RFC3339_END_MS: u64 = 253_402_300_800_000;

/// How far ahead the broker delivers: ten years.
const HORIZON_MS: u64 = 3_653 * 24 * 60 * 60 * 1_000;

/// Now, by the clock of this machine: milliseconds since the Unix epoch.
pub(crate) fn now_ms() -> u64 {
    since_epoch(SystemTime::now()).unwrap_or(0)
}

/// A moment as milliseconds since the Unix epoch: RFC 3339, such as
/// `2026-12-24T18:00:00Z` or `2026-12-24T19:00:00+01:00`, or that number.
pub(crate) fn moment(text: &str) -> Result<u64, String> {
    let malformed = || {
        format!(
            "{text:?} is not a moment; write it like 2026-12-24T18:00:00Z, 2026-12-24T19:00:00+01:00, \
             or as milliseconds since 1970"
        )
    };
    if let Ok(ms) = text.parse() {
        return Ok(ms);
    }
    let (local, ahead_ms) = zone(text).ok_or_else(malformed)?;
    let local = humantime::parse_rfc3339_weak(local).map_err(|_| malformed())?;
    let local_ms = since_epoch(local).ok_or_else(malformed)?;
    local_ms.checked_add_signed(-ahead_ms).ok_or_else(malformed)
}

/// A [moment] at which something is delivered: at most ten years ahead, which is
/// the broker's bound. Cluster time has the last word, this clock may be wrong.
pub(crate) fn delivery_moment(text: &str) -> Result<u64, String> {
    within_horizon(moment(text)?, now_ms())
}

fn within_horizon(at_ms: u64, now_ms: u64) -> Result<u64, String> {
    let latest_ms = now_ms.saturating_add(HORIZON_MS);
    if at_ms > latest_ms {
        let latest = moment_text(latest_ms);
        return Err(format!("more than 10 years ahead; the latest is {latest}"));
    }
    Ok(at_ms)
}

/// The local time of an RFC 3339 text, and by how much it is ahead of UTC.
fn zone(text: &str) -> Option<(&str, i64)> {
    if let Some(local) = text.strip_suffix(['Z', 'z']) {
        return Some((local, 0));
    }
    let (local, offset) = text.split_at_checked(text.len().checked_sub("+00:00".len())?)?;
    let sign = match offset.as_bytes().first()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let (hours, minutes) = offset[1..].split_once(':')?;
    let (hours, minutes) = (two_digits(hours, 24)?, two_digits(minutes, 60)?);
    Some((local, sign * (hours * 60 + minutes) * 60_000))
}

fn two_digits(text: &str, end: i64) -> Option<i64> {
    let is_number = text.len() == 2 && text.bytes().all(|digit| digit.is_ascii_digit());
    is_number
        .then(|| text.parse().ok())?
        .filter(|number| *number < end)
}

/// A moment in UTC, to the millisecond.
pub(crate) fn moment_text(ms: u64) -> String {
    if ms >= RFC3339_END_MS {
        return format!("{ms} ms since 1970");
    }
    humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(ms)).to_string()
}

/// How long ago a moment is, such as `2m 3s ago`. One that is not over yet, by
/// a clock that is behind, is now.
pub(crate) fn ago(ms: u64, now_ms: u64) -> String {
    format!("{} ago", rough(Duration::from_millis(now_ms.saturating_sub(ms))))
}

/// When a moment comes, such as `in 2m 3s`, or `now` if it is over.
pub(crate) fn ahead(ms: u64, now_ms: u64) -> String {
    match ms.saturating_sub(now_ms) {
        0 => "now".to_owned(),
        left => format!("in {}", rough(Duration::from_millis(left))),
    }
}

/// A duration by its two largest units.
pub(crate) fn rough(span: Duration) -> String {
    let whole = Duration::from_millis(u64::try_from(span.as_millis()).unwrap_or(u64::MAX));
    let text = humantime::format_duration(whole).to_string();
    text.split(' ').take(2).collect::<Vec<_>>().join(" ")
}

fn since_epoch(time: SystemTime) -> Option<u64> {
    let since = time.duration_since(UNIX_EPOCH).ok()?;
    u64::try_from(since.as_millis()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_has_a_zone_or_is_a_number() {
        assert_eq!(moment("0"), Ok(0));
        assert_eq!(moment("1970-01-01T00:00:01Z"), Ok(1_000));
        assert_eq!(moment("1970-01-01T01:00:01.5+01:00"), Ok(1_500));
        assert_eq!(moment("1970-01-01T00:00:00-00:30"), Ok(1_800_000));
        for bad in [
            "",
            "soon",
            "-1",
            "2026-12-24",
            "2026-12-24T18:00:00",
            "2026-13-24T18:00:00Z",
            "1970-01-01T00:00:00+01:00",
            "2026-12-24T18:00:00+1:00",
            "2026-12-24T18:00:00+24:00",
            "2026-12-24T18:00:00+01:60",
            "2026-12-24T18:00:00+ab:cd",
            "héé00:00",
            "ß+01:00",
        ] {
            assert!(moment(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_delivery_is_within_ten_years() {
        let now_ms = moment("2026-12-24T18:00:00Z").unwrap();
        let latest_ms = moment("2036-12-24T18:00:00Z").unwrap();
        assert_eq!(within_horizon(latest_ms, now_ms), Ok(latest_ms));
        let told = within_horizon(latest_ms + 1, now_ms).unwrap_err();
        assert!(told.ends_with("the latest is 2036-12-24T18:00:00.000Z"), "{told}");
        assert_eq!(within_horizon(0, now_ms), Ok(0));
    }

    #[test]
    fn what_is_shown_can_be_typed() {
        for ms in [0, 1_796_083_200_123, RFC3339_END_MS - 1] {
            assert_eq!(moment(&moment_text(ms)), Ok(ms));
        }
        assert_eq!(moment_text(1_000), "1970-01-01T00:00:01.000Z");
        assert_eq!(moment_text(u64::MAX), "18446744073709551615 ms since 1970");
    }

    #[test]
    fn ages_have_two_units() {
        assert_eq!(ago(0, 3_725_250), "1h 2m ago");
        assert_eq!(ago(10, 0), "0s ago");
        assert_eq!(ahead(61_500, 0), "in 1m 1s");
        assert_eq!(ahead(5, 5), "now");
        assert_eq!(rough(Duration::from_micros(1_500)), "1ms");
    }
}
