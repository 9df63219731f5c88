//! The I/O threads of sled, most of which only get in each other's way.
//!
//! Every buffer that sled writes goes through a pool of seven threads, one for the whole process, and each time all
//! seven wake: one finds the buffer, six find nothing, one after the other. A log that is flushed a thousand times a
//! second makes that half of all context switches of a node.
//!
//! sled offers no choice, so four are kept busy for good. The pool tells the waker of a future that its work is done, on
//! the thread that did it, and the waker here never returns.
//!
//! The three that remain suffice: a database seldom has more than one buffer on the way, and never three while
//! more is written, since [`Disk`](super::Disk) flushes at the latest when a segment was filled. That bound matters. What
//! writes a buffer may wait for whoever allocates a segment, and that one for the file to be cut, which is work for the
//! pool as well: a thread must be left for it.

use std::future::Future as _;
use std::pin::pin;
use std::sync::{Arc, Once};
use std::task::{Context, Waker};
use std::thread;

/// Threads kept busy, of sled's seven.
const RETIRED: usize = 4;
/// A flush may be done before anybody waits for it. Then another is tried.
const ATTEMPTS: usize = 100;

struct Retire;

impl std::task::Wake for Retire {
    fn wake(self: Arc<Self>) {
        loop {
            thread::park();
        }
    }
}

/// Keeps most threads of the pool busy from now on, once in a process.
#[expect(
    clippy::disallowed_methods,
    reason = "nobody waits for this flush, and nothing hangs on it"
)]
pub(super) fn retire_most(db: &sled::Db) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let waker = Waker::from(Arc::new(Retire));
        let retired = (0..ATTEMPTS)
            .filter(|_| {
                let flush = pin!(db.flush_async());
                flush.poll(&mut Context::from_waker(&waker)).is_pending()
            })
            .take(RETIRED)
            .count();
        tracing::debug!(retired, "threads of sled's pool");
    });
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::collections::BTreeMap;
    use std::time::{Duration, Instant};
    use std::{fs, io};

    use super::RETIRED;
    use crate::engine::disk::Disk;
    use crate::engine::{Engine as _, Layout, Space};

    /// How often each thread of the pool has gone to sleep so far.
    fn sleeps() -> io::Result<BTreeMap<String, u64>> {
        let mut sleeps = BTreeMap::new();
        for task in fs::read_dir("/proc/self/task")? {
            let task = task?.path();
            let name = fs::read_to_string(task.join("comm"))?;
            if name.starts_with("sled-io") {
                let status = fs::read_to_string(task.join("status"))?;
                let count = status
                    .lines()
                    .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
                sleeps.insert(name, count.unwrap().trim().parse().unwrap());
            }
        }
        Ok(sleeps)
    }

    #[test]
    fn most_threads_of_the_pool_do_not_wake_for_a_flush() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db");
        let disk = Disk::open(&path, &[("a", Layout::Map)], 1 << 20).unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            // Threads of other tests end meanwhile.
            let Ok(before) = sleeps() else { continue };
            for value in 0..100_u8 {
                disk.put(Space(0), b"key", &[value]).unwrap();
                disk.flush().unwrap();
            }
            let Ok(after) = sleeps() else { continue };
            let still = after
                .iter()
                .filter(|now| before.get(now.0) == Some(now.1))
                .count();
            if still == RETIRED {
                break;
            }
            assert!(Instant::now() < deadline, "{still} of {} slept", after.len());
        }
    }
}
