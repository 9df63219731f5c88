//! The control file: switches that a test sets, and counters that the shim
//! keeps, while the program under test runs.
//!
//! The shim maps the file; a test reads and writes single numbers in it with
//! ordinary file calls, which see the same pages. Setting one switch is one
//! aligned eight-byte write, so no lock is needed.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

/// Size of the control file: one page.
pub(crate) const CONTROL_BYTES: usize = 4096;

/// Numbers in the control file, in native byte order.
pub(crate) const SLOTS: usize = CONTROL_BYTES / 8;

/// Name of the control file in the journal folder.
pub(crate) const CONTROL_FILE: &str = "control";

/// A fault with this count stays on.
pub(crate) const ALWAYS: u64 = u64::MAX;

/// Where each number is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Slot {
    WriteNoSpace = 0,
    WriteError = 1,
    SyncError = 2,
    SyncLies = 3,
    SyncDelayMs = 4,
    QuotaBytes = 5,
    Writes = 16,
    WrittenBytes = 17,
    Syncs = 18,
    SyncsSkipped = 19,
    NameChanges = 20,
    Faults = 21,
    GrownBytes = 22,
    JournalBytes = 23,
}

/// How often a fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Never.
    Off,
    /// The next so many calls, then never.
    Next(u64),
    /// Every call until it is switched off.
    Always,
}

impl Fault {
    fn count(self) -> u64 {
        match self {
            Fault::Off => 0,
            Fault::Next(count) => count,
            Fault::Always => ALWAYS,
        }
    }
}

/// What the shim saw and did since the control file was made. A run in which
/// `writes` and `syncs` stay at zero says nothing: the shim is not biting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Writes, truncations and allocations below the data folder.
    pub writes: u64,
    /// Bytes they wrote.
    pub written_bytes: u64,
    /// Syncs that made something durable.
    pub syncs: u64,
    /// Syncs that a lying disk claimed to have done.
    pub syncs_skipped: u64,
    /// Names created, removed and renamed.
    pub name_changes: u64,
    /// Calls that were made to fail, and syncs that were skipped.
    pub faults: u64,
    /// Bytes by which files grew, less those by which they shrank.
    pub grown_bytes: i64,
    /// Bytes written to the undo journal.
    pub journal_bytes: u64,
}

/// The switches and counters of one disk. All switches start off.
#[derive(Debug)]
pub struct Control {
    file: File,
}

impl Control {
    /// Makes the control file, or opens it with its switches as they are.
    pub fn open(path: &Path) -> io::Result<Control> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        if file.metadata()?.len() < CONTROL_BYTES as u64 {
            file.set_len(CONTROL_BYTES as u64)?;
        }
        Ok(Control { file })
    }

    /// The switches of the disk that this process runs on, so that a program under test can work them itself.
    pub fn of_this_process() -> io::Result<Control> {
        let journal = std::env::var_os(crate::JOURNAL_VARIABLE)
            .ok_or_else(|| io::Error::other("this process runs on no faulty disk"))?;
        Control::open(&Path::new(&journal).join(CONTROL_FILE))
    }

    /// Writes fail with ENOSPC, as on a full disk, and so do new names. Also
    /// writes inside a file fail: the harsher of what file systems do.
    pub fn set_write_no_space(&self, fault: Fault) -> io::Result<()> {
        self.store(Slot::WriteNoSpace, fault.count())
    }

    /// Writes fail with EIO.
    pub fn set_write_error(&self, fault: Fault) -> io::Result<()> {
        self.store(Slot::WriteError, fault.count())
    }

    /// Syncs fail with EIO, and what they should have made durable never
    /// becomes so unless it is written again.
    pub fn set_sync_error(&self, fault: Fault) -> io::Result<()> {
        self.store(Slot::SyncError, fault.count())
    }

    /// Syncs report success and do nothing.
    pub fn set_sync_lies(&self, fault: Fault) -> io::Result<()> {
        self.store(Slot::SyncLies, fault.count())
    }

    /// Every sync takes this much longer.
    pub fn set_sync_delay(&self, delay: Duration) -> io::Result<()> {
        self.store(
            Slot::SyncDelayMs,
            u64::try_from(delay.as_millis()).unwrap_or(u64::MAX),
        )
    }

    /// Files may grow by this many bytes in all, counted from the making of
    /// the control file, before writes fail with ENOSPC. `None`: no bound.
    pub fn set_quota(&self, bytes: Option<u64>) -> io::Result<()> {
        self.store(Slot::QuotaBytes, bytes.map_or(0, |bytes| bytes.max(1)))
    }

    /// Switches everything off.
    pub fn heal(&self) -> io::Result<()> {
        self.file
            .write_all_at(&[0; (Slot::QuotaBytes as usize + 1) * 8], 0)
    }

    /// The counters now.
    pub fn counters(&self) -> io::Result<Counters> {
        Ok(Counters {
            writes: self.load(Slot::Writes)?,
            written_bytes: self.load(Slot::WrittenBytes)?,
            syncs: self.load(Slot::Syncs)?,
            syncs_skipped: self.load(Slot::SyncsSkipped)?,
            name_changes: self.load(Slot::NameChanges)?,
            faults: self.load(Slot::Faults)?,
            grown_bytes: self.load(Slot::GrownBytes)?.cast_signed(),
            journal_bytes: self.load(Slot::JournalBytes)?,
        })
    }

    fn store(&self, slot: Slot, number: u64) -> io::Result<()> {
        self.file.write_all_at(&number.to_ne_bytes(), slot as u64 * 8)
    }

    fn load(&self, slot: Slot) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, slot as u64 * 8)?;
        Ok(u64::from_ne_bytes(bytes))
    }
}
