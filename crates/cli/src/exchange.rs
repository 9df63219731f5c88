//! `quorate exchange …`

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use futures_util::StreamExt as _;
use quorate_client::{ExchangeInfo, ExchangeKind, ExchangeSettings};
use serde_json::json;

use crate::binding;
use crate::exit::Failure;
use crate::json;
use crate::options::{Context, Options};
use crate::table::{Align, indented, pairs, table};
use crate::values::{duration, span};

/// Arguments of `exchange`.
#[derive(Debug, Args)]
pub struct ExchangeArgs {
    #[command(flatten)]
    pub(crate) options: Options,
    #[command(subcommand)]
    command: ExchangeCommand,
}

#[derive(Debug, Subcommand)]
enum ExchangeCommand {
    /// Make an exchange, or check that it is of this kind with these settings
    #[command(after_help = "Example:\n  quorate exchange declare orders --kind topic --dedup-window 5m")]
    Declare {
        /// Name of the exchange: 1 to 255 bytes
        exchange: String,
        /// How it chooses among its bindings
        #[arg(long)]
        kind: KindArg,
        #[command(flatten)]
        settings: SettingsArgs,
    },
    /// List all exchanges with what they have routed
    #[command(after_help = "Example:\n  quorate exchange list")]
    List,
    /// Show settings, counts and bindings of an exchange
    #[command(after_help = "Example:\n  quorate exchange show orders")]
    Show {
        /// Name of the exchange
        exchange: String,
    },
    /// Change settings of an exchange
    #[command(
        mut_group("SettingsArgs", |settings| settings.required(true)),
        after_help = "Example:\n  quorate exchange update orders --alternate unrouted",
    )]
    Update {
        /// Name of the exchange
        exchange: String,
        #[command(flatten)]
        settings: SettingsArgs,
    },
    /// Delete an exchange with the bindings from and to it
    #[command(after_help = "Example:\n  quorate exchange delete orders --if-unused")]
    Delete {
        /// Name of the exchange
        exchange: String,
        /// Refuse if a binding leads from or to it
        #[arg(long)]
        if_unused: bool,
    },
}

#[derive(Debug, Args)]
struct SettingsArgs {
    /// Exchange that takes what this one has no route for; '' = none [new exchange: '']
    #[arg(long, value_name = "EXCHANGE")]
    alternate: Option<String>,
    /// Remember dedup ids for that long; 0s = not at all [new exchange: 0s]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    dedup_window: Option<Duration>,
    /// Remember at most so many, the oldest go: 1 to 1,000,000 [new exchange: 100,000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    dedup_max_ids: Option<u32>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum KindArg {
    /// To bindings whose key is the routing key
    Direct,
    /// To all bindings
    Fanout,
    /// To bindings whose key matches word for word: * is one word, # any number
    Topic,
    /// To bindings whose headers fit
    Headers,
}

pub(crate) async fn run(args: ExchangeArgs, context: &Context) -> Result<(), Failure> {
    match args.command {
        ExchangeCommand::Declare {
            exchange,
            kind,
            settings,
        } => declare(&exchange, kind.into(), settings.into(), context).await,
        ExchangeCommand::List => list(context).await,
        ExchangeCommand::Show { exchange } => show(&exchange, context).await,
        ExchangeCommand::Update { exchange, settings } => update(&exchange, settings.into(), context).await,
        ExchangeCommand::Delete { exchange, if_unused } => delete(&exchange, if_unused, context).await,
    }
}

async fn declare(
    exchange: &str,
    kind: ExchangeKind,
    settings: ExchangeSettings,
    context: &Context,
) -> Result<(), Failure> {
    let call = context.client.declare_exchange(exchange, kind).settings(settings);
    let declared = call.send().await.map_err(Failure::of_exchange(exchange))?;
    context.output.show(
        || {
            json::with_commit(
                json!({ "exchange": exchange, "created": declared.created }),
                &declared.commit,
            )
        },
        || match declared.created {
            true => format!("exchange {exchange} created\n"),
            false => format!("exchange {exchange} exists, of this kind and with these settings\n"),
        },
    )
}

async fn list(context: &Context) -> Result<(), Failure> {
    let mut exchanges = context.client.list_exchanges();
    let mut rows = Vec::new();
    while let Some(exchange) = exchanges.next().await {
        let exchange = exchange?;
        if context.output.is_json() {
            context.output.line(&json::exchange(&exchange))?;
        } else {
            rows.push(row(&exchange));
        }
    }
    if context.output.is_json() {
        return Ok(());
    }
    if rows.is_empty() {
        eprintln!("no exchanges; make one with `quorate exchange declare NAME --kind direct`");
        return Ok(());
    }
    context.output.bytes(list_text(&rows).as_bytes())
}

fn row(exchange: &ExchangeInfo) -> [String; 6] {
    [
        exchange.name.clone(),
        kind_text(exchange).to_owned(),
        exchange.bindings.len().to_string(),
        exchange.received.to_string(),
        exchange.unroutable.to_string(),
        exchange.duplicates.to_string(),
    ]
}

fn list_text(rows: &[[String; 6]]) -> String {
    let columns = [
        ("EXCHANGE", Align::Left),
        ("KIND", Align::Left),
        ("BINDINGS", Align::Right),
        ("RECEIVED", Align::Right),
        ("UNROUTABLE", Align::Right),
        ("DUPLICATES", Align::Right),
    ];
    table(columns, rows)
}

fn kind_text(exchange: &ExchangeInfo) -> &'static str {
    exchange.kind.map_or("unknown", ExchangeKind::as_str)
}

async fn show(exchange: &str, context: &Context) -> Result<(), Failure> {
    let call = context.client.describe_exchange(exchange);
    let info = call.await.map_err(Failure::of_exchange(exchange))?;
    context.output.show(|| json::exchange(&info), || show_text(&info))
}

fn show_text(exchange: &ExchangeInfo) -> String {
    let settings = &exchange.settings;
    let alternate = settings.alternate_exchange.as_deref();
    let about = pairs(&[
        ("exchange", exchange.name.clone()),
        ("kind", kind_text(exchange).to_owned()),
        (
            "alternate",
            match alternate.filter(|name| !name.is_empty()) {
                Some(name) => format!("exchange {name}"),
                None => "none".to_owned(),
            },
        ),
        ("dedup", dedup_text(settings.dedup_window, settings.dedup_max_ids)),
        ("received", exchange.received.to_string()),
        ("unroutable", exchange.unroutable.to_string()),
        ("duplicates", exchange.duplicates.to_string()),
    ]);
    if exchange.bindings.is_empty() {
        return format!("{about}\nno bindings\n");
    }
    format!(
        "{about}\nbindings\n{}",
        indented(&binding::list_text(&exchange.bindings))
    )
}

/// What is remembered of dedup ids, in words.
pub(crate) fn dedup_text(window: Option<Duration>, max_ids: Option<u32>) -> String {
    match (window, max_ids) {
        (None | Some(Duration::ZERO), _) => "off".to_owned(),
        (Some(window), None) => span(window),
        (Some(window), Some(max_ids)) => format!("{}, up to {max_ids} ids", span(window)),
    }
}

async fn update(exchange: &str, settings: ExchangeSettings, context: &Context) -> Result<(), Failure> {
    let call = context.client.update_exchange(exchange).settings(settings);
    let commit = call.send().await.map_err(Failure::of_exchange(exchange))?;
    context.output.show(
        || json::with_commit(json!({ "exchange": exchange }), &commit),
        || format!("exchange {exchange} updated\n"),
    )
}

async fn delete(exchange: &str, if_unused: bool, context: &Context) -> Result<(), Failure> {
    let mut call = context.client.delete_exchange(exchange);
    if if_unused {
        call = call.if_unused();
    }
    let commit = call.send().await.map_err(Failure::of_exchange(exchange))?;
    context.output.show(
        || json::with_commit(json!({ "exchange": exchange }), &commit),
        || format!("exchange {exchange} deleted\n"),
    )
}

impl From<KindArg> for ExchangeKind {
    fn from(kind: KindArg) -> Self {
        match kind {
            KindArg::Direct => Self::Direct,
            KindArg::Fanout => Self::Fanout,
            KindArg::Topic => Self::Topic,
            KindArg::Headers => Self::Headers,
        }
    }
}

impl From<SettingsArgs> for ExchangeSettings {
    fn from(args: SettingsArgs) -> Self {
        Self {
            alternate_exchange: args.alternate,
            dedup_window: args.dedup_window,
            dedup_max_ids: args.dedup_max_ids,
        }
    }
}

#[cfg(test)]
mod tests {
    use quorate_client::{Binding, Destination, HeaderMatch};

    use super::*;

    fn orders() -> ExchangeInfo {
        ExchangeInfo {
            name: "orders".to_owned(),
            kind: Some(ExchangeKind::Topic),
            settings: ExchangeSettings {
                alternate_exchange: Some("unrouted".to_owned()),
                dedup_window: Some(Duration::from_secs(300)),
                dedup_max_ids: Some(1_000),
            },
            received: 7,
            unroutable: 1,
            duplicates: 2,
            bindings: vec![
                Binding::new("orders", "invoices").routing_key("*.paid"),
                Binding::new("orders", Destination::exchange("audit"))
                    .headers(HeaderMatch::any().header("eu", "yes").present("vat")),
            ],
        }
    }

    #[test]
    fn an_exchange_is_listed_on_a_line() {
        let expected = "\
EXCHANGE  KIND   BINDINGS  RECEIVED  UNROUTABLE  DUPLICATES
orders    topic         2         7           1           2
";
        assert_eq!(list_text(&[row(&orders())]), expected);
    }

    #[test]
    fn an_exchange_is_shown_with_its_bindings() {
        let expected = "\
exchange    orders
kind        topic
alternate   exchange unrouted
dedup       5m, up to 1000 ids
received    7
unroutable  1
duplicates  2

bindings
  TO              KEY     HEADERS
  queue invoices  *.paid
  exchange audit          any of: eu=yes, vat present
";
        assert_eq!(show_text(&orders()), expected);
        let bare = ExchangeInfo::default();
        assert!(
            show_text(&bare).ends_with("\nno bindings\n"),
            "{}",
            show_text(&bare)
        );
    }

    #[test]
    fn an_exchange_in_json() {
        let value = json::exchange(&orders());
        assert_eq!(value["kind"], "topic");
        assert_eq!(value["settings"]["dedup_window_ms"], 300_000);
        assert_eq!(
            value["bindings"][0],
            json!({
                "source": "orders", "destination": "queue", "name": "invoices", "routing_key": "*.paid", "headers": null,
            })
        );
        assert_eq!(
            value["bindings"][1]["headers"],
            json!({ "any": true, "headers": { "eu": "yes" }, "present": ["vat"] })
        );
    }
}
