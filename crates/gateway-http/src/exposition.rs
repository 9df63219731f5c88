//! Metrics as the text that Prometheus reads, format 0.0.4.

use std::fmt::Write;

use quorate_node::metrics::{Family, Histogram, Kind, Value};

pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Writes each family, headed by its help and type.
pub(crate) fn render(families: &[Family]) -> String {
    let mut text = String::new();
    for Family { metric, samples } in families {
        let name = metric.name;
        line(
            &mut text,
            format_args!("# HELP {name} {}", escape_help(metric.help)),
        );
        line(&mut text, format_args!("# TYPE {name} {}", kind(metric.kind)));
        for sample in samples {
            let labels = labels(&sample.labels);
            match &sample.value {
                // Rust writes `inf`, `-inf` and `NaN`; Go's parser takes all three.
                Value::Number(value) => line(&mut text, format_args!("{name}{} {value}", braced(&labels))),
                Value::Histogram(histogram) => write_histogram(&mut text, name, &labels, histogram),
            }
        }
    }
    text
}

/// Each bucket counts all values up to its bound.
fn write_histogram(text: &mut String, name: &str, labels: &str, histogram: &Histogram) {
    let comma = if labels.is_empty() { "" } else { "," };
    let bounds = histogram
        .bounds
        .iter()
        .map(ToString::to_string)
        .chain(["+Inf".to_owned()]);
    let mut count = 0;
    for (bound, more) in bounds.zip(&histogram.counts) {
        count += more;
        line(
            text,
            format_args!("{name}_bucket{{{labels}{comma}le=\"{bound}\"}} {count}"),
        );
    }
    let labels = braced(labels);
    line(text, format_args!("{name}_sum{labels} {}", histogram.sum));
    line(text, format_args!("{name}_count{labels} {count}"));
}

fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(text, "{line}").expect("a String takes all text");
}

fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram => "histogram",
    }
}

fn labels(labels: &[(&str, String)]) -> String {
    let pair = |(name, value): &(&str, String)| format!("{name}=\"{}\"", escape_label(value));
    labels.iter().map(pair).collect::<Vec<_>>().join(",")
}

fn braced(labels: &str) -> String {
    if labels.is_empty() {
        String::new()
    } else {
        format!("{{{labels}}}")
    }
}

fn escape_help(help: &str) -> String {
    help.replace('\\', r"\\").replace('\n', r"\n")
}

fn escape_label(value: &str) -> String {
    escape_help(value).replace('"', "\\\"")
}

#[cfg(test)]
mod tests {
    use quorate_node::metrics::{Metric, Sample};

    use super::*;

    const READY: &Metric = &Metric {
        name: "queue_ready",
        kind: Kind::Gauge,
        help: "What it\nis: a \\ path.",
    };
    const TOOK: &Metric = &Metric {
        name: "took_seconds",
        kind: Kind::Histogram,
        help: "Time.",
    };

    fn family(metric: &'static Metric, samples: &[(&[(&'static str, &str)], Value)]) -> Family {
        let sample = |(labels, value): &(&[(&'static str, &str)], Value)| Sample {
            labels: labels
                .iter()
                .map(|(name, value)| (*name, (*value).to_owned()))
                .collect(),
            value: value.clone(),
        };
        Family {
            metric,
            samples: samples.iter().map(sample).collect(),
        }
    }

    #[test]
    fn a_family_is_headed_once() {
        let text = render(&[family(
            READY,
            &[
                (&[("queue", "a")], Value::Number(3.0)),
                (&[("queue", "b")], Value::Number(0.25)),
                (&[], Value::Number(1.0)),
            ],
        )]);
        assert_eq!(
            text,
            "# HELP queue_ready What it\\nis: a \\\\ path.\n\
             # TYPE queue_ready gauge\n\
             queue_ready{queue=\"a\"} 3\n\
             queue_ready{queue=\"b\"} 0.25\n\
             queue_ready 1\n"
        );
    }

    #[test]
    fn buckets_of_a_histogram_add_up() {
        let histogram = Value::Histogram(Histogram {
            bounds: vec![0.001, 5.0],
            counts: vec![2, 0, 1],
            sum: 7.5,
        });
        let text = render(&[family(
            TOOK,
            &[(&[], histogram.clone()), (&[("queue", "a")], histogram)],
        )]);
        assert_eq!(
            text,
            "# HELP took_seconds Time.\n\
             # TYPE took_seconds histogram\n\
             took_seconds_bucket{le=\"0.001\"} 2\n\
             took_seconds_bucket{le=\"5\"} 2\n\
             took_seconds_bucket{le=\"+Inf\"} 3\n\
             took_seconds_sum 7.5\n\
             took_seconds_count 3\n\
             took_seconds_bucket{queue=\"a\",le=\"0.001\"} 2\n\
             took_seconds_bucket{queue=\"a\",le=\"5\"} 2\n\
             took_seconds_bucket{queue=\"a\",le=\"+Inf\"} 3\n\
             took_seconds_sum{queue=\"a\"} 7.5\n\
             took_seconds_count{queue=\"a\"} 3\n"
        );
    }

    #[test]
    fn label_values_are_escaped() {
        let labels: &[(&str, &str)] = &[("queue", "a\"b\\c\nd"), ("vhost", "/")];
        let text = render(&[family(READY, &[(labels, Value::Number(1.0))])]);
        assert!(
            text.ends_with("{queue=\"a\\\"b\\\\c\\nd\",vhost=\"/\"} 1\n"),
            "{text}"
        );
    }

    #[test]
    fn large_counts_keep_their_digits() {
        let text = render(&[family(READY, &[(&[], Value::Number(12_345_678_901.0))])]);
        assert!(text.ends_with("queue_ready 12345678901\n"), "{text}");
    }

    type Labels = Vec<(String, String)>;

    /// A sample line as Prometheus reads it: name, labels, value.
    fn parse(line: &str) -> Option<(String, Labels, f64)> {
        let name_end = line.find(['{', ' '])?;
        let (name, mut rest) = line.split_at(name_end);
        let mut labels = Labels::new();
        if let Some(mut inside) = rest.strip_prefix('{') {
            loop {
                let (label, after) = inside.split_once("=\"")?;
                let (mut value, mut chars) = (String::new(), after.char_indices());
                let end = loop {
                    match chars.next()? {
                        (at, '"') => break at + 1,
                        (_, '\\') => value.push(match chars.next()?.1 {
                            'n' => '\n',
                            escaped @ ('"' | '\\') => escaped,
                            _ => return None,
                        }),
                        (_, plain) => value.push(plain),
                    }
                };
                labels.push((label.to_owned(), value));
                match after[end..].strip_prefix(',') {
                    Some(next) => inside = next,
                    None => {
                        rest = after[end..].strip_prefix('}')?;
                        break;
                    }
                }
            }
        }
        let value = match rest.strip_prefix(' ')? {
            "+Inf" => f64::INFINITY,
            number => number.parse().ok()?,
        };
        let word = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
        (word(name) && labels.iter().all(|(label, _)| word(label))).then(|| (name.to_owned(), labels, value))
    }

    #[test]
    fn every_metric_of_a_node_can_be_read_back() {
        let queue = "a \"queue\", {with} a \\ and\na line";
        let labels: &[(&str, &str)] = &[("queue", queue), ("state", "ready")];
        let families: Vec<_> = quorate_node::metrics::METRICS
            .iter()
            .map(|metric| {
                let value = match metric.kind {
                    Kind::Histogram => Value::Histogram(Histogram {
                        bounds: vec![0.5],
                        counts: vec![3, 1],
                        sum: 4.25,
                    }),
                    Kind::Gauge | Kind::Counter => Value::Number(7.5),
                };
                family(metric, &[(labels, value)])
            })
            .collect();
        let text = render(&families);
        let mut lines = text.lines();
        for metric in quorate_node::metrics::METRICS {
            let name = metric.name;
            assert_eq!(
                lines.next(),
                Some(format!("# HELP {name} {}", metric.help).as_str())
            );
            assert_eq!(
                lines.next(),
                Some(format!("# TYPE {name} {}", kind(metric.kind)).as_str())
            );
            let expected = match metric.kind {
                Kind::Histogram => vec![
                    ("_bucket", 3.0),
                    ("_bucket", 4.0),
                    ("_sum", 4.25),
                    ("_count", 4.0),
                ],
                Kind::Gauge | Kind::Counter => vec![("", 7.5)],
            };
            for (suffix, value) in expected {
                let line = lines.next().expect("a sample");
                let (read_name, read_labels, read) = parse(line).unwrap_or_else(|| panic!("{line}"));
                assert_eq!((read_name, read), (format!("{name}{suffix}"), value));
                assert_eq!(read_labels[0], ("queue".to_owned(), queue.to_owned()), "{line}");
            }
        }
        assert_eq!(lines.next(), None);
    }
}
