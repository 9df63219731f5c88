//! What the kernel says of a process.

use std::fs;

use anyhow::{Context, Result};
use serde::Serialize;

/// What a process uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Open files and sockets.
    pub files: u64,
    /// Memory that is really there, in bytes.
    pub resident_bytes: u64,
    /// Threads.
    pub threads: u64,
}

/// Whether a library of this file name is in the process.
///
/// # Errors
///
/// When there is no such process.
pub fn has_mapped(id: u32, name: &str) -> Result<bool> {
    let maps = fs::read_to_string(format!("/proc/{id}/maps")).context("look at the memory of a process")?;
    Ok(maps.lines().any(|line| line.ends_with(&format!("/{name}"))))
}

/// The program that the process runs.
///
/// # Errors
///
/// When there is no such process.
pub fn program(id: u32) -> Result<std::path::PathBuf> {
    fs::read_link(format!("/proc/{id}/exe")).context("look at the program of a process")
}

/// Processor time that it has used, in ticks; and whether it stands still.
///
/// # Errors
///
/// When there is no such process.
pub fn processor(id: u32) -> Result<(u64, bool)> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).context("look at a process")?;
    // After the name, which may hold anything.
    let (_, fields) = stat
        .rsplit_once(") ")
        .context("understand the state of a process")?;
    let fields: Vec<&str> = fields.split(' ').collect();
    let number = |place: usize| -> Result<u64> {
        let field = fields.get(place).context("understand the state of a process")?;
        field.parse().context("understand the state of a process")
    };
    Ok((number(11)? + number(12)?, fields.first() == Some(&"T")))
}

/// What it uses now.
///
/// # Errors
///
/// When there is no such process.
pub fn usage(id: u32) -> Result<Usage> {
    let files = fs::read_dir(format!("/proc/{id}/fd")).context("count the files of a process")?;
    let status = fs::read_to_string(format!("/proc/{id}/status")).context("look at a process")?;
    let number = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok())
            .unwrap_or(0)
    };
    Ok(Usage {
        files: files.count() as u64,
        resident_bytes: number("VmRSS:") * 1024,
        threads: number("Threads:"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_knows_itself() -> Result<()> {
        let id = std::process::id();
        let usage = usage(id)?;
        assert!(usage.files >= 3 && usage.resident_bytes > 100_000 && usage.threads >= 1);
        assert_eq!(program(id)?, std::env::current_exe()?);
        assert!(!processor(id)?.1, "it stands still");
        assert!(has_mapped(id, "libc.so.6")? && !has_mapped(id, "libnothing.so")?);
        Ok(())
    }
}
