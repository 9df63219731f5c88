//! Who this node is, and the question every request is asked first.
//!
//! A node is its data: the id is drawn at random when a data directory is first
//! used, and the cluster id is written beside it once, before the node answers
//! the first message of that cluster. A machine whose data was wiped is a new
//! node, and requests meant for the old one are refused by the target id.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::Mutex;
use prost::Message as _;
use quorate_core::ids::Incarnation;
use quorate_mutants::mutant;
use quorate_proto::internal as wire;
use quorate_storage::Store;
use tonic::{Code, Status};

use crate::blocking;
use crate::types::Member;

/// A cluster: 16 random bytes, drawn by the node that formed it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClusterId(pub [u8; 16]);

impl std::ops::Deref for ClusterId {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A node's own name tag, and whom it believes.
pub(crate) struct Identity {
    pub(crate) node_id: u64,
    pub(crate) incarnation: Incarnation,
    pub(crate) member: Member,
    cluster: OnceLock<ClusterId>,
    store: Arc<Store>,
    trusted: Mutex<Trusted>,
    /// Serialises the one write of the cluster id.
    adopting: tokio::sync::Mutex<()>,
    /// The last refusal that was logged, by sender.
    logged: Mutex<std::collections::BTreeMap<u64, i32>>,
}

/// From whom a node without a cluster takes the cluster id.
enum Trusted {
    /// From whoever knows its node id: it waits to be added.
    Anyone,
    /// From these: the nodes at the addresses of its peer list, and the
    /// members they name.
    Only(BTreeSet<u64>),
}

impl Identity {
    pub(crate) fn new(store: Arc<Store>, member: Member, has_peers: bool) -> Self {
        let identity = store.identity();
        let cluster = OnceLock::new();
        if let Some(id) = identity.cluster_id {
            let _ = cluster.set(ClusterId(id));
        }
        Self {
            node_id: identity.node_id,
            incarnation: Incarnation(identity.incarnation),
            member,
            cluster,
            store,
            trusted: Mutex::new(if has_peers {
                Trusted::Only(BTreeSet::new())
            } else {
                Trusted::Anyone
            }),
            adopting: tokio::sync::Mutex::new(()),
            logged: Mutex::default(),
        }
    }

    pub(crate) fn cluster(&self) -> Option<ClusterId> {
        self.cluster.get().copied()
    }

    /// Believes these nodes when they say which cluster this one belongs to.
    pub(crate) fn trust(&self, nodes: impl IntoIterator<Item = u64>) {
        if let Trusted::Only(set) = &mut *self.trusted.lock() {
            set.extend(nodes);
        }
    }

    /// Writes the cluster id, for good, before anyone is told.
    pub(crate) async fn adopt(&self, cluster: ClusterId) -> Result<(), Status> {
        let _one_at_a_time = self.adopting.lock().await;
        if self.cluster().is_some() {
            return Ok(());
        }
        let store = Arc::clone(&self.store);
        blocking::run(&self.store.log, move || store.set_cluster_id(cluster.0))
            .await
            .map_err(|error| Status::internal(format!("write the cluster id: {error}")))?
            .map_err(|error| Status::internal(format!("write the cluster id: {error}")))?;
        let _ = self.cluster.set(cluster);
        tracing::info!(node = self.node_id, %cluster, "this node belongs to a cluster now");
        Ok(())
    }

    /// The envelope of a request to `to`.
    pub(crate) fn envelope(&self, to: u64) -> wire::Envelope {
        wire::Envelope {
            cluster_id: self
                .cluster()
                .map_or_else(Bytes::new, |id| Bytes::copy_from_slice(&id.0)),
            from_node: self.node_id,
            to_node: to,
            shard: 0,
        }
    }

    /// Lets a request in, or says why not. Answers the sender's id.
    pub(crate) async fn admit(&self, envelope: Option<&wire::Envelope>) -> Result<u64, Status> {
        let envelope = envelope.ok_or_else(|| Status::invalid_argument("a request without envelope"))?;
        self.check(envelope)?;
        if self.cluster().is_none() {
            let id = <[u8; 16]>::try_from(&envelope.cluster_id[..])
                .map_err(|_| Status::invalid_argument("a cluster id has 16 bytes"))?;
            self.adopt(ClusterId(id)).await?;
            // Another request may have brought another id meanwhile.
            self.check(envelope)?;
        }
        Ok(envelope.from_node)
    }

    /// Like [`Self::admit`] for a node that belongs to a cluster: does not wait.
    pub(crate) fn check(&self, envelope: &wire::Envelope) -> Result<(), Status> {
        use wire::refusal::Kind;
        let from = envelope.from_node;
        if envelope.shard != 0 {
            return Err(self.refuse(from, Kind::Shard, format!("there is no shard {}", envelope.shard)));
        }
        if envelope.to_node != self.node_id && !mutant!("wiped-node-rejoins") {
            return Err(self.refuse(
                from,
                Kind::Target,
                format!(
                    "this is node {}, not node {}: if that node's data was wiped, remove its id from the cluster and \
                     add this one",
                    self.node_id, envelope.to_node
                ),
            ));
        }
        match self.cluster() {
            Some(own) if own.0[..] == envelope.cluster_id[..] => Ok(()),
            Some(own) => Err(self.refuse(
                from,
                Kind::Cluster,
                format!("node {} belongs to cluster {own}, the sender to another", self.node_id),
            )),
            None => match &*self.trusted.lock() {
                Trusted::Only(set) if !set.contains(&from) => Err(self.refuse(
                    from,
                    Kind::Sender,
                    format!(
                        "node {} belongs to no cluster yet, and node {from} did not answer at any address of its \
                         peer list",
                        self.node_id
                    ),
                )),
                _ => Ok(()),
            },
        }
    }

    fn refuse(&self, from: u64, kind: wire::refusal::Kind, text: String) -> Status {
        if self.logged.lock().insert(from, kind as i32) != Some(kind as i32) {
            tracing::warn!(node = self.node_id, from, "request refused: {text}");
        }
        let refusal = wire::Refusal {
            kind: kind.into(),
            node_id: self.node_id,
            cluster_id: self
                .cluster()
                .map_or_else(Bytes::new, |id| Bytes::copy_from_slice(&id.0)),
        };
        Status::with_details(Code::FailedPrecondition, text, refusal.encode_to_vec().into())
    }
}

/// The refusal in a status, if it is one.
pub(crate) fn refusal(status: &Status) -> Option<wire::Refusal> {
    (status.code() == Code::FailedPrecondition && !status.details().is_empty())
        .then(|| wire::Refusal::decode(status.details()).ok())
        .flatten()
}
