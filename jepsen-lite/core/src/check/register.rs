//! A lock that is a message guards a register, if its holders say who they are by their fence.

use super::{Finding, Violation};
use crate::history::History;

/// Whoever holds the lock reads and writes as if it were alone: each write that a register of increasing fences
/// takes is one more than the last that it took, and no two processes have one fence.
#[must_use]
pub fn a_fence_guards_a_register(history: &History) -> Vec<Violation> {
    let mut finding = Finding::new("a fence guards a register");
    let (mut value, mut holder) = (0, None);
    for write in history.writes.iter().filter(|write| write.taken) {
        let (process, fence, read) = (write.process, write.fence, write.read);
        if read != value {
            finding.add(format!(
                "process {process} with fence {fence} wrote on what it had read, {read}, where {value} stood"
            ));
        }
        match holder {
            Some((before, other)) if before == fence && other != process => {
                finding.add(format!(
                    "processes {other} and {process} hold the lock with one fence, {fence}"
                ));
            }
            Some((before, other)) if before > fence => {
                finding.add(format!(
                    "fence {fence} of {process} was taken after {before} of {other}"
                ));
            }
            _ => {}
        }
        value = read + 1;
        holder = Some((fence, process));
    }
    finding.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Write;

    fn write(process: u32, fence: u64, read: u64) -> Write {
        Write {
            process,
            fence,
            read,
            taken: true,
            ..Write::default()
        }
    }

    fn found(writes: &[Write]) -> usize {
        let history = History {
            writes: writes.to_vec(),
            ..History::default()
        };
        a_fence_guards_a_register(&history).len()
    }

    #[test]
    fn holders_that_follow_each_other_lose_nothing() {
        let late = Write {
            taken: false,
            ..write(1, 7, 1)
        };
        let good = [write(1, 7, 0), write(2, 9, 1), late, write(1, 12, 2)];
        assert_eq!(found(&good), 0);
        assert_eq!(found(&[]), 0);
    }

    #[test]
    fn a_lost_write_a_shared_fence_and_a_late_one_are_seen() {
        assert_eq!(found(&[write(1, 7, 0), write(2, 9, 0)]), 1, "a lost write");
        assert_eq!(
            found(&[write(1, 7, 0), write(2, 7, 1)]),
            1,
            "one fence in two hands"
        );
        assert_eq!(
            found(&[write(1, 7, 0), write(2, 9, 1), write(1, 8, 2)]),
            1,
            "a late write"
        );
    }
}
