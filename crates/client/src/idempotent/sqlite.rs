//! Ids and work in one SQLite database.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension as _, Transaction, TransactionBehavior};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::block_in_place;

use super::{Applied, HandlerError, Store};
use crate::delivery::Delivery;

/// An SQLite database that holds the work of a handler, and the ids of the
/// messages that it worked on.
///
/// A handler is a function of a transaction and a delivery. It does its work
/// through that transaction, which it neither commits nor rolls back, and passes
/// errors of the database on.
///
/// Several workers, in one or many processes, can share a database file: one after
/// the other commits. A worker waits up to 5 s for another, unless
/// [`Connection::busy_timeout`] says otherwise; then the store has failed.
///
/// A transaction blocks the thread it runs on. On a multi-threaded Tokio runtime
/// other tasks go on meanwhile, on a single-threaded one they wait.
pub struct SqliteStore {
    connection: Connection,
    handler: String,
}

/// The one table, and the index by which ids are forgotten.
const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS quorate_processed (
        handler TEXT NOT NULL,
        message_id TEXT NOT NULL,
        -- Of the delivery whose work is committed.
        fence INTEGER NOT NULL,
        -- Seconds since the Unix epoch, by the clock of this machine.
        processed_at INTEGER NOT NULL DEFAULT (unixepoch()),
        PRIMARY KEY (handler, message_id)
    ) WITHOUT ROWID;
    CREATE INDEX IF NOT EXISTS quorate_processed_by_age ON quorate_processed (processed_at);
";

impl SqliteStore {
    /// Opens a database file, or makes it, for a handler of this name. Its journal
    /// is set to write-ahead, in which readers do not wait for workers.
    ///
    /// # Errors
    ///
    /// The file cannot be opened or is not a database.
    pub fn open(path: impl AsRef<Path>, handler: impl Into<String>) -> rusqlite::Result<Self> {
        let connection = Connection::open(path)?;
        connection.pragma_update(None, "journal_mode", "wal")?;
        Self::new(connection, handler)
    }

    /// Takes a connection of your own, for a handler of this name. The table
    /// `quorate_processed` is made if it is not there, and `synchronous` is set to
    /// `FULL`: a commit that a power failure takes back after the ack would lose
    /// the work for good.
    ///
    /// # Errors
    ///
    /// The database cannot be written.
    pub fn new(connection: Connection, handler: impl Into<String>) -> rusqlite::Result<Self> {
        connection.pragma_update(None, "synchronous", "full")?;
        connection.execute_batch(SCHEMA)?;
        Ok(Self {
            connection,
            handler: handler.into(),
        })
    }

    /// The connection, to read or prepare tables of your own.
    #[must_use]
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// The [fence](Delivery::fence) of the delivery whose work was committed; None
    /// if this handler has not worked on the message, or has forgotten it.
    ///
    /// # Errors
    ///
    /// The database cannot be read.
    pub fn fence(&self, message_id: &str) -> rusqlite::Result<Option<u64>> {
        let fence: Option<i64> = self
            .connection
            .query_row(
                "SELECT fence FROM quorate_processed WHERE handler = ?1 AND message_id = ?2",
                [self.handler.as_str(), message_id],
                |row| row.get(0),
            )
            .optional()?;
        Ok(fence.map(i64::cast_unsigned))
    }

    /// Forgets ids that were written longer ago than `age`, of all handlers, and
    /// returns how many. A message that comes again after that is worked on again:
    /// see [Forgetting](super#forgetting).
    ///
    /// # Errors
    ///
    /// The database cannot be written.
    pub fn forget(&mut self, age: Duration) -> rusqlite::Result<usize> {
        let seconds = i64::try_from(age.as_secs()).unwrap_or(i64::MAX);
        self.connection.execute(
            "DELETE FROM quorate_processed WHERE processed_at < unixepoch() - ?1",
            [seconds],
        )
    }

    fn apply_blocking<H>(&mut self, delivery: &Delivery, handler: &mut H) -> rusqlite::Result<Applied>
    where
        H: FnMut(&Transaction<'_>, &Delivery) -> Result<(), HandlerError>,
    {
        // Immediate: waits for other writers here, and not half-way.
        let transaction = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)?;
        let added = transaction.execute(
            "INSERT OR IGNORE INTO quorate_processed (handler, message_id, fence) VALUES (?1, ?2, ?3)",
            (
                self.handler.as_str(),
                delivery.message_id(),
                delivery.fence().cast_signed(),
            ),
        )?;
        if added == 0 {
            return Ok(Applied::Before);
        }
        // A transaction that is dropped is rolled back.
        if let Err(error) = handler(&transaction, delivery) {
            return Ok(Applied::Failed(error.to_string()));
        }
        transaction.commit()?;
        Ok(Applied::Now)
    }
}

impl<H> Store<H> for SqliteStore
where
    H: FnMut(&Transaction<'_>, &Delivery) -> Result<(), HandlerError> + Send,
{
    type Error = rusqlite::Error;

    async fn apply(&mut self, delivery: &Delivery, handler: &mut H) -> rusqlite::Result<Applied> {
        let mut apply = || self.apply_blocking(delivery, handler);
        match Handle::current().runtime_flavor() {
            RuntimeFlavor::CurrentThread => apply(),
            _ => block_in_place(apply),
        }
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore")
            .field("handler", &self.handler)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use quorate_proto::v1;

    use super::*;
    use crate::client::Client;
    use crate::delivery::Origin;

    fn delivery(message_id: &str, fence: u64) -> Delivery {
        let client = Client::builder().endpoint("nobody:1").connect_lazy();
        let wire = v1::Delivery {
            message_id: message_id.to_owned(),
            fence,
            ..Default::default()
        };
        Delivery::new(wire, Origin::Leased(client.unwrap()))
    }

    fn store(handler: &str) -> SqliteStore {
        let store = SqliteStore::new(Connection::open_in_memory().unwrap(), handler).unwrap();
        prepare(&store);
        store
    }

    fn prepare(store: &SqliteStore) {
        let table = "CREATE TABLE IF NOT EXISTS work (message_id TEXT NOT NULL)";
        store.connection().execute_batch(table).unwrap();
    }

    fn work(transaction: &Transaction<'_>, delivery: &Delivery) -> Result<(), HandlerError> {
        transaction.execute("INSERT INTO work VALUES (?1)", [delivery.message_id()])?;
        Ok(())
    }

    fn worked(store: &SqliteStore) -> i64 {
        let count = store
            .connection()
            .query_row("SELECT count(*) FROM work", [], |row| row.get(0));
        count.unwrap()
    }

    #[tokio::test]
    async fn a_message_is_worked_on_once() {
        let mut store = store("credit");
        let first = store.apply(&delivery("1-0", 7), &mut work).await;
        assert_eq!(first.unwrap(), Applied::Now);
        let again = store.apply(&delivery("1-0", 9), &mut work).await;
        assert_eq!(again.unwrap(), Applied::Before);
        assert_eq!((worked(&store), store.fence("1-0").unwrap()), (1, Some(7)));
    }

    #[tokio::test]
    async fn work_that_fails_leaves_no_trace() {
        let mut store = store("credit");
        let mut fails = |transaction: &Transaction<'_>, delivery: &Delivery| -> Result<(), HandlerError> {
            work(transaction, delivery)?;
            Err("the other half failed".into())
        };
        let failed = store.apply(&delivery("1-0", 7), &mut fails).await;
        assert_eq!(
            failed.unwrap(),
            Applied::Failed("the other half failed".to_owned())
        );
        assert_eq!((worked(&store), store.fence("1-0").unwrap()), (0, None));
        let again = store.apply(&delivery("1-0", 8), &mut work).await;
        assert_eq!(again.unwrap(), Applied::Now);
    }

    #[tokio::test]
    async fn a_handler_that_panics_leaves_no_trace() {
        let mut store = store("credit");
        let mut panics = |transaction: &Transaction<'_>, delivery: &Delivery| -> Result<(), HandlerError> {
            work(transaction, delivery)?;
            panic!("a bug");
        };
        let applied = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            store.apply_blocking(&delivery("1-0", 7), &mut panics)
        }));
        assert!(applied.is_err());
        assert_eq!((worked(&store), store.fence("1-0").unwrap()), (0, None));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn two_workers_with_the_same_message_commit_one() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("work.db");
        prepare(&SqliteStore::open(&file, "credit").unwrap());
        let worker = |fence| {
            let mut store = SqliteStore::open(&file, "credit").unwrap();
            tokio::spawn(async move {
                let mut applied = Vec::new();
                for n in 0..20 {
                    let delivery = delivery(&format!("{n}-0"), fence);
                    applied.push(store.apply(&delivery, &mut work).await.unwrap());
                }
                applied
            })
        };
        let (a, b) = (worker(1), worker(2));
        for (a, b) in a.await.unwrap().into_iter().zip(b.await.unwrap()) {
            assert!(
                matches!(
                    (&a, &b),
                    (Applied::Now, Applied::Before) | (Applied::Before, Applied::Now)
                ),
                "{a:?}, {b:?}"
            );
        }
        let store = SqliteStore::open(&file, "credit").unwrap();
        assert_eq!(worked(&store), 20);
    }

    #[tokio::test]
    async fn handlers_that_share_a_database_work_on_the_same_message_each() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("work.db");
        for handler in ["billing", "shipping"] {
            let mut store = SqliteStore::open(&file, handler).unwrap();
            prepare(&store);
            let applied = store.apply(&delivery("1-0", 7), &mut work).await;
            assert_eq!(applied.unwrap(), Applied::Now);
        }
        assert_eq!(worked(&SqliteStore::open(&file, "billing").unwrap()), 2);
    }

    #[tokio::test]
    async fn what_is_written_survives_and_is_forgotten_by_its_age() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("work.db");
        let mut first = SqliteStore::open(&file, "credit").unwrap();
        prepare(&first);
        for id in ["old", "new"] {
            first.apply(&delivery(id, 1), &mut work).await.unwrap();
        }
        drop(first);
        let mut store = SqliteStore::open(&file, "credit").unwrap();
        let hour_ago =
            "UPDATE quorate_processed SET processed_at = unixepoch() - 3601 WHERE message_id = 'old'";
        store.connection().execute(hour_ago, []).unwrap();
        assert_eq!(store.forget(Duration::from_secs(3_600)).unwrap(), 1);
        assert_eq!(store.fence("new").unwrap(), Some(1));
        assert_eq!(store.fence("old").unwrap(), None);
        assert_eq!(store.forget(Duration::MAX).unwrap(), 0);
    }

    #[tokio::test]
    async fn a_store_that_cannot_commit_has_failed() {
        let mut store = store("credit");
        let mut commits = |transaction: &Transaction<'_>, _: &Delivery| -> Result<(), HandlerError> {
            // What a handler must not do.
            transaction.execute_batch("ROLLBACK")?;
            Ok(())
        };
        let applied = store.apply(&delivery("1-0", 7), &mut commits).await;
        assert!(applied.is_err(), "{applied:?}");
        assert_eq!(store.fence("1-0").unwrap(), None);
    }
}
