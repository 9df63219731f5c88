//! Texts from a run are data, whatever is in them: bodies, names and errors may hold markup on purpose.

use std::fmt;

/// Shows a text inside an element or a quoted attribute.
pub(crate) struct Text<'a>(pub(crate) &'a str);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                // HTML has no way to write the other control characters.
                c if c.is_control() && c != '\n' && c != '\t' => write!(f, "\u{fffd}")?,
                c => write!(f, "{c}")?,
            }
        }
        Ok(())
    }
}

/// JSON that can stand inside a `script` element: no `<` can end the element, or open a comment in it.
pub(crate) fn json_in_script(value: &impl fmt::Display) -> String {
    // `<` occurs in JSON only inside strings, where an escape means the same.
    value.to_string().replace('<', "\\u003c")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_is_shown_not_obeyed() {
        assert_eq!(
            Text("<img src=x onerror=\"a('&')\">\u{1}").to_string(),
            "&lt;img src=x onerror=&quot;a(&#39;&amp;&#39;)&quot;&gt;\u{fffd}"
        );
    }

    #[test]
    fn a_string_cannot_end_the_script() {
        let json = json_in_script(&serde_json::json!("</script><!--"));
        assert_eq!(json, r#""\u003c/script>\u003c!--""#);
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), "</script><!--");
    }
}
