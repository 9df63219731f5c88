//! What the node processes cost, from `/proc`.

use std::fs;

use serde::Serialize;

/// Parts of a second in which `/proc/PID/stat` counts; fixed in Linux's ABI.
const TICKS_PER_SECOND: f64 = 100.0;

/// Counters of a process since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Counters {
    cpu_seconds: f64,
    write_bytes: u64,
    rss_peak_bytes: u64,
}

/// What a set of processes used between two points in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Usage {
    /// CPU of all nodes together.
    pub(crate) cpu_seconds: f64,
    /// Written to disk by all nodes together.
    pub(crate) write_bytes: u64,
    /// Largest resident set that any one node ever had.
    pub(crate) rss_peak_bytes: u64,
}

/// Measures processes from its creation on.
#[derive(Debug)]
pub(crate) struct Meter {
    before: Vec<(u32, Counters)>,
}

impl Meter {
    pub(crate) fn start(processes: &[u32]) -> Self {
        Self {
            before: processes
                .iter()
                .filter_map(|&pid| Some((pid, read(pid)?)))
                .collect(),
        }
    }

    /// None when there is no process to measure.
    pub(crate) fn usage(&self) -> Option<Usage> {
        let mut usage = Usage::default();
        for (pid, before) in &self.before {
            let now = read(*pid)?;
            usage.cpu_seconds += now.cpu_seconds - before.cpu_seconds;
            usage.write_bytes += now.write_bytes.saturating_sub(before.write_bytes);
            usage.rss_peak_bytes = usage.rss_peak_bytes.max(now.rss_peak_bytes);
        }
        (!self.before.is_empty()).then_some(usage)
    }
}

fn read(pid: u32) -> Option<Counters> {
    let file = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).ok();
    parse(&file("stat")?, &file("io")?, &file("status")?)
}

fn parse(stat: &str, io: &str, status: &str) -> Option<Counters> {
    // The name of the command may hold spaces: fields are counted after its ')'.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<f64>().ok();
    let cpu_seconds = (ticks()? + ticks()?) / TICKS_PER_SECOND;
    let value = |text: &str, key: &str| {
        let rest = text.lines().find_map(|line| line.strip_prefix(key))?;
        rest.split_whitespace().next()?.parse::<u64>().ok()
    };
    Some(Counters {
        cpu_seconds,
        write_bytes: value(io, "write_bytes:")?,
        rss_peak_bytes: value(status, "VmHWM:")? * 1024,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_files_are_understood() {
        let stat = "42 (quorate (x) y) S 1 42 42 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 9 0 100 1000 200";
        let io = "rchar: 1\nwchar: 2\nwrite_bytes: 4096\ncancelled_write_bytes: 0\n";
        let status = "Name:\tquorate\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n";
        let expected = Counters {
            cpu_seconds: 3.0,
            write_bytes: 4096,
            rss_peak_bytes: 2 << 20,
        };
        assert_eq!(parse(stat, io, status), Some(expected));
    }

    #[test]
    fn a_process_that_is_gone_has_no_usage() {
        assert_eq!(Meter::start(&[]).usage(), None);
        let this = std::process::id();
        assert!(Meter::start(&[this]).usage().is_some());
        let meter = Meter {
            before: vec![(this, Counters::default()), (u32::MAX, Counters::default())],
        };
        assert_eq!(meter.usage(), None);
    }
}
