//! `quorate bind` and `quorate unbind`

use clap::{ArgGroup, Args};
use quorate_client::{Binding, Destination, ExchangeKind, HeaderMatch};
use serde_json::json;

use crate::body::escaped;
use crate::exit::Failure;
use crate::json;
use crate::options::{Context, Options};
use crate::table::{Align, table};
use crate::values::header;

/// Arguments of `bind`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  quorate bind orders invoices --key '*.paid'\n  \
    quorate bind by-header eu-orders --header region=eu --present vat-id\n  \
    quorate bind orders --to-exchange audit --key '#'")]
pub struct BindArgs {
    #[command(flatten)]
    pub(crate) options: Options,
    #[command(flatten)]
    binding: BindingArgs,
}

/// Arguments of `unbind`.
#[derive(Debug, Args)]
#[command(
    override_usage = "quorate unbind [OPTIONS] <EXCHANGE> <QUEUE|--to-exchange <EXCHANGE>>",
    after_help = "Example:\n  quorate unbind orders invoices --key '*.paid'"
)]
pub struct UnbindArgs {
    #[command(flatten)]
    pub(crate) options: Options,
    #[command(flatten)]
    binding: BindingArgs,
}

/// All that makes a binding what it is.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("destination").required(true).args(["queue", "to_exchange"]))]
#[command(group = ArgGroup::new("match").multiple(true).args(["header", "present"]))]
struct BindingArgs {
    /// Exchange that it leads from
    exchange: String,
    /// Queue that it leads to
    queue: Option<String>,
    /// Exchange that it leads to
    #[arg(long, value_name = "EXCHANGE")]
    to_exchange: Option<String>,
    /// Key of a direct exchange; pattern of a topic exchange, where * is one word and # any number
    #[arg(long, default_value = "", hide_default_value = true)]
    key: String,
    /// Of a headers exchange: this header with this value; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = header)]
    header: Vec<(String, String)>,
    /// Of a headers exchange: this header with any value; may be repeated
    #[arg(long, value_name = "NAME")]
    present: Vec<String>,
    /// One of the headers is enough [default: all of them]
    #[arg(long, requires = "match")]
    any: bool,
}

pub(crate) async fn bind(args: BindArgs, context: &Context) -> Result<(), Failure> {
    let binding = Binding::from(args.binding);
    let exchange = &binding.source;
    let call = context.client.bind(binding.clone());
    let bound = call.await.map_err(Failure::of_exchange(exchange))?;
    if binding.headers.is_some() && !context.output.is_json() {
        warn_of_ignored_headers(exchange, context).await;
    }
    let to = destination_text(&binding.destination);
    context.output.show(
        || {
            let value = json!({ "binding": json::binding(&binding), "created": bound.created });
            json::with_commit(value, &bound.commit)
        },
        || match bound.created {
            true => format!("exchange {exchange} leads to {to} now\n"),
            false => format!("exchange {exchange} leads to {to} already, by this binding\n"),
        },
    )
}

/// The binding is made by now, so a look that fails is no failure of it.
async fn warn_of_ignored_headers(exchange: &str, context: &Context) {
    let Ok(info) = context.client.describe_exchange(exchange).await else {
        return;
    };
    if let Some(kind) = info.kind.filter(|kind| *kind != ExchangeKind::Headers) {
        eprintln!("quorate: exchange {exchange} is a {kind} exchange: it ignores the headers of the binding");
    }
}

pub(crate) async fn unbind(args: UnbindArgs, context: &Context) -> Result<(), Failure> {
    let binding = Binding::from(args.binding);
    let exchange = &binding.source;
    let call = context.client.unbind(binding.clone());
    let commit = call.await.map_err(Failure::of_exchange(exchange))?;
    let to = destination_text(&binding.destination);
    context.output.show(
        || json::with_commit(json!({ "binding": json::binding(&binding) }), &commit),
        || format!("exchange {exchange} does not lead to {to} by this binding\n"),
    )
}

/// A table of bindings from the same exchange.
pub(crate) fn list_text(bindings: &[Binding]) -> String {
    let columns = [
        ("TO", Align::Left),
        ("KEY", Align::Left),
        ("HEADERS", Align::Left),
    ];
    let rows: Vec<_> = bindings
        .iter()
        .map(|binding| {
            [
                destination_text(&binding.destination),
                escaped(binding.routing_key.as_bytes()),
                binding.headers.as_ref().map_or_else(String::new, match_text),
            ]
        })
        .collect();
    table(columns, &rows)
}

fn destination_text(destination: &Destination) -> String {
    match destination {
        Destination::Queue(name) => format!("queue {name}"),
        Destination::Exchange(name) => format!("exchange {name}"),
    }
}

fn match_text(headers: &HeaderMatch) -> String {
    let values = headers
        .headers
        .iter()
        .map(|(name, value)| format!("{name}={value}"));
    let present = headers.present.iter().map(|name| format!("{name} present"));
    let conditions = escaped(values.chain(present).collect::<Vec<_>>().join(", ").as_bytes());
    match headers.any {
        true => format!("any of: {conditions}"),
        false => conditions,
    }
}

impl From<BindingArgs> for Binding {
    fn from(args: BindingArgs) -> Self {
        let destination = match args.to_exchange {
            Some(exchange) => Destination::Exchange(exchange),
            None => Destination::Queue(args.queue.unwrap_or_default()),
        };
        let binding = Binding::new(args.exchange, destination).routing_key(args.key);
        if args.header.is_empty() && args.present.is_empty() {
            return binding;
        }
        binding.headers(HeaderMatch {
            any: args.any,
            headers: args.header.into_iter().collect(),
            present: args.present,
        })
    }
}
