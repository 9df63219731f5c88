//! An audit log as a file of JSON lines.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;

use parking_lot::Mutex;

use super::{AuditSink, Record};

/// Appends each record as one line of JSON, with one call to the operating system, so that a killed process
/// loses nothing of what it has answered. It is never synced: a loss of power may cost the end of it.
#[derive(Debug)]
pub struct AuditFile(Mutex<Open>);

#[derive(Debug)]
struct Open {
    /// None: writing failed, and the rest would have a hole before it.
    file: Option<File>,
    line: Vec<u8>,
}

impl AuditFile {
    /// Opens a file to append to, or makes it. A line that an earlier process left torn is ended, so that it
    /// stays one bad line, which a reader takes for absent.
    ///
    /// # Errors
    ///
    /// When it cannot be opened or written.
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut file = OpenOptions::new().append(true).create(true).open(path)?;
        if file.metadata()?.len() > 0 {
            file.write_all(b"\n")?;
        }
        let line = Vec::new();
        Ok(Self(Mutex::new(Open {
            file: Some(file),
            line,
        })))
    }
}

impl AuditSink for AuditFile {
    fn record(&self, record: &Record) {
        let Open { file, line } = &mut *self.0.lock();
        let Some(open) = file else { return };
        line.clear();
        serde_json::to_writer(&mut *line, record).expect("a record has text keys, and memory takes it");
        line.push(b'\n');
        if let Err(error) = open.write_all(line) {
            tracing::warn!(%error, "the audit log cannot be written and ends here");
            *file = None;
        }
    }
}
