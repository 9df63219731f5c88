//! `quorate ack`, `nack`, `release`, `dead-letter` and `extend`: ending or
//! prolonging leases by their tokens.

use std::time::Duration;

use clap::Args;
use quorate_client::{Error, SETTLE_MAX, Settled, Verdict};
use serde_json::{Value, json};

use crate::exit::{Class, Failure};
use crate::options::{Context, Options};
use crate::values::{duration, positive_duration};

/// Arguments of `ack`.
#[derive(Debug, Args)]
pub struct AckArgs {
    #[command(flatten)]
    pub(crate) options: Options,
    /// Tokens of the leases
    #[arg(required = true)]
    token: Vec<String>,
}

/// Arguments of `nack`.
#[derive(Debug, Args)]
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
pub struct ReleaseArgs {
    #[command(flatten)]
    pub(crate) options: Options,
    /// Tokens of the leases
    #[arg(required = true)]
    token: Vec<String>,
}

/// Arguments of `dead-letter`.
#[derive(Debug, Args)]
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
    let class = errors.iter().map(Class::of).max().unwrap_or(Class::Ok);
    match errors.len() {
        0 => Ok(()),
        // With one lease there is nothing to sum up.
        1 if tokens.len() == 1 && context.output.is_json() => Err(errors.remove(0).into()),
        count => Err(Failure::Partly {
            class,
            message: format!(
                "{count} of {} leases were not {done}: a lease that has ended may be somebody else's by now",
                tokens.len()
            ),
        }),
    }
}

fn outcome(token: &str, done: &str, result: &Result<Settled, Error>) -> Value {
    match result {
        Ok(settled) => json!({
            "token": token,
            "result": done,
            "leased_until_ms": settled.leased_until_ms,
        }),
        Err(error) => json!({
            "token": token,
            "result": if error.may_have_applied() { "unknown" } else { "refused" },
            "reason": error.reason().map(quorate_client::Reason::as_str),
            "message": error.to_string(),
        }),
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
            }),
        );
        assert_eq!(
            settled,
            json!({ "token": "t", "result": "extended", "leased_until_ms": 5 })
        );
        let unknown = Err(Error::Unknown {
            action: "settle",
            cause: "x".to_owned(),
        });
        assert_eq!(outcome("t", "acked", &unknown)["result"], "unknown");
    }
}
