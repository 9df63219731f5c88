//! Bodies are bytes: how they are shown.

use std::fmt::Write as _;

use serde_json::Value;

/// Text for a terminal: what could move the cursor or is not UTF-8 is escaped.
pub(crate) fn escaped(body: &[u8]) -> String {
    let mut text = String::with_capacity(body.len());
    for chunk in body.utf8_chunks() {
        for character in chunk.valid().chars() {
            if character.is_control() && character != '\n' && character != '\t' {
                text.extend(character.escape_default());
            } else {
                text.push(character);
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// Text for one line of a terminal: escaped, line ends included, so that a
/// header cannot look like a line of ours.
pub(crate) fn escaped_line(text: &str) -> String {
    escaped(text.as_bytes()).replace('\n', "\\n")
}

/// Name and value of the JSON field: `body`, or `body_base64` if it is not
/// UTF-8.
pub(crate) fn json_field(body: &[u8]) -> (&'static str, Value) {
    match std::str::from_utf8(body) {
        Ok(text) => ("body", text.into()),
        Err(_) => ("body_base64", base64(body).into()),
    }
}

/// RFC 4648, section 4.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let group = chunk
            .iter()
            .fold(0_u32, |group, byte| group << 8 | u32::from(*byte));
        let group = group << (8 * (3 - chunk.len()));
        for n in 0..4 {
            let digit = ALPHABET[(group >> (18 - 6 * n) & 63) as usize];
            text.push(if n <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_agrees_with_the_rfc() {
        let vectors = [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
        ];
        for (plain, encoded) in vectors {
            assert_eq!(base64(plain.as_bytes()), encoded);
        }
        assert_eq!(base64(&[0xfb, 0xff, 0xfe]), "+//+");
    }

    #[test]
    fn a_header_stays_on_its_line() {
        assert_eq!(
            escaped_line("a\nstate  ready\x1b[2J"),
            r"a\nstate  ready\u{1b}[2J"
        );
    }

    #[test]
    fn a_body_cannot_take_over_the_terminal() {
        assert_eq!(escaped("häuser\n\tx".as_bytes()), "häuser\n\tx");
        assert_eq!(escaped(b"\x1b[2J"), "\\u{1b}[2J");
        assert_eq!(escaped(b"a\xffb"), "a\\xffb");
    }

    #[test]
    fn json_has_text_or_base64() {
        assert_eq!(json_field(b"x"), ("body", "x".into()));
        assert_eq!(json_field(b"\xff"), ("body_base64", "/w==".into()));
    }
}
