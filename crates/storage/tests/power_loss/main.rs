//! Everything that the store acknowledged survives a power loss.
//!
//! A process of its own opens a store on a disk that forgets (see `quorate_disk_shim`), checks it against
//! the ledger of what earlier processes were promised, and then works it as hard as it can, until it is
//! killed at some moment: while working, or now and then while opening. The disk then keeps what was synced
//! and some of the pages and names that were not. The next process finds out whether that was enough.
//! In some runs syncs are slow, and in some the disk fails or is full before the kill: then the store may
//! refuse, but not break what it promised before. After a failed sync the power does not always go at once:
//! what the disk did not take is then still in the page cache, and the next process must not build on it.
//!
//! The same cuts with the sync hook switched off must lose data; else the test would not notice if the hook
//! were gone.
//!
//! ```text
//! QUORATE_POWER_LOSS_CUTS=1000 QUORATE_POWER_LOSS_SEED=7 cargo test -p quorate-storage --test power_loss -- --nocapture
//! ```

#![cfg(target_os = "linux")]
#![allow(clippy::print_stdout)] // it tells its seed

mod contents_book;
mod journal_book;
mod ledger;
mod log_book;
mod snapshots_book;

use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use quorate_disk_shim::{Control, Fault, FaultyDisk, Names, Report, Variant};
use quorate_storage::{Options, Store, hook};

use crate::ledger::{Book, Facts, Ledger};

/// Tells a process that it is the program under test, and where its ledger is.
const LEDGER: &str = "QUORATE_POWER_LOSS_LEDGER";
/// The seed of its workload.
const WORK_SEED: &str = "QUORATE_POWER_LOSS_WORK_SEED";
/// If set, it only looks whether the store notices a sync that failed elsewhere.
const NOTICE: &str = "QUORATE_POWER_LOSS_NOTICE";
/// If set, its sync hook is switched off.
const NO_HOOK: &str = "QUORATE_POWER_LOSS_NO_HOOK";

/// How many cuts the test makes, and with which seed.
const CUTS: &str = "QUORATE_POWER_LOSS_CUTS";
const SEED: &str = "QUORATE_POWER_LOSS_SEED";
/// What becomes of unsynced names: kept, lost or drawn. By default mostly drawn, sometimes lost.
const NAMES: &str = "QUORATE_POWER_LOSS_NAMES";

const CUTS_DEFAULT: u64 = 120;
/// If their number is not set, no disk is begun after this long: a busy machine makes fewer cuts.
const TIME_DEFAULT: Duration = Duration::from_secs(35);
/// Cuts after which a disk is replaced by a new one.
const CUTS_PER_DISK: u64 = 6;
/// A program that has not opened its store after this long hangs.
const PATIENCE: Duration = Duration::from_secs(60);
/// Address space of the program, in KiB: on a damaged file sled can ask for any amount of memory.
const MEMORY_KIB: u64 = 6 << 20;

/// SplitMix64.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn within(&mut self, range: RangeInclusive<u64>) -> u64 {
        range.start() + self.next() % (range.end() - range.start() + 1)
    }

    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.within(0..=99) < percent
    }
}

/// Bytes that say which order wrote them and where, and that could be nothing else.
pub(crate) fn filled(order: u64, place: u64, len: usize) -> Vec<u8> {
    assert!(len >= 24, "no room for the stamp");
    let mut bytes = Vec::with_capacity(len + 8);
    for number in [order, place, len as u64] {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    let mut rng = Rng::new(order.rotate_left(32) ^ place);
    while bytes.len() < len {
        bytes.extend_from_slice(&rng.next().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// The order and the place, if these are bytes that `filled` made.
pub(crate) fn stamp_of(bytes: &[u8]) -> Option<(u64, u64)> {
    let number = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let (order, place) = (number(0)?, number(8)?);
    (bytes.len() >= 24 && bytes == filled(order, place, bytes.len())).then_some((order, place))
}

// ------------------------------------------------------------------------------------------------
// The program under test

/// Not a test of its own: what the tests start, again and again.
#[test]
fn program() {
    let Some(path) = std::env::var_os(LEDGER) else {
        return;
    };
    let path = PathBuf::from(path);
    if std::env::var_os(NOTICE).is_some() {
        return notice_a_sync_that_failed_elsewhere();
    }
    let facts = fs::read_to_string(&path).unwrap_or_default();
    let ledger = Arc::new(Ledger::open(&path));
    if let Err(what) = check_and_work(&facts, &ledger) {
        ledger.bad(&what);
    }
}

/// Ends well if the store does.
fn notice_a_sync_that_failed_elsewhere() {
    let data = PathBuf::from(std::env::var_os(quorate_disk_shim::DATA_VARIABLE).expect("a disk"));
    let store = Store::open(&data, Options::default()).expect("open a store");
    store.log.flush().expect("the disk is well");
    let control = Control::of_this_process().expect("the control file");
    control.set_sync_error(Fault::Next(1)).expect("set a switch");
    hook::sync_unwatched_for_test(&data.join("data/log/db"));
    assert_eq!(
        control.counters().expect("the counters").faults,
        1,
        "the sync failed"
    );
    store
        .log
        .flush()
        .expect_err("pages of the log may have been given up");
}

fn check_and_work(ledger_text: &str, ledger: &Arc<Ledger>) -> Result<(), String> {
    let seed = std::env::var(WORK_SEED)
        .ok()
        .and_then(|seed| seed.parse().ok())
        .expect("a seed");
    if std::env::var_os(NO_HOOK).is_some() {
        hook::disable_for_test();
    }
    let data = PathBuf::from(std::env::var_os(quorate_disk_shim::DATA_VARIABLE).expect("a disk"));
    let options = Options {
        tail_bytes: 1 << 20,
        log_cache_bytes: 1 << 20,
        contents_cache_bytes: 16 << 20,
        contents_volume_bytes: 1 << 20,
        compact_bytes_min: 24 << 20,
        ..Options::default()
    };
    let store = Store::open(&data, options).map_err(|error| format!("open: {error}"))?;
    log_book::check(&store, &Facts::read(ledger_text, Book::Log), ledger)?;
    contents_book::check(&store, &Facts::read(ledger_text, Book::Contents), ledger)?;
    snapshots_book::check(&store, &Facts::read(ledger_text, Book::Snapshots), ledger)?;
    journal_book::check(&store, &Facts::read(ledger_text, Book::Journal), ledger)?;
    check_identity(&store, ledger_text, ledger)?;
    ledger.ready();

    let text = fs::read_to_string(std::env::var_os(LEDGER).expect("a ledger")).expect("read the ledger");
    std::thread::scope(|scope| {
        let (store, text) = (&store, &text);
        scope.spawn(move || {
            let next = Facts::read(text, Book::Log).next;
            log_book::work(store, next, ledger, &mut Rng::new(seed));
        });
        scope.spawn(move || {
            let facts = Facts::read(text, Book::Contents);
            contents_book::work(store, &facts, ledger, &mut Rng::new(seed ^ 1));
        });
        scope.spawn(move || {
            let next = Facts::read(text, Book::Snapshots).next;
            snapshots_book::work(store, next, ledger, &mut Rng::new(seed ^ 2));
        });
        scope.spawn(move || {
            let next = Facts::read(text, Book::Journal).next;
            journal_book::work(store, next, ledger, &mut Rng::new(seed ^ 3));
        });
    });
    Ok(())
}

/// The node is the one it was, and begins a new incarnation each time.
fn check_identity(store: &Store, ledger_text: &str, ledger: &Ledger) -> Result<(), String> {
    let identity = store.identity();
    let last = ledger_text
        .lines()
        .rev()
        .find_map(|line| line.strip_prefix("identity "));
    if let Some((node, incarnation)) = last.and_then(|words| words.split_once(' ')) {
        let incarnation: u64 = incarnation.parse().expect("a number");
        if identity.node_id.to_string() != node || identity.incarnation <= incarnation || identity.created {
            return Err(format!(
                "{identity:?} after node {node}, incarnation {incarnation}"
            ));
        }
    }
    ledger.identity(identity.node_id, identity.incarnation);
    Ok(())
}

// ------------------------------------------------------------------------------------------------
// The cuts

/// A disk, and the ledger of the promises made about it.
struct Bench {
    folder: tempfile::TempDir,
    disk: FaultyDisk,
    with_hook: bool,
}

/// A promise that was broken.
#[derive(Debug)]
struct Broken(String);

impl Bench {
    fn new(with_hook: bool) -> Bench {
        let folder = tempfile::tempdir().expect("a folder");
        let disk =
            FaultyDisk::create(folder.path().join("data"), folder.path().join("journal")).expect("a disk");
        Bench {
            folder,
            disk,
            with_hook,
        }
    }

    fn ledger(&self) -> PathBuf {
        self.folder.path().join("ledger")
    }

    /// How often a line that starts so is in the ledger.
    fn count(&self, start: &str) -> usize {
        self.text().lines().filter(|line| line.starts_with(start)).count()
    }

    fn command(&self, seed: u64) -> Command {
        let mut command = Command::new("sh");
        command
            .arg("-c")
            .arg(format!("ulimit -v {MEMORY_KIB}; exec \"$0\" \"$@\""));
        command.arg(std::env::current_exe().expect("this program"));
        command.args(["--exact", "program", "--nocapture", "--test-threads=1"]);
        command
            .env(LEDGER, self.ledger())
            .env(WORK_SEED, seed.to_string())
            .env("RUST_BACKTRACE", "0");
        if !self.with_hook {
            command.env(NO_HOOK, "1");
        }
        self.disk.arm(&mut command);
        let output = fs::File::create(self.folder.path().join("output")).expect("a file for its output");
        command.stdout(Stdio::null()).stderr(output);
        command
    }

    /// Runs the program for a while and kills it.
    fn run(&self, seed: u64, plan: Plan, rng: &mut Rng) -> Result<(), Broken> {
        let control = self.disk.control().expect("the control file");
        control.set_sync_delay(plan.sync_delay).expect("set a switch");
        let (ready, from) = (self.count("ready"), self.text().len());
        let mut child = self.command(seed).spawn().expect("start the program");
        let deadline = Instant::now() + PATIENCE;
        let until = match plan.end {
            End::WhileOpening(after) => Some(Instant::now() + after),
            End::WhileWorking(_) | End::AfterFault(..) => None,
        };
        let mut outcome = Ok(());
        while self.count("ready") == ready && until.is_none_or(|until| Instant::now() < until) {
            if let Some(status) = child.try_wait().expect("wait for the program") {
                outcome = Err(Broken(format!("the program ended before it was ready: {status}")));
                break;
            }
            if Instant::now() > deadline {
                outcome = Err(Broken(format!("the program was not ready after {PATIENCE:?}")));
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        match plan.end {
            _ if outcome.is_err() => {}
            End::WhileOpening(_) => {}
            End::WhileWorking(after) => std::thread::sleep(after),
            End::AfterFault(after, fault) => {
                std::thread::sleep(after);
                fault.strike(&control, rng);
                std::thread::sleep(after.min(Duration::from_millis(50)));
            }
        }
        let status = child.try_wait().expect("wait for the program");
        child.kill().expect("kill the program");
        child.wait().expect("wait for the program");
        control.heal().expect("switch the faults off");
        let text = self.text();
        judge(&text[from..], matches!(plan.end, End::AfterFault(..)))?;
        match status {
            Some(status) if outcome.is_ok() => Err(Broken(format!("the program ended by itself: {status}"))),
            _ => outcome,
        }
    }

    fn text(&self) -> String {
        fs::read_to_string(self.ledger()).unwrap_or_default()
    }

    /// Keeps the folder for a look at it.
    fn keep(self) -> PathBuf {
        self.folder.keep()
    }
}

/// What one run of the program wrote into the ledger: nothing bad, and nothing that the disk can excuse but
/// after a fault. Once an order of the log has failed no later one is done.
fn judge(lines: &str, fault: bool) -> Result<(), Broken> {
    let mut log_failed = false;
    for line in lines.lines() {
        if let Some(what) = line.strip_prefix("bad ") {
            return Err(Broken(what.to_owned()));
        }
        if line.starts_with("failed ") && !fault {
            return Err(Broken(line.to_owned()));
        }
        if log_failed && line.starts_with("done log ") {
            return Err(Broken(format!("{line} after an earlier order had failed")));
        }
        log_failed |= line.starts_with("failed log ");
    }
    Ok(())
}

/// How one run of the program goes.
#[derive(Clone, Copy, Debug)]
struct Plan {
    sync_delay: Duration,
    end: End,
}

/// When the power goes.
#[derive(Clone, Copy, Debug)]
enum End {
    WhileOpening(Duration),
    WhileWorking(Duration),
    /// A little while after the disk has begun to fail.
    AfterFault(Duration, DiskFault),
}

/// How the disk fails.
#[derive(Clone, Copy, Debug)]
enum DiskFault {
    Full,
    Write,
    Sync,
}

impl DiskFault {
    fn strike(self, control: &Control, rng: &mut Rng) {
        let fault = if rng.chance(50) {
            Fault::Next(1)
        } else {
            Fault::Always
        };
        match self {
            DiskFault::Full => control.set_write_no_space(fault),
            DiskFault::Write => control.set_write_error(fault),
            DiskFault::Sync => control.set_sync_error(fault),
        }
        .expect("set a switch");
    }
}

impl Plan {
    fn draw(rng: &mut Rng) -> Plan {
        let sync_delay = if rng.chance(30) { rng.within(1..=5) } else { 0 };
        let mut within = |range| Duration::from_micros(rng.within(range));
        let (opening, working, long) = (
            within(5_000..=150_000),
            within(1_000..=300_000),
            within(1..=3_000_000),
        );
        let end = match rng.within(0..=99) {
            0..=11 => End::WhileOpening(opening),
            12..=19 => End::AfterFault(working, DiskFault::Full),
            20..=27 => End::AfterFault(working, DiskFault::Write),
            28..=43 => End::AfterFault(working, DiskFault::Sync),
            44..=46 => End::WhileWorking(long),
            _ => End::WhileWorking(working),
        };
        Plan {
            sync_delay: Duration::from_millis(sync_delay),
            end,
        }
    }

    /// The end of a disk: only a look whether all is there.
    const LOOK: Plan = Plan {
        sync_delay: Duration::ZERO,
        end: End::WhileWorking(Duration::ZERO),
    };
}

impl std::fmt::Display for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.end)?;
        if self.sync_delay.is_zero() {
            Ok(())
        } else {
            write!(f, " with syncs of {:?}", self.sync_delay)
        }
    }
}

/// What many cuts found.
#[derive(Default)]
struct Tally {
    cuts: u64,
    acknowledged: usize,
    pages: u64,
    pages_lost: u64,
    names_undone: u64,
    broken: Vec<String>,
}

impl Tally {
    fn add(&mut self, report: Report) {
        self.cuts += 1;
        self.pages += report.pages;
        self.pages_lost += report.pages_lost;
        self.names_undone += report.names_undone;
    }

    fn and(mut self, mut other: Tally) -> Tally {
        self.cuts += other.cuts;
        self.acknowledged += other.acknowledged;
        self.pages += other.pages;
        self.pages_lost += other.pages_lost;
        self.names_undone += other.names_undone;
        self.broken.append(&mut other.broken);
        self
    }

    fn print(&self, title: &str, took: Duration) {
        println!(
            "{title}: {} cuts, {} bad, {} acknowledged orders, {} of {} unsynced pages lost, {} names undone, {took:.1?}",
            self.cuts,
            self.broken.len(),
            self.acknowledged,
            self.pages_lost,
            self.pages,
            self.names_undone,
        );
    }
}

/// Cuts the power of one disk after another. Ends after so many cuts, or when `enough` says so.
fn cut(cuts: u64, seed: u64, with_hook: bool, enough: impl Fn(&Tally) -> bool) -> Tally {
    let mut tally = Tally::default();
    let mut rng = Rng::new(seed);
    while tally.cuts < cuts && !enough(&tally) {
        let bench = Bench::new(with_hook);
        let mut history = Vec::new();
        for number in 0..=CUTS_PER_DISK {
            let plan = if number == CUTS_PER_DISK {
                Plan::LOOK
            } else {
                Plan::draw(&mut rng)
            };
            if let Err(Broken(what)) = bench.run(rng.next(), plan, &mut rng) {
                tally.acknowledged += bench.count("done ");
                let (kept, history) = (bench.keep(), history.join("\n  then "));
                let kept = kept.display();
                tally.broken.push(format!(
                    "{what}\n  in {plan}\n  after {history}\n  kept in {kept}"
                ));
                break;
            }
            // The last run only looks whether all is there.
            if number == CUTS_PER_DISK {
                tally.acknowledged += bench.count("done ");
                break;
            }
            // The machine may run on for a while: then the page cache outlives the program, and holds pages that
            // the disk did not take.
            if matches!(plan.end, End::AfterFault(_, DiskFault::Sync)) && rng.chance(70) {
                history.push(format!("{plan}: the machine runs on"));
                continue;
            }
            let loss = rng.next();
            let variant = Variant::draw(loss);
            let lost = rng.chance(30);
            let names = match std::env::var(NAMES) {
                Ok(names) => names.parse().expect("a choice for names"),
                Err(_) => {
                    if lost {
                        Names::Lost
                    } else {
                        Names::Drawn
                    }
                }
            };
            let report = bench.disk.lose_power(loss, variant, names).expect("lose power");
            history.push(format!("{plan}: {variant} ({report})"));
            tally.add(report);
        }
    }
    tally
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| {
        value
            .parse()
            .unwrap_or_else(|_| panic!("{name}={value} is not a number"))
    })
}

fn seed() -> u64 {
    let since = std::time::UNIX_EPOCH.elapsed().expect("a clock after 1970");
    setting(SEED).unwrap_or(since.as_millis() as u64 % 1_000_000)
}

fn rerun(seed: u64, cuts: u64) -> String {
    format!("{SEED}={seed} {CUTS}={cuts} cargo test -p quorate-storage --test power_loss -- --nocapture")
}

#[test]
fn everything_acknowledged_survives() {
    let (seed, cuts) = (seed(), setting(CUTS).unwrap_or(CUTS_DEFAULT));
    println!("rerun: {}", rerun(seed, cuts));
    let start = Instant::now();
    let time_is_up = || setting(CUTS).is_none() && start.elapsed() > TIME_DEFAULT;
    // Two lanes, because one mostly waits for processes.
    let tally = std::thread::scope(|scope| {
        let lanes = [0, 1].map(|lane| {
            let enough = move |tally: &Tally| tally.broken.len() > 2 || time_is_up();
            scope.spawn(move || cut(cuts.div_ceil(2), seed << 1 | lane, true, enough))
        });
        let tallies = lanes.into_iter().map(|lane| lane.join().expect("a lane"));
        tallies.reduce(Tally::and).expect("two lanes")
    });
    tally.print("with the hook", start.elapsed());
    assert!(
        tally.broken.is_empty(),
        "I1: {}\nrerun: {}",
        tally.broken.join("\n"),
        rerun(seed, cuts)
    );
    assert!(
        tally.pages_lost > 0 && tally.acknowledged > 0,
        "the cuts hit nothing: the shim does not bite"
    );
}

/// sled truncates its file now and then, syncs it, and does not look whether that failed. The pages that the
/// kernel gave up were taken for durable as soon as the next sync succeeded.
#[test]
fn a_failed_sync_that_sled_does_not_look_at_is_fatal() {
    let bench = Bench::new(true);
    let mut command = bench.command(0);
    let status = command.env(NOTICE, "1").status().expect("start the program");
    assert!(
        status.success(),
        "{}",
        fs::read_to_string(bench.folder.path().join("output")).expect("its output")
    );
}

#[test]
fn without_the_sync_hook_the_same_cuts_lose_data() {
    let seed = seed();
    println!("rerun: {}", rerun(seed, 0));
    let start = Instant::now();
    let tally = cut(24, seed, false, |tally| !tally.broken.is_empty());
    tally.print("without the hook", start.elapsed());
    for broken in &tally.broken {
        println!("{broken}");
        remove_kept(broken);
    }
    assert!(
        !tally.broken.is_empty(),
        "no loss in {} cuts without the hook",
        tally.cuts
    );
}

fn remove_kept(broken: &str) {
    if let Some((_, kept)) = broken.split_once("kept in ") {
        fs::remove_dir_all(Path::new(kept)).expect("remove what was kept");
    }
}
