//! Many runs, each in a process of its own, several at a time.
//!
//! A program that wants to simulate calls [`serve`] first thing in `main`. In the real world that does nothing.
//! In a process that [`Fleet`] has started it reads its order from the standard input, carries it out, writes
//! what came of it as a line of JSON to the standard output, and ends the process: so the program that starts
//! the runs and the program that is the run are one file, and nothing of the former's state is in the latter.

use std::io::{Read as _, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use quorate_disk_shim::simulation;

use crate::run::{self, Order, Summary};

/// Stands in a child's arguments, so that people who see its process know what it is.
const ARGUMENT: &str = "simulate";

/// How the runs are done.
#[derive(Clone, Copy, Debug)]
pub struct Fleet {
    /// At a time.
    pub processes: usize,
    /// Real time that one run may take. What takes longer is killed: nothing is known about it.
    pub limit: Duration,
    /// No run is begun after this much real time.
    pub time_box: Option<Duration>,
}

/// A run that is over.
#[derive(Debug)]
pub struct Done {
    /// What was to be run.
    pub order: Order,
    /// What came of it; an error is one of the harness.
    pub summary: Result<Summary>,
    /// Real time that it took.
    pub took: Duration,
}

/// In a process of a [`Fleet`]: carries out its order, and ends the process. In the real world: nothing.
pub fn serve() {
    if !simulation::is_simulated() {
        return;
    }
    let code = match serve_one() {
        Ok(()) => 0,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "{error:#}");
            3
        }
    };
    std::process::exit(code);
}

fn serve_one() -> Result<()> {
    let mut text = String::new();
    std::io::stdin()
        .read_to_string(&mut text)
        .context("read the order")?;
    let order: Order = serde_json::from_str(&text).context("understand the order")?;
    let summary = run::run(&order)?;
    let line = serde_json::to_string(&summary).context("write down what came of it")?;
    writeln!(std::io::stdout(), "{line}").context("tell what came of it")
}

impl Fleet {
    /// Carries out orders, and tells of each that is done, in the order in which they are done. `tell` may stop
    /// it by answering false: what is under way is then finished, and told.
    ///
    /// # Errors
    ///
    /// When a process cannot be started.
    pub fn run(&self, orders: impl Iterator<Item = Order>, mut tell: impl FnMut(Done) -> bool) -> Result<()> {
        let began = Instant::now();
        let mut orders = orders.fuse();
        let (done, doing) = mpsc::channel();
        let mut under_way = 0;
        let mut goes_on = true;
        loop {
            while goes_on
                && under_way < self.processes.max(1)
                && self.time_box.is_none_or(|time_box| began.elapsed() < time_box)
                && let Some(order) = orders.next()
            {
                let (done, limit) = (done.clone(), self.limit);
                under_way += 1;
                thread::Builder::new()
                    .name("run".to_owned())
                    .spawn(move || {
                        let start = Instant::now();
                        let summary = in_a_process(&order, limit);
                        let took = start.elapsed();
                        // Nobody listens any more if `tell` panicked.
                        let _ = done.send(Done { order, summary, took });
                    })
                    .context("start a thread")?;
            }
            if under_way == 0 {
                return Ok(());
            }
            let told = doing.recv().context("wait for a run")?;
            under_way -= 1;
            goes_on &= tell(told);
        }
    }
}

/// Carries out an order in a process of its own, which may take so much real time.
///
/// # Errors
///
/// When the process cannot be started, fails, or takes longer.
pub fn in_a_process(order: &Order, limit: Duration) -> Result<Summary> {
    let itself = std::env::current_exe().context("find this program")?;
    let mut child = Command::new(itself)
        .arg(ARGUMENT)
        .arg(&order.schedule.name)
        .env(simulation::SEED_VARIABLE, order.schedule.seed.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("start this program again")?;
    let text = serde_json::to_vec(order).context("write the order")?;
    let mut stdin = child.stdin.take().context("the child's input is piped")?;
    stdin.write_all(&text).context("pass the order")?;
    drop(stdin);
    let (said, complained) = listen(&mut child, limit)?;
    let status = child.wait().context("wait for the run")?;
    ensure!(
        status.success(),
        "the run ended with {status}: {}",
        last_lines(&complained)
    );
    serde_json::from_str(said.trim()).with_context(|| format!("understand what came of it: {said}"))
}

/// All that a child says. It is killed after the limit.
fn listen(child: &mut Child, limit: Duration) -> Result<(String, String)> {
    let mut stdout = child.stdout.take().context("the child's output is piped")?;
    let mut stderr = child.stderr.take().context("the child's errors are piped")?;
    let (sender, receiver) = mpsc::channel();
    let errors = thread::spawn(move || {
        let mut text = Vec::new();
        let _ = stderr.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    });
    thread::spawn(move || {
        let mut text = String::new();
        let read = stdout.read_to_string(&mut text).map(|_| text);
        let _ = sender.send(read);
    });
    match receiver.recv_timeout(limit) {
        Ok(said) => {
            let said = said.context("read what came of it")?;
            Ok((said, errors.join().unwrap_or_default()))
        }
        Err(_) => {
            child.kill().context("end a run that takes too long")?;
            child.wait().context("end a run that takes too long")?;
            bail!("the run was not over after {limit:?}")
        }
    }
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}
