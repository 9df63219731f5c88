//! The listeners of a node and what serves them.

use std::net::SocketAddr;

use quorate_node::Broker;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::config::Config;
use crate::exit::{Exit, Fatal};

/// Bound, but not served: connections wait.
pub(crate) struct Listeners {
    client: TcpListener,
    http: TcpListener,
}

/// Everything that answers clients.
///
/// Health and metrics are asked for also while the node drains: they stop after
/// the others.
pub(crate) struct Gateways {
    clients: JoinSet<Result<(), String>>,
    pages: JoinSet<Result<(), String>>,
    stop_clients: watch::Sender<bool>,
    stop_pages: watch::Sender<bool>,
}

impl Listeners {
    pub(crate) async fn bind(config: &Config) -> Result<Self, Fatal> {
        let client = bind("client", SocketAddr::new(config.bind, config.client_port)).await?;
        let http = bind("http", SocketAddr::new(config.bind, config.http_port)).await?;
        Ok(Self { client, http })
    }

    /// Of clients, and of health and metrics.
    pub(crate) fn addresses(&self) -> (SocketAddr, SocketAddr) {
        let address =
            |listener: &TcpListener| listener.local_addr().expect("a bound listener has an address");
        (address(&self.client), address(&self.http))
    }

    pub(crate) fn serve(self, broker: &Broker) -> Gateways {
        let (stop_clients, clients_stopped) = watch::channel(false);
        let (stop_pages, pages_stopped) = watch::channel(false);
        let mut clients = JoinSet::new();
        let mut pages = JoinSet::new();
        let grpc = quorate_gateway_grpc::serve(self.client, broker.clone(), told(clients_stopped));
        clients.spawn(async { grpc.await.map_err(|error| format!("client listener: {error}")) });
        let http = quorate_gateway_http::serve(self.http, broker.clone(), told(pages_stopped));
        pages.spawn(async { http.await.map_err(|error| format!("http listener: {error}")) });
        Gateways {
            clients,
            pages,
            stop_clients,
            stop_pages,
        }
    }
}

impl Gateways {
    /// Resolves when one of them cannot go on.
    pub(crate) async fn failed(&mut self) -> Fatal {
        let ended = tokio::select! {
            Some(ended) = self.clients.join_next() => ended,
            Some(ended) = self.pages.join_next() => ended,
            else => return std::future::pending().await,
        };
        let problem = match ended {
            Ok(Err(problem)) => problem,
            Ok(Ok(())) => "a gateway ended".to_owned(),
            Err(error) => error.to_string(),
        };
        Fatal::new(Exit::Node, problem)
    }

    /// Accepts no more clients; those that are connected finish.
    pub(crate) fn refuse_new(&self) {
        self.stop_clients.send_replace(true);
    }

    /// Waits until the last client is served.
    pub(crate) async fn finish(&mut self) {
        while self.clients.join_next().await.is_some() {}
        self.stop_pages.send_replace(true);
        // A scraper that keeps its connection open must not keep the node.
        self.pages.shutdown().await;
    }
}

async fn bind(what: &str, address: SocketAddr) -> Result<TcpListener, Fatal> {
    let listener = TcpListener::bind(address).await;
    listener.map_err(|error| Fatal::new(Exit::Address, format!("{what} listener on {address}: {error}")))
}

async fn told(mut stop: watch::Receiver<bool>) {
    // An error means that whoever tells is gone: then stop as well.
    let _ = stop.wait_for(|stop| *stop).await;
}
