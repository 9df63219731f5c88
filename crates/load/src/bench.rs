//! `quorate bench`: how fast a cluster is, and whether it keeps its promises
//! while it is that fast.

use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use quorate_client::Client;

use crate::Size;
use crate::procstat::Meter;
use crate::progress::{Progress, grouped, short};
use crate::report::{Latency, Phase, Report};
use crate::workload::{Counts, Shape, WINDOW_MAX, Workload};

/// Between two looks at the counts.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Bytes on the disk of a node for each byte of a message that it is filled with. Measured, at the worst moment of a
/// fill: 2.6 with 300,000 messages of 1 KiB, 2.1 with a million. The log has a message, the contents have it again
/// once its log entry is purged, and files do not shrink.
pub const ROOM_FACTOR: u64 = 3;
/// What a message has besides its body, in bytes. With 500,000 bodies of 64 bytes each took 203 on a node's disk.
const ENVELOPE_BYTES: u64 = 64;

/// Options of `quorate bench`.
#[derive(Clone, Debug, Args)]
pub struct BenchArgs {
    /// Nodes to put the load on; without any, three are started for the bench
    #[arg(long, value_name = "HOST:PORT,…", value_delimiter = ',')]
    pub endpoint: Vec<String>,
    /// Publishers, each with a stream of its own
    #[arg(long, default_value_t = 4)]
    publishers: usize,
    /// Consumers, each with a stream of its own
    #[arg(long, default_value_t = 4)]
    consumers: usize,
    /// Publishes of one publisher that wait for their confirm
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=WINDOW_MAX as i64))]
    window: u16,
    /// Messages that one consumer holds unacked
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..))]
    prefetch: u16,
    /// Bytes of a body
    #[arg(long, default_value = "1KiB")]
    size: Size,
    /// Messages per second of all publishers together, whether the cluster keeps
    /// up or not; latencies then count from when a message was due
    #[arg(long, value_name = "N")]
    rate: Option<f64>,
    /// Measure for this long
    #[arg(long, default_value = "10s", value_parser = humantime::parse_duration, conflicts_with = "count")]
    duration: Duration,
    /// Publish this many messages instead, without warm-up
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// Load before the measurement
    #[arg(long, default_value = "2s", value_parser = humantime::parse_duration)]
    warm_up: Duration,
    /// Publish this many messages without consumers, and leave them unless
    /// --drain is given as well
    #[arg(long, value_name = "N", conflicts_with_all = ["count", "duration"])]
    fill: Option<u64>,
    /// Consume what is in the queue, without publishers
    #[arg(long, conflicts_with_all = ["count", "duration", "rate"])]
    drain: bool,
    /// Queue to use; it is created if it is not there [default: bench for --fill
    /// and --drain, else one that is deleted afterwards]
    #[arg(long)]
    queue: Option<String>,
    /// How long consumers may take to empty the queue at the end
    #[arg(long, default_value = "10m", value_parser = humantime::parse_duration)]
    drain_timeout: Duration,
    /// Draw latencies and throughput of every second into this file, as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Fill also where the disk seems to have too little room for it
    #[arg(long, requires = "fill")]
    force: bool,
    /// Print the report as JSON, and no progress
    #[arg(long)]
    json: bool,
}

/// Puts the load on the cluster at `endpoints`, and prints the report. Says
/// whether the cluster kept its promises.
///
/// `processes` are those of its nodes, as far as they run on this machine: their
/// costs are reported.
///
/// # Errors
///
/// When the cluster cannot be reached, or the queue is not emptied in time.
pub async fn run(args: &BenchArgs, endpoints: Vec<String>, processes: &[u32]) -> Result<bool> {
    // What cannot be written is better known before than after.
    let plot = args.plot.as_ref().map(|path| {
        let file = File::create(path).with_context(|| format!("create {}", path.display()))?;
        anyhow::Ok((path, file))
    });
    let plot = plot.transpose()?;
    let client = Client::connect(endpoints).await.context("find the leader")?;
    let keeps_queue = args.queue.is_some() || args.fill.is_some() || args.drain;
    let queue = args.queue.clone().unwrap_or_else(|| {
        if keeps_queue {
            "bench".to_owned()
        } else {
            format!("bench-{:08x}", rand::random::<u32>())
        }
    });
    // No attempts limit: a message that comes a sixth time is not lost.
    client
        .declare_queue(queue.as_str())
        .max_deliveries(0)
        .send()
        .await
        .context("declare the queue")?;
    let ready = async || {
        anyhow::Ok(
            client
                .describe_queue(queue.as_str())
                .await
                .context("look at the queue")?
                .counts
                .ready,
        )
    };
    let ready_before = ready().await?;

    let mut bench = Bench {
        workload: Workload::new(client.clone(), queue.as_str(), args.shape()),
        progress: Progress::new(args.json),
        processes,
        body_bytes: usize::try_from(args.size.0)?,
        phases: Vec::new(),
    };
    match args.fill {
        None if args.drain => bench.drain(args.drain_timeout).await?,
        None => bench.steady(args).await?,
        Some(_) => {
            bench.fill().await;
            if args.drain {
                bench.drain(args.drain_timeout).await?;
            }
        }
    }
    let Bench {
        workload,
        progress,
        phases,
        ..
    } = bench;
    drop(progress);
    let counts = workload.counts();
    let problem = workload.problem();
    let outcome = workload.finish().await;
    let stays = args.fill.is_some() && !args.drain;
    let mut checked = outcome.verdict;
    if stays {
        // Nothing was consumed: what is confirmed has to be in the queue.
        checked.lost = (checked.confirmed + ready_before).saturating_sub(ready().await?);
    } else if !keeps_queue {
        client
            .delete_queue(queue.as_str())
            .send()
            .await
            .context("delete the queue")?;
    }
    let report = Report {
        shape: args.shape(),
        phases,
        confirm_latency: Latency::of(&outcome.confirm_latency),
        end_to_end_latency: Latency::of(&outcome.end_to_end),
        foreign: counts.foreign,
        problem,
        checked,
    };
    if let Some((path, mut file)) = plot {
        file.write_all(report.plot().as_bytes())
            .with_context(|| format!("write {}", path.display()))?;
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{report}");
    }
    Ok(report.checked.is_clean())
}

impl BenchArgs {
    /// Bytes of disk that a fill may need on nodes that share one, about; None if nothing is filled, or the user
    /// says that it does not matter.
    #[must_use]
    pub fn room_needed(&self, nodes: u64) -> Option<u64> {
        let messages = self.fill.filter(|_| !self.force)?;
        Some(
            nodes
                .saturating_mul(messages)
                .saturating_mul(self.size.0.saturating_add(ENVELOPE_BYTES))
                .saturating_mul(ROOM_FACTOR),
        )
    }

    fn shape(&self) -> Shape {
        Shape {
            publishers: self.publishers,
            consumers: self.consumers,
            window: self.window.into(),
            prefetch: self.prefetch.into(),
            body_bytes: usize::try_from(self.size.0).unwrap_or(usize::MAX),
            rate: self.rate,
            count: self.fill.or(self.count),
        }
    }
}

struct Bench<'a> {
    workload: Workload,
    progress: Progress,
    processes: &'a [u32],
    body_bytes: usize,
    phases: Vec<Phase>,
}

/// Where a phase began.
struct Mark {
    at: Instant,
    counts: Counts,
    meter: Meter,
}

impl Bench<'_> {
    /// Publishers and consumers at once.
    async fn steady(&mut self, args: &BenchArgs) -> Result<()> {
        ensure!(
            args.publishers > 0 && args.consumers > 0,
            "a steady load needs publishers and consumers"
        );
        self.workload.consume();
        self.workload.publish();
        let phase = if args.count.is_some() {
            let mark = self.begin();
            while !self.workload.has_published() {
                self.look("publishing", &mark).await;
            }
            self.end("steady", &mark)
        } else {
            let warm_up = self.mark();
            while warm_up.at.elapsed() < args.warm_up {
                self.look("warming up", &warm_up).await;
            }
            let mark = self.begin();
            while mark.at.elapsed() < args.duration {
                self.look("measuring", &mark).await;
            }
            self.end("steady", &mark)
        };
        self.phases.push(phase);
        self.progress.show("waiting for the last messages");
        self.workload.stop_publishing().await;
        self.workload.drain(args.drain_timeout).await
    }

    async fn fill(&mut self) {
        let mark = self.begin();
        self.workload.publish();
        while !self.workload.has_published() {
            self.look("filling", &mark).await;
        }
        let phase = self.end("fill", &mark);
        self.phases.push(phase);
    }

    async fn drain(&mut self, limit: Duration) -> Result<()> {
        let mark = self.begin();
        self.workload.consume();
        let drained = {
            let drain = self.workload.drain(limit);
            tokio::pin!(drain);
            loop {
                tokio::select! {
                    drained = &mut drain => break drained,
                    () = tokio::time::sleep(LOOK_EVERY) => {
                        let state = state("draining", &mark, self.workload.counts(), Duration::ZERO);
                        self.progress.show(&state);
                    }
                }
            }
        };
        let phase = self.end("drain", &mark);
        self.phases.push(phase);
        drained
    }

    fn begin(&self) -> Mark {
        self.workload.begin_measuring();
        self.mark()
    }

    fn mark(&self) -> Mark {
        Mark {
            at: Instant::now(),
            counts: self.workload.counts(),
            meter: Meter::start(self.processes),
        }
    }

    async fn look(&mut self, what: &str, mark: &Mark) {
        tokio::time::sleep(LOOK_EVERY).await;
        self.progress.show(&state(
            what,
            mark,
            self.workload.counts(),
            self.workload.longest_gap(),
        ));
    }

    fn end(&self, name: &'static str, mark: &Mark) -> Phase {
        let seconds = mark.at.elapsed().as_secs_f64();
        let counts = self.workload.counts();
        let per_second = self.workload.end_measuring();
        let gap = self.workload.longest_gap();
        Phase::new(
            name,
            seconds,
            mark.counts,
            counts,
            gap,
            mark.meter.usage(),
            self.body_bytes,
            per_second,
        )
    }
}

fn state(what: &str, mark: &Mark, counts: Counts, longest_gap: Duration) -> String {
    let seconds = mark.at.elapsed().as_secs_f64();
    let rate = |count: u64, before: u64| grouped(((count - before) as f64 / seconds) as u64);
    format!(
        "{what}, {seconds:.0} s: confirmed {}/s, acked {}/s, longest gap {}",
        rate(counts.confirmed, mark.counts.confirmed),
        rate(counts.acked, mark.counts.acked),
        short(longest_gap),
    )
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        bench: BenchArgs,
    }

    fn parse(arguments: &[&str]) -> Result<BenchArgs, clap::Error> {
        Ok(Program::try_parse_from(["bench"].iter().chain(arguments))?.bench)
    }

    #[test]
    fn the_default_is_the_common_steady_load() {
        let shape = parse(&[]).expect("there is nothing to refuse").shape();
        assert_eq!(
            (shape.publishers, shape.consumers, shape.window, shape.prefetch),
            (4, 4, 64, 64)
        );
        assert_eq!((shape.body_bytes, shape.count), (1024, None));
    }

    #[test]
    fn a_fill_is_a_count_and_excludes_one() {
        let filled = parse(&["--fill", "1000", "--drain"]).expect("they go together");
        assert_eq!(filled.shape().count, Some(1000));
        assert!(parse(&["--fill", "1000", "--count", "5"]).is_err());
        assert!(parse(&["--drain", "--duration", "1s"]).is_err());
        assert!(parse(&["--window", "1001"]).is_err());
    }

    #[test]
    fn a_fill_needs_room_for_every_node_unless_it_is_forced() {
        let needed = |arguments: &[&str]| parse(arguments).expect("they go together").room_needed(3);
        let fill = ["--fill", "1000000", "--size", "2KiB"];
        assert_eq!(needed(&fill), Some(3 * 1_000_000 * (2_048 + 64) * 3));
        assert_eq!(needed(&[&fill[..], &["--force"]].concat()), None);
        assert_eq!(needed(&["--count", "1000000"]), None);
        assert_eq!(needed(&["--fill", "18446744073709551615"]), Some(u64::MAX));
        assert!(parse(&["--force"]).is_err());
    }
}
