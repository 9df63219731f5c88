//! The HTTP side of a node: health, readiness and metrics.
//!
//! | path | answer |
//! | --- | --- |
//! | `/healthz` | 200 while the process lives. A restart is the remedy when this fails |
//! | `/readyz` | 200 when the node can do work for a client, else 503 with the reason |
//! | `/metrics` | all metrics of the node in the Prometheus text format |
//!
//! A node that lost its majority lives but is not ready: restarting it would
//! only make things worse, so the two are different questions.

use std::future::Future;
use std::io;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use quorate_node::Broker;
use quorate_node::metrics::Family;
use tokio::net::TcpListener;

mod exposition;

/// Answers on `listener` until `shutdown` resolves.
///
/// # Errors
///
/// When the listener itself fails.
pub async fn serve(
    listener: TcpListener,
    broker: Broker,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    axum::serve(listener, router(Arc::new(broker)))
        .with_graceful_shutdown(shutdown)
        .await
}

/// What the pages need to know about a node.
trait Vitals: Send + Sync + 'static {
    /// Why the node cannot serve a client now, if it cannot.
    fn ready(&self) -> Result<(), String>;
    /// Takes a while.
    fn metrics(&self) -> Vec<Family>;
}

impl Vitals for Broker {
    fn ready(&self) -> Result<(), String> {
        Broker::ready(self)
    }

    fn metrics(&self) -> Vec<Family> {
        Broker::metrics(self)
    }
}

fn router(node: Arc<dyn Vitals>) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(node)
}

async fn ready(State(node): State<Arc<dyn Vitals>>) -> impl IntoResponse {
    match node.ready() {
        Ok(()) => (StatusCode::OK, "ready\n".to_owned()),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {reason}\n")),
    }
}

async fn metrics(State(node): State<Arc<dyn Vitals>>) -> Result<impl IntoResponse, StatusCode> {
    let rendered = tokio::task::spawn_blocking(move || exposition::render(&node.metrics())).await;
    // It panicked, which the log has.
    let text = rendered.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    Ok(([(header::CONTENT_TYPE, exposition::CONTENT_TYPE)], text))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;

    struct Node(Result<(), String>);

    impl Vitals for Node {
        fn ready(&self) -> Result<(), String> {
            self.0.clone()
        }

        fn metrics(&self) -> Vec<Family> {
            Vec::new()
        }
    }

    async fn ask(node: Node, path: &str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound listener");
        let server = tokio::spawn(async move { axum::serve(listener, router(Arc::new(node))).await });
        let mut stream = TcpStream::connect(address).await.expect("the listener is bound");
        let request = format!("GET {path} HTTP/1.1\r\nhost: quorate\r\nconnection: close\r\n\r\n");
        stream
            .write_all(request.as_bytes())
            .await
            .expect("the server reads");
        let mut answer = String::new();
        stream
            .read_to_string(&mut answer)
            .await
            .expect("the server answers");
        server.abort();
        answer
    }

    #[tokio::test]
    async fn a_node_that_is_not_ready_says_why_and_still_lives() {
        let lost = || Node(Err("no leader".to_owned()));
        let answer = ask(lost(), "/readyz").await;
        assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
        assert!(answer.ends_with("not ready: no leader\n"), "{answer}");
        assert!(ask(lost(), "/healthz").await.starts_with("HTTP/1.1 200"));
        assert!(ask(Node(Ok(())), "/readyz").await.starts_with("HTTP/1.1 200"));
    }

    #[tokio::test]
    async fn metrics_name_their_format() {
        let answer = ask(Node(Ok(())), "/metrics").await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.contains("text/plain; version=0.0.4"), "{answer}");
    }
}
