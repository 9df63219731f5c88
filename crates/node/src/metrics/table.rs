//! The table of metrics.

use super::Kind::{Counter, Gauge, Histogram};
use super::Metric;

/// Names each metric, and lists all of them.
macro_rules! metrics {
    ($($id:ident = $kind:ident $name:literal: $help:literal;)*) => {
        $(pub(super) const $id: &Metric = &Metric { name: $name, kind: $kind, help: $help };)*

        /// Every metric there is, by name.
        pub const METRICS: &[&Metric] = &[$($id),*];
    };
}

metrics! {
    APPLIED_INDEX = Gauge "quorate_applied_index":
        "Index of the last entry applied here.";
    BINDINGS = Gauge "quorate_bindings":
        "Bindings of all exchanges.";
    CLUSTER_TIME = Gauge "quorate_cluster_time_seconds":
        "Cluster time, since the Unix epoch, as last applied here.";
    COMMITTED_INDEX = Gauge "quorate_committed_index":
        "Index of the last entry known to be committed.";
    CONTENT_BYTES = Counter "quorate_content_bytes_total":
        "Bytes of contents in the log entries proposed by this node.";
    DISK_BYTES = Gauge "quorate_disk_bytes":
        "Bytes of this node's files.";
    ENTRIES = Counter "quorate_entries_total":
        "Log entries proposed by this node.";
    EXCHANGE_DUPLICATES = Counter "quorate_exchange_duplicates_total":
        "Messages that an exchange did not take because it knew their dedup id.";
    EXCHANGE_RECEIVED = Counter "quorate_exchange_received_total":
        "Messages that came to an exchange.";
    EXCHANGE_UNROUTABLE = Counter "quorate_exchange_unroutable_total":
        "Messages that none of an exchange's bindings fitted.";
    EXCHANGES = Gauge "quorate_exchanges":
        "Exchanges.";
    FOLLOWER_ACK_AGE = Gauge "quorate_follower_ack_age_seconds":
        "Since a member last answered its leader.";
    FOLLOWER_BEHIND = Gauge "quorate_follower_behind_entries":
        "Entries that a member's log lacks, as its leader knows.";
    INFO = Gauge "quorate_info":
        "Always 1; says which node and version this is.";
    JOURNAL_BYTES = Gauge "quorate_journal_bytes":
        "Bytes of the journal's chunks.";
    JOURNAL_CHUNKS = Gauge "quorate_journal_chunks":
        "Chunks of the journal.";
    JOURNAL_DAMAGED = Counter "quorate_journal_damaged_chunks_total":
        "Chunks of the journal that could not be read back.";
    JOURNAL_GAPS = Gauge "quorate_journal_gaps":
        "Holes in the journal: what happened there is not known on this node.";
    JOURNAL_LOST = Counter "quorate_journal_lost_chunks_total":
        "Chunks of the journal that could not be written.";
    JOURNAL_REACH = Gauge "quorate_journal_reach_seconds":
        "How far back the journal reaches, in cluster time.";
    LAST_LOG_INDEX = Gauge "quorate_last_log_index":
        "Index of the last entry in this node's log.";
    LEADER_CHANGES = Counter "quorate_leader_changes_total":
        "How often this node knew another leader, or none, than before.";
    LEADING = Gauge "quorate_leading":
        "1 while this node leads.";
    LOG_BYTES = Gauge "quorate_log_bytes":
        "Live bytes of this node's log.";
    LOG_ENTRIES = Counter "quorate_log_entries_total":
        "Entries made durable in this node's log; with the count of flushes, the size of a group commit.";
    LOG_ENTRY_BYTES = Counter "quorate_log_entry_bytes_total":
        "Bytes of the entries made durable in this node's log.";
    LOG_FLUSH_MAX = Gauge "quorate_log_flush_max_seconds":
        "The slowest group commit of this process.";
    LOG_FLUSH = Histogram "quorate_log_flush_seconds":
        "Time of the group commits of this node's log, each with one fdatasync.";
    LOG_GROUP_MAX = Gauge "quorate_log_group_max_entries":
        "Entries in the largest group commit of this process.";
    LOG_UNFLUSHED = Gauge "quorate_log_unflushed_bytes":
        "Bytes of entries that wait for their flush.";
    MESSAGES = Gauge "quorate_messages":
        "Messages of all queues by state.";
    MESSAGE_BYTES = Gauge "quorate_messages_bytes":
        "Bytes of the messages of all queues.";
    PURGED_INDEX = Gauge "quorate_purged_index":
        "Index of the last entry that is gone from this node's log.";
    QUEUE_BYTES = Gauge "quorate_queue_bytes":
        "Bytes of the messages in a queue.";
    QUEUE_CONSUMERS = Gauge "quorate_queue_consumers":
        "Consumers of a queue.";
    QUEUE_CONSUMERS_FREE = Gauge "quorate_queue_consumers_with_credit":
        "Consumers of a queue that could take a message now.";
    QUEUE_BACKLOG = Gauge "quorate_queue_dead_letter_backlog_messages":
        "Dead messages of a queue that wait for room in their dead-letter target.";
    QUEUE_DUPLICATES = Counter "quorate_queue_duplicates_total":
        "Messages that a queue did not take because it knew their dedup id.";
    QUEUE_ENTERED = Counter "quorate_queue_entered_total":
        "Messages that entered a queue while this process ran, by reason.";
    QUEUE_GROUPS = Gauge "quorate_queue_groups":
        "Groups of a queue that have messages.";
    QUEUE_LEFT = Counter "quorate_queue_left_total":
        "Messages that left a queue, by reason.";
    QUEUE_MESSAGES = Gauge "quorate_queue_messages":
        "Messages in a queue by state.";
    QUEUE_OLDEST_LEASED = Gauge "quorate_queue_oldest_leased_age_seconds":
        "Since the message was published that has been leased for longest.";
    QUEUE_OLDEST_READY = Gauge "quorate_queue_oldest_ready_age_seconds":
        "Since the message was published that is leased next.";
    QUEUE_PAUSED = Gauge "quorate_queue_paused":
        "1 while a queue is paused.";
    QUEUE_PUBLISHED = Counter "quorate_queue_published_total":
        "Messages that entered a queue in its life.";
    QUEUE_REDELIVERED = Counter "quorate_queue_redelivered_total":
        "Leases of messages that were leased before.";
    QUEUE_RETURNED = Counter "quorate_queue_returned_total":
        "Leases that ended without an ack while this process ran, by reason.";
    QUEUE_TO_ACK = Histogram "quorate_queue_time_to_ack_seconds":
        "From the lease of a message to its ack, while this process ran.";
    QUEUE_TO_LEASE = Histogram "quorate_queue_time_to_lease_seconds":
        "From the publish of a message to its first lease, while this process ran.";
    QUEUE_WAITING = Gauge "quorate_queue_waiting_leases":
        "Lease calls that wait for a message of a queue.";
    QUEUES = Gauge "quorate_queues":
        "Queues.";
    QUEUES_WITHOUT = Gauge "quorate_queues_without_series":
        "Queues that have no series of their own here, because there are too many.";
    QUORUM_ACK_AGE = Gauge "quorate_quorum_ack_age_seconds":
        "Since a quorum last answered this leader.";
    REQUESTS = Counter "quorate_requests_total":
        "Requests in the log entries proposed by this node.";
    SESSIONS = Gauge "quorate_sessions":
        "Sessions of the cluster.";
    SESSIONS_ATTACHED = Gauge "quorate_sessions_attached":
        "Sessions whose connection this node holds.";
    SNAPSHOT_AGE = Gauge "quorate_snapshot_age_seconds":
        "Cluster time since the state that this node's snapshot holds.";
    SNAPSHOT_BYTES = Gauge "quorate_snapshot_bytes":
        "Bytes of the image of this node's snapshot.";
    SNAPSHOT_INDEX = Gauge "quorate_snapshot_index":
        "Index that this node's snapshot covers.";
    STATE_HASH = Gauge "quorate_state_hash":
        "Low 52 bits of the state's hash: equal on all nodes with the same quorate_state_index.";
    STATE_INDEX = Gauge "quorate_state_index":
        "Index that quorate_state_hash is of.";
    SYNCS = Counter "quorate_syncs_total":
        "Syncs of files by the storage engine.";
    TERM = Gauge "quorate_term":
        "Raft term.";
    UPTIME = Gauge "quorate_uptime_seconds":
        "Since this process opened its data.";
    WAITING_LEASES = Gauge "quorate_waiting_leases":
        "Lease calls that wait for a message, of all queues.";
}
