//! Tables in aligned columns.

/// How a column is aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    Left,
    Right,
}

/// Rows under a header. Widths are counted in characters.
pub(crate) fn table<const N: usize>(columns: [(&str, Align); N], rows: &[[String; N]]) -> String {
    let header = columns.map(|(name, _)| name.to_owned());
    let mut widths = [0; N];
    for row in std::iter::once(&header).chain(rows) {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for row in std::iter::once(&header).chain(rows) {
        let mut line = String::new();
        for (n, cell) in row.iter().enumerate() {
            let width = widths[n];
            line.push_str(&match columns[n].1 {
                Align::Left => format!("{cell:<width$}  "),
                Align::Right => format!("{cell:>width$}  "),
            });
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Names and values, one pair per line.
pub(crate) fn pairs(pairs: &[(&str, String)]) -> String {
    let width = pairs
        .iter()
        .map(|(name, _)| name.chars().count())
        .max()
        .unwrap_or(0);
    pairs
        .iter()
        .map(|(name, value)| format!("{name:<width$}  {value}\n"))
        .collect()
}

/// Every line, two spaces further in.
pub(crate) fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [
            ["jobs".to_owned(), "7".to_owned()],
            ["a-long-name".to_owned(), "12345".to_owned()],
        ];
        let text = table([("NAME", Align::Left), ("N", Align::Right)], &rows);
        assert_eq!(
            text,
            "NAME             N\njobs             7\na-long-name  12345\n"
        );
        assert_eq!(
            pairs(&[("a", "1".to_owned()), ("long", "2".to_owned())]),
            "a     1\nlong  2\n"
        );
    }
}
