//! A cluster with a great many queues.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use quorate_client::Client;

/// Declares under way at a time.
const DECLARES_AT_ONCE: usize = 200;

/// Declares so many queues.
///
/// # Errors
///
/// When one cannot be declared.
pub async fn declare(client: &Client, count: usize) -> Result<()> {
    let declares = stream::iter(0..count)
        .map(|number| {
            let declare = client.declare_queue(name(number));
            async move { declare.send().await }
        })
        .buffer_unordered(DECLARES_AT_ONCE);
    let declared: Vec<_> = declares.try_collect().await?;
    ensure!(
        declared.iter().all(|declared| declared.created),
        "some of them were there before"
    );
    Ok(())
}

/// Insists that just those queues are there, in order.
///
/// # Errors
///
/// When others are.
pub async fn are_there(client: &Client, count: usize) -> Result<()> {
    let names: Vec<String> = client
        .list_queues()
        .map_ok(|queue| queue.name)
        .try_collect()
        .await?;
    ensure!(names.is_sorted(), "they are listed out of order");
    let expected: BTreeSet<String> = (0..count).map(name).collect();
    let listed: BTreeSet<String> = names.iter().cloned().collect();
    ensure!(
        listed == expected && names.len() == count,
        "{} queues of {count} are there",
        names.len()
    );
    Ok(())
}

fn name(number: usize) -> String {
    format!("queue {number:06}")
}
