//! A node whose wall clock is wrong.
//!
//! The clock is bent by a small library in C that is preloaded into the node. It
//! is built here, with the C compiler that the workspace needs anyway.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use quorate_test_cluster::Builder;
use tempfile::TempDir;

/// The library; its file goes with this value.
#[derive(Debug)]
pub struct WrongClock {
    library: PathBuf,
    _folder: TempDir,
}

impl WrongClock {
    /// Builds it.
    ///
    /// # Errors
    ///
    /// When there is no C compiler.
    pub fn build() -> Result<Self> {
        let folder = tempfile::tempdir().context("make a folder")?;
        let library = folder.path().join("wrong_clock.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/wrong_clock.c");
        let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
        let mut command = Command::new(compiler);
        command
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .arg(&library)
            .arg(source);
        let status = command.status().context("run the C compiler")?;
        ensure!(status.success(), "the C compiler failed: {status}");
        Ok(Self {
            library,
            _folder: folder,
        })
    }

    /// Lets a node's clock be that far ahead.
    #[must_use]
    pub fn ahead(&self, builder: Builder, node: usize, by: Duration) -> Builder {
        let builder = builder.env_of(node, "LD_PRELOAD", &self.library);
        builder.env_of(node, "WRONG_CLOCK_SECONDS", by.as_secs().to_string())
    }
}
