//! Places on a chart.
//!
//! A chart is as wide as the page lets it be: its coordinates run from 0 to [`WIDTH`], and the browser stretches
//! them. Lines and dots keep their thickness (`vector-effect`), and no text stands inside: labels are HTML beside
//! it, placed in per cent.

/// Right edge of every chart, in its own units.
pub(crate) const WIDTH: f64 = 10_000.0;

/// The time that all charts of a page have in common, in milliseconds since the load began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Time {
    from_ms: f64,
    until_ms: f64,
}

impl Time {
    /// From the first to the last thing that is to be shown; never empty.
    pub(crate) fn spanning(moments: impl IntoIterator<Item = f64>) -> Self {
        let (mut from_ms, mut until_ms) = (0.0_f64, 1000.0_f64);
        for moment in moments.into_iter().filter(|moment| moment.is_finite()) {
            from_ms = from_ms.min(moment);
            until_ms = until_ms.max(moment);
        }
        Self { from_ms, until_ms }
    }

    /// The end, in milliseconds.
    pub(crate) fn until_ms(self) -> f64 {
        self.until_ms
    }

    /// How much it spans, in milliseconds.
    pub(crate) fn length_ms(self) -> f64 {
        self.until_ms - self.from_ms
    }

    /// Where a moment is, in chart units.
    pub(crate) fn x(self, ms: f64) -> f64 {
        ((ms - self.from_ms) / self.length_ms()).clamp(0.0, 1.0) * WIDTH
    }

    /// Where a moment is, in per cent of the width.
    pub(crate) fn percent(self, ms: f64) -> f64 {
        self.x(ms) / WIDTH * 100.0
    }

    /// Which of `count` equal parts a moment falls into.
    pub(crate) fn bin(self, ms: f64, count: usize) -> usize {
        // The product is within 0 and `count`.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let bin = (self.x(ms) / WIDTH * count as f64) as usize;
        bin.min(count - 1)
    }

    /// The middle of a bin, in chart units.
    pub(crate) fn x_of_bin(bin: usize, count: usize) -> f64 {
        (bin as f64 + 0.5) / count as f64 * WIDTH
    }

    /// About six round moments, in milliseconds.
    pub(crate) fn ticks(self) -> Vec<f64> {
        let step = round_step(self.length_ms() / 6.0);
        let first = (self.from_ms / step).ceil();
        (0..)
            .map(|n| (first + f64::from(n)) * step)
            .take_while(|tick| *tick <= self.until_ms)
            .collect()
    }

    /// What to write at `ticks`: seconds, or minutes where the run is long.
    pub(crate) fn label(self, ms: f64) -> String {
        let seconds = ms / 1000.0;
        if self.length_ms() >= 600_000.0 {
            format!("{} min", plain(seconds / 60.0))
        } else {
            format!("{} s", plain(seconds))
        }
    }
}

/// The smallest of 1, 2, 5, 10, 20, … that is not below.
pub(crate) fn round_step(at_least: f64) -> f64 {
    let power = 10_f64.powf(at_least.max(1e-9).log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|factor| factor * power)
        .find(|step| *step >= at_least * 0.999_999)
        .unwrap_or(10.0 * power)
}

/// A scale by powers of ten, for durations in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Logarithmic {
    low: f64,
    high: f64,
}

impl Logarithmic {
    /// Whole powers of ten around what is to be shown, at least two of them.
    pub(crate) fn around(values: impl IntoIterator<Item = f64>) -> Self {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values {
            let power = value.max(0.01).log10();
            low = low.min(power.floor());
            high = high.max(power.ceil());
        }
        if low > high {
            (low, high) = (0.0, 3.0);
        }
        Self {
            low,
            high: high.max(low + 2.0),
        }
    }

    /// How far down from the top, as a part of the height.
    pub(crate) fn down(self, value: f64) -> f64 {
        let power = value.max(0.01).log10().clamp(self.low, self.high);
        1.0 - (power - self.low) / (self.high - self.low)
    }

    /// Its powers of ten.
    pub(crate) fn ticks(self) -> Vec<f64> {
        (0..)
            .map(|n| self.low + f64::from(n))
            .take_while(|power| *power <= self.high)
            .map(|power| 10_f64.powf(power))
            .collect()
    }
}

/// A number without needless zeros, at most two digits after the point.
pub(crate) fn plain(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_within() {
        let time = Time::spanning([0.0, 25_000.0, f64::NAN]);
        assert_eq!(
            time.ticks(),
            [0.0, 5000.0, 10_000.0, 15_000.0, 20_000.0, 25_000.0]
        );
        assert_eq!(time.label(12_500.0), "12.5 s");
        let long = Time::spanning([-1000.0, 1_200_000.0]);
        assert!(
            long.ticks()
                .iter()
                .all(|tick| (-1000.0..=1_200_000.0).contains(tick))
        );
        assert_eq!(long.label(300_000.0), "5 min");
    }

    #[test]
    fn the_last_moment_is_in_the_last_bin() {
        let time = Time::spanning([10_000.0]);
        assert_eq!(time.bin(10_000.0, 50), 49);
        assert_eq!(time.bin(-5.0, 50), 0);
        assert_eq!(time.bin(5_000.0, 50), 25);
    }

    #[test]
    fn an_empty_run_still_has_a_scale() {
        assert_eq!(Time::spanning([]).length_ms(), 1000.0);
        assert_eq!(Logarithmic::around([]).ticks(), [1.0, 10.0, 100.0, 1000.0]);
        let scale = Logarithmic::around([3.0]);
        assert_eq!(scale.ticks(), [1.0, 10.0, 100.0]);
        assert!((scale.down(10.0) - 0.5).abs() < 1e-9);
    }
}
