//! A disk that forgets: power loss and disk faults for programs that believe
//! they are durable.
//!
//! A SIGKILL does not test durability. The page cache outlives the process, so
//! whatever was written is there again, synced or not. This crate takes away
//! what a power loss would have taken.
//!
//! While the program runs, its file functions are replaced by those of this
//! library. Before every change of a file below the data folder they note the
//! old bytes in an *undo journal*; `fsync` and `fdatasync` note that a file is
//! durable. Creations, removals and renames are noted too, and become durable
//! when their folder is synced. After the program was killed,
//! [`PowerLoss::plan`] reads the journal and [`PowerLoss::undo`] rebuilds each
//! file as its durable part and some of the 4 KiB pages written since; which,
//! is up to the seed and the [`Variant`].
//!
//! In between, a [`Control`] makes writes fail for want of space or by an I/O
//! error, and makes syncs fail, dawdle or lie.
//!
//! # Two ways in
//!
//! * **Preloaded** into any dynamically linked program: [`FaultyDisk::preload`].
//! * **Linked** into a test binary that starts itself again as the program
//!   under test: [`FaultyDisk::arm`]. The functions are in the binary as soon
//!   as it uses this crate, and do nothing without the environment variables.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use quorate_disk_shim::{FaultyDisk, Names, Variant};
//! # let seed = 1;
//! let disk = FaultyDisk::create("run/n1/data", "run/n1/journal")?;
//! let mut server = std::process::Command::new("target/debug/quorate");
//! disk.preload(&mut server)?;
//! let mut server = server.arg("serve").spawn()?;
//! // … load, then …
//! server.kill()?;
//! server.wait()?;
//! let report = disk.lose_power(seed, Variant::draw(seed), Names::Drawn)?;
//! println!("seed {seed}: {report}");
//! # Ok(()) }
//! ```
//!
//! # Entropy and clocks
//!
//! A program that simulates needs more than its disk to be given: [`simulation`].
//!
//! # What it does not model
//!
//! * Stores into mapped files, io_uring, direct system calls and glibc's stdio
//!   are not seen; static binaries cannot be preloaded. sled, std and tokio use
//!   none of these for files. Check [`Counters`]: a run with no syncs seen
//!   proves nothing.
//! * `sync_file_range` counts as nothing, which is what it guarantees.
//! * A removed file comes back only if its link in the journal folder could be
//!   made: keep data and journal on one file system. Folders come back empty,
//!   then their files one by one. Symbolic links are not followed up.
//! * A name is changed first and noted after, so a kill between the two makes
//!   that change durable.
//! * Linux on 64 bits with glibc.

mod control;
#[cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
mod interpose;
mod journal;
mod power_loss;
mod rng;
pub mod simulation;

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

pub use control::{Control, Counters, Fault};
pub use power_loss::{Names, PowerLoss, Report, Variant};

/// Environment variable with the data folder, the part of the file system
/// that is the disk under test.
pub const DATA_VARIABLE: &str = "DISK_SHIM_DATA";

/// Environment variable with the folder of the journal and the control file.
pub const JOURNAL_VARIABLE: &str = "DISK_SHIM_JOURNAL";

/// File name of the library to preload.
const LIBRARY: &str = "libquorate_disk_shim.so";

/// The world got in the way of a test.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file operation failed.
    #[error("cannot {what}: {source}")]
    Io {
        /// The action under way.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
    /// The library to preload was not built.
    #[error("{LIBRARY} is in none of {looked_in:?}: build it with `cargo build -p quorate-disk-shim`")]
    NoLibrary {
        /// The folders that were searched.
        looked_in: Vec<PathBuf>,
    },
}

/// The result of what can fail here.
pub type Result<T> = std::result::Result<T, Error>;

/// The disk of one node: a data folder, and beside it the folder with its undo
/// journal and switches. Copies of this value, and values made again for the
/// same folders, are the same disk.
#[derive(Clone, Debug)]
pub struct FaultyDisk {
    data: PathBuf,
    journal: PathBuf,
}

impl FaultyDisk {
    /// Makes the folders if they are not there. The journal folder must not be
    /// in the data folder, and must be on the same file system.
    pub fn create(data: impl AsRef<Path>, journal: impl AsRef<Path>) -> Result<FaultyDisk> {
        let folder = |path: &Path| {
            fs::create_dir_all(path)
                .and_then(|()| fs::canonicalize(path))
                .map_err(|source| Error::Io {
                    what: format!("create the folder {}", path.display()),
                    source,
                })
        };
        let disk = FaultyDisk {
            data: folder(data.as_ref())?,
            journal: folder(journal.as_ref())?,
        };
        assert!(
            !disk.journal.starts_with(&disk.data),
            "the journal folder is in the data folder"
        );
        disk.control()?;
        Ok(disk)
    }

    /// The data folder.
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// The folder of the journal and the control file.
    pub fn journal(&self) -> &Path {
        &self.journal
    }

    /// Makes a program that has the shim linked in use this disk.
    pub fn arm(&self, command: &mut Command) {
        command
            .env(DATA_VARIABLE, &self.data)
            .env(JOURNAL_VARIABLE, &self.journal);
    }

    /// Makes any dynamically linked program, and what it starts, use this disk.
    pub fn preload(&self, command: &mut Command) -> Result<()> {
        for (name, value) in self.preload_environment()? {
            command.env(name, value);
        }
        Ok(())
    }

    /// The environment variables that [`preload`](Self::preload) sets, for
    /// callers with another kind of command.
    pub fn preload_environment(&self) -> Result<[(&'static str, OsString); 3]> {
        Ok([
            (DATA_VARIABLE, self.data.clone().into()),
            (JOURNAL_VARIABLE, self.journal.clone().into()),
            ("LD_PRELOAD", library_path()?.into()),
        ])
    }

    /// The switches and counters. They outlive the processes.
    pub fn control(&self) -> Result<Control> {
        let path = self.journal.join(control::CONTROL_FILE);
        Control::open(&path).map_err(|source| Error::Io {
            what: format!("open the control file {}", path.display()),
            source,
        })
    }

    /// Plans a power loss and carries it out. The processes must be dead.
    pub fn lose_power(&self, seed: u64, variant: Variant, names: Names) -> Result<Report> {
        PowerLoss::plan(&self.data, &self.journal, seed, variant, names)?.undo()
    }

    /// Takes all that was written as durable, as a clean shutdown of the
    /// machine would. The processes must be dead.
    pub fn forget_journal(&self) -> Result<()> {
        power_loss::forget(&self.journal).map_err(|source| Error::Io {
            what: format!("empty {}", self.journal.display()),
            source,
        })
    }
}

/// The library to preload: it is built with this crate, so it lies in the
/// target folder of the current executable.
pub fn library_path() -> Result<PathBuf> {
    let executable = std::env::current_exe().map_err(|source| Error::Io {
        what: "find the current executable".into(),
        source,
    })?;
    let folders: Vec<PathBuf> = executable
        .ancestors()
        .skip(1)
        .take(2)
        .flat_map(|folder| [folder.join("deps"), folder.to_owned()])
        .collect();
    match folders
        .iter()
        .map(|folder| folder.join(LIBRARY))
        .find(|path| path.is_file())
    {
        Some(path) => Ok(path),
        None => Err(Error::NoLibrary { looked_in: folders }),
    }
}
