//! The settings of a schedule, which are written as on the command line, as settings of simulated nodes.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

/// Settings of every node of a run: the defaults, and what the schedule has different.
///
/// # Errors
///
/// When one is unknown here, or its value cannot be read.
pub(crate) fn node(settings: &BTreeMap<String, String>) -> Result<quorate_node::Config> {
    let mut node = quorate_node::Config::default();
    for (name, value) in settings {
        set(&mut node, name, value).with_context(|| format!("the setting {name} = {value}"))?;
    }
    Ok(node)
}

fn set(node: &mut quorate_node::Config, name: &str, value: &str) -> Result<()> {
    match name {
        "heartbeat" => node.heartbeat = duration(value)?,
        "election-timeout-min" => node.election_timeout_min = duration(value)?,
        "election-timeout-max" => node.election_timeout_max = duration(value)?,
        "snapshot-log-bytes" => node.snapshot_log_bytes = bytes(value)?,
        "log-keep-bytes" => node.log_keep_bytes = bytes(value)?,
        "node-down-after" => node.node_down_after = duration(value)?,
        // A simulated disk keeps no journal.
        "journal-bytes" | "journal-age" => {}
        _ => bail!("the simulator does not know it"),
    }
    Ok(())
}

fn duration(text: &str) -> Result<Duration> {
    Ok(humantime::parse_duration(text)?)
}

/// A number with `KiB`, `MiB`, `GiB`, or nothing.
fn bytes(text: &str) -> Result<u64> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match text[digits.len()..].trim() {
        "" | "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        unit => bail!("there is no unit {unit} here"),
    };
    let number: u64 = digits.parse()?;
    number.checked_shl(shift).context("too large")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_as_on_the_command_line() {
        let given = [
            ("heartbeat", "50ms"),
            ("snapshot-log-bytes", "64KiB"),
            ("log-keep-bytes", "7"),
        ];
        let given = given.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let node = node(&BTreeMap::from(given)).expect("all are known");
        assert_eq!(node.heartbeat, Duration::from_millis(50));
        assert_eq!((node.snapshot_log_bytes, node.log_keep_bytes), (65_536, 7));
    }

    #[test]
    fn what_is_unknown_is_refused() {
        for (name, value) in [
            ("heartbit", "50ms"),
            ("heartbeat", "soon"),
            ("log-keep-bytes", "7 stone"),
        ] {
            let given = BTreeMap::from([(name.to_owned(), value.to_owned())]);
            assert!(super::node(&given).is_err(), "{name} = {value} was taken");
        }
    }
}
