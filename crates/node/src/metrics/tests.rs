use super::*;

#[test]
fn the_table_is_in_order_and_follows_the_conventions() {
    for pair in METRICS.windows(2) {
        assert!(
            pair[0].name < pair[1].name,
            "{} before {}",
            pair[0].name,
            pair[1].name
        );
    }
    for metric in METRICS {
        let name = metric.name;
        assert!(name.starts_with("quorate_"), "{name}");
        let letters = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        assert!(letters, "{name}");
        assert_eq!(metric.kind == Kind::Counter, name.ends_with("_total"), "{name}");
        assert!(
            metric.kind != Kind::Histogram || name.ends_with("_seconds"),
            "{name}"
        );
        assert!(metric.help.ends_with('.'), "{name}: {}", metric.help);
    }
}

/// The page has a row for each metric, `| name | kind | help …`.
#[test]
fn the_page_lists_what_the_table_has() {
    let page = include_str!("../../../../docs/metrics.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `quorate_"));
    let mut listed = Vec::new();
    for row in rows {
        let mut cells = row.split('|').map(str::trim);
        let name = cells.next().expect("a row has cells").trim_end_matches('`');
        let (kind, help) = (cells.next().unwrap_or_default(), cells.next().unwrap_or_default());
        listed.push((format!("quorate_{name}"), kind.to_lowercase(), help.to_owned()));
    }
    listed.sort();
    let names: Vec<_> = listed.iter().map(|(name, ..)| name.as_str()).collect();
    let table: Vec<_> = METRICS.iter().map(|metric| metric.name).collect();
    assert_eq!(
        names, table,
        "docs/metrics.md and the table have the same metrics"
    );
    for ((name, kind, help), metric) in listed.iter().zip(METRICS) {
        assert_eq!(*kind, format!("{:?}", metric.kind).to_lowercase(), "{name}");
        assert!(
            help.starts_with(metric.help),
            "{name}: the page says {help:?}, the table {:?}",
            metric.help
        );
    }
}
