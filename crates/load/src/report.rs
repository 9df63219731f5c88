//! What a bench found out, as a table and as JSON.

use std::fmt;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::ledger::Verdict;
use crate::plot::{self, Part};
use crate::procstat::Usage;
use crate::progress::{grouped, short};
use crate::series::Second;
use crate::workload::{Counts, Shape};

#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) shape: Shape,
    pub(crate) phases: Vec<Phase>,
    /// Of latencies in the phases that were measured.
    pub(crate) confirm_latency: Latency,
    pub(crate) end_to_end_latency: Latency,
    pub(crate) checked: Verdict,
    /// Consumed messages that other runs had published.
    pub(crate) foreign: u64,
    /// The first thing that went wrong on the way.
    pub(crate) problem: Option<String>,
}

/// A part of a run.
#[derive(Debug, Serialize)]
pub(crate) struct Phase {
    pub(crate) name: &'static str,
    pub(crate) seconds: f64,
    pub(crate) confirmed: u64,
    pub(crate) acked: u64,
    pub(crate) longest_confirm_gap_ms: f64,
    pub(crate) usage: Option<Cost>,
    pub(crate) per_second: Vec<Second>,
}

/// What the nodes spent on it.
#[derive(Debug, Serialize)]
pub(crate) struct Cost {
    #[serde(flatten)]
    pub(crate) usage: Usage,
    /// Of messages published or of messages consumed, whichever were more.
    pub(crate) cpu_seconds_per_million: f64,
    /// By all nodes, per byte of body published.
    pub(crate) written_per_payload_byte: Option<f64>,
}

/// In milliseconds.
#[derive(Debug, Serialize)]
pub(crate) struct Latency {
    count: u64,
    p50_ms: f64,
    p90_ms: f64,
    p99_ms: f64,
    p999_ms: f64,
    max_ms: f64,
}

impl Report {
    /// The phases, second by second, as a picture.
    pub(crate) fn plot(&self) -> String {
        let told = self.phases.iter().map(|phase| {
            let per_second = |count: u64| grouped((count as f64 / phase.seconds) as u64);
            format!(
                "{}, {:.1} s: confirmed {}/s, acked {}/s",
                phase.name,
                phase.seconds,
                per_second(phase.confirmed),
                per_second(phase.acked),
            )
        });
        let parts: Vec<_> = self
            .phases
            .iter()
            .map(|phase| Part {
                name: phase.name,
                seconds: &phase.per_second,
            })
            .collect();
        let told: Vec<_> = told.collect();
        plot::svg(
            &format!("quorate bench: {}", self.shape),
            &told.join("; "),
            &parts,
        )
    }
}

impl Phase {
    #[allow(clippy::too_many_arguments, reason = "each is a field, or makes one")]
    pub(crate) fn new(
        name: &'static str,
        seconds: f64,
        before: Counts,
        after: Counts,
        longest_gap: Duration,
        usage: Option<Usage>,
        body_bytes: usize,
        per_second: Vec<Second>,
    ) -> Self {
        let confirmed = after.confirmed - before.confirmed;
        let acked = after.acked - before.acked;
        let cost = |usage: Usage| {
            let messages = confirmed.max(acked) as f64;
            let payload = confirmed as f64 * body_bytes as f64;
            Cost {
                usage,
                cpu_seconds_per_million: if messages > 0.0 {
                    usage.cpu_seconds * 1e6 / messages
                } else {
                    0.0
                },
                written_per_payload_byte: (payload > 0.0).then(|| usage.write_bytes as f64 / payload),
            }
        };
        let longest_confirm_gap_ms = longest_gap.as_secs_f64() * 1e3;
        Self {
            name,
            seconds,
            confirmed,
            acked,
            longest_confirm_gap_ms,
            usage: usage.map(cost),
            per_second,
        }
    }
}

impl Latency {
    pub(crate) fn of(latencies: &Histogram<u64>) -> Self {
        let at = |quantile| latencies.value_at_quantile(quantile) as f64 / 1e3;
        Self {
            count: latencies.len(),
            p50_ms: at(0.5),
            p90_ms: at(0.9),
            p99_ms: at(0.99),
            p999_ms: at(0.999),
            max_ms: latencies.max() as f64 / 1e3,
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shape {
            publishers,
            consumers,
            window,
            prefetch,
            body_bytes,
            rate,
            ..
        } = self;
        let rate = rate.map_or_else(String::new, |rate| format!(", {rate} messages/s offered"));
        write!(
            f,
            "{publishers} publishers × {consumers} consumers, window {window}, prefetch {prefetch}, \
             bodies of {body_bytes} bytes{rate}"
        )
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n", self.shape)?;
        for phase in &self.phases {
            phase.fmt(f)?;
        }
        if self.confirm_latency.count + self.end_to_end_latency.count > 0 {
            writeln!(
                f,
                "{:<28}{:>10}{:>10}{:>10}{:>10}{:>10}",
                "latency, ms", "p50", "p90", "p99", "p99.9", "max"
            )?;
        }
        self.confirm_latency.row(f, "  until confirmed")?;
        self.end_to_end_latency.row(f, "  until delivered")?;
        let checked = &self.checked;
        writeln!(f, "\nchecked")?;
        for (name, count) in [
            ("confirmed", checked.confirmed),
            ("publish refused", checked.refused),
            ("publish outcome unknown", checked.unknown),
            ("delivered", checked.delivered),
            ("redelivered", checked.redelivered),
            ("acked", checked.acked),
            ("ack outcome unknown", checked.acked_perhaps),
            ("of other runs", self.foreign),
            ("lost", checked.lost),
            ("duplicated", checked.duplicated),
            ("refused, yet delivered", checked.refused_and_delivered),
            ("acked twice", checked.acked_twice),
        ] {
            let always = ["confirmed", "delivered", "acked", "redelivered", "lost"].contains(&name);
            if (always && checked.sent > 0) || count > 0 {
                row(f, name, grouped(count))?;
            }
        }
        if let Some(problem) = &self.problem {
            writeln!(f, "\nfirst problem: {problem}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let per_second = |count: u64| format!("{} /s", grouped((count as f64 / self.seconds) as u64));
        writeln!(f, "{}, {:.1} s", self.name, self.seconds)?;
        if self.confirmed > 0 {
            row(f, "confirmed", per_second(self.confirmed))?;
            row(
                f,
                "longest gap in confirms",
                short(Duration::from_secs_f64(self.longest_confirm_gap_ms / 1e3)),
            )?;
        }
        if self.acked > 0 {
            row(f, "acked", per_second(self.acked))?;
        }
        if let Some(cost) = &self.usage {
            row(
                f,
                "CPU of all nodes",
                format!("{:.1} s per million messages", cost.cpu_seconds_per_million),
            )?;
            row(
                f,
                "peak memory of a node",
                format!("{} MiB", cost.usage.rss_peak_bytes >> 20),
            )?;
            if let Some(written) = cost.written_per_payload_byte {
                row(
                    f,
                    "written by all nodes",
                    format!("{written:.1} bytes per byte of body"),
                )?;
            }
        }
        writeln!(f)
    }
}

impl Latency {
    fn row(&self, f: &mut fmt::Formatter<'_>, name: &str) -> fmt::Result {
        if self.count == 0 {
            return Ok(());
        }
        write!(f, "{name:<28}")?;
        for value in [self.p50_ms, self.p90_ms, self.p99_ms, self.p999_ms, self.max_ms] {
            write!(f, "{value:>10.2}")?;
        }
        writeln!(f)
    }
}

fn row(f: &mut fmt::Formatter<'_>, name: &str, value: impl fmt::Display) -> fmt::Result {
    writeln!(f, "  {name:<26}{value}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_per_message_and_per_byte() {
        let after = Counts {
            confirmed: 1_000,
            acked: 2_000,
            ..Counts::default()
        };
        let usage = Usage {
            cpu_seconds: 0.5,
            write_bytes: 500_000,
            rss_peak_bytes: 0,
        };
        let phase = Phase::new(
            "steady",
            2.0,
            Counts::default(),
            after,
            Duration::ZERO,
            Some(usage),
            100,
            Vec::new(),
        );
        let cost = phase.usage.expect("it was measured");
        assert!((cost.cpu_seconds_per_million - 250.0).abs() < 1e-9);
        assert_eq!(cost.written_per_payload_byte, Some(5.0));
    }
}
