//! The way into a data directory: whose is it, which format has it, and is anybody else inside?
//!
//! Everything here can be decided without opening a database, and nothing is changed before it is decided.
//!
//! `IDENTITY` is written last when a directory is created and never again. Its first line and its last line,
//! with the checksum of all lines before it, stay the same in every format to come:
//!
//! ```text
//! quorate data directory
//! format 2
//! node 1f6d07c5a4b3e298
//! check 4c6a4f27
//! ```

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use crate::error::{OpenError, StorageError};
use crate::files;

/// The format this program writes and reads. In format 1, which no release wrote, the log was kept in another way.
pub(crate) const FORMAT: u32 = 2;

const TITLE: &str = "quorate data directory";
/// Names that do not make a directory foreign: what an interrupted creation leaves, and a file system's own.
const HARMLESS: [&str; 2] = ["CREATING.new", "lost+found"];

/// The files of one data directory.
#[derive(Clone, Debug)]
pub(crate) struct Paths {
    pub(crate) dir: PathBuf,
    pub(crate) lock: PathBuf,
    pub(crate) identity: PathBuf,
    pub(crate) creating: PathBuf,
    pub(crate) progress: PathBuf,
    pub(crate) data: PathBuf,
    pub(crate) log: PathBuf,
    pub(crate) contents: PathBuf,
    pub(crate) contents_progress: PathBuf,
    pub(crate) images: PathBuf,
    pub(crate) journal: PathBuf,
}

impl Paths {
    pub(crate) fn new(dir: &Path) -> Self {
        let data = dir.join("data");
        Paths {
            dir: dir.to_owned(),
            lock: dir.join("LOCK"),
            identity: dir.join("IDENTITY"),
            creating: dir.join("CREATING"),
            progress: dir.join("progress"),
            log: data.join("log"),
            contents: data.join("contents"),
            contents_progress: dir.join("progress-contents"),
            images: data.join("snap"),
            journal: dir.join("journal"),
            data,
        }
    }
}

/// What lies behind the door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Nothing yet, or what an interrupted creation left.
    Nothing,
    /// A whole directory of ours.
    Node(u64),
}

/// Keeps others out as long as it lives. The kernel opens it when the process dies.
pub(crate) struct Door {
    _lock: Flock<fs::File>,
}

impl Door {
    /// Looks at the directory, locks it and looks again, now alone.
    pub(crate) fn open(paths: &Paths) -> Result<(Door, Found), OpenError> {
        if !paths.dir.exists() {
            files::create_dir(&paths.dir)?;
        }
        refuse_foreign(paths)?;
        let door = Door { _lock: lock(paths)? };
        if paths.identity.exists() {
            return Ok((door, Found::Node(read_identity(&paths.identity)?)));
        }
        if paths.data.exists() && !paths.creating.exists() {
            return Err(OpenError::damaged(&paths.identity, "it is missing"));
        }
        Ok((door, Found::Nothing))
    }
}

fn refuse_foreign(paths: &Paths) -> Result<(), OpenError> {
    if [&paths.lock, &paths.identity, &paths.creating]
        .iter()
        .any(|ours| ours.exists())
    {
        return Ok(());
    }
    let found = files::names(&paths.dir)?
        .into_iter()
        .find(|name| !HARMLESS.contains(&name.as_str()));
    found.map_or(Ok(()), |found| {
        Err(OpenError::Foreign {
            dir: paths.dir.clone(),
            found,
        })
    })
}

fn lock(paths: &Paths) -> Result<Flock<fs::File>, OpenError> {
    let action = || format!("lock {}", paths.lock.display());
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&paths.lock)
        .map_err(StorageError::io(action()))?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_file, errno)| match errno {
        Errno::EWOULDBLOCK => OpenError::Locked {
            dir: paths.dir.clone(),
        },
        errno => StorageError::io(action())(errno.into()).into(),
    })
}

/// Writes `IDENTITY`. From here on the directory is a node's.
pub(crate) fn write_identity(path: &Path, node: u64) -> Result<(), StorageError> {
    files::replace(path, identity_text(FORMAT, node).as_bytes())
}

fn identity_text(format: u32, node: u64) -> String {
    let body = format!("{TITLE}\nformat {format}\nnode {node:016x}\n");
    let check = crc32fast::hash(body.as_bytes());
    format!("{body}check {check:08x}\n")
}

fn read_identity(path: &Path) -> Result<u64, OpenError> {
    let bytes = fs::read(path).map_err(StorageError::io(format!("read {}", path.display())))?;
    let damaged = |what| OpenError::damaged(path, what);
    let text = String::from_utf8(bytes).map_err(|_| damaged("it is not text"))?;
    let lines: Vec<&str> = text.lines().collect();
    let [title, format, others @ .., check] = &lines[..] else {
        return Err(damaged("it is cut short"));
    };
    let body = &text[..text.len() - check.len() - usize::from(text.ends_with('\n'))];
    if *title != TITLE || *check != format!("check {:08x}", crc32fast::hash(body.as_bytes())) {
        return Err(damaged("its checksum is wrong"));
    }
    let format = format
        .strip_prefix("format ")
        .and_then(|number| number.parse().ok());
    match format {
        Some(found) if found > FORMAT => {
            return Err(OpenError::NewerFormat {
                file: path.to_owned(),
                found,
                known: FORMAT,
            });
        }
        Some(FORMAT) => {}
        Some(found) if found > 0 => {
            return Err(OpenError::OlderFormat {
                file: path.to_owned(),
                found,
                known: FORMAT,
            });
        }
        _ => return Err(damaged("its format line makes no sense")),
    }
    let node = others.first().and_then(|line| line.strip_prefix("node "));
    node.and_then(|node| u64::from_str_radix(node, 16).ok())
        .ok_or_else(|| damaged("its node line makes no sense"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_looks_like_this() {
        let expected = "quorate data directory\nformat 2\nnode 1f6d07c5a4b3e298\ncheck ";
        let text = identity_text(2, 0x1f6d_07c5_a4b3_e298);
        assert!(text.starts_with(expected), "{text}");
        assert_eq!(text, format!("{expected}4c6a4f27\n"));
    }

    #[test]
    fn identity_comes_back_and_damage_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("IDENTITY");
        write_identity(&path, 77).unwrap();
        assert_eq!(read_identity(&path).unwrap(), 77);
        let text = fs::read(&path).unwrap();
        for bit in 0..text.len() * 8 {
            let mut damaged = text.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            fs::write(&path, damaged).unwrap();
            assert!(
                matches!(read_identity(&path), Err(OpenError::Damaged { .. })),
                "bit {bit}"
            );
        }
        fs::write(&path, &text[..text.len() / 2]).unwrap();
        assert!(matches!(read_identity(&path), Err(OpenError::Damaged { .. })));
        fs::write(&path, identity_text(3, 77)).unwrap();
        assert!(matches!(
            read_identity(&path),
            Err(OpenError::NewerFormat {
                found: 3,
                known: 2,
                ..
            })
        ));
        fs::write(&path, identity_text(1, 77)).unwrap();
        assert!(matches!(
            read_identity(&path),
            Err(OpenError::OlderFormat {
                found: 1,
                known: 2,
                ..
            })
        ));
        fs::write(&path, identity_text(0, 77)).unwrap();
        assert!(matches!(read_identity(&path), Err(OpenError::Damaged { .. })));
    }
}
