//! As much of HTTP as it takes to ask a node of ours for a page.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

pub(crate) async fn get(address: SocketAddr, path: &str) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect(address)
        .await
        .with_context(|| format!("connect to {address}"))?;
    // 1.0: the answer ends with the connection.
    let request = format!("GET {path} HTTP/1.0\r\nhost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.context("ask")?;
    let mut answer = String::new();
    stream
        .read_to_string(&mut answer)
        .await
        .context("read the answer")?;
    parse(&answer).context("not an answer in HTTP")
}

fn parse(answer: &str) -> Option<(u16, String)> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    Some((status, body.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_a_status_and_a_body() {
        let answer = "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 3\r\n\r\nno\n";
        assert_eq!(parse(answer), Some((503, "no\n".to_owned())));
        assert_eq!(parse("SSH-2.0-x\r\n\r\n"), None);
    }
}
