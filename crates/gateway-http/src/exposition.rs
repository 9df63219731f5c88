//! Samples as the text that Prometheus reads, format 0.0.4.

use std::collections::BTreeMap;
use std::fmt::Write;

use quorate_node::metrics::{Kind, Sample};

pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Writes each family once, headed by its help and type, in order of name; the
/// samples of a family keep the order in which they were given.
pub(crate) fn render(samples: &[Sample]) -> String {
    let mut families = BTreeMap::<&str, Vec<&Sample>>::new();
    for sample in samples {
        families.entry(sample.name).or_default().push(sample);
    }
    let mut text = String::new();
    for (name, samples) in families {
        let first = samples[0];
        text += &format!("# HELP {name} {}\n", escape_help(first.help));
        text += &format!("# TYPE {name} {}\n", kind(first.kind));
        for sample in samples {
            text += name;
            labels(&mut text, &sample.labels);
            // Rust writes `inf`, `-inf` and `NaN`; Go's parser takes all three.
            writeln!(text, " {}", sample.value).expect("a String takes all text");
        }
    }
    text
}

fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
    }
}

fn labels(text: &mut String, labels: &[(&str, String)]) {
    let mut before = '{';
    for (name, value) in labels {
        text.push(before);
        *text += &format!("{name}=\"{}\"", escape_label(value));
        before = ',';
    }
    if !labels.is_empty() {
        text.push('}');
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
    use super::*;

    fn sample(name: &'static str, labels: &[(&'static str, &str)], value: f64) -> Sample {
        Sample {
            name,
            help: "What it\nis: a \\ path.",
            kind: Kind::Gauge,
            labels: labels
                .iter()
                .map(|(name, value)| (*name, (*value).to_owned()))
                .collect(),
            value,
        }
    }

    #[test]
    fn a_family_is_headed_once_even_when_its_samples_are_apart() {
        let text = render(&[
            sample("queue_ready", &[("queue", "a")], 3.0),
            sample("node_up", &[], 1.0),
            sample("queue_ready", &[("queue", "b")], 0.25),
        ]);
        assert_eq!(
            text,
            "# HELP node_up What it\\nis: a \\\\ path.\n\
             # TYPE node_up gauge\n\
             node_up 1\n\
             # HELP queue_ready What it\\nis: a \\\\ path.\n\
             # TYPE queue_ready gauge\n\
             queue_ready{queue=\"a\"} 3\n\
             queue_ready{queue=\"b\"} 0.25\n"
        );
    }

    #[test]
    fn label_values_are_escaped() {
        let text = render(&[sample("x", &[("queue", "a\"b\\c\nd"), ("vhost", "/")], 1.0)]);
        assert!(
            text.ends_with("x{queue=\"a\\\"b\\\\c\\nd\",vhost=\"/\"} 1\n"),
            "{text}"
        );
    }

    #[test]
    fn large_counts_keep_their_digits() {
        let text = render(&[sample("x", &[], 12_345_678_901.0)]);
        assert!(text.ends_with("x 12345678901\n"), "{text}");
    }
}
