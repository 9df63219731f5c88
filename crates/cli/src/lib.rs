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
//! | `queue`, `publish`, `lease`, `settle`, `consume`, `cluster` | one command each |
//! | `worker` | runs a program for a message, under its lease |
//! | `exit` | how a command ends, and what to do next |
//! | `output`, `table`, `body`, `json` | how things are shown |
//! | `values` | sizes, durations and headers as people write them |

#![allow(clippy::print_stderr, reason = "it talks to a person")]

mod body;
mod cluster;
mod consume;
mod exit;
mod json;
mod lease;
mod options;
mod output;
mod publish;
mod queue;
mod settle;
mod table;
mod values;
mod worker;

use std::process::ExitCode;

use clap::Subcommand;

use exit::Failure;
use options::{Context, Options};

/// The commands, to be flattened into a program's own.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Declare, look at, change, empty and delete queues
    Queue(queue::QueueArgs),
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
    /// Print messages as they come, or run a program for each
    Consume(consume::ConsumeArgs),
    /// Look at a cluster, and change its members
    Cluster(cluster::ClusterArgs),
}

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
            Command::Publish(args) => &args.options,
            Command::Lease(args) => &args.options,
            Command::Ack(args) => &args.options,
            Command::Nack(args) => &args.options,
            Command::Release(args) => &args.options,
            Command::DeadLetter(args) => &args.options,
            Command::Extend(args) => &args.options,
            Command::Consume(args) => &args.options,
            Command::Cluster(args) => &args.options,
        }
    }

    async fn carry_out(self, context: &Context) -> Result<(), Failure> {
        match self {
            Command::Queue(args) => queue::run(args, context).await,
            Command::Publish(args) => publish::run(args, context).await,
            Command::Lease(args) => lease::run(args, context).await,
            Command::Ack(args) => settle::ack(args, context).await,
            Command::Nack(args) => settle::nack(args, context).await,
            Command::Release(args) => settle::release(args, context).await,
            Command::DeadLetter(args) => settle::dead_letter(args, context).await,
            Command::Extend(args) => settle::extend(args, context).await,
            Command::Consume(args) => consume::run(args, context).await,
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
            "queue purge jobs",
            "queue delete jobs --if-empty --if-unused",
            "publish jobs --body hello --delay 10s --ttl 5m --header a=b --header c=d=e",
            "publish jobs --file -",
            "publish jobs --count 1000 --size 1KiB",
            "lease jobs --max 10 --wait 5s --json",
            "ack t1 t2",
            "nack t1 --delay 5s --reason no",
            "release t1",
            "dead-letter t1 --reason never",
            "extend t1 --by 30s",
            "consume jobs --prefetch 64 --count 3 --exec true",
            "consume jobs --until-empty",
            "consume jobs --idle-exit 10s",
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
}
