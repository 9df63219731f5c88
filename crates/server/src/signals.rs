//! Being asked to stop, by a signal or by the death of the parent.

use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::getppid;
use tokio::signal::unix::{self, SignalKind};

use crate::exit::{Exit, Fatal};

/// SIGINT and SIGTERM from now on.
pub(crate) struct Signals {
    interrupt: unix::Signal,
    terminate: unix::Signal,
}

impl Signals {
    pub(crate) fn listen() -> Result<Self, Fatal> {
        let listen =
            |kind| unix::signal(kind).map_err(|error| Fatal::new(Exit::Node, format!("signals: {error}")));
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }

    /// The next one.
    pub(crate) async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.interrupt.recv() => Signal::SIGINT,
            _ = self.terminate.recv() => Signal::SIGTERM,
        }
    }

    /// The next one, as the end of the program.
    pub(crate) async fn at_once(&mut self) -> Fatal {
        let signal = self.next().await;
        let exit = if signal == Signal::SIGINT {
            Exit::Interrupted
        } else {
            Exit::Terminated
        };
        Fatal::new(exit, format!("{signal}: stopped at once"))
    }
}

/// Ends this process when the process `parent`, which started it, ends.
pub(crate) fn die_with_parent(parent: u32) -> Result<(), Fatal> {
    let failed = |error| Fatal::new(Exit::Node, format!("follow the parent process: {error}"));
    prctl::set_pdeathsig(Signal::SIGKILL).map_err(failed)?;
    // It may have ended before that call.
    if u32::try_from(getppid().as_raw()) != Ok(parent) {
        return Err(Fatal::new(
            Exit::Node,
            format!("the parent process {parent} has ended"),
        ));
    }
    Ok(())
}
