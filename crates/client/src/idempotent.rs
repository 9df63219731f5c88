//! A consumer whose work takes effect once, outside of the broker too.
//!
//! The broker delivers *at least once*: a worker that dies after its work and
//! before its ack, or whose lease runs out meanwhile, leaves a message that comes
//! again. What happens inside of the broker a
//! [`Transaction`](crate::Transaction) makes exact. What happens in a database of
//! your own, this module does: the work and the id of its message are committed
//! in *one* transaction of that database, so that a message whose id is there has
//! been worked on, and one whose id is not has not.
//!
//! # The recipe for exactly once
//!
//! 1. **Id.** A message keeps its id through every delivery, lease, failover and
//!    redrive. A publisher that may publish the same thing twice (a crash of its
//!    own between two runs) gives it a [dedup id](crate::Message::dedup_id); within
//!    one run the client's request ids see to it.
//! 2. **At least once.** A publish counts when it is confirmed, and a message
//!    leaves its queue when it is acked: neither can get lost in between.
//! 3. **Idempotence.** Before the work, the worker's store is asked for the id. A
//!    message that is there is acked without any work.
//! 4. **Atomic commit.** The id is written with the work, in one transaction of
//!    the store; the ack comes after it. Never the other way round: a message that
//!    is acked first and worked on later is lost by a crash in between.
//! 5. **Recovery.** There is nothing to recover. Whatever was under way when a
//!    worker, node or store died is rolled back and comes again, or is committed
//!    and is skipped when it does.
//!
//! Two workers may hold the same message for a while: the lease of one ran out and
//! it does not know. Both write the same id, and the store lets one of them commit.
//! A store also keeps the [fence](crate::Delivery::fence) of the delivery that was
//! committed, which tells which lease it was.
//!
//! The effects must be *in* the store. A mail that a handler sends, or a request
//! to someone else's service, is not rolled back: write it down in the store, and
//! let it be sent from there, under the message's id if the other side can tell
//! repetitions apart.
//!
//! # Which id
//!
//! The id of a message is one for all queues that an exchange puts it into, so a
//! store keeps ids by the *name of the handler* as well: billing and shipping can
//! share a database, and each does its own work on the same message.
//!
//! # Forgetting
//!
//! Ids cost space and can be forgotten when their message cannot come again. After
//! an ack that is at once; but an ack can get lost, and then the message comes back
//! when its lease ends, or stays in a dead set for as long as somebody may redrive
//! it. Keep ids for longer than that: for days, rather than for hours.
//!
//! # With SQLite
//!
//! `SqliteStore` (feature `sqlite`) is such a store. The example
//! `idempotent_consumer` is a worker that may be killed at any moment:
//!
//! ```no_run
//! # #[cfg(feature = "sqlite")]
//! # mod example {
//! use quorate_client::idempotent::{self, HandlerError, SqliteStore};
//! use quorate_client::{Client, Delivery};
//!
//! fn credit(work: &rusqlite::Transaction<'_>, delivery: &Delivery) -> Result<(), HandlerError> {
//!     let account = std::str::from_utf8(delivery.body())?;
//!     work.execute("UPDATE accounts SET balance = balance + 1 WHERE name = ?1", [account])?;
//!     Ok(())
//! }
//!
//! async fn worker(client: Client) -> Result<(), Box<dyn std::error::Error>> {
//!     let mut store = SqliteStore::open("accounts.db", "credit")?;
//!     let mut consumer = client.consume("credits").open().await?;
//!     idempotent::run(&mut consumer, &mut store, &mut credit).await?;
//!     Ok(())
//! }
//! # }
//! ```

#[cfg(feature = "sqlite")]
mod sqlite;

use crate::consumer::Consumer;
use crate::delivery::Delivery;
use crate::error::Error;

#[cfg(feature = "sqlite")]
pub use self::sqlite::SqliteStore;

/// Why a handler failed. The text is shown to the message's next holder.
pub type HandlerError = Box<dyn std::error::Error + Send + Sync>;

/// A store whose transaction can hold the id of a message and the work on it.
///
/// `H` is the kind of handler that it runs: most often a function that is given
/// the store's own transaction, such as
/// `FnMut(&rusqlite::Transaction<'_>, &Delivery) -> Result<(), HandlerError>`.
pub trait Store<H>: Send {
    /// Why the store failed.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Works on a delivery, unless that was done before. In one transaction that
    /// is durable once it is committed:
    ///
    /// 1. Write down the [message id](Delivery::message_id) under the name of the
    ///    handler. If it is there already, roll back: [`Applied::Before`]. If
    ///    another transaction is writing it at this moment, wait for its end.
    /// 2. Run the handler. If it fails, roll back: [`Applied::Failed`].
    /// 3. Commit: [`Applied::Now`].
    ///
    /// # Errors
    ///
    /// The store failed, and the transaction was rolled back; or it is not known
    /// whether it was committed, which the id tells at the next delivery.
    fn apply(
        &mut self,
        delivery: &Delivery,
        handler: &mut H,
    ) -> impl Future<Output = Result<Applied, Self::Error>> + Send;
}

/// What a store did about a delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Applied {
    /// The work is done and committed.
    Now,
    /// The work had been committed before; nothing was done.
    Before,
    /// The handler failed, and says why; nothing was done.
    Failed(String),
}

/// Why [`run`] has ended.
#[derive(Debug, thiserror::Error)]
pub enum RunError<S> {
    /// The consumer has.
    #[error("the consumer ended: {0}")]
    Consumer(Error),
    /// The store failed. The message was given back.
    #[error("the store failed: {0}")]
    Store(S),
}

/// Bytes of a nack's reason.
const REASON_BYTES_MAX: usize = 1_024;

/// Works on a delivery once, and settles it: an ack after
/// [`Applied::Now`] and [`Applied::Before`], a nack after [`Applied::Failed`].
///
/// A settlement that fails is not an error: the message then comes again, and is
/// acked when it does. A future that is dropped leaves the delivery to the end of
/// its lease.
///
/// # Errors
///
/// The store failed. The delivery is given back without counting an attempt, as
/// the message is not at fault.
pub async fn process<S, H>(store: &mut S, handler: &mut H, delivery: Delivery) -> Result<Applied, S::Error>
where
    S: Store<H>,
{
    let applied = store.apply(&delivery, handler).await;
    let message_id = delivery.message_id().to_owned();
    let settling = match &applied {
        Ok(Applied::Now | Applied::Before) => delivery.ack(),
        Ok(Applied::Failed(reason)) => delivery.nack(shortened(reason)),
        Err(_) => delivery.release(),
    };
    if let Err(error) = settling.await {
        tracing::debug!(message_id, %error, "not settled; the message comes again");
    }
    applied
}

/// Works on each delivery of a consumer once, one after the other, until the
/// consumer ends. A future that is dropped leaves the delivery that is under way
/// to the end of its lease.
///
/// # Errors
///
/// The consumer ended with an error, or the store failed.
pub async fn run<S, H>(
    consumer: &mut Consumer,
    store: &mut S,
    handler: &mut H,
) -> Result<(), RunError<S::Error>>
where
    S: Store<H>,
{
    while let Some(delivery) = consumer.next().await {
        let delivery = delivery.map_err(RunError::Consumer)?;
        process(store, handler, delivery).await.map_err(RunError::Store)?;
    }
    Ok(())
}

/// As much of a reason as a nack may have.
fn shortened(reason: &str) -> &str {
    let mut end = reason.len().min(REASON_BYTES_MAX);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    &reason[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        assert_eq!(shortened("why"), "why");
        let long = format!("x{}", "é".repeat(600));
        let cut = shortened(&long);
        assert_eq!(cut.len(), 1_023);
        assert!(long.starts_with(cut));
    }
}
