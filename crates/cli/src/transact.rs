//! `quorate transact`

use clap::{ArgGroup, Args};
use quorate_client::Message;
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
    for token in args.ack {
        transaction = transaction.ack(token);
    }
    for (queue, body) in args.publish {
        transaction = transaction.publish(queue, Message::new(body));
    }
    let done = transaction.commit().await?;
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
