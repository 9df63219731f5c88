//! JSON, one value a line.

use std::io::BufRead;

use anyhow::{Context as _, Result};
use serde::de::DeserializeOwned;

/// Reads one value a line. A last line that is not whole is left out: whoever wrote it was killed.
///
/// # Errors
///
/// When it cannot be read, or another line is no such value; with its number.
pub(crate) fn read<T: DeserializeOwned>(mut from: impl BufRead, mut take: impl FnMut(T)) -> Result<()> {
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let count = from.read_until(b'\n', &mut line);
        if count.with_context(|| format!("read line {number}"))? == 0 {
            break;
        }
        match serde_json::from_slice(&line) {
            Ok(value) => take(value),
            Err(_) if !line.ends_with(b"\n") => break,
            Err(error) => return Err(error).with_context(|| format!("understand line {number}")),
        }
    }
    Ok(())
}
