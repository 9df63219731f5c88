//! How long answers took, and how many there were.

use std::fmt::Write as _;

use crate::axis::{Logarithmic, Time, WIDTH, plain, round_step};
use crate::run::{Act, Answer, Call};
use crate::words;

/// Parts of the time that are summed up to one value each.
const BINS: usize = 150;
/// Height of a plot, in its own units.
const HEIGHT: f64 = 1000.0;
/// Dots of unknown answers: no more than this many places each way.
const DOT_GRID: f64 = 400.0;

/// Latency of publishes until their confirm: median, 99th percentile, longest; and those without an answer that
/// says what became of them.
pub(crate) fn latency(calls: &[Call], time: Time) -> String {
    let mut bins: Vec<Vec<f64>> = vec![Vec::new(); BINS];
    let mut doubtful = Vec::new();
    for call in calls.iter().filter(|call| call.act == Act::Publish) {
        let Some(end_ms) = call.end_ms else { continue };
        let took = (end_ms - call.begin_ms).max(0.0);
        match call.answer {
            Answer::Done => bins[time.bin(end_ms, BINS)].push(took),
            Answer::Unknown => doubtful.push((end_ms, took)),
            Answer::Refused => {}
        }
    }
    let all = bins.iter().flatten().copied();
    let scale = Logarithmic::around(all.chain(doubtful.iter().map(|(_, took)| *took)));
    let mut svg = String::new();
    grid(&mut svg, scale.ticks().into_iter().map(|tick| scale.down(tick)));
    for (class, part) in [("max", 1.0), ("p99", 0.99), ("p50", 0.5)] {
        let line = bins.iter_mut().map(|bin| {
            bin.sort_by(f64::total_cmp);
            quantile(bin, part).map(|value| scale.down(value))
        });
        let _ = write!(svg, "<path class=\"line {class}\" d=\"{}\"/>", path(line));
    }
    let mut places: Vec<(i64, i64)> = doubtful
        .iter()
        .map(|(end_ms, took)| place(time.x(*end_ms) / WIDTH, scale.down(*took)))
        .collect();
    places.sort_unstable();
    places.dedup();
    let dots = places.iter().fold(String::new(), |mut dots, (x, y)| {
        let _ = write!(
            dots,
            "M{} {}h0",
            *x as f64 / DOT_GRID * WIDTH,
            *y as f64 / DOT_GRID * HEIGHT
        );
        dots
    });
    let _ = write!(svg, "<path class=\"dots unknown\" d=\"{dots}\"/>");
    let labels: Vec<(f64, String)> = scale
        .ticks()
        .into_iter()
        .map(|tick| (scale.down(tick), words::duration(tick)))
        .collect();
    plot("latency of publishes", &svg, &labels, "")
}

/// Confirms, deliveries and settlements a second.
pub(crate) fn rate(calls: &[Call], time: Time) -> String {
    const LINES: [(&str, Act); 3] = [
        ("settled", Act::Settle),
        ("received", Act::Receive),
        ("published", Act::Publish),
    ];
    let seconds = time.length_ms() / 1000.0 / BINS as f64;
    let mut counts = [[0_u32; BINS]; LINES.len()];
    for call in calls {
        if let (Answer::Done, Some(end_ms)) = (call.answer, call.end_ms)
            && let Some(line) = LINES.iter().position(|(_, act)| *act == call.act)
        {
            counts[line][time.bin(end_ms, BINS)] += 1;
        }
    }
    let most = counts.iter().flatten().copied().max().unwrap_or(0);
    let step = round_step((f64::from(most) / seconds / 4.0).max(1.0));
    let top = (f64::from(most) / seconds / step).ceil().max(1.0) * step;
    let ticks: Vec<f64> = (0..)
        .map(|n| f64::from(n) * step)
        .take_while(|tick| *tick <= top * 1.000_001)
        .collect();
    let mut svg = String::new();
    grid(&mut svg, ticks.iter().map(|tick| 1.0 - tick / top));
    for ((class, _), counts) in LINES.iter().zip(counts) {
        let line = counts.iter().map(|n| Some(1.0 - f64::from(*n) / seconds / top));
        let _ = write!(svg, "<path class=\"line {class}\" d=\"{}\"/>", path(line));
    }
    let labels: Vec<(f64, String)> = ticks
        .iter()
        .map(|tick| (1.0 - tick / top, plain(*tick)))
        .collect();
    plot("answers a second", &svg, &labels, "")
}

/// A drawing with labels on its left; what lies over it goes along.
pub(crate) fn plot(name: &str, svg: &str, labels: &[(f64, String)], over: &str) -> String {
    let mut html = String::from("<div class=\"chart\"><div class=\"scale\" aria-hidden=\"true\">");
    for (down, label) in labels {
        let _ = write!(html, "<span style=\"top:{:.2}%\">{label}</span>", down * 100.0);
    }
    let _ = write!(
        html,
        "</div><div class=\"plot\"><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" preserveAspectRatio=\"none\" \
         role=\"img\" aria-label=\"{name}\">{svg}</svg>{over}</div></div>"
    );
    html
}

/// Lines across at these heights.
pub(crate) fn grid(svg: &mut String, downs: impl Iterator<Item = f64>) {
    let lines = downs.fold(String::new(), |mut lines, down| {
        let _ = write!(lines, "M0 {:.0}H{WIDTH}", down * HEIGHT);
        lines
    });
    let _ = write!(svg, "<path class=\"grid\" d=\"{lines}\"/>");
}

/// The place of a dot among so many as can be told apart.
fn place(across: f64, down: f64) -> (i64, i64) {
    // Both are parts of one.
    #[allow(clippy::cast_possible_truncation)]
    (
        (across * DOT_GRID).round() as i64,
        (down * DOT_GRID).round() as i64,
    )
}

/// A line through the middles of bins, broken where there is nothing.
fn path(heights: impl Iterator<Item = Option<f64>>) -> String {
    let mut d = String::new();
    let mut drawing = false;
    for (bin, down) in heights.enumerate() {
        if let Some(down) = down {
            let x = Time::x_of_bin(bin, BINS);
            let y = down * HEIGHT;
            // A single point is seen as a dot.
            let _ = match drawing {
                true => write!(d, "L{x:.0} {y:.0}"),
                false => write!(d, "M{x:.0} {y:.0}h0"),
            };
        }
        drawing = down.is_some();
    }
    d
}

/// The value that this part of the sorted values does not exceed.
fn quantile(sorted: &[f64], part: f64) -> Option<f64> {
    // The rank is between 0 and the length.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let rank = (part * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_occurred() {
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(quantile(&hundred, 0.5), Some(50.0));
        assert_eq!(quantile(&hundred, 0.99), Some(99.0));
        assert_eq!(quantile(&hundred, 1.0), Some(100.0));
        assert_eq!(quantile(&[7.0], 0.5), Some(7.0));
        assert_eq!(quantile(&[], 0.5), None);
    }

    #[test]
    fn a_gap_is_not_bridged() {
        let d = path([Some(0.0), Some(0.0), None, Some(1.0)].into_iter());
        assert_eq!(d, "M33 0h0L100 0M233 1000h0");
    }
}
