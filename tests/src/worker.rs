//! A worker that can die as a process does.
//!
//! Its tasks and connections live in a runtime of their own. When it is killed
//! they are gone in one moment: what was under way stays half done, connections
//! break, and nobody says goodbye to the broker.

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::runtime::{Builder, Runtime};
use tokio::task::{JoinHandle, spawn_blocking};

/// How long the end of a worker may take.
const END_LIMIT: Duration = Duration::from_secs(60);

/// A running worker; dropped, it dies.
#[derive(Debug)]
pub struct Worker<T> {
    runtime: Option<Runtime>,
    work: JoinHandle<T>,
}

impl<T: Send + 'static> Worker<T> {
    /// Starts it. Connections that `work` opens are its own; those that it was
    /// given are not, and outlive it.
    ///
    /// # Errors
    ///
    /// When there is no thread for it.
    pub fn start(work: impl Future<Output = T> + Send + 'static) -> Result<Self> {
        let mut builder = Builder::new_multi_thread();
        let runtime = builder
            .worker_threads(1)
            .enable_all()
            .build()
            .context("start a worker")?;
        Ok(Self {
            work: runtime.spawn(work),
            runtime: Some(runtime),
        })
    }

    /// Waits until its work is done, and takes what came of it.
    ///
    /// # Errors
    ///
    /// When it panicked, or does not end within a minute.
    pub async fn end(mut self) -> Result<T> {
        let outcome = tokio::time::timeout(END_LIMIT, &mut self.work).await;
        let result = outcome
            .context("a worker does not end")?
            .context("a worker panicked")?;
        self.kill().await?;
        Ok(result)
    }

    /// Kills it. When this returns it is gone, and its connections are.
    ///
    /// # Errors
    ///
    /// When it cannot be waited for.
    pub async fn kill(mut self) -> Result<()> {
        if let Some(runtime) = self.runtime.take() {
            spawn_blocking(move || runtime.shutdown_timeout(END_LIMIT))
                .await
                .context("wait for the end of a worker")?;
        }
        Ok(())
    }
}

impl<T> Drop for Worker<T> {
    fn drop(&mut self) {
        // Not to be waited for in a place that may belong to another runtime.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::io::AsyncReadExt as _;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    #[tokio::test]
    async fn a_killed_worker_takes_its_tasks_and_connections_along() -> Result<()> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let worker = Worker::start(async move {
            tokio::spawn(async move {
                let _connection = TcpStream::connect(address).await;
                pending::<()>().await;
            });
            pending::<()>().await;
        })?;
        let (mut connection, _) = listener.accept().await?;
        worker.kill().await?;
        assert_eq!(connection.read(&mut [0]).await?, 0, "the connection is open");
        Ok(())
    }

    #[tokio::test]
    async fn a_worker_that_ends_tells_what_it_did() -> Result<()> {
        assert_eq!(Worker::start(async { 7 })?.end().await?, 7);
        Ok(())
    }
}
