//! Sizes as people write them: `1KiB`, `64MiB`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A number of bytes, written `1024`, `1KiB`, `64MiB` or `2GiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Size(pub u64);

const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        let unit = UNITS
            .iter()
            .find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, *bytes)));
        let (number, unit) = unit.unwrap_or((text, 1));
        let bytes = number
            .trim()
            .parse::<u64>()
            .ok()
            .and_then(|number| number.checked_mul(unit));
        bytes
            .map(Self)
            .ok_or_else(|| format!("`{text}` is not a size such as 4096, 64KiB, 64MiB or 2GiB"))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = UNITS
            .iter()
            .find(|(_, bytes)| self.0 > 0 && self.0.is_multiple_of(*bytes));
        match unit {
            Some((unit, bytes)) => write!(f, "{}{unit}", self.0 / bytes),
            None => self.0.fmt(f),
        }
    }
}

impl TryFrom<String> for Size {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Size> for String {
    fn from(size: Size) -> Self {
        size.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_they_are_written() {
        for (text, bytes) in [
            ("0", 0),
            ("1500", 1500),
            ("1KiB", 1024),
            ("64MiB", 64 << 20),
            ("2GiB", 2 << 30),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)));
            assert_eq!(Size(bytes).to_string(), text);
        }
        assert_eq!(" 3 KiB ".parse(), Ok(Size(3072)));
        for wrong in ["", "KiB", "64MB", "-1", "1.5MiB", "99999999999GiB"] {
            assert!(wrong.parse::<Size>().is_err(), "{wrong}");
        }
    }
}
