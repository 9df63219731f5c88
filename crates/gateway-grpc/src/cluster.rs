//! Looking at the cluster and changing its members.

use std::time::Duration;

use quorate_node::types::NodeId;
use quorate_node::{Broker, BrokerError};
use quorate_proto::v1;
use tonic::{Request, Response, Status};

use crate::error;

pub(crate) struct Service {
    pub(crate) broker: Broker,
}

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl v1::cluster_server::Cluster for Service {
    async fn status(&self, _: Request<v1::StatusRequest>) -> Answer<v1::StatusResponse> {
        let status = self.broker.status();
        let leader = status.leader.as_ref();
        let members = status
            .members
            .iter()
            .map(|member| v1::Member {
                node_id: member.node_id.0,
                name: member.name.clone(),
                client_address: member.client_address.clone(),
                peer_address: member.peer_address.clone(),
                voter: member.voter,
                matched_index: member.matched_index,
                leader: leader.is_some_and(|leader| leader.node_id == member.node_id),
            })
            .collect();
        Ok(Response::new(v1::StatusResponse {
            cluster_id: status.cluster_id.map_or_else(String::new, |id| hex(&id)),
            node_id: status.node_id.0,
            role: status.role.to_string(),
            term: status.term,
            leader: leader.map(error::address),
            last_log_index: status.last_log_index,
            committed_index: status.committed_index,
            applied_index: status.applied_index,
            snapshot_index: status.snapshot_index,
            purged_index: status.purged_index,
            state_index: status.state_index,
            state_hash: format!("{:032x}", status.state_hash),
            cluster_time_ms: self.broker.cluster_time().0,
            log_bytes: status.log_bytes,
            disk_bytes: status.disk_bytes,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_ms: u64::try_from(status.uptime.as_millis()).unwrap_or(u64::MAX),
            members,
            quorum_ack_age_ms: status
                .quorum_ack_age
                .map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX)),
            disk: status
                .disk
                .into_iter()
                .map(|part| v1::DiskUse {
                    part: part.name.to_owned(),
                    disk_bytes: part.disk_bytes,
                    live_bytes: part.live_bytes,
                })
                .collect(),
        }))
    }

    async fn add_node(&self, request: Request<v1::AddNodeRequest>) -> Answer<v1::AddNodeResponse> {
        let address = request.into_inner().peer_address;
        let node = self
            .broker
            .add_node(&address)
            .await
            .map_err(|error| error::membership(&error))?;
        Ok(Response::new(v1::AddNodeResponse { node_id: node.0 }))
    }

    async fn remove_node(&self, request: Request<v1::RemoveNodeRequest>) -> Answer<v1::RemoveNodeResponse> {
        let node = NodeId(request.into_inner().node_id);
        self.broker
            .remove_node(node)
            .await
            .map_err(|error| error::membership(&error))?;
        Ok(Response::new(v1::RemoveNodeResponse {}))
    }

    async fn transfer_leader(
        &self,
        request: Request<v1::TransferLeaderRequest>,
    ) -> Answer<v1::TransferLeaderResponse> {
        let to = match request.into_inner().to {
            0 => None,
            id => Some(NodeId(id)),
        };
        self.broker
            .transfer_leader(to)
            .await
            .map_err(|error| error::membership(&error))?;
        // The answer names the new leader once this node has heard of it.
        let leader = match tokio::time::timeout(Duration::from_secs(2), self.broker.gone()).await {
            Ok(BrokerError::NotLeader(leader)) => Some(error::address(&leader)),
            _ => None,
        };
        Ok(Response::new(v1::TransferLeaderResponse { leader }))
    }

    async fn snapshot(&self, _: Request<v1::SnapshotRequest>) -> Answer<v1::SnapshotResponse> {
        let snapshot_index = self
            .broker
            .snapshot()
            .await
            .map_err(|error| error::status(&error))?;
        Ok(Response::new(v1::SnapshotResponse { snapshot_index }))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
