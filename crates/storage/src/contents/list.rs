//! `VOLUMES`: which volumes there are.
//!
//! A volume counts from the moment it is listed until it is not any more. A directory that is not listed is what a crash
//! left of a volume that was being begun or dropped. The file is replaced as a whole, with every change, and is durable
//! before anything is built on it:
//!
//! ```text
//! quorate contents 1
//! 0000000000000007
//! 0000000000000009
//! check ede162c1
//! ```
//!
//! The numbers ascend; the last one is of the newest volume. The last line is the crc32 of all before it.

use std::path::{Path, PathBuf};

use crate::error::{OpenError, StorageError};
use crate::medium::Medium;

pub(super) const NAME: &str = "VOLUMES";
const TITLE: &str = "quorate contents 1";

/// The directory of a volume.
pub(super) fn path_of(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:016x}"))
}

/// The number of the volume whose directory has this name.
pub(super) fn number_of(name: &str) -> Option<u64> {
    let number = u64::from_str_radix(name, 16).ok()?;
    (name == format!("{number:016x}")).then_some(number)
}

/// Replaces the list, durably. It must name one volume at least.
pub(super) fn write(medium: &dyn Medium, dir: &Path, numbers: &[u64]) -> Result<(), StorageError> {
    medium.replace(&dir.join(NAME), encode(numbers).as_bytes())
}

/// Reads the list. Changes nothing.
pub(super) fn read(medium: &dyn Medium, dir: &Path) -> Result<Vec<u64>, OpenError> {
    let path = dir.join(NAME);
    let bytes = medium
        .read(&path)?
        .ok_or_else(|| OpenError::damaged(&path, "it is missing"))?;
    decode(&bytes).map_err(|what| OpenError::damaged(&path, what))
}

fn encode(numbers: &[u64]) -> String {
    let mut text = format!("{TITLE}\n");
    for number in numbers {
        text.push_str(&format!("{number:016x}\n"));
    }
    let check = crc32fast::hash(text.as_bytes());
    format!("{text}check {check:08x}\n")
}

fn decode(bytes: &[u8]) -> Result<Vec<u64>, &'static str> {
    let text = std::str::from_utf8(bytes).map_err(|_| "it is not text")?;
    let lines: Vec<&str> = text.lines().collect();
    let [TITLE, numbers @ .., _] = &lines[..] else {
        return Err("it is cut short, or of an unknown format");
    };
    let numbers: Option<Vec<u64>> = numbers.iter().map(|line| number_of(line)).collect();
    let numbers = numbers.ok_or("a line of it is no number")?;
    if encode(&numbers) != text {
        return Err("its checksum is wrong");
    }
    if numbers.is_empty() || !numbers.is_sorted_by(|one, next| one < next) {
        return Err("its numbers make no sense");
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_looks_like_this() {
        let text = "quorate contents 1\n0000000000000007\n000000000000001f\ncheck d100496d\n";
        assert_eq!(encode(&[7, 31]), text);
        assert_eq!(decode(text.as_bytes()), Ok(vec![7, 31]));
    }

    #[test]
    fn damage_is_noticed() {
        let text = encode(&[1, 2, 0xabc]).into_bytes();
        for bit in 0..text.len() * 8 {
            let mut damaged = text.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&damaged).is_err(), "bit {bit}");
        }
        for len in 0..text.len() {
            assert!(decode(&text[..len]).is_err(), "{len} bytes");
        }
        assert!(decode(encode(&[]).as_bytes()).is_err());
        assert!(decode(encode(&[2, 1]).as_bytes()).is_err());
    }
}
