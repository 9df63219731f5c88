//! The seconds of a run as a picture: an SVG that needs nothing besides itself.
//!
//! Latencies are above, on a logarithmic scale, since what is looked for is the second in which the highest was a
//! hundred times the usual one. Throughput is below, on the same axis of time. A second in which nothing came
//! breaks the lines of latency and brings those of throughput to zero.

use std::fmt::Write as _;

use crate::progress::grouped;
use crate::series::{Quantiles, Second};

const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 680.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = WIDTH - 24.0;
const LATENCY: Panel = Panel {
    top: 112.0,
    bottom: 410.0,
};
const THROUGHPUT: Panel = Panel {
    top: 456.0,
    bottom: 622.0,
};
/// More points than this could not be told apart: several seconds become one.
const POINTS_MAX: usize = 600;
/// Confirms, here and there.
const CONFIRM: &str = "#1f6fb4";
/// Deliveries and acks.
const DELIVER: &str = "#d1611a";

/// From where to where it goes, downwards.
struct Panel {
    top: f64,
    bottom: f64,
}

/// A part of a run, as it is drawn.
pub(crate) struct Part<'a> {
    pub(crate) name: &'a str,
    pub(crate) seconds: &'a [Second],
}

/// What is drawn of one or a few seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Point {
    /// Its middle, in seconds since the first part began.
    at: f64,
    confirm: Option<Quantiles>,
    end_to_end: Option<Quantiles>,
    /// Per second.
    confirmed: f64,
    acked: f64,
}

/// How a quantile is drawn.
type Style = (&'static str, fn(&Quantiles) -> f64, &'static str);

const STYLES: [Style; 3] = [
    ("p50", |of| of.p50_ms, "stroke-width=\"2\""),
    (
        "p99",
        |of| of.p99_ms,
        "stroke-width=\"1.6\" stroke-dasharray=\"7 3\"",
    ),
    (
        "max",
        |of| of.max_ms,
        "stroke-width=\"1.6\" stroke-dasharray=\"1.6 3\"",
    ),
];

/// The parts of a run, one after the other. The title says what the load was, a line for each part what came of
/// it.
pub(crate) fn svg(title: &str, subtitle: &str, parts: &[Part<'_>]) -> String {
    let at_once = parts
        .iter()
        .map(|part| part.seconds.len())
        .sum::<usize>()
        .div_ceil(POINTS_MAX)
        .max(1);
    let mut drawn = Vec::new();
    let mut length = 0.0;
    for part in parts {
        drawn.push((part.name, length, points(part.seconds, at_once, length)));
        length += part.seconds.iter().map(|second| second.seconds).sum::<f64>();
    }
    let time = Time {
        length: length.max(1.0),
    };

    let mut out = String::new();
    let _ = writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
         viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\" fill=\"#333\">\n\
         <title>{title}</title>\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fff\"/>",
        title = escaped(title)
    );
    text(
        &mut out,
        LEFT,
        28.0,
        "font-size=\"16\" font-weight=\"bold\"",
        title,
    );
    text(&mut out, LEFT, 48.0, "fill=\"#666\"", subtitle);
    if at_once > 1 {
        let note = format!(
            "a point is {at_once} seconds: the worst of their latencies, the mean of their throughputs"
        );
        text(
            &mut out,
            RIGHT,
            HEIGHT - 10.0,
            "fill=\"#666\" text-anchor=\"end\"",
            &note,
        );
    }
    time.axis(&mut out);
    for (name, begin, _) in drawn.iter().filter(|_| drawn.len() > 1) {
        time.part(&mut out, name, *begin);
    }
    latencies(&mut out, &time, &drawn);
    throughput(&mut out, &time, &drawn);
    out.push_str("</svg>\n");
    out
}

/// The seconds of a part as points. A last second that was much shorter than one says nothing, and is left out.
fn points(seconds: &[Second], at_once: usize, begin: f64) -> Vec<Point> {
    let whole = match seconds {
        [before @ .., last] if last.seconds < 0.5 && !before.is_empty() => before,
        all => all,
    };
    let mut begin = begin;
    let points = whole.chunks(at_once).map(|chunk| {
        let length: f64 = chunk.iter().map(|second| second.seconds).sum();
        let per_second = |count: fn(&Second) -> u64| chunk.iter().map(count).sum::<u64>() as f64 / length;
        let point = Point {
            at: begin + length / 2.0,
            confirm: worst(chunk.iter().filter_map(|second| second.confirm_latency)),
            end_to_end: worst(chunk.iter().filter_map(|second| second.end_to_end_latency)),
            confirmed: per_second(|second| second.confirmed),
            acked: per_second(|second| second.acked),
        };
        begin += length;
        point
    });
    points.collect()
}

fn worst(of: impl Iterator<Item = Quantiles>) -> Option<Quantiles> {
    of.reduce(|one, other| Quantiles {
        p50_ms: one.p50_ms.max(other.p50_ms),
        p99_ms: one.p99_ms.max(other.p99_ms),
        max_ms: one.max_ms.max(other.max_ms),
    })
}

// ------------------------------------------------------------------ the panels

type Drawn<'a> = (&'a str, f64, Vec<Point>);

fn latencies(out: &mut String, time: &Time, drawn: &[Drawn<'_>]) {
    heading(out, &LATENCY, "latency, ms (logarithmic)");
    type Of = fn(&Point) -> Option<Quantiles>;
    let kinds: [(&str, &str, Of); 2] = [
        ("until confirmed", CONFIRM, |point| point.confirm),
        ("until delivered", DELIVER, |point| point.end_to_end),
    ];
    let all = || drawn.iter().flat_map(|(_, _, points)| points);
    let values: Vec<f64> = all()
        .flat_map(|point| [point.confirm, point.end_to_end])
        .flatten()
        .flat_map(|of| STYLES.map(|(_, value, _)| value(&of)))
        .collect();
    let Some(scale) = Logarithmic::over(&values) else {
        let middle = f64::midpoint(LATENCY.top, LATENCY.bottom);
        text(
            out,
            LEFT + 20.0,
            middle,
            "fill=\"#666\"",
            "no latency was measured",
        );
        return;
    };
    scale.axis(out);
    let mut legend = Legend::new(&LATENCY);
    for (kind, colour, of) in kinds {
        if all().all(|point| of(point).is_none()) {
            continue;
        }
        for (name, value, style) in STYLES {
            // The first says of what they all are.
            let entry = if name == STYLES[0].0 {
                format!("{kind}: {name}")
            } else {
                name.to_owned()
            };
            legend.entry(out, &entry, colour, style);
            for (_, _, points) in drawn {
                let places = points
                    .iter()
                    .map(|point| Some((time.x(point.at), scale.y(value(&of(point)?)))));
                line(out, places, colour, style);
            }
        }
    }
}

fn throughput(out: &mut String, time: &Time, drawn: &[Drawn<'_>]) {
    heading(out, &THROUGHPUT, "messages per second");
    type Of = fn(&Point) -> f64;
    let kinds: [(&str, &str, Of, &str); 2] = [
        (
            "confirmed",
            CONFIRM,
            |point| point.confirmed,
            "stroke-width=\"2\"",
        ),
        (
            "acked",
            DELIVER,
            |point| point.acked,
            "stroke-width=\"2\" stroke-dasharray=\"7 3\"",
        ),
    ];
    let all = || drawn.iter().flat_map(|(_, _, points)| points);
    let highest = all()
        .map(|point| point.confirmed.max(point.acked))
        .fold(0.0, f64::max);
    let scale = Linear::up_to(highest);
    scale.axis(out);
    let mut legend = Legend::new(&THROUGHPUT);
    for (name, colour, of, style) in kinds {
        legend.entry(out, name, colour, style);
        for (_, _, points) in drawn {
            let places = points
                .iter()
                .map(|point| Some((time.x(point.at), scale.y(of(point)))));
            line(out, places, colour, style);
        }
    }
}

// -------------------------------------------------------------------- the axes

/// From left to right.
struct Time {
    /// In seconds.
    length: f64,
}

impl Time {
    fn x(&self, at: f64) -> f64 {
        LEFT + (RIGHT - LEFT) * at / self.length
    }

    fn axis(&self, out: &mut String) {
        let step = step(self.length, 12.0).max(1.0);
        for tick in ticks(step, self.length) {
            let x = self.x(tick);
            for panel in [&LATENCY, &THROUGHPUT] {
                rule(out, (x, panel.top), (x, panel.bottom), "#eee");
            }
            let y = THROUGHPUT.bottom + 18.0;
            text(out, x, y, "text-anchor=\"middle\"", &number(tick));
        }
        let middle = f64::midpoint(LEFT, RIGHT);
        text(
            out,
            middle,
            THROUGHPUT.bottom + 38.0,
            "text-anchor=\"middle\"",
            "time, seconds since the measurement began",
        );
    }

    /// Where a part begins, if there are several.
    fn part(&self, out: &mut String, name: &str, begin: f64) {
        let x = self.x(begin);
        for panel in [&LATENCY, &THROUGHPUT] {
            rule(out, (x, panel.top), (x, panel.bottom), "#888");
        }
        text(out, x + 4.0, LATENCY.bottom + 15.0, "fill=\"#666\"", name);
    }
}

/// Decades, upwards.
struct Logarithmic {
    /// Powers of ten.
    lowest: f64,
    highest: f64,
}

impl Logarithmic {
    /// The decades around all values; none if there are none.
    fn over(values: &[f64]) -> Option<Self> {
        const LEAST_MS: f64 = 0.001;
        let logs = || values.iter().map(|value| value.max(LEAST_MS).log10());
        let lowest = logs().reduce(f64::min)?.floor();
        let highest = logs().reduce(f64::max)?.ceil().max(lowest + 1.0);
        Some(Self { lowest, highest })
    }

    fn y(&self, value: f64) -> f64 {
        let part = (value.log10().max(self.lowest) - self.lowest) / (self.highest - self.lowest);
        LATENCY.bottom - (LATENCY.bottom - LATENCY.top) * part
    }

    fn axis(&self, out: &mut String) {
        let decades = self.highest - self.lowest;
        for decade in ticks(1.0, decades).map(|decade| 10_f64.powf(self.lowest + decade)) {
            // Finer lines where there is room for them.
            let digits = if decades <= 3.0 { 1..10_u8 } else { 1..2 };
            for digit in digits {
                let value = decade * f64::from(digit);
                if value.log10() > self.highest + 1e-9 {
                    break;
                }
                let y = self.y(value);
                let colour = if digit == 1 { "#ccc" } else { "#f0f0f0" };
                rule(out, (LEFT, y), (RIGHT, y), colour);
                if digit == 1 || (decades <= 2.0 && matches!(digit, 2 | 5)) {
                    text(out, LEFT - 8.0, y + 4.0, "text-anchor=\"end\"", &number(value));
                }
            }
        }
    }
}

/// From zero upwards.
struct Linear {
    step: f64,
    highest: f64,
}

impl Linear {
    fn up_to(highest: f64) -> Self {
        let highest = highest.max(1.0);
        let step = step(highest, 5.0);
        Self {
            step,
            highest: (highest / step).ceil() * step,
        }
    }

    fn y(&self, value: f64) -> f64 {
        THROUGHPUT.bottom - (THROUGHPUT.bottom - THROUGHPUT.top) * value / self.highest
    }

    fn axis(&self, out: &mut String) {
        for tick in ticks(self.step, self.highest) {
            let y = self.y(tick);
            rule(out, (LEFT, y), (RIGHT, y), "#ddd");
            text(out, LEFT - 8.0, y + 4.0, "text-anchor=\"end\"", &number(tick));
        }
    }
}

/// 1, 2 or 5 times a power of ten, so that there are about `count` of it up to `length`.
fn step(length: f64, count: f64) -> f64 {
    let least = length / count;
    let decade = 10_f64.powf(least.log10().floor());
    let fitting = [1.0, 2.0, 5.0].map(|digit| digit * decade);
    fitting
        .into_iter()
        .find(|step| *step >= least)
        .unwrap_or(10.0 * decade)
}

/// Multiples of a step from zero to a length, that included.
fn ticks(step: f64, length: f64) -> impl Iterator<Item = f64> {
    let count = (length / step + 1e-6).floor() as u32;
    (0..=count).map(move |tick| f64::from(tick) * step)
}

/// Without more digits than it has: `20,000`, `0.05`.
fn number(value: f64) -> String {
    if value >= 1.0 {
        grouped(value.round() as u64)
    } else {
        let text = format!("{value:.3}");
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    }
}

// ------------------------------------------------------------------- the marks

/// Entries beside one another, behind the heading of a panel.
struct Legend {
    x: f64,
    y: f64,
}

impl Legend {
    fn new(panel: &Panel) -> Self {
        Self {
            x: LEFT + 190.0,
            y: panel.top - 14.0,
        }
    }

    fn entry(&mut self, out: &mut String, name: &str, colour: &str, style: &str) {
        const SAMPLE: f64 = 22.0;
        /// Of a letter, about.
        const LETTER: f64 = 5.4;
        let (x, y) = (self.x, self.y);
        let _ = writeln!(
            out,
            "<path d=\"M{x:.1} {y:.1}h{SAMPLE}\" stroke=\"{colour}\" {style}/>"
        );
        text(out, x + SAMPLE + 4.0, y + 4.0, "font-size=\"10\"", name);
        self.x += SAMPLE + 20.0 + LETTER * name.len() as f64;
    }
}

/// A line through places, with a gap where there is none. A place between two gaps is a dot.
fn line(out: &mut String, places: impl Iterator<Item = Option<(f64, f64)>>, colour: &str, style: &str) {
    let places: Vec<_> = places.collect();
    for run in places.split(Option::is_none) {
        let run: Vec<(f64, f64)> = run.iter().flatten().copied().collect();
        match run[..] {
            [] => {}
            [(x, y)] => {
                let _ = writeln!(
                    out,
                    "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2\" fill=\"{colour}\"/>"
                );
            }
            _ => {
                let points: Vec<String> = run.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
                let _ = writeln!(
                    out,
                    "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" {style}/>",
                    points.join(" ")
                );
            }
        }
    }
}

fn heading(out: &mut String, panel: &Panel, what: &str) {
    text(out, LEFT, panel.top - 10.0, "font-weight=\"bold\"", what);
}

fn rule(out: &mut String, from: (f64, f64), to: (f64, f64), colour: &str) {
    let _ = writeln!(
        out,
        "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\"/>",
        from.0, from.1, to.0, to.1
    );
}

fn text(out: &mut String, x: f64, y: f64, attributes: &str, what: &str) {
    let _ = writeln!(
        out,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" {attributes}>{}</text>",
        escaped(what)
    );
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(at: u64, confirm_ms: Option<f64>) -> Second {
        let quantiles = |ms: f64| Quantiles {
            p50_ms: ms,
            p99_ms: 2.0 * ms,
            max_ms: 4.0 * ms,
        };
        Second {
            at,
            seconds: 1.0,
            confirmed: 100 * u64::from(confirm_ms.is_some()),
            acked: 50,
            confirm_latency: confirm_ms.map(quantiles),
            end_to_end_latency: Some(quantiles(30.0)),
        }
    }

    fn drawn(seconds: &[Second]) -> String {
        let part = Part {
            name: "steady",
            seconds,
        };
        let svg = svg("a <title> & more", "what came of it", &[part]);
        assert_well_formed(&svg);
        svg
    }

    /// Every element is closed, in order, attributes are quoted, and there is one root.
    fn assert_well_formed(svg: &str) {
        let mut open: Vec<&str> = Vec::new();
        let mut roots = 0;
        let mut rest = svg.trim_end();
        while let Some(from) = rest.find('<') {
            let between = &rest[..from];
            assert!(
                !open.is_empty() || between.trim().is_empty(),
                "text outside: {between:?}"
            );
            assert!(!between.contains('>'), "a stray bracket: {between:?}");
            let amps = between.matches('&').count();
            let entities = ["&amp;", "&lt;", "&gt;"].map(|entity| between.matches(entity).count());
            assert_eq!(
                amps,
                entities.iter().sum::<usize>(),
                "a stray ampersand: {between:?}"
            );
            let to = from + rest[from..].find('>').expect("a tag ends");
            let tag = &rest[from + 1..to];
            rest = &rest[to + 1..];
            if let Some(name) = tag.strip_prefix('/') {
                assert_eq!(open.pop(), Some(name));
                continue;
            }
            let element = tag.trim_end_matches('/');
            let (name, attributes) = element.split_once(' ').unwrap_or((element, ""));
            let quoted: Vec<&str> = attributes.split('"').collect();
            assert_eq!(quoted.len() % 2, 1, "quotes of {tag}");
            let mut names: Vec<&str> = quoted.iter().step_by(2).map(|name| name.trim()).collect();
            assert_eq!(names.pop(), Some(""), "{tag}");
            assert!(
                names
                    .iter()
                    .all(|name| name.ends_with('=') && !name.contains(' ')),
                "{tag}"
            );
            roots += usize::from(open.is_empty());
            if !tag.ends_with('/') {
                open.push(name);
            }
        }
        assert_eq!((open.as_slice(), roots, rest), (&[][..], 1, ""));
    }

    /// Lines, as their lists of points.
    fn lines(svg: &str) -> Vec<Vec<(f64, f64)>> {
        let lists = svg.split("<polyline points=\"").skip(1);
        let point = |text: &str| {
            let (x, y) = text.split_once(',').expect("a point");
            (x.parse().expect("x"), y.parse().expect("y"))
        };
        lists
            .map(|list| {
                list.split('"')
                    .next()
                    .unwrap_or_default()
                    .split(' ')
                    .map(point)
                    .collect()
            })
            .collect()
    }

    #[test]
    fn every_second_is_a_point_of_every_line() {
        let seconds: Vec<Second> = (0..10).map(|at| second(at, Some(3.0))).collect();
        let svg = drawn(&seconds);
        let lines = lines(&svg);
        let counts: Vec<usize> = lines.iter().map(Vec::len).collect();
        assert_eq!(
            counts, [10; 8],
            "two kinds of latency by three, and two of throughput"
        );
        // Time goes to the right, from the middle of the first second to that of the last.
        let (first, last) = (lines[0][0].0, lines[0][9].0);
        assert!(LEFT < first && first < last && last < RIGHT);
        // What takes longer is higher up: p50, p99 and max of confirms.
        assert!(lines[0][0].1 > lines[1][0].1 && lines[1][0].1 > lines[2][0].1);
        for (line, _) in lines.iter().zip(0..6) {
            assert!(
                line.iter()
                    .all(|(_, y)| (LATENCY.top..=LATENCY.bottom).contains(y))
            );
        }
        for line in &lines[6..] {
            assert!(
                line.iter()
                    .all(|(_, y)| (THROUGHPUT.top..=THROUGHPUT.bottom).contains(y))
            );
        }
        for named in [
            "a &lt;title&gt; &amp; more",
            "latency, ms",
            "messages per second",
            "time, seconds",
            "until confirmed: p50",
            "until delivered: p50",
            ">p99<",
            ">max<",
            ">acked<",
        ] {
            assert!(svg.contains(named), "{named} is missing");
        }
    }

    #[test]
    fn a_legend_ends_before_the_picture_does() {
        let svg = drawn(&[second(0, Some(1.0))]);
        let samples: Vec<f64> = svg
            .split("<path d=\"M")
            .skip(1)
            .map(|rest| {
                rest.split(' ')
                    .next()
                    .and_then(|x| x.parse().ok())
                    .expect("a place")
            })
            .collect();
        assert_eq!(samples.len(), 8);
        assert!(samples.iter().all(|x| *x < RIGHT - 60.0), "{samples:?}");
    }

    #[test]
    fn a_stall_is_a_gap_in_latencies_and_zero_in_throughput() {
        let seconds: Vec<Second> = [
            Some(1.0),
            Some(1.0),
            None,
            Some(900.0),
            None,
            Some(1.0),
            Some(1.0),
        ]
        .into_iter()
        .zip(0..)
        .map(|(ms, at)| second(at, ms))
        .collect();
        let svg = drawn(&seconds);
        let counts: Vec<usize> = lines(&svg).iter().map(Vec::len).collect();
        assert_eq!(counts, [2, 2, 2, 2, 2, 2, 7, 7, 7, 7, 7]);
        assert_eq!(svg.matches("<circle ").count(), 3, "one second by itself is dots");
        let confirmed = &lines(&svg)[9];
        assert!((confirmed[2].1 - THROUGHPUT.bottom).abs() < 0.1, "{confirmed:?}");
    }

    #[test]
    fn a_scale_has_room_for_all_and_says_what_it_is() {
        let scale = Logarithmic::over(&[0.9, 45.0]).expect("there are values");
        assert!((scale.y(0.1) - LATENCY.bottom).abs() < 1e-6);
        assert!((scale.y(100.0) - LATENCY.top).abs() < 1e-6);
        // A half of the decades is a half of the height.
        let middle = f64::midpoint(LATENCY.top, LATENCY.bottom);
        assert!((scale.y(10_f64.powf(0.5)) - middle).abs() < 1e-6);
        assert!(Logarithmic::over(&[]).is_none());

        for (highest, top, step) in [(44_100.0, 50_000.0, 10_000.0), (3.0, 3.0, 1.0), (0.0, 1.0, 0.2)] {
            let scale = Linear::up_to(highest);
            assert_eq!(
                (scale.highest.round(), scale.step),
                (f64::round(top), step),
                "{highest}"
            );
        }
        let numbers = [0.001, 0.05, 1.0, 200.0, 20_000.0].map(number);
        assert_eq!(numbers, ["0.001", "0.05", "1", "200", "20,000"]);
    }

    #[test]
    fn a_long_run_is_drawn_by_the_worst_of_several_seconds() {
        let mut seconds: Vec<Second> = (0..3_600).map(|at| second(at, Some(1.0))).collect();
        seconds[1_234] = second(1_234, Some(500.0));
        let svg = drawn(&seconds);
        assert!(svg.contains("a point is 6 seconds"));
        assert_eq!(lines(&svg)[0].len(), 600);
        let points = points(&seconds, 6, 0.0);
        assert_eq!(points[1_234 / 6].confirm.map(|of| of.max_ms), Some(2_000.0));
        assert!((points[1_234 / 6].confirmed - 100.0).abs() < 1e-9);
    }

    #[test]
    fn parts_follow_one_another_and_nothing_is_drawn_of_nothing() {
        let mut fill: Vec<Second> = (0..4).map(|at| second(at, Some(1.0))).collect();
        fill[3].seconds = 0.25;
        let drain = [second(0, None), second(1, None)];
        let parts = [
            Part {
                name: "fill",
                seconds: &fill,
            },
            Part {
                name: "drain",
                seconds: &drain,
            },
        ];
        let svg = svg("two", "", &parts);
        assert_well_formed(&svg);
        assert!(svg.contains(">fill<") && svg.contains(">drain<"));
        // Three of the fill: a quarter of a second is no point. Its time goes by nevertheless.
        let fill_line = &lines(&svg)[0];
        assert_eq!(fill_line.len(), 3);
        let seconds_in = |x: f64| (x - LEFT) / (RIGHT - LEFT) * 5.25;
        let drained = lines(&svg).pop().expect("there are lines");
        assert!((seconds_in(drained[0].0) - 3.75).abs() < 0.01, "{drained:?}");

        let empty = drawn(&[]);
        assert!(empty.contains("no latency was measured"));
        assert_eq!(lines(&empty), Vec::<Vec<_>>::new());
    }
}
