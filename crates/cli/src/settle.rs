//! `quorate ack`, `nack`, `release`, `dead-letter` and `extend`: ending or
//! prolonging leases by their tokens.

use std::time::Duration;

use clap::Args;
use quorate_client::{Error, SETTLE_MAX, Settled, Verdict};
use serde_json::{Value, json};

use crate::exit::Failure;
use crate::json;
use crate::options::{Context, Options};
use crate::values::{duration, positive_duration};

/// Arguments of `ack`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  quorate ack 196608.1.1.4")]
pub struct AckArgs {
    #[command(flatten)]
    pub(crate) options: Options,
    /// Tokens of the leases
    #[arg(required = true)]
    token: Vec<String>,
}

/// Arguments of `nack`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  quorate nack 196608.1.1.4 --delay 5s --reason 'no such picture'")]
pub struct NackArgs {
    #[command(flatten)]
    pub(crate) options: Options,
    /// Tokens of the leases
    #[arg(required = true)]
    token: Vec<String>,
    /// Ready again after this [default: the queue's backoff]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    delay: Option<Duration>,
    /// Why, for the next holder to see; up to 1,024 bytes
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
}

/// Arguments of `release`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  quorate release 196608.1.1.4")]
pub struct ReleaseArgs {
    #[command(flatten)]
    pub(crate) options: Options,
    /// Tokens of the leases
    #[arg(required = true)]
    token: Vec<String>,
}

/// Arguments of `dead-letter`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  quorate dead-letter 196608.1.1.4 --reason 'not a picture'")]
pub struct DeadLetterArgs {
    #[command(flatten)]
    pub(crate) options: Options,
    /// Tokens of the leases
    #[arg(required = true)]
    token: Vec<String>,
    /// Why; up to 1,024 bytes
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
}

/// Arguments of `extend`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  quorate extend 196608.1.1.4 --by 30s")]
pub struct ExtendArgs {
    #[command(flatten)]
    pub(crate) options: Options,
    /// Tokens of the leases
    #[arg(required = true)]
    token: Vec<String>,
    /// Let the leases end this much from now: 100ms to 12h
    #[arg(long, value_name = "DURATION", value_parser = positive_duration)]
    by: Duration,
}

pub(crate) async fn ack(args: AckArgs, context: &Context) -> Result<(), Failure> {
    settle(&args.token, &Verdict::Ack, "acked", context).await
}

pub(crate) async fn nack(args: NackArgs, context: &Context) -> Result<(), Failure> {
    let verdict = Verdict::Nack {
        delay: args.delay,
        reason: args.reason,
    };
    settle(&args.token, &verdict, "nacked", context).await
}

pub(crate) async fn release(args: ReleaseArgs, context: &Context) -> Result<(), Failure> {
    settle(&args.token, &Verdict::Release, "released", context).await
}

pub(crate) async fn dead_letter(args: DeadLetterArgs, context: &Context) -> Result<(), Failure> {
    settle(
        &args.token,
        &Verdict::DeadLetter { reason: args.reason },
        "dead-lettered",
        context,
    )
    .await
}

pub(crate) async fn extend(args: ExtendArgs, context: &Context) -> Result<(), Failure> {
    settle(
        &args.token,
        &Verdict::Extend { lease: Some(args.by) },
        "extended",
        context,
    )
    .await
}

/// Settles all tokens, and tells what came of each.
async fn settle(
    tokens: &[String],
    verdict: &Verdict,
    done: &'static str,
    context: &Context,
) -> Result<(), Failure> {
    let mut errors = Vec::new();
    for chunk in tokens.chunks(SETTLE_MAX) {
        let settlements = chunk.iter().map(|token| (token.as_str(), verdict.clone()));
        let results = context.client.settle(settlements).await?;
        for (token, result) in chunk.iter().zip(results) {
            if context.output.is_json() {
                context.output.line(&outcome(token, done, &result))?;
            } else if let Err(error) = &result {
                eprintln!("{token}: {error}");
            } else {
                context.output.bytes(format!("{done} {token}\n").as_bytes())?;
            }
            errors.extend(result.err());
        }
    }
    if errors.len() == 1 && tokens.len() == 1 && context.output.is_json() {
        // With one lease there is nothing to sum up.
        return Err(errors.remove(0).into());
    }
    Failure::of_parts(&errors, || {
        format!(
            "{} of {} leases were not {done}: a lease that has ended may be somebody else's by now",
            errors.len(),
            tokens.len()
        )
    })
}

fn outcome(token: &str, done: &str, result: &Result<Settled, Error>) -> Value {
    match result {
        Ok(settled) => json!({
            "token": token,
            "result": done,
            "leased_until_ms": settled.leased_until_ms,
        }),
        Err(error) => json::with_error(json!({ "token": token }), error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_lease_has_its_line() {
        let settled = outcome(
            "t",
            "extended",
            &Ok(Settled {
                leased_until_ms: Some(5),
                ..Settled::default()
            }),
        );
        assert_eq!(
            settled,
            json!({ "token": "t", "result": "extended", "leased_until_ms": 5 })
        );
        let unknown = Err(Error::Unknown {
            action: "settle",
            cause: "x".to_owned(),
            request_id: None,
        });
        assert_eq!(outcome("t", "acked", &unknown)["result"], "unknown");
    }
}
