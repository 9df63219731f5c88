//! openraft's own suite for stores, on the real one. Also worth running with
//! `--release`, where its debug assertions are off.

use std::sync::Arc;

use openraft::storage::{RaftLogStorage as _, RaftLogStorageExt as _};
use openraft::testing::log::{StoreBuilder, Suite};
use openraft::testing::{blank_ent, log_id};
use openraft::{RaftLogReader as _, StorageError};
use quorate_core::Broker;
use quorate_core::ids::NodeId;
use quorate_raft::log_store::LogStore;
use quorate_raft::state_machine::StateMachine;
use quorate_raft::types::TypeConfig;
use quorate_raft::{Journal, Observed, Observer};
use quorate_storage::{Options, Store};

struct Nobody;

impl Observer for Nobody {
    fn opened(&self, _: NodeId, _: Journal) {}
    fn applied(&self, _: Observed<'_>, _: &Broker) {}
    fn restored(&self, _: u64, _: u64, _: &Broker) {}
    fn keep(&self, _: u64) {}
}

struct Builder;

impl StoreBuilder<TypeConfig, LogStore, StateMachine, tempfile::TempDir> for Builder {
    async fn build(&self) -> Result<(tempfile::TempDir, LogStore, StateMachine), StorageError<TypeConfig>> {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(dir.path(), Options::default()).unwrap());
        let machine = StateMachine::new(0, Arc::clone(&store), Arc::new(Nobody));
        Ok((dir, LogStore::new(store.log.clone()), machine))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_store_passes_openrafts_suite() {
    Suite::test_all(Builder).await.unwrap();
}

/// They would follow on an entry that is not the one before them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_behind_a_purged_one_are_not_sent_in_its_place() {
    let (_dir, mut log, _machine) = Builder.build().await.unwrap();
    let entries = (1..10).map(|index| blank_ent::<TypeConfig>(1, 7, index));
    log.blocking_append(entries).await.unwrap();
    log.purge(log_id::<TypeConfig>(1, 7, 5)).await.unwrap();
    let sent = log.limited_get_log_entries(2, 10).await.unwrap();
    assert_eq!(sent, [], "the entry after 1 is 2");
    let sent = log.limited_get_log_entries(6, 8).await.unwrap();
    let indexes: Vec<u64> = sent.iter().map(|entry| entry.log_id.index).collect();
    assert_eq!(indexes, [6, 7]);
}
