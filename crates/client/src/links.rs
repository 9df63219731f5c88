//! Connections to nodes, and which of them leads.
//!
//! The leader is found by redirect (a node that does not lead names the one
//! that does) or by asking all known nodes at once; of those that claim to
//! lead, the one with the highest term is believed. Members that a node tells
//! of are remembered, so that one live endpoint is enough.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use quorate_mutants::mutant;
use quorate_proto::v1;
use quorate_proto::v1::cluster_client::ClusterClient;
use tokio::time::{Instant, timeout, timeout_at};
use tonic::transport::{Channel, Endpoint};

use crate::config::{Config, bare};

/// How long to wait for a leader of a higher term after a first one was found.
const GRACE: Duration = Duration::from_millis(30);

/// The most members that are remembered beside the given endpoints.
const LEARNED_MAX: usize = 64;

#[derive(Debug)]
pub(crate) struct Links {
    config: Config,
    state: Mutex<State>,
    /// Held while one caller asks around; the others wait for what it finds.
    discovery: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    leader: Option<String>,
    learned: BTreeSet<String>,
    channels: BTreeMap<String, Channel>,
}

/// A node, and a connection to it.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub(crate) address: String,
    pub(crate) channel: Channel,
}

impl Links {
    pub(crate) fn new(config: Config) -> Self {
        Self {
            config,
            state: Mutex::default(),
            discovery: tokio::sync::Mutex::default(),
        }
    }

    /// The shared connection to the leader. The error says in words why there
    /// is none just now; the caller pauses and asks again.
    pub(crate) async fn leader(&self) -> Result<Link, String> {
        let address = self.leader_address().await?;
        let link = self.link(&address).await;
        link.map_err(|cause| format!("{address}: {cause}"))
    }

    /// A connection to the leader for one stream alone, so that back-pressure
    /// on one stream cannot hold up another.
    pub(crate) async fn leader_apart(&self) -> Result<Link, String> {
        let address = self.leader_address().await?;
        match self.dial(&address).await {
            Ok(channel) => Ok(Link { address, channel }),
            Err(cause) => {
                self.lost(&address);
                Err(format!("{address}: {cause}"))
            }
        }
    }

    /// The shared connection to a node.
    pub(crate) async fn link(&self, address: &str) -> Result<Link, String> {
        match self.channel(address).await {
            Ok(channel) => Ok(Link {
                address: address.to_owned(),
                channel,
            }),
            Err(cause) => {
                self.lost(address);
                Err(cause)
            }
        }
    }

    /// A node named this one as the leader.
    pub(crate) fn follow(&self, address: &str) {
        self.lock().leader = Some(bare(address).to_owned());
    }

    /// A node does not lead, or does not answer: forget its connection, and
    /// that it leads.
    pub(crate) fn lost(&self, address: &str) {
        if mutant!("redirect-loop") {
            return;
        }
        let mut state = self.lock();
        state.channels.remove(address);
        if state.leader.as_deref() == Some(address) {
            state.leader = None;
        }
    }

    /// All known nodes: the given ones first, then the learned ones.
    pub(crate) fn addresses(&self) -> Vec<String> {
        let state = self.lock();
        let learned = state
            .learned
            .iter()
            .filter(|address| !self.config.endpoints.contains(address));
        self.config.endpoints.iter().chain(learned).cloned().collect()
    }

    /// What a node says of itself and its cluster.
    pub(crate) async fn status(&self, address: &str) -> Result<v1::StatusResponse, String> {
        let ask = async {
            let channel = self.channel(address).await?;
            let answer = ClusterClient::new(channel).status(v1::StatusRequest {}).await;
            answer
                .map(tonic::Response::into_inner)
                .map_err(|status| status.message().to_owned())
        };
        let answer = match timeout(self.config.probe_timeout, ask).await {
            Ok(answer) => answer,
            Err(_) => Err(format!("no answer within {:?}", self.config.probe_timeout)),
        };
        if answer.is_err() {
            self.lock().channels.remove(address);
        }
        answer
    }

    async fn leader_address(&self) -> Result<String, String> {
        if let Some(address) = self.known_leader() {
            return Ok(address);
        }
        let _alone = self.discovery.lock().await;
        if let Some(address) = self.known_leader() {
            return Ok(address);
        }
        let address = self.discover().await?;
        self.follow(&address);
        Ok(address)
    }

    /// Asks around although a leader is known, and returns the one that leads
    /// now.
    pub(crate) async fn rediscover(&self) -> Result<String, String> {
        let _alone = self.discovery.lock().await;
        let address = self.discover().await?;
        self.follow(&address);
        Ok(address)
    }

    /// Asks all known nodes, and those they tell of, who leads.
    async fn discover(&self) -> Result<String, String> {
        let mut asked = BTreeSet::new();
        let mut probes = FuturesUnordered::new();
        let probe = |address: String| async move {
            let answer = self.status(&address).await;
            (address, answer)
        };
        for address in self.addresses() {
            if asked.insert(address.clone()) {
                probes.push(probe(address));
            }
        }
        let mut best: Option<(u64, String)> = None;
        let mut decide_at = None;
        let mut causes = Vec::new();
        loop {
            let next = match decide_at {
                None => probes.next().await,
                Some(at) => timeout_at(at, probes.next()).await.unwrap_or(None),
            };
            let Some((address, answer)) = next else { break };
            let status = match answer {
                Ok(status) => status,
                Err(cause) => {
                    causes.push(format!("{address}: {cause}"));
                    continue;
                }
            };
            for member in self.learn(&status.members) {
                if asked.insert(member.clone()) {
                    probes.push(probe(member));
                }
            }
            if status.role != "leader" {
                causes.push(format!("{address}: {}", status.role));
            } else if best.as_ref().is_none_or(|(term, _)| *term < status.term) {
                best = Some((status.term, address));
                decide_at.get_or_insert_with(|| Instant::now() + GRACE);
            }
        }
        best.map(|(_, address)| address).ok_or_else(|| causes.join("; "))
    }

    /// Remembers members, and returns their addresses.
    fn learn(&self, members: &[v1::Member]) -> Vec<String> {
        let addresses: Vec<String> = members
            .iter()
            .map(|member| bare(&member.client_address).to_owned())
            .filter(|address| !address.is_empty())
            .take(LEARNED_MAX)
            .collect();
        if !addresses.is_empty() {
            self.lock().learned = addresses.iter().cloned().collect();
        }
        addresses
    }

    async fn channel(&self, address: &str) -> Result<Channel, String> {
        if let Some(channel) = self.lock().channels.get(address) {
            return Ok(channel.clone());
        }
        let channel = self.dial(address).await?;
        Ok(self
            .lock()
            .channels
            .entry(address.to_owned())
            .or_insert(channel)
            .clone())
    }

    async fn dial(&self, address: &str) -> Result<Channel, String> {
        let config = &self.config;
        let endpoint = Endpoint::from_shared(format!("http://{address}"))
            .map_err(|error| error.to_string())?
            .connect_timeout(config.connect_timeout)
            .http2_keep_alive_interval(config.keepalive_interval)
            .keep_alive_timeout(config.keepalive_timeout)
            .tcp_nodelay(true);
        match timeout(
            config.connect_timeout,
            config.connector.connect(address, endpoint),
        )
        .await
        {
            Ok(connected) => connected.map_err(|error| in_words(&error)),
            Err(_) => Err(format!("no connection within {:?}", config.connect_timeout)),
        }
    }

    fn known_leader(&self) -> Option<String> {
        self.lock().leader.clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The innermost error, which is the one that says what happened.
fn in_words(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}
