//! The native API, `quorate.v1`, over gRPC.
//!
//! This gateway translates: generated messages to the calls of
//! [`quorate_node::Broker`] and back (`convert`), and its errors to status
//! codes with an `ErrorDetail` (one table, `error`). The leader serves; any
//! other node answers `NOT_LEADER` with the leader's address, but for looks at
//! its own state or journal, and for a queue that is to be explained while there
//! is no leader.
//!
//! | file | what it is |
//! | --- | --- |
//! | `service` | hands every call on to one of the files below |
//! | `queues`, `exchanges` | declare, change, delete, look |
//! | `messages` | publish, lease, settle, transact |
//! | `operate` | browse, get, operate, redrive |
//! | `trace` | what happened to a message |
//! | `publish_stream` | a long-lived publisher with many requests in flight |
//! | `consume` | a push consumer: its session, deliveries, credit, settlements |
//! | `cluster` | status and membership |
//!
//! Health follows the gRPC health protocol: the empty service name tells
//! whether the node can serve or redirect, `quorate.v1.Broker` whether it
//! leads. Reflection shows the public API.

mod cluster;
mod consume;
mod convert;
mod error;
mod exchanges;
mod messages;
mod operate;
mod publish_stream;
mod queues;
mod service;
mod trace;

use std::future::Future;
use std::io;
use std::time::Duration;

use futures_util::{Stream, TryStreamExt as _};

use quorate_node::Broker;
use quorate_node::environment::Connection;
use quorate_proto::v1;
use quorate_proto::v1::broker_server::BrokerServer;
use quorate_proto::v1::cluster_server::ClusterServer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic_health::ServingStatus;

/// Largest request: a message of the largest body with the largest headers, or
/// a publish of the most bytes, and what surrounds them.
const REQUEST_BYTES_MAX: usize = 20 * 1024 * 1024;

/// Why the gateway stopped.
#[derive(Debug)]
pub struct Error(Box<dyn std::error::Error + Send + Sync>);

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "serve gRPC clients: {}", self.0)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.0)
    }
}

/// Serves clients over TCP until `shutdown` resolves and the calls under way are
/// done.
///
/// # Errors
///
/// When the listener fails.
pub async fn serve(
    listener: TcpListener,
    broker: Broker,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), Error> {
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    serve_with_incoming(incoming, broker, shutdown).await
}

/// Serves clients over the connections that come, whatever they are made of,
/// until `shutdown` resolves and the calls under way are done.
///
/// # Errors
///
/// When `incoming` yields one.
pub async fn serve_with_incoming<IO>(
    incoming: impl Stream<Item = io::Result<IO>>,
    broker: Broker,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), Error>
where
    IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let wrap = |error: Box<dyn std::error::Error + Send + Sync>| Error(error);
    let (reporter, health) = tonic_health::server::health_reporter();
    let reporting = tokio::spawn(report_health(broker.clone(), reporter));
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(v1::FILE_DESCRIPTOR_SET)
        .build_v1()
        .map_err(|error| wrap(error.into()))?;
    let result = Server::builder()
        .http2_keepalive_interval(Some(Duration::from_secs(10)))
        .http2_keepalive_timeout(Some(Duration::from_secs(10)))
        .initial_stream_window_size(1024 * 1024)
        .initial_connection_window_size(4 * 1024 * 1024)
        .max_concurrent_streams(1_000)
        .add_service(
            BrokerServer::new(service::Service {
                broker: broker.clone(),
            })
            .max_decoding_message_size(REQUEST_BYTES_MAX)
            .max_encoding_message_size(usize::MAX),
        )
        .add_service(ClusterServer::new(cluster::Service { broker }))
        .add_service(health)
        .add_service(reflection)
        .serve_with_incoming_shutdown(incoming.map_ok(Connection::new), shutdown)
        .await;
    reporting.abort();
    result.map_err(|error| wrap(error.into()))
}

async fn report_health(broker: Broker, reporter: tonic_health::server::HealthReporter) {
    let serving = |yes| {
        if yes {
            ServingStatus::Serving
        } else {
            ServingStatus::NotServing
        }
    };
    let mut leadership = broker.leadership();
    loop {
        let leading = leadership.borrow_and_update().leading;
        reporter
            .set_service_status("", serving(broker.ready().is_ok()))
            .await;
        reporter
            .set_service_status("quorate.v1.Broker", serving(leading))
            .await;
        tokio::select! {
            biased;
            changed = leadership.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(Duration::from_secs(1)) => {}
        }
    }
}
