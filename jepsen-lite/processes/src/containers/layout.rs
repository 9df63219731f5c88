//! Names, ports and addresses of `jepsen-lite/processes/compose/compose.yaml`.

use std::collections::BTreeMap;
use std::net::TcpListener;

use anyhow::{Context as _, Result};

/// The compose file. It is part of the program, so that it is there wherever that is.
pub(super) const COMPOSE: &str = include_str!("../../compose/compose.yaml");
/// Nodes that the file has.
pub const NODES_MAX: usize = 5;
/// The port on which nodes reach each other.
const PEER_PORT: u16 = 7401;

/// Where the nodes of one cluster are.
#[derive(Clone, Debug)]
pub struct Layout {
    /// What the engine calls all of it.
    pub(super) project: String,
    /// Ports of the host's loopback, by node.
    ports: Vec<u16>,
}

impl Layout {
    /// Free ports, and a name of this process.
    ///
    /// # Errors
    ///
    /// When no port is free.
    pub(super) fn new() -> Result<Self> {
        // All at once, so that they differ.
        let listeners = (0..NODES_MAX).map(|_| TcpListener::bind("127.0.0.1:0"));
        let listeners: Vec<TcpListener> = listeners.collect::<std::io::Result<_>>().context("listen")?;
        let ports = listeners.iter().map(|listener| Ok(listener.local_addr()?.port()));
        Ok(Self {
            project: format!("jepsen-lite-{}", std::process::id()),
            ports: ports.collect::<Result<_>>()?,
        })
    }

    /// Its name in the compose file.
    pub(super) fn service(node: usize) -> String {
        format!("node-{node}")
    }

    /// Its name for the engine.
    pub(super) fn container(&self, node: usize) -> String {
        format!("{}-node-{node}", self.project)
    }

    /// What the engine calls the network of the peers.
    pub(super) fn peer_network(&self) -> String {
        format!("{}_peer", self.project)
    }

    /// The address of a node among its peers.
    pub(super) fn peer_address(node: usize) -> String {
        format!("10.213.1.{}", 10 + node)
    }

    /// The address of a node among its peers, with the port.
    pub(super) fn peer(node: usize) -> String {
        format!("{}:{PEER_PORT}", Self::peer_address(node))
    }

    /// The address of a node among clients, in the containers' network.
    pub(super) fn client_address(node: usize) -> String {
        format!("10.213.2.{}", 10 + node)
    }

    /// Where clients on this machine reach it.
    pub(super) fn endpoint(&self, node: usize) -> String {
        format!("127.0.0.1:{}", self.ports[node])
    }

    /// What the compose file asks for, images and memory aside. `settings` is a file beside it.
    pub(super) fn variables(&self, settings: &str) -> BTreeMap<String, String> {
        let mut variables: BTreeMap<String, String> = [
            ("COMPOSE_PROJECT_NAME".to_owned(), self.project.clone()),
            ("SETTINGS".to_owned(), settings.to_owned()),
        ]
        .into();
        for (node, port) in self.ports.iter().enumerate() {
            variables.insert(format!("PORT_{node}"), port.to_string());
        }
        variables
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_compose_file_has_these_names_and_addresses() {
        for node in 0..NODES_MAX {
            let service = Layout::service(node);
            for expected in [
                format!("  {service}:\n    <<: *node\n"),
                format!("-{service}\n"),
                format!("--advertise-peer {}", Layout::peer(node)),
                format!("ipv4_address: {} }}", Layout::peer_address(node)),
                format!("ipv4_address: {} }}", Layout::client_address(node)),
                format!("${{IMAGE_{node}:-"),
            ] {
                assert!(
                    COMPOSE.contains(&expected),
                    "{expected:?} is not in the compose file"
                );
            }
        }
        for variable in Layout::new().unwrap().variables("settings.env").keys() {
            assert!(
                COMPOSE.contains(&format!("${{{variable}:-")),
                "{variable} is not asked for"
            );
        }
    }
}
