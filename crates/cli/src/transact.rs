//! `quorate transact`

use clap::{ArgGroup, Args};
use quorate_client::{Message, Refusal, TransactionPart};
use serde_json::json;

use crate::exit::Failure;
use crate::json;
use crate::options::{Context, Options};
use crate::values::{messages, queue_and_body};

/// Arguments of `transact`.
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("part").required(true).multiple(true).args(["ack", "publish"]),
    after_help = "Example:\n  quorate transact --ack 196608.1.1.4 --publish resized=17.png --publish audit='resized 17.png'"
)]
pub struct TransactArgs {
    #[command(flatten)]
    pub(crate) options: Options,
    /// Token of a lease to ack; may be repeated
    #[arg(long, value_name = "TOKEN")]
    ack: Vec<String>,
    /// A message to publish to a queue; may be repeated
    #[arg(long, value_name = "QUEUE=BODY", value_parser = queue_and_body)]
    publish: Vec<(String, String)>,
}

pub(crate) async fn run(args: TransactArgs, context: &Context) -> Result<(), Failure> {
    let mut transaction = context.client.transaction();
    for token in &args.ack {
        transaction = transaction.ack(token.as_str());
    }
    for (queue, body) in &args.publish {
        transaction = transaction.publish(queue, Message::new(body.clone()));
    }
    let done = match transaction.commit().await {
        Ok(done) => done,
        Err(error) => {
            let part = error.refusal().and_then(Refusal::refused_part);
            if let Some(part) = part.filter(|_| !context.output.is_json()) {
                eprintln!("{}: {}", args.part_text(part.part), part.reason);
            }
            return Err(error.into());
        }
    };
    let ids: Vec<_> = done
        .published
        .iter()
        .flat_map(|published| &published.message_ids)
        .collect();
    let acked = done.settled.len();
    context.output.show(
        || json::with_commit(json!({ "acked": acked, "message_ids": ids }), &done.commit),
        || {
            let mut text = format!(
                "{} acked and {} published, as one\n",
                messages(acked as u64),
                messages(ids.len() as u64)
            );
            for id in &ids {
                text.push_str(&format!("{id}\n"));
            }
            text
        },
    )
}

impl TransactArgs {
    /// A part as it was typed.
    fn part_text(&self, part: TransactionPart) -> String {
        match part {
            TransactionPart::Settlement(place) => {
                let token = self.ack.get(place).map_or("", String::as_str);
                format!("--ack {token}")
            }
            TransactionPart::Publish(place) => {
                let queue = self.publish.get(place).map_or("", |(queue, _)| queue);
                format!("--publish {queue}=…")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Program {
        #[command(flatten)]
        args: TransactArgs,
    }

    #[test]
    fn the_part_that_is_refused_is_named_as_it_was_typed() {
        let line = "transact --ack t1 --ack t2 --publish a=b=c --publish d=e";
        let args = Program::parse_from(line.split(' ')).args;
        assert_eq!(args.part_text(TransactionPart::Settlement(1)), "--ack t2");
        assert_eq!(args.part_text(TransactionPart::Publish(0)), "--publish a=…");
        assert_eq!(
            args.part_text(TransactionPart::Publish(7)),
            "--publish =…",
            "of no place that exists"
        );
    }
}
