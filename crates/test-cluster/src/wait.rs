//! Waiting for a condition instead of a duration.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

const PAUSE: Duration = Duration::from_millis(20);

/// Asks until the answer is there.
///
/// ```no_run
/// # use std::time::Duration;
/// # async fn example(cluster: quorate_test_cluster::Cluster) -> anyhow::Result<()> {
/// let applied = quorate_test_cluster::wait_until("node 2 to catch up", Duration::from_secs(10), async || {
///     let status = cluster.status(2).await.ok()?;
///     (status.applied_index >= 100).then_some(status.applied_index)
/// })
/// .await?;
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// When there is no answer within `limit`; the error names `what` was waited for.
pub async fn wait_until<T>(
    what: &str,
    limit: Duration,
    mut ask: impl AsyncFnMut() -> Option<T>,
) -> Result<T> {
    let give_up = Instant::now() + limit;
    loop {
        if let Some(answer) = ask().await {
            return Ok(answer);
        }
        if Instant::now() >= give_up {
            bail!("waited {limit:?} in vain for {what}");
        }
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_asks_again_and_gives_up_with_the_reason() {
        let mut asked = 0;
        let answer = wait_until("a third try", Duration::from_secs(10), async || {
            asked += 1;
            (asked == 3).then_some(asked)
        });
        assert_eq!(answer.await.expect("the third try answers"), 3);
        let error = wait_until("rain", Duration::ZERO, async || None::<()>)
            .await
            .expect_err("no rain");
        assert_eq!(error.to_string(), "waited 0ns in vain for rain");
    }
}
