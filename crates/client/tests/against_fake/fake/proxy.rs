//! A node that freezes.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Stands in front of a node, and freezes: connections stay open, and nothing
/// comes through any more, like with a process that was sent SIGSTOP.
pub(crate) struct Proxy {
    pub(crate) address: String,
    frozen: watch::Sender<bool>,
}

impl Proxy {
    pub(crate) async fn start(to: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (frozen, watch) = watch::channel(false);
        let to = to.to_owned();
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let far = TcpStream::connect(&to).await.unwrap();
                let (near_read, near_write) = near.into_split();
                let (far_read, far_write) = far.into_split();
                tokio::spawn(pass(near_read, far_write, watch.clone()));
                tokio::spawn(pass(far_read, near_write, watch.clone()));
            }
        });
        Self { address, frozen }
    }

    pub(crate) fn freeze(&self) {
        self.frozen.send_replace(true);
    }
}

async fn pass(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut frozen: watch::Receiver<bool>,
) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        // The sender lives as long as the test.
        let _ = frozen.wait_for(|frozen| !frozen).await;
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}
