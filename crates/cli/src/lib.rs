//! The commands with which a person or a script operates a cluster.
//!
//! They are a part of the `quorate` program: [`Command`] is flattened into its
//! command line, [`run`] carries one out. All of them are clients of the public
//! API and nothing more.
//!
//! What scripts can rely on:
//!
//! * Exit codes: 0 done · 1 refused, certainly not applied · 2 usage ·
//!   3 the outcome is unknown · 4 no node, or no leader, could be reached.
//! * With `--json`, standard output has one JSON object, or one per line where
//!   there are many, and an error is one JSON object on standard error. Fields
//!   are added, never renamed. Durations are whole milliseconds and named
//!   `…_ms`. A node id is text, because it has more digits than many readers of
//!   JSON keep. A body is `body` if it is UTF-8, `body_base64` if not.
//! * Without `--json`, the text is for people and may change.
//!
//! | file | what it is |
//! | --- | --- |
//! | `options` | what all commands have in common |
//! | `queue`, `exchange`, `binding` | what there is, and where messages go |
//! | `publish`, `lease`, `settle`, `transact`, `consume` | messages on their way |
//! | `browse`, `message`, `redrive`, `trace` | messages as an operator sees them |
//! | `cluster` | the nodes |
//! | `queue_settings`, `filter` | options that several commands have |
//! | `worker` | runs a program for a message, under its lease |
//! | `exit`, `interrupts` | how a command ends, and what to do next |
//! | `output`, `table`, `body`, `message_text`, `json` | how things are shown |
//! | `values`, `moment` | sizes, durations, moments and pairs as people write them |

#![allow(clippy::print_stderr, reason = "it talks to a person")]

mod binding;
mod body;
mod browse;
mod cluster;
mod consume;
mod exchange;
mod exit;
mod filter;
mod interrupts;
mod json;
mod lease;
mod message;
mod message_text;
mod moment;
mod options;
mod output;
mod publish;
mod queue;
mod queue_settings;
mod redrive;
mod settle;
mod table;
mod trace;
mod transact;
mod values;
mod worker;

use std::process::ExitCode;

use clap::Subcommand;

use exit::Failure;
use options::{Context, Options};

/// The commands, to be flattened into a program's own.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Declare, look at, change, pause, empty and delete queues
    Queue(queue::QueueArgs),
    /// Declare, look at, change and delete exchanges
    Exchange(exchange::ExchangeArgs),
    /// Lead messages from an exchange to a queue or another exchange
    Bind(binding::BindArgs),
    /// Remove a binding
    Unbind(binding::UnbindArgs),
    /// Publish a message, or many
    Publish(publish::PublishArgs),
    /// Lease messages, to be settled by their tokens
    Lease(lease::LeaseArgs),
    /// Done with leased messages: they leave their queue
    Ack(settle::AckArgs),
    /// Failed with leased messages: they come again
    Nack(settle::NackArgs),
    /// Give leased messages back, without counting an attempt
    Release(settle::ReleaseArgs),
    /// Take leased messages out of circulation
    DeadLetter(settle::DeadLetterArgs),
    /// Prolong leases
    Extend(settle::ExtendArgs),
    /// Ack leases and publish messages as one: all of it, or nothing
    Transact(transact::TransactArgs),
    /// Print messages as they come, or run a program for each
    Consume(consume::ConsumeArgs),
    /// Look at messages of a queue without touching them
    Browse(browse::BrowseArgs),
    /// Look at a message, delete, move or reschedule it
    Message(message::MessageArgs),
    /// Look at what is to come
    Schedule(browse::ScheduleArgs),
    /// Give dead letters another chance, or take that back
    Redrive(redrive::RedriveArgs),
    /// Where is my message? What happened to it, and when
    Trace(trace::TraceArgs),
    /// Look at a cluster, and change its members
    Cluster(cluster::ClusterArgs),
}

/// The commands by what they are for, in the order in which to show them.
pub const COMMAND_GROUPS: [(&str, &[&str]); 5] = [
    ("Queues and exchanges", &["queue", "exchange", "bind", "unbind"]),
    ("Publish and work", &["publish", "consume", "lease"]),
    (
        "End a lease",
        &["ack", "nack", "release", "dead-letter", "extend", "transact"],
    ),
    (
        "Look and operate",
        &["browse", "message", "schedule", "redrive", "trace"],
    ),
    ("Cluster", &["cluster"]),
];

/// Carries out a command, says how it went, and returns the exit code. Must be
/// called within a Tokio runtime.
pub async fn run(command: Command) -> ExitCode {
    let context = match Context::new(command.options()) {
        Ok(context) => context,
        Err(failure) => return failure.report(command.options().json),
    };
    match command.carry_out(&context).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(context.output.is_json()),
    }
}

impl Command {
    fn options(&self) -> &Options {
        match self {
            Command::Queue(args) => &args.options,
            Command::Exchange(args) => &args.options,
            Command::Bind(args) => &args.options,
            Command::Unbind(args) => &args.options,
            Command::Publish(args) => &args.options,
            Command::Lease(args) => &args.options,
            Command::Ack(args) => &args.options,
            Command::Nack(args) => &args.options,
            Command::Release(args) => &args.options,
            Command::DeadLetter(args) => &args.options,
            Command::Extend(args) => &args.options,
            Command::Transact(args) => &args.options,
            Command::Consume(args) => &args.options,
            Command::Browse(args) => &args.options,
            Command::Message(args) => &args.options,
            Command::Schedule(args) => &args.options,
            Command::Redrive(args) => &args.options,
            Command::Trace(args) => &args.options,
            Command::Cluster(args) => &args.options,
        }
    }

    async fn carry_out(self, context: &Context) -> Result<(), Failure> {
        match self {
            Command::Queue(args) => queue::run(args, context).await,
            Command::Exchange(args) => exchange::run(args, context).await,
            Command::Bind(args) => binding::bind(args, context).await,
            Command::Unbind(args) => binding::unbind(args, context).await,
            Command::Publish(args) => publish::run(args, context).await,
            Command::Lease(args) => lease::run(args, context).await,
            Command::Ack(args) => settle::ack(args, context).await,
            Command::Nack(args) => settle::nack(args, context).await,
            Command::Release(args) => settle::release(args, context).await,
            Command::DeadLetter(args) => settle::dead_letter(args, context).await,
            Command::Extend(args) => settle::extend(args, context).await,
            Command::Transact(args) => transact::run(args, context).await,
            Command::Consume(args) => consume::run(args, context).await,
            Command::Browse(args) => browse::run(args, context).await,
            Command::Message(args) => message::run(args, context).await,
            Command::Schedule(args) => browse::schedule(args, context).await,
            Command::Redrive(args) => redrive::run(args, context).await,
            Command::Trace(args) => trace::run(args, context).await,
            Command::Cluster(args) => cluster::run(args, context).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser};

    use super::*;

    #[derive(Debug, Parser)]
    struct Program {
        #[command(subcommand)]
        command: Command,
    }

    fn parse(line: &str) -> Result<Command, clap::Error> {
        Program::try_parse_from(std::iter::once("quorate").chain(line.split(' ')))
            .map(|program| program.command)
    }

    #[test]
    fn the_definitions_hold_together() {
        Program::command().debug_assert();
    }

    #[test]
    fn what_the_manual_shows_can_be_typed() {
        for line in [
            "queue declare jobs --max-deliveries 5 --lease 30s --dead-letter failed",
            "queue declare jobs --max-length 1000 --max-bytes 1GiB --overflow drop-head --message-ttl 1d",
            "queue list --json",
            "queue --endpoint a:1,b:2 show jobs",
            "queue show jobs --endpoint a:1 --timeout 5s",
            "queue update jobs --backoff-initial 1s --backoff-max 10m",
            "queue declare jobs --priority-ageing 1m --group-concurrency 3 --group-weight a=5 --group-weight b=2",
            "queue declare jobs --single-active-consumer --dedup-window 10m --dedup-max-ids 1000",
            "queue declare jobs --dead-letter-exchange dead --dead-letter-key jobs.dead",
            "queue update jobs --single-active-consumer=false",
            "queue update jobs --no-group-weights",
            "queue purge jobs",
            "queue purge jobs --state ready,delayed,dead",
            "queue pause jobs --json",
            "queue delete jobs --if-empty --if-unused",
            "publish jobs --body hello --delay 10s --ttl 5m --header a=b --header c=d=e",
            "publish jobs --file -",
            "publish jobs --body a --deliver-at 1796083200123 --priority 9",
            "publish --exchange orders --body a",
            "publish jobs --count 1000 --size 1KiB",
            "lease jobs --max 10 --wait 5s --json",
            "ack t1 t2",
            "nack t1 --delay 5s --reason no",
            "release t1",
            "dead-letter t1 --reason never",
            "extend t1 --by 30s",
            "consume jobs --prefetch 64 --count 3 --exec true",
            "consume jobs --until-empty",
            "consume jobs --priority -5",
            "consume jobs --idle-exit 10s",
            "exchange declare orders --kind headers --alternate unrouted --dedup-max-ids 10",
            "bind orders jobs",
            "bind orders jobs --header a=b --header c=d --present e --any",
            "unbind orders --to-exchange audit",
            "browse jobs --state ready,leased --newer-than 5m --group a --dedup-id b --id 1-0 --id 2-0",
            "browse jobs --redrive 17 --body --limit 10 --from 5 --at 127.0.0.1:7400",
            "message get jobs 17-0 --local",
            "message delete jobs 17-0 17-1 --dedup-id a --dedup-id b",
            "message cancel jobs --dedup-id a",
            "redrive jobs --id 17-0 --to other --json",
            "redrive jobs --rate 50",
            "redrive undo jobs 17",
            "redrive -- undo",
            "transact --publish a=b=c",
            "cluster status",
            "cluster add 10.0.0.4:7401",
            "cluster remove 4",
            "cluster transfer-leader",
            "cluster transfer-leader node-2",
            "cluster snapshot",
            "cluster snapshot 127.0.0.1:7400",
        ] {
            assert!(parse(line).is_ok(), "{line}: {}", parse(line).unwrap_err());
        }
    }

    #[test]
    fn what_makes_no_sense_is_a_usage_error() {
        for line in [
            "publish jobs",
            "publish jobs --body a --file b",
            "publish jobs --body a --size 1KiB",
            "publish jobs --body a --header novalue",
            "publish jobs --body a --delay soon",
            "publish --body a",
            "publish jobs --exchange orders --body a",
            "publish jobs --routing-key a --body a",
            "publish jobs --mandatory --body a",
            "publish jobs --body a --priority 10",
            "publish jobs --body a --deliver-at tomorrow",
            "exchange declare orders",
            "exchange declare orders --kind round-robin",
            "exchange update orders",
            "bind orders",
            "bind orders jobs --to-exchange audit",
            "bind orders jobs --any",
            "bind orders jobs --header novalue",
            "unbind orders",
            "queue update jobs --no-group-weights --group-weight a=5",
            "queue declare jobs --group-weight a",
            "queue declare jobs --group-weight a=1001",
            "queue declare jobs --single-active-consumer=perhaps",
            "queue purge jobs --state leased",
            "browse",
            "browse jobs --state acked",
            "browse jobs --reason sadness",
            "browse jobs --limit 0",
            "browse jobs --local --at a:1",
            "message get jobs",
            "message get jobs 17-0 --dedup-id a",
            "message delete jobs",
            "message move jobs 17-0",
            "message reschedule jobs 17-0",
            "message reschedule jobs 17-0 --delay 5s --deliver-at 5",
            "redrive",
            "redrive jobs --rate fast",
            "redrive jobs --max 0",
            "redrive undo jobs",
            "redrive undo jobs 17 18",
            "redrive undo jobs first",
            "trace",
            "trace 17-0 --dedup-id a",
            "trace --header novalue",
            "transact",
            "transact --publish nobody",
            "schedule list",
            "ack",
            "extend t1",
            "lease jobs --max 0",
            "consume jobs --prefetch 70000",
            "queue declare",
            "queue update jobs",
            "queue declare jobs --overflow perhaps",
            "cluster remove",
        ] {
            let error = parse(line).expect_err(line);
            assert_eq!(error.exit_code(), 2, "{line}");
        }
    }

    #[test]
    fn every_command_has_an_example_that_can_be_typed() {
        let mut commands = vec![Program::command()];
        let mut examples = 0;
        while let Some(command) = commands.pop() {
            commands.extend(command.get_subcommands().cloned());
            if command.has_subcommands() && command.get_after_help().is_none() {
                continue;
            }
            let help = command
                .get_after_help()
                .map(ToString::to_string)
                .unwrap_or_default();
            let lines: Vec<_> = help.lines().filter_map(|line| line.strip_prefix("  ")).collect();
            assert!(!lines.is_empty(), "{} has no example", command.get_name());
            for line in lines {
                assert!(
                    line.contains(command.get_name()) || line.contains("message cancel"),
                    "{line}"
                );
                let parsed = Program::try_parse_from(words(line));
                assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
                examples += 1;
            }
        }
        assert!(examples > 40, "only {examples} are left");
    }

    /// The words of a line, as a shell splits it: single quotes are all it has.
    fn words(line: &str) -> Vec<String> {
        let mut words = vec![String::new()];
        for (n, part) in line.split('\'').enumerate() {
            if n % 2 == 1 {
                words.last_mut().unwrap().push_str(part);
                continue;
            }
            for (m, piece) in part.split(' ').enumerate() {
                if m > 0 {
                    words.push(String::new());
                }
                words.last_mut().unwrap().push_str(piece);
            }
        }
        words.retain(|word| !word.is_empty());
        words
    }

    #[test]
    fn every_command_is_in_one_group() {
        let mut grouped: Vec<_> = COMMAND_GROUPS
            .iter()
            .flat_map(|(_, names)| *names)
            .copied()
            .collect();
        let program = Program::command();
        let mut names: Vec<_> = program.get_subcommands().map(clap::Command::get_name).collect();
        grouped.sort_unstable();
        names.sort_unstable();
        assert_eq!(grouped, names);
    }
}
