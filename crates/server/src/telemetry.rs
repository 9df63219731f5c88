//! Logs: to standard error, as lines for a person or as JSON.

use std::panic;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use tracing_subscriber::EnvFilter;

use crate::exit::{Exit, Fatal};

/// Who reads the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum LogFormat {
    /// A person.
    Human,
    /// A machine: one JSON object per line.
    Json,
}

/// The engines below tell the same story once more, in their own words: heard
/// when asked for by name.
const ENGINES: &str = "openraft=error,sled=error";

/// Starts logging with a filter such as `info` or `info,quorate_raft=debug`.
pub(crate) fn start(filter: &str, format: LogFormat) -> Result<(), Fatal> {
    let filter = EnvFilter::try_new(format!("{ENGINES},{filter}"))
        .map_err(|error| Fatal::usage(format!("log = \"{filter}\": {error}")))?;
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    match format {
        LogFormat::Human => logs
            .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
            .init(),
        LogFormat::Json => logs.json().flatten_event(true).init(),
    }
    stop_on_panic();
    Ok(())
}

/// A panic is a broken invariant, in whichever task it happens: the node stops
/// at once instead of going on with a part of it gone. Nothing that was
/// confirmed depends on an orderly end. What the storage engine throws is not
/// one: it is caught, and told as what it is, damage or a failed disk.
fn stop_on_panic() {
    panic::set_hook(Box::new(|panic| {
        if quorate_node::panic_is_caught() {
            return;
        }
        let backtrace = std::backtrace::Backtrace::capture();
        tracing::error!("bug: {panic}\n{backtrace}");
        std::process::exit(Exit::Bug as i32);
    }));
}
