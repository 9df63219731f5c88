//! The `quorate` program: a node of a cluster, and everything that a person does
//! with a cluster from a terminal.
//!
//! [`serve`] below is the life of a node from start to end. `dev`, `demo` and
//! `bench` run nodes as processes of this same program; the other commands are
//! clients and come from `quorate-cli`.

#![allow(clippy::print_stdout, reason = "it talks to a person")]

use std::process::ExitCode;

use quorate_node::Node;
use tracing::info;

mod arenas;
mod build_info;
mod commands;
mod config;
mod demo;
mod dev;
mod exit;
mod gateways;
mod ready_file;
mod signals;
mod span;
mod telemetry;

use commands::{Cli, Command};
use config::ServeArgs;
use exit::{Exit, Fatal};
use gateways::Listeners;
use ready_file::Ready;
use signals::Signals;

#[tokio::main]
async fn main() -> ExitCode {
    match Cli::from_command_line().command {
        Command::Serve(args) => exit::report(serve(*args).await),
        Command::Dev(args) => exit::report(dev::run(args).await),
        Command::Demo(args) => exit::report(demo::run(args).await),
        Command::Bench(args) => exit::report(commands::bench(args).await),
        Command::Operator(command) => quorate_cli::run(command).await,
    }
}

async fn serve(args: ServeArgs) -> Result<(), Fatal> {
    arenas::limit();

    // Settings, and somebody to tell.
    if let Some(parent) = args.die_with_parent {
        signals::die_with_parent(parent)?;
    }
    let print_config = args.print_config;
    let config = args.load()?;
    if print_config {
        print!("{}", config.to_toml());
        return Ok(());
    }
    telemetry::start(&config.log, config.log_format)?;
    let mut signals = Signals::listen()?;
    info!(version = build_info::VERSION, data = %config.data().display(), "starting");

    // Every address before any data: a second node on this machine by mistake
    // ends here.
    let listeners = Listeners::bind(&config).await?;
    let (client, http) = listeners.addresses();
    let node = Node::start(config.node(client)?)
        .await
        .map_err(|error| exit::not_started(&error))?;
    let ready = Ready {
        pid: std::process::id(),
        client,
        peer: node.peer_addr(),
        http,
    };
    if let Some(path) = &config.ready_file {
        ready
            .write(path)
            .map_err(|error| Fatal::usage(format!("ready-file {}: {error}", path.display())))?;
    }
    info!(%client, peer = %ready.peer, %http, "listening");

    // Until somebody wants it to stop, or it has to.
    let mut gateways = listeners.serve(&node.broker());
    let signal = tokio::select! {
        signal = signals.next() => signal,
        failure = node.failed() => return Err(exit::stopped(&failure)),
        failed = gateways.failed() => return Err(failed),
    };

    // In order, but not for ever.
    info!(%signal, timeout = ?config.drain_timeout, "draining");
    let drain = async {
        gateways.refuse_new();
        node.drain(config.drain_timeout).await;
        gateways.finish().await;
        node.stop().await;
    };
    tokio::select! {
        () = drain => {
            info!("stopped");
            Ok(())
        }
        () = tokio::time::sleep(config.drain_timeout) => Err(Fatal::new(
            Exit::DrainTimeout,
            format!("stopped without waiting longer: calls were still under way after {:?}", config.drain_timeout),
        )),
        at_once = signals.at_once() => Err(at_once),
    }
}
