//! When entries of the log were written, by the clock of the clients.

use jepsen_lite_core::history::History;

use super::ms;

/// Times of those entries of which a client was told the index, both rising.
#[derive(Debug)]
pub(super) struct Clock(Vec<(u64, f64)>);

impl Clock {
    /// An entry was written within the call that it answered: taken is the middle.
    pub(super) fn of(history: &History) -> Self {
        let publishes = history
            .publishes
            .iter()
            .map(|one| (one.place, one.invoked, one.answered));
        let settles = history
            .settles
            .iter()
            .map(|one| (one.place, one.invoked, one.answered));
        let mut entries: Vec<(u64, f64)> = publishes
            .chain(settles)
            .filter_map(|(place, invoked, answered)| Some((place?.index, ms(invoked + answered) / 2.0)))
            .collect();
        entries.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
        entries.dedup_by_key(|(index, _)| *index);
        // The middle is not exactly when it was written: a later entry is not earlier.
        let mut latest = f64::NEG_INFINITY;
        for (_, at_ms) in &mut entries {
            latest = latest.max(*at_ms);
            *at_ms = latest;
        }
        Self(entries)
    }

    /// When an entry was written, about: between those around it of which it is known. `None` if it is of none.
    pub(super) fn time_of(&self, index: u64) -> Option<f64> {
        let next = self.0.partition_point(|(known, _)| *known < index);
        let above = self.0.get(next).or(self.0.last());
        let below = self.0.get(next.saturating_sub(1));
        let (&(low, from), &(high, until)) = below.zip(above)?;
        if index <= low {
            return Some(from);
        }
        if index >= high {
            return Some(until);
        }
        Some(from + (until - from) * (index - low) as f64 / (high - low) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_that_nobody_was_told_of_stands_between_its_neighbours() {
        let clock = Clock(vec![(10, 100.0), (20, 300.0)]);
        let times = [3, 10, 15, 20, 30].map(|index| clock.time_of(index));
        assert_eq!(times, [100.0, 100.0, 200.0, 300.0, 300.0].map(Some));
        assert_eq!(Clock(Vec::new()).time_of(7), None);
    }
}
