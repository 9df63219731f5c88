//! How it is going: one live line on a terminal, plain lines elsewhere.

use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

/// Between two plain lines.
const PLAIN_EVERY: Duration = Duration::from_secs(2);

/// A line on standard error that tells the present state.
#[derive(Debug)]
pub struct Progress {
    live: bool,
    quiet: bool,
    is_shown: bool,
    next_plain: Instant,
}

impl Progress {
    /// Shows nothing at all when `quiet`.
    #[must_use]
    pub fn new(quiet: bool) -> Self {
        Self {
            live: stderr().is_terminal(),
            quiet,
            is_shown: false,
            next_plain: Instant::now(),
        }
    }

    /// Shows a passing state: over the last one on a terminal; elsewhere only
    /// every two seconds.
    pub fn show(&mut self, state: &str) {
        if self.quiet {
        } else if self.live {
            // Carriage return, clear to the end of the line.
            let _ = write!(stderr(), "\r\x1b[K{state}");
            self.is_shown = true;
        } else if Instant::now() >= self.next_plain {
            let _ = writeln!(stderr(), "{state}");
            self.next_plain = Instant::now() + PLAIN_EVERY;
        }
    }

    /// Tells something that stays.
    pub fn tell(&mut self, news: &str) {
        if !self.quiet {
            self.clear();
            let _ = writeln!(stderr(), "{news}");
        }
    }

    /// Takes the live line away.
    pub fn clear(&mut self) {
        if std::mem::take(&mut self.is_shown) {
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

/// A number with its thousands apart: `1,234,567`.
#[must_use]
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A duration for a person: `830 µs`, `12.3 ms`, `1.25 s`.
#[must_use]
pub fn short(duration: Duration) -> String {
    let ms = duration.as_secs_f64() * 1e3;
    match ms {
        ms if ms < 1.0 => format!("{:.0} µs", ms * 1e3),
        ms if ms < 1e3 => format!("{ms:.1} ms"),
        ms => format!("{:.2} s", ms / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_for_people() {
        assert_eq!(
            ["7", "1,000", "20,000", "1,234,567"],
            [7, 1_000, 20_000, 1_234_567].map(grouped)[..]
        );
        assert_eq!(short(Duration::from_micros(830)), "830 µs");
        assert_eq!(short(Duration::from_micros(12_340)), "12.3 ms");
        assert_eq!(short(Duration::from_millis(1_250)), "1.25 s");
    }
}
