//! Clocks that are wrong, and go wrong while a node runs.
//!
//! The clocks are bent by a small library in C that is preloaded into the node. It is built here, with the C
//! compiler that the workspace needs anyway. How it bends them stands in a file that it maps: a [`Clock`]
//! writes there. Wall clocks jump as when somebody sets the date; a drift is one of all clocks, as of a bad
//! quartz. The monotonic clock never jumps, and when a drift ends it stays where the drift has brought it.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::time::{ClockId, clock_gettime};
use quorate_test_cluster::Builder;
use tempfile::TempDir;

/// Environment variable with the file of a clock.
pub const FILE_VARIABLE: &str = "WRONG_CLOCK_FILE";

/// Numbers before the settings: the selector and the counter.
const HEAD_BYTES: u64 = 16;
/// Of one setting.
const SETTING_BYTES: u64 = 32;

/// The library; its file, and those of clocks made by [`ahead`](Self::ahead), go with this value.
#[derive(Debug)]
pub struct WrongClock {
    library: PathBuf,
    folder: TempDir,
}

/// The clocks of one node. Clones are the same clocks.
#[derive(Clone, Debug)]
pub struct Clock {
    path: PathBuf,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    file: File,
    selector: u64,
    setting: Setting,
    /// How far the wall clock is to be ahead, whatever a drift has left.
    wall_ns: i64,
}

/// As the library has it.
#[derive(Clone, Copy, Debug, Default)]
struct Setting {
    since_ns: i64,
    ahead_ns: i64,
    rate_ppm: i64,
    wall_ns: i64,
}

impl WrongClock {
    /// Builds the library.
    ///
    /// # Errors
    ///
    /// When there is no C compiler.
    pub fn build() -> Result<Self> {
        let folder = tempfile::tempdir().context("make a folder")?;
        let library = folder.path().join("wrong_clock.so");
        let source = folder.path().join("wrong_clock.c");
        std::fs::write(&source, include_str!("wrong_clock.c")).context("write the library's source")?;
        let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
        let mut command = Command::new(compiler);
        command
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .arg(&library)
            .arg(source)
            .arg("-ldl");
        let output = command.output().context("run the C compiler")?;
        ensure!(
            output.status.success(),
            "the C compiler failed: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(Self { library, folder })
    }

    /// The library to preload.
    #[must_use]
    pub fn library(&self) -> &Path {
        &self.library
    }

    /// Lets a node's clock be that far ahead from its start on.
    ///
    /// # Errors
    ///
    /// When the clock's file cannot be written.
    pub fn ahead(&self, builder: Builder, node: usize, by: Duration) -> Result<Builder> {
        let clock = Clock::create(&self.folder.path().join(format!("clock-{node}")))?;
        clock.set_wall(i64::try_from(by.as_millis()).context("so far ahead")?)?;
        let builder = builder.env_of(node, "LD_PRELOAD", &self.library);
        Ok(builder.env_of(node, FILE_VARIABLE, clock.path()))
    }
}

impl Clock {
    /// Makes the file of clocks that are right.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub fn create(path: &Path) -> Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true);
        let file = options
            .open(path)
            .with_context(|| format!("make the clock {}", path.display()))?;
        file.set_len(HEAD_BYTES + 2 * SETTING_BYTES)
            .context("make a clock")?;
        let state = State {
            file,
            selector: 0,
            setting: Setting::default(),
            wall_ns: 0,
        };
        Ok(Self {
            path: path.to_owned(),
            state: Arc::new(Mutex::new(state)),
        })
    }

    /// Its file, for [`FILE_VARIABLE`].
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Sets the wall clock this many milliseconds ahead, or behind.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub fn set_wall(&self, ahead_ms: i64) -> Result<()> {
        self.change(|state| state.wall_ns = ahead_ms.saturating_mul(1_000_000))
    }

    /// Lets all clocks run faster by so many parts in a thousand from now on, or slower.
    ///
    /// # Errors
    ///
    /// When the file cannot be written, or the clocks would stand still.
    pub fn set_rate(&self, per_mille: i32) -> Result<()> {
        ensure!(per_mille > -1_000, "a clock does not run backwards");
        self.change(|state| state.setting.rate_ppm = i64::from(per_mille) * 1_000)
    }

    /// A process that starts now has clocks that no drift has moved yet.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub fn start_over(&self) -> Result<()> {
        self.change(|state| state.setting.ahead_ns = 0)
    }

    /// How often the node has read a clock that was wrong. If this stands still, it is not preloaded.
    ///
    /// # Errors
    ///
    /// When the file cannot be read.
    pub fn readings(&self) -> Result<u64> {
        let mut bytes = [0; 8];
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state
            .file
            .read_exact_at(&mut bytes, 8)
            .context("read the file of a clock")?;
        Ok(u64::from_ne_bytes(bytes))
    }

    fn change(&self, change: impl FnOnce(&mut State)) -> Result<()> {
        let now = clock_gettime(ClockId::CLOCK_MONOTONIC).context("read the clock")?;
        let now_ns = now.tv_sec() * 1_000_000_000 + now.tv_nsec();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let since = i128::from(now_ns - state.setting.since_ns);
        let drifted = since * i128::from(state.setting.rate_ppm) / 1_000_000;
        state.setting.ahead_ns += i64::try_from(drifted).context("drift")?;
        state.setting.since_ns = now_ns;
        change(&mut state);
        // Without a drift the wall clock is right again, whatever a former one has left behind.
        let left = if state.setting.rate_ppm == 0 {
            state.setting.ahead_ns
        } else {
            0
        };
        state.setting.wall_ns = state.wall_ns - left;
        state.write()
    }
}

impl State {
    /// Writes the setting that is not valid, and then makes it the valid one.
    fn write(&mut self) -> Result<()> {
        self.selector += 1;
        let Setting {
            since_ns,
            ahead_ns,
            rate_ppm,
            wall_ns,
        } = self.setting;
        let numbers = [since_ns, ahead_ns, rate_ppm, wall_ns];
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
        let at = HEAD_BYTES + (self.selector & 1) * SETTING_BYTES;
        let written = self.file.write_all_at(&bytes, at);
        written
            .and_then(|()| self.file.write_all_at(&self.selector.to_ne_bytes(), 0))
            .context("write the file of a clock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds on the wall clock of a program that has the library.
    fn shown(library: &WrongClock, clock: &Clock) -> i64 {
        let output = Command::new("date")
            .arg("+%s")
            .env("LD_PRELOAD", library.library())
            .env(FILE_VARIABLE, clock.path())
            .output()
            .expect("there is `date`");
        let text = String::from_utf8(output.stdout).expect("a number");
        text.trim().parse().expect("a number")
    }

    fn right() -> i64 {
        clock_gettime(ClockId::CLOCK_REALTIME).expect("a clock").tv_sec()
    }

    #[test]
    fn a_wall_clock_jumps_and_comes_back() {
        let library = WrongClock::build().expect("a C compiler");
        let clock = Clock::create(&library.folder.path().join("clock")).expect("a file");
        let off = |clock: &Clock| shown(&library, clock) - right();
        assert!(off(&clock).abs() <= 1);
        assert_eq!(clock.readings().expect("a file"), 0);
        clock.set_wall(-3_600_000).expect("a file");
        assert!((off(&clock) + 3_600).abs() <= 1, "{}", off(&clock));
        assert!(clock.readings().expect("a file") > 0);
        clock.set_wall(0).expect("a file");
        assert!(off(&clock).abs() <= 1);
    }

    #[test]
    fn a_drift_adds_up_and_leaves_the_wall_clock_right() {
        let library = WrongClock::build().expect("a C compiler");
        let clock = Clock::create(&library.folder.path().join("clock")).expect("a file");
        // A hundred times as fast: half a second becomes fifty.
        clock.set_rate(99_000).expect("a file");
        std::thread::sleep(Duration::from_millis(500));
        let off = shown(&library, &clock) - right();
        assert!(off >= 45, "{off}");
        clock.set_rate(0).expect("a file");
        let off = shown(&library, &clock) - right();
        assert!(off.abs() <= 1, "{off}");
        assert!(clock.set_rate(-1_000).is_err());
    }
}
