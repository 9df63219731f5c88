//! Each exactly once.

use std::collections::BTreeMap;
use std::fmt::Debug;

use super::{Finding, Violation};

/// Everything that was expected was found, once, and nothing else was.
pub fn each_exactly_once<K: Ord + Debug>(
    expected: impl IntoIterator<Item = K>,
    found: impl IntoIterator<Item = K>,
) -> Vec<Violation> {
    let mut finding = Finding::new("each is there exactly once");
    let mut counts: BTreeMap<K, (u64, bool)> = BTreeMap::new();
    for one in expected {
        counts.entry(one).or_default().1 = true;
    }
    for one in found {
        counts.entry(one).or_default().0 += 1;
    }
    for (one, count) in counts {
        match count {
            (1, true) => {}
            (0, _) => finding.add(format!("{one:?} is not there")),
            (count, true) => finding.add(format!("{one:?} is there {count} times")),
            (count, false) => finding.add(format!("{one:?} is there {count} times and should not be")),
        }
    }
    finding.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_doubled_or_foreign_is_found() {
        assert_eq!(each_exactly_once([1, 2, 3], [3, 1, 2]), []);
        assert_eq!(each_exactly_once([1, 2], [2]).len(), 1);
        assert_eq!(each_exactly_once([1, 2], [1, 2, 2]).len(), 1);
        assert_eq!(each_exactly_once([1], [1, 7]).len(), 1);
    }
}
