//! How the program ends.
//!
//! | code | meaning | what to do |
//! | ---: | --- | --- |
//! | 0 | stopped as asked, everything handed over | |
//! | 1 | an operator command was refused; a demo or bench lost a message | read the message |
//! | 2 | usage or configuration | correct it; a restart does not help |
//! | 3 | an operator command with an unknown outcome | repeat it |
//! | 4 | no node can be reached | |
//! | 10 | the disk failed: a write, a sync, or no space | look at the disk, then restart |
//! | 11 | the data directory is damaged, of a newer version, or another's | do not restart; see the message |
//! | 12 | the cluster refuses this node: removed, or not its cluster | wipe it and add it as a new node |
//! | 13 | an address is taken or cannot be bound | |
//! | 14 | a bug: a broken invariant | report it; a restart is safe |
//! | 15 | stopped as asked, but the drain did not end in time | |
//! | 16 | the node failed in another way | see the message |
//! | 130, 143 | a second SIGINT or SIGTERM: stopped at once | |

use std::error::Error;
use std::fmt;
use std::io;
use std::process::ExitCode;
use std::sync::Arc;

use quorate_node::{Failure, StartError};

/// The exit codes of `serve`, `dev`, `demo` and `bench`; the operator commands
/// bring their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    Failed = 1,
    Usage = 2,
    Storage = 10,
    Data = 11,
    Identity = 12,
    Address = 13,
    Bug = 14,
    DrainTimeout = 15,
    Node = 16,
    Interrupted = 130,
    Terminated = 143,
}

/// Why the program ends with another code than 0.
#[derive(Debug)]
pub(crate) struct Fatal {
    exit: Exit,
    message: String,
}

impl Fatal {
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self {
            exit,
            message: message.into(),
        }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }
}

impl fmt::Display for Fatal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<anyhow::Error> for Fatal {
    fn from(error: anyhow::Error) -> Self {
        Self {
            exit: Exit::Failed,
            message: format!("{error:#}"),
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Says what was fatal, where a person or a supervisor looks for it.
pub(crate) fn report(result: Result<(), Fatal>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(fatal) => {
            eprintln!("quorate: {fatal}");
            fatal.exit.into()
        }
    }
}

/// A node that could not start.
pub(crate) fn not_started(error: &StartError) -> Fatal {
    let exit = match error {
        StartError::Config(_) => Exit::Usage,
        StartError::Listen { .. } => Exit::Address,
        StartError::Open(problem) if has_io_error(problem) => Exit::Storage,
        StartError::Open(_) | StartError::Raft(_) => Exit::Data,
    };
    // On one line, as the last one of a log.
    let message = error.to_string();
    let lines: Vec<_> = message.lines().map(str::trim).collect();
    Fatal::new(exit, lines.join("; "))
}

/// A node that has to stop.
pub(crate) fn stopped(failure: &Failure) -> Fatal {
    let exit = match failure {
        Failure::Storage(_) => Exit::Storage,
        Failure::Removed => Exit::Identity,
        Failure::Consensus(_) => Exit::Node,
    };
    Fatal::new(exit, failure.to_string())
}

/// Whether the system refused something, as opposed to what was found on disk.
fn has_io_error(error: &(dyn Error + 'static)) -> bool {
    error.is::<io::Error>() || error.is::<Arc<io::Error>>() || error.source().is_some_and(has_io_error)
}
