//! `quorate dev`: three nodes on this machine, to develop against.
//!
//! Each is a process of its own with ports of its own, so that killing one, or
//! stopping it with a signal, is what it would be elsewhere. None is restarted.

use std::path::PathBuf;

use clap::Args;
use quorate_test_cluster::{Cluster, Ports};

use crate::commands::this_program;
use crate::exit::{Exit, Fatal};
use crate::signals::Signals;

const NODES: u16 = 3;

/// Options of `quorate dev`.
#[derive(Debug, Args)]
pub(crate) struct DevArgs {
    /// Directory for the data and logs of the nodes; kept from one time to the next
    #[arg(long, default_value = "quorate-data", value_name = "DIR")]
    data: PathBuf,
    /// Client port of the first node; the others follow at +10 and +20, peer
    /// ports at +1, HTTP ports at +80
    #[arg(
        long,
        env = "QUORATE_FIRST_PORT",
        hide_env_values = true,
        default_value_t = 7400,
        value_name = "PORT"
    )]
    first_port: u16,
    /// What the nodes log
    #[arg(long, default_value = "info", value_name = "FILTER")]
    log: String,
}

pub(crate) async fn run(args: DevArgs) -> Result<(), Fatal> {
    let mut signals = Signals::listen()?;
    let ports = ports(args.first_port)
        .ok_or_else(|| Fatal::usage("--first-port: leave room for ports up to +100"))?;
    let starting = Cluster::builder(NODES.into())
        .binary(this_program()?)
        .data_dir(&args.data)
        .ports(ports)
        .setting("log", args.log)
        .start();
    let mut cluster = tokio::select! {
        cluster = starting => cluster?,
        at_once = signals.at_once() => return Err(at_once),
    };
    let leader = cluster.leader().await?;
    for node in 0..cluster.node_count() {
        let Ports { peer, http, .. } = cluster.ports(node);
        let role = if node == leader { "leads" } else { "follows" };
        println!(
            "node {node}  clients {}  peers 127.0.0.1:{peer}  http://127.0.0.1:{http}/metrics  pid {}  {role}",
            cluster.endpoint(node),
            cluster.process_id(node).unwrap_or_default(),
        );
    }
    println!("data and logs below {}; Ctrl-C stops all", args.data.display());

    // Those that end are told, not restarted: that is for the developer to try.
    let mut gone = Vec::new();
    let signal = loop {
        tokio::select! {
            signal = signals.next() => break signal,
            (node, status) = cluster.any_exit(&gone) => {
                println!("node {node} has ended: {status}; its log is {}", cluster.log_file(node).display());
                gone.push(node);
            }
        }
    };
    println!("{signal}: stopping; once more stops at once");
    let ended = tokio::select! {
        ended = cluster.terminate_all() => ended?,
        at_once = signals.at_once() => return Err(at_once),
    };
    match ended.iter().find(|(_, status)| !status.success()) {
        None => Ok(()),
        Some((node, status)) => Err(Fatal::new(
            Exit::Failed,
            format!("node {node} did not stop cleanly: {status}"),
        )),
    }
}

fn ports(first: u16) -> Option<Vec<Ports>> {
    let of = |node: u16| {
        let client = first.checked_add(10 * node)?;
        Some(Ports {
            client,
            peer: client.checked_add(1)?,
            http: client.checked_add(80)?,
        })
    };
    (0..NODES).map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_ten_ports_apart() {
        let ports = ports(7400).expect("there is room");
        assert_eq!(
            ports[0],
            Ports {
                client: 7400,
                peer: 7401,
                http: 7480
            }
        );
        assert_eq!(
            ports[2],
            Ports {
                client: 7420,
                peer: 7421,
                http: 7500
            }
        );
        assert_eq!(super::ports(65_500), None);
    }
}
