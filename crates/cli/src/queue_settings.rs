//! Settings of a queue: as options, and as they are shown.

use std::time::Duration;

use clap::{Args, ValueEnum};
use quorate_client::{Overflow, QueueSettings};

use crate::body::escaped;
use crate::exchange::dedup_text;
use crate::exit::Failure;
use crate::values::{bytes, duration, group_weight, size, span};

/// The settings of `queue declare` and `queue update`.
#[derive(Debug, Args)]
#[command(next_help_heading = "Settings")]
pub(crate) struct SettingsArgs {
    /// Lease of a delivery: 100ms to 12h [new queue: 30s]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    lease: Option<Duration>,
    /// Failed leases before a message is dead-lettered: 1 to 1,000, 0 = unlimited [new queue: 5]
    #[arg(long, value_name = "N")]
    max_deliveries: Option<u32>,
    /// Queue that receives dead letters; '' = keep them in this queue's dead set [new queue: '']
    #[arg(long, value_name = "QUEUE")]
    dead_letter: Option<String>,
    /// Exchange that routes dead letters, instead of a queue; '' = none [new queue: '']
    #[arg(long, value_name = "EXCHANGE")]
    dead_letter_exchange: Option<String>,
    /// Routing key of dead letters; '' = the message's own, or the name of this queue [new queue: '']
    #[arg(long, value_name = "KEY")]
    dead_letter_key: Option<String>,
    /// Most messages ready, delayed or leased, 0 = unlimited [new queue: 0]
    #[arg(long, value_name = "N")]
    max_length: Option<u64>,
    /// Most bytes of those messages, like 1GiB, 0 = unlimited [new queue: 0]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    max_bytes: Option<u64>,
    /// What happens to a publish beyond a limit [new queue: reject]
    #[arg(long)]
    overflow: Option<OverflowArg>,
    /// Life of a message that is not leased, 0s = for ever [new queue: 0s]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    message_ttl: Option<Duration>,
    /// Pause before a failed message is ready again [new queue: 0s]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    backoff_initial: Option<Duration>,
    /// The pause doubles per attempt up to this [new queue: 60s]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    backoff_max: Option<Duration>,
    /// A waiting message rises by a priority each time this has passed, 0s = never [new queue: 0s]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    priority_ageing: Option<Duration>,
    /// Most messages of a group under way at a time: 1 (in order) to 1,000 [new queue: 1]
    #[arg(long, value_name = "N")]
    group_concurrency: Option<u32>,
    /// Share of a group in deliveries: 1 to 1,000, others have 1; may be repeated, and replaces all
    /// that were set
    #[arg(long, value_name = "GROUP=N", value_parser = group_weight)]
    group_weight: Vec<(String, u32)>,
    /// All groups have the same share
    #[arg(long, conflicts_with = "group_weight")]
    no_group_weights: bool,
    /// One consumer at a time gets messages; =false ends that [new queue: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    single_active_consumer: Option<bool>,
    /// Remember dedup ids for that long, 0s = not at all [new queue: 5m]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    dedup_window: Option<Duration>,
    /// Remember at most so many, the oldest go: 1 to 1,000,000 [new queue: 100,000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    dedup_max_ids: Option<u32>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum OverflowArg {
    /// The publish is refused
    Reject,
    /// Messages at the head make room
    DropHead,
}

impl SettingsArgs {
    /// What a new queue cannot mean: an update may leave the other half to what is
    /// set.
    pub(crate) fn check_new(&self) -> Result<(), Failure> {
        if named(&self.dead_letter_key).is_some() && named(&self.dead_letter_exchange).is_none() {
            let problem = "--dead-letter-key says how an exchange routes dead letters: name that with --dead-letter-exchange";
            return Err(Failure::Usage(problem.to_owned()));
        }
        Ok(())
    }
}

impl From<SettingsArgs> for QueueSettings {
    fn from(args: SettingsArgs) -> Self {
        let weights_given = args.no_group_weights || !args.group_weight.is_empty();
        Self {
            lease: args.lease,
            max_deliveries: args.max_deliveries,
            dead_letter_queue: args.dead_letter,
            dead_letter_exchange: args.dead_letter_exchange,
            dead_letter_routing_key: args.dead_letter_key,
            max_length: args.max_length,
            max_bytes: args.max_bytes,
            overflow: args.overflow.map(|overflow| match overflow {
                OverflowArg::Reject => Overflow::Reject,
                OverflowArg::DropHead => Overflow::DropHead,
            }),
            message_ttl: args.message_ttl,
            backoff_initial: args.backoff_initial,
            backoff_max: args.backoff_max,
            priority_ageing: args.priority_ageing,
            group_concurrency: args.group_concurrency,
            group_weights: weights_given.then(|| args.group_weight.into_iter().collect()),
            single_active_consumer: args.single_active_consumer,
            dedup_window: args.dedup_window,
            dedup_max_ids: args.dedup_max_ids,
        }
    }
}

/// All settings with their names.
pub(crate) fn settings_pairs(settings: &QueueSettings) -> Vec<(&'static str, String)> {
    let count = |count: &dyn ToString| count.to_string();
    vec![
        ("lease", or_unset(settings.lease.map(span))),
        (
            "max deliveries",
            limit(settings.max_deliveries.map(|n| count(&n))),
        ),
        ("dead letters to", dead_letter_text(settings)),
        ("max length", limit(settings.max_length.map(|n| count(&n)))),
        ("max bytes", limit(settings.max_bytes.map(bytes))),
        (
            "overflow",
            or_unset(settings.overflow.map(|overflow| overflow.as_str().to_owned())),
        ),
        ("message ttl", limit(settings.message_ttl.map(span))),
        ("backoff", backoff_text(settings)),
        ("priorities", priorities_text(settings)),
        ("groups", groups_text(settings)),
        ("active consumers", active_consumers_text(settings)),
        ("dedup", dedup_text(settings.dedup_window, settings.dedup_max_ids)),
    ]
}

fn or_unset(value: Option<String>) -> String {
    value.unwrap_or_else(|| "-".to_owned())
}

fn limit(value: Option<String>) -> String {
    match value.as_deref() {
        Some("0" | "0 B" | "0s") => "unlimited".to_owned(),
        _ => or_unset(value),
    }
}

fn named(value: &Option<String>) -> Option<&str> {
    value.as_deref().filter(|name| !name.is_empty())
}

fn dead_letter_text(settings: &QueueSettings) -> String {
    let key = named(&settings.dead_letter_routing_key).map_or_else(String::new, |key| format!(", as {key}"));
    match (
        named(&settings.dead_letter_queue),
        named(&settings.dead_letter_exchange),
    ) {
        (Some(queue), _) => format!("queue {queue}"),
        (None, Some(exchange)) => format!("exchange {exchange}{key}"),
        (None, None) => "this queue's dead set".to_owned(),
    }
}

fn backoff_text(settings: &QueueSettings) -> String {
    match (settings.backoff_initial, settings.backoff_max) {
        (Some(Duration::ZERO), _) => "none".to_owned(),
        (Some(initial), Some(max)) => format!("{} doubling to {}", span(initial), span(max)),
        _ => or_unset(None),
    }
}

fn priorities_text(settings: &QueueSettings) -> String {
    match settings.priority_ageing {
        None | Some(Duration::ZERO) => "strict".to_owned(),
        Some(ageing) => format!("one higher each {}", span(ageing)),
    }
}

fn groups_text(settings: &QueueSettings) -> String {
    let concurrency = match settings.group_concurrency {
        None | Some(1) => "in order".to_owned(),
        Some(count) => format!("{count} at a time"),
    };
    let weights = settings.group_weights.iter().flatten();
    let weights: Vec<_> = weights
        .map(|(group, weight)| format!("{group}={weight}"))
        .collect();
    match weights.is_empty() {
        true => concurrency,
        false => format!("{concurrency}, weights {}", escaped(weights.join(" ").as_bytes())),
    }
}

fn active_consumers_text(settings: &QueueSettings) -> String {
    match settings.single_active_consumer {
        Some(true) => "one at a time".to_owned(),
        _ => "all".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(settings: &QueueSettings, name: &str) -> String {
        let pairs = settings_pairs(settings);
        let found = pairs.into_iter().find(|(found, _)| *found == name);
        found.map_or_else(String::new, |(_, text)| text)
    }

    #[test]
    fn settings_are_shown_in_words() {
        let settings = QueueSettings {
            dead_letter_exchange: Some("dead".to_owned()),
            dead_letter_routing_key: Some("jobs.dead".to_owned()),
            priority_ageing: Some(Duration::from_secs(60)),
            group_concurrency: Some(3),
            group_weights: Some([("a".to_owned(), 5), ("b".to_owned(), 2)].into()),
            single_active_consumer: Some(true),
            dedup_window: Some(Duration::from_secs(300)),
            dedup_max_ids: Some(100_000),
            ..Default::default()
        };
        for (name, expected) in [
            ("dead letters to", "exchange dead, as jobs.dead"),
            ("priorities", "one higher each 1m"),
            ("groups", "3 at a time, weights a=5 b=2"),
            ("active consumers", "one at a time"),
            ("dedup", "5m, up to 100000 ids"),
        ] {
            assert_eq!(text(&settings, name), expected, "{name}");
        }
    }

    #[test]
    fn what_is_off_says_so() {
        let settings = QueueSettings {
            dead_letter_queue: Some(String::new()),
            dead_letter_exchange: Some(String::new()),
            priority_ageing: Some(Duration::ZERO),
            group_concurrency: Some(1),
            group_weights: Some(Default::default()),
            dedup_window: Some(Duration::ZERO),
            ..Default::default()
        };
        for (name, expected) in [
            ("dead letters to", "this queue's dead set"),
            ("priorities", "strict"),
            ("groups", "in order"),
            ("active consumers", "all"),
            ("dedup", "off"),
        ] {
            assert_eq!(text(&settings, name), expected, "{name}");
        }
    }
}
