//! What comes to the peer port, wanted and unwanted.

use std::time::{SystemTime, UNIX_EPOCH};

use quorate_proto::internal as wire;
use quorate_proto::internal::peer_client::PeerClient;
use quorate_proto::v1::cluster_client::ClusterClient;
use quorate_raft::ReadError;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tonic::Code;

use crate::cluster::{Cluster, declare};

fn vote(envelope: wire::Envelope) -> wire::VoteRequest {
    wire::VoteRequest {
        envelope: Some(envelope),
        vote: Some(wire::Vote {
            term: 1_000,
            node: 1,
            committed: false,
        }),
        last_log_id: Some(wire::LogId {
            term: 999,
            node: 1,
            index: 1_000_000,
        }),
        leadership_transfer: true,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_are_refused_and_change_nothing() {
    let cluster = Cluster::running(1, |_| {}).await;
    let other = Cluster::running(1, |_| {}).await;
    let node = cluster.places[0].node();
    let stranger = other.places[0].node();
    let term = node.status().term;
    let url = format!("http://{}", cluster.places[0].address);
    let mut peer = PeerClient::connect(url.clone()).await.unwrap();

    // Of another cluster.
    let mut envelope = stranger.envelope(node.node_id());
    let refused = peer.vote(vote(envelope.clone())).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("cluster"), "{}", refused.message());
    let refused = peer.pre_vote(vote(envelope.clone())).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);

    // Meant for another node.
    envelope = node.envelope(stranger.node_id());
    let append = wire::AppendRequest {
        envelope: Some(envelope),
        ..wire::AppendRequest::default()
    };
    let refused = peer.heartbeat(append.clone()).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("wiped"), "{}", refused.message());
    let frames = tokio_stream::iter([append]);
    let refused = peer
        .stream_append(frames)
        .await
        .unwrap()
        .into_inner()
        .message()
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);

    // Without an envelope, without fields, without sense.
    assert!(peer.vote(wire::VoteRequest::default()).await.is_err());
    let frames = tokio_stream::iter([wire::SnapshotFrame::default()]);
    assert!(peer.install_snapshot(frames).await.is_err());
    let mut public = ClusterClient::connect(url).await.unwrap();
    let status = public
        .status(quorate_proto::v1::StatusRequest {})
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented);
    let mut raw = tokio::net::TcpStream::connect(cluster.places[0].address)
        .await
        .unwrap();
    raw.write_all(b"GET / HTTP/1.0\r\n\r\nAMQP\x00\x00\x09\x01")
        .await
        .unwrap();
    let _ = raw.read(&mut [0; 64]).await;

    cluster.propose(&[declare()]).await;
    assert_eq!(node.status().term, term);
    other.shutdown().await;
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quorum_of_clocks_is_near_this_one() {
    let mut cluster = Cluster::running(3, |_| {}).await;
    cluster.propose(&[declare()]).await;
    let leader = cluster.leader().await;
    let wall = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
    let before = wall();
    let sampled = cluster.places[leader].node().quorum_clock().await.unwrap();
    assert!((before..=wall()).contains(&sampled.0));

    // One of three is no quorum.
    for other in (0..3).filter(|at| *at != leader) {
        cluster.places[other].kill().await;
    }
    assert_eq!(cluster.places[leader].node().quorum_clock().await, None);
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_are_linearizable_on_the_leader_only() {
    let cluster = Cluster::running(3, |_| {}).await;
    let proposed = cluster.propose(&[declare()]).await;
    let leader = cluster.leader().await;
    let index = cluster.places[leader].node().read_barrier().await.unwrap();
    assert!(index >= proposed.index);
    let follower = cluster.places[(leader + 1) % 3].node();
    let asked = follower.read_barrier().await;
    let led = cluster.places[leader].node().node_id();
    assert!(
        matches!(&asked, Err(ReadError::NotLeader { leader: Some(info) }) if info.node_id == led),
        "{asked:?}"
    );
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_that_is_not_what_was_sent_is_not_installed() {
    use wire::snapshot_frame::Frame;
    let cluster = Cluster::running(1, |_| {}).await;
    cluster.propose(&[declare()]).await;
    let node = cluster.places[0].node();
    let before = node.status();
    let empty = {
        let mut image = Vec::new();
        let view = quorate_core::Broker::new().snapshot();
        view.write(&mut |piece: &[u8]| {
            image.extend_from_slice(piece);
            Ok::<_, std::convert::Infallible>(())
        })
        .unwrap();
        image
    };
    let meta: Vec<u8> = include_str!("../../src/samples/snapshot_meta_v1.hex")
        .trim()
        .as_bytes()
        .chunks(2)
        .map(|digits| u8::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).unwrap())
        .collect();
    let begin = Frame::Begin(wire::SnapshotBegin {
        envelope: Some(node.envelope(node.node_id())),
        vote: Some(wire::Vote {
            term: 1_000,
            node: 1,
            committed: true,
        }),
        meta: meta.into(),
    });
    let end = Frame::End(wire::SnapshotEnd {
        image_bytes: empty.len() as u64,
        ..wire::SnapshotEnd::default()
    });

    let url = format!("http://{}", cluster.places[0].address);
    let mut peer = PeerClient::connect(url).await.unwrap();
    for (image, end) in [
        (b"nonsense".to_vec(), Some(end.clone())), // not an image
        (empty.clone(), Some(end)),                // with another hash than announced
        (empty, None),                             // cut short
    ] {
        let frames = [Some(begin.clone()), Some(Frame::Image(image.into())), end];
        let frames = frames
            .into_iter()
            .flatten()
            .map(|frame| wire::SnapshotFrame { frame: Some(frame) });
        let refused = peer
            .install_snapshot(tokio_stream::iter(frames.collect::<Vec<_>>()))
            .await;
        assert!(refused.is_err(), "{refused:?}");
    }
    let after = node.status();
    assert_eq!(
        (after.snapshot_index, after.state_hash),
        (before.snapshot_index, before.state_hash)
    );
    cluster.propose(&[declare()]).await;
    cluster.shutdown().await;
}
