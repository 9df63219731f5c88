//! The shortest proof that a cluster serves.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use quorate_client::Client;

/// One message goes all the way through: published, leased, acked.
///
/// # Errors
///
/// When any of these fails.
pub async fn serves(client: &Client) -> Result<()> {
    const QUEUE: &str = "through";
    client.declare_queue(QUEUE).send().await?;
    let published = client.publish(QUEUE, "hello").await?;
    let delivery = client
        .lease(QUEUE)
        .wait(Duration::from_secs(10))
        .send()
        .await?
        .pop();
    let delivery = delivery.context("the message does not come")?;
    ensure!(
        published.message_id() == delivery.message_id(),
        "another message came: {delivery:?}"
    );
    delivery.ack().await?;
    Ok(())
}
