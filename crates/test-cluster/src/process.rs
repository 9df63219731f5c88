//! One server process that cannot outlive this one.

use std::fs::OpenOptions;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result, ensure};
use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use tokio::sync::watch;

/// A running process, or one that has ended.
///
/// The process is started with `--die-with-parent`: it asks the kernel to kill
/// it when its parent goes, however the parent goes. To the kernel the parent is
/// the *thread* that started it, so each process has a thread of its own that
/// starts it and then waits for its end.
#[derive(Debug)]
pub(crate) struct Process {
    pid: Pid,
    /// False once the pid may belong to somebody else.
    alive: Arc<Mutex<bool>>,
    exit: watch::Receiver<Option<ExitStatus>>,
    keeper: Option<thread::JoinHandle<()>>,
}

impl Process {
    /// Starts `command` in a process group of its own, its output appended to
    /// the file `log`.
    pub(crate) fn start(mut command: Command, log: &Path) -> Result<Self> {
        let output = OpenOptions::new()
            .create(true)
            .append(true)
            .open(log)
            .context("open the node's log")?;
        command.stdin(Stdio::null());
        command
            .stdout(output.try_clone().context("open the node's log")?)
            .stderr(output);
        command
            .arg("--die-with-parent")
            .arg(std::process::id().to_string());
        command.process_group(0);

        let alive = Arc::new(Mutex::new(true));
        let (exit_sender, exit) = watch::channel(None);
        let (pid_sender, pid) = mpsc::sync_channel(1);
        let keeper = thread::Builder::new()
            .name("node".to_owned())
            .spawn({
                let alive = Arc::clone(&alive);
                move || keep(command, &pid_sender, &alive, &exit_sender)
            })
            .context("start a thread")?;
        let pid = pid
            .recv()
            .context("wait for the node to start")?
            .context("start the node")?;
        Ok(Self {
            pid,
            alive,
            exit,
            keeper: Some(keeper),
        })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid.as_raw().unsigned_abs()
    }

    /// How it ended, if it has.
    pub(crate) fn exited(&self) -> Option<ExitStatus> {
        *self.exit.borrow()
    }

    /// Resolves when it has ended.
    pub(crate) fn end(&self) -> impl Future<Output = ExitStatus> + Send + 'static {
        let mut exit = self.exit.clone();
        async move {
            let status = exit
                .wait_for(Option::is_some)
                .await
                .expect("the keeper reports before it ends");
            status.expect("waited for it")
        }
    }

    /// Sends signals to it, from elsewhere too.
    pub(crate) fn signaller(&self) -> Signaller {
        Signaller {
            pid: self.pid,
            alive: Arc::clone(&self.alive),
        }
    }

    /// Sends a signal to the process and its group.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        self.signaller().send(signal).with_context(|| {
            self.exited()
                .map_or_else(|| "signal the node".to_owned(), |status| status.to_string())
        })
    }
}

/// Sends signals to one process for as long as it lives. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Signaller {
    pid: Pid,
    alive: Arc<Mutex<bool>>,
}

impl Signaller {
    /// The process id.
    #[must_use]
    pub fn process_id(&self) -> u32 {
        self.pid.as_raw().unsigned_abs()
    }

    /// Freezes the process (SIGSTOP).
    ///
    /// # Errors
    ///
    /// When it has ended.
    pub fn pause(&self) -> Result<()> {
        self.send(Signal::SIGSTOP)
    }

    /// Lets it go on (SIGCONT).
    ///
    /// # Errors
    ///
    /// When it has ended.
    pub fn resume(&self) -> Result<()> {
        self.send(Signal::SIGCONT)
    }

    fn send(&self, signal: Signal) -> Result<()> {
        let alive = self.alive.lock().unwrap_or_else(PoisonError::into_inner);
        ensure!(*alive, "the node has ended");
        killpg(self.pid, signal).with_context(|| format!("send {signal}"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Refused when it has ended already: then there is nothing to do.
        let _ = self.signal(Signal::SIGKILL);
        if let Some(keeper) = self.keeper.take() {
            let _ = keeper.join();
        }
    }
}

/// Starts the process, says so, and stays until it has ended.
fn keep(
    mut command: Command,
    started: &mpsc::SyncSender<std::io::Result<Pid>>,
    alive: &Mutex<bool>,
    exit: &watch::Sender<Option<ExitStatus>>,
) {
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            let _ = started.send(Err(error));
            return;
        }
    };
    let pid = Pid::from_raw(i32::try_from(child.id()).expect("process ids are positive numbers"));
    let _ = started.send(Ok(pid));
    // Leaves it a zombie: until it is reaped below, the pid cannot be reused.
    while waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) == Err(Errno::EINTR) {}
    let mut alive = alive.lock().unwrap_or_else(PoisonError::into_inner);
    *alive = false;
    let status = child.wait().expect("it is our child and nobody else reaps it");
    exit.send_replace(Some(status));
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::time::Duration;

    use super::*;

    fn shell(script: &str, log: &Path) -> Process {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        Process::start(command, log).expect("a shell starts")
    }

    #[tokio::test]
    async fn a_signal_after_the_end_is_an_error() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let log = directory.path().join("log");
        let process = shell("echo said; exit 7", &log);
        assert_eq!(process.end().await.code(), Some(7));
        let error = process.signal(Signal::SIGTERM).expect_err("it has ended");
        assert_eq!(format!("{error:#}"), "exit status: 7: the node has ended");
        assert_eq!(std::fs::read_to_string(log).expect("it wrote"), "said\n");
    }

    #[tokio::test]
    async fn dropping_kills_also_what_is_paused_and_what_it_started() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let process = shell("sleep 100 & echo $!; wait", &directory.path().join("log"));
        let end = process.end();
        process.signal(Signal::SIGSTOP).expect("it runs");
        tokio::time::timeout(Duration::from_secs(10), async move {
            drop(process);
            assert_eq!(end.await.signal(), Some(9));
        })
        .await
        .expect("a killed process ends");
    }
}
