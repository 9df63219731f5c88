//! Ports for nodes that must know each other before any of them runs.

use std::collections::HashSet;
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{LazyLock, Mutex, PoisonError};

use anyhow::{Result, bail};
use rand::RngExt;

/// The three listeners of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    /// The client API.
    pub client: u16,
    /// Other nodes.
    pub peer: u16,
    /// Health and metrics.
    pub http: u16,
}

impl Ports {
    /// Three ports that nobody listens on now, as [`free_port`] finds them.
    ///
    /// # Errors
    ///
    /// When there are none.
    pub fn free() -> Result<Self> {
        Ok(Self {
            client: free_port()?,
            peer: free_port()?,
            http: free_port()?,
        })
    }
}

/// A port that nobody listens on now, and that this process has not given out.
///
/// It lies below the range from which the kernel serves outgoing connections:
/// a port from that range could be taken while its node is down. It is free
/// when looked at, not reserved; the caller retries when another process was
/// quicker.
///
/// # Errors
///
/// When there is none.
pub fn free_port() -> Result<u16> {
    static TAKEN: LazyLock<Mutex<HashSet<u16>>> = LazyLock::new(Mutex::default);
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    let range = 10_000..ephemeral_start().clamp(10_100, 32_768);
    for _ in 0..10_000 {
        let port = rand::rng().random_range(range.clone());
        if !taken.contains(&port) && TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            taken.insert(port);
            return Ok(port);
        }
    }
    bail!("no free port in {range:?}")
}

fn ephemeral_start() -> u16 {
    fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
        .ok()
        .and_then(|range| range.split_whitespace().next()?.parse().ok())
        .unwrap_or(32_768)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_port_is_given_out_twice() {
        let mut seen = HashSet::new();
        for _ in 0..20 {
            let ports = Ports::free().expect("there are free ports");
            for port in [ports.client, ports.peer, ports.http] {
                assert!(seen.insert(port), "{port} twice");
            }
        }
    }
}
