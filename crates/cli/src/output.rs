//! Standard output: text or JSON. A reader that hangs up ends the command
//! quietly.

use std::io::{self, IsTerminal as _, Write as _};

use serde_json::Value;

use crate::exit::Failure;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    json: bool,
}

impl Output {
    pub(crate) fn new(json: bool) -> Self {
        Self { json }
    }

    pub(crate) fn is_json(self) -> bool {
        self.json
    }

    /// Whether a person reads it, rather than a file or a program.
    pub(crate) fn is_terminal(self) -> bool {
        io::stdout().is_terminal()
    }

    /// Shows one thing, as JSON or as text with its line ends.
    pub(crate) fn show(
        self,
        json: impl FnOnce() -> Value,
        text: impl FnOnce() -> String,
    ) -> Result<(), Failure> {
        if self.json {
            self.line(&json())
        } else {
            self.bytes(text().as_bytes())
        }
    }

    /// One JSON object on a line of its own.
    pub(crate) fn line(self, value: &Value) -> Result<(), Failure> {
        self.bytes(format!("{value}\n").as_bytes())
    }

    pub(crate) fn bytes(self, bytes: &[u8]) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        written(out.write_all(bytes).and_then(|()| out.flush()))
    }
}

fn written(result: io::Result<()>) -> Result<(), Failure> {
    result.map_err(|source| match source.kind() {
        io::ErrorKind::BrokenPipe => Failure::OutputClosed,
        _ => Failure::Io {
            action: "write to standard output".to_owned(),
            source,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_hangs_up_is_no_error() {
        let broken = written(Err(io::ErrorKind::BrokenPipe.into()));
        assert!(matches!(broken, Err(Failure::OutputClosed)));
        let full = written(Err(io::ErrorKind::StorageFull.into()));
        assert!(matches!(full, Err(Failure::Io { .. })));
    }
}
