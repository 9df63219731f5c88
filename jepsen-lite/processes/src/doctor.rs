//! What this machine can do, and why not.
//!
//! Each thing is tried, not looked up: a library is preloaded, a process is stopped, a packet filter is asked.

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;

use crate::process;
use crate::wrong_clock::{Clock, FILE_VARIABLE, WrongClock};

/// Least room for a run, in bytes: data, copies and logs of nine nodes.
const ROOM_BYTES: u64 = 2 << 30;

/// One thing that a run may need.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Ability {
    /// In a few words.
    pub name: &'static str,
    /// Which faults or layers need it.
    pub needed_for: &'static str,
    /// What was found, or why it cannot be done.
    pub found: std::result::Result<String, String>,
}

/// Tries everything. It takes a second or two, and leaves nothing behind.
#[must_use]
pub fn examine(folder: &Path) -> Vec<Ability> {
    let look = |name, needed_for, found: Result<String>| Ability {
        name,
        needed_for,
        found: found.map_err(|error| format!("{error:#}")),
    };
    vec![
        look("the quorate binary", "layer b", binary()),
        look(
            "a disk that forgets",
            "power loss, full and failing disks",
            shim(),
        ),
        look("clocks that go wrong", "clock jump, drift, strobe", clock()),
        look("stopping a process", "pause, slow processor", signals()),
        look("local ports", "partitions, delays, resets", ports()),
        look("room on disk", "all runs", room(folder)),
        look("processors", "all runs in their time", processors()),
        look(
            "a container engine",
            "layer c",
            answer("docker", &["info", "--format", "{{.ServerVersion}}"]),
        ),
        look("compose", "layer c", compose()),
        look(
            "user namespaces",
            "nothing yet: a disk of limited size without root",
            namespaces(),
        ),
        look(
            "a packet filter",
            "one-way and lossy links of layer c",
            answer("nft", &["list", "tables"]),
        ),
    ]
}

fn binary() -> Result<String> {
    let path = quorate_test_cluster::find_binary()?;
    answer(&path.to_string_lossy(), &["--version"])
}

fn shim() -> Result<String> {
    let folder = tempfile::tempdir().context("make a folder")?;
    let disk =
        quorate_disk_shim::FaultyDisk::create(folder.path().join("data"), folder.path().join("journal"))?;
    let mut command = Command::new("dd");
    let target = format!("of={}", disk.data().join("file").display());
    command.args(["if=/dev/zero", &target, "bs=4096", "count=1", "conv=fsync"]);
    disk.preload(&mut command)?;
    let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    ensure!(status.context("run dd")?.success(), "dd fails on such a disk");
    let counters = disk.control()?.counters()?;
    ensure!(
        counters.writes > 0 && counters.syncs > 0,
        "it was preloaded and saw nothing: {counters:?}"
    );
    Ok("preloaded, and sees writes and syncs".to_owned())
}

fn clock() -> Result<String> {
    let library = WrongClock::build()?;
    let folder = tempfile::tempdir().context("make a folder")?;
    let clock = Clock::create(&folder.path().join("clock"))?;
    clock.set_wall(3_600_000)?;
    let mut command = Command::new("date");
    command.env("LD_PRELOAD", library.library());
    command.env(FILE_VARIABLE, clock.path()).stdout(Stdio::null());
    ensure!(command.status().context("run date")?.success(), "date fails");
    ensure!(clock.readings()? > 0, "it was preloaded and nobody read it");
    Ok("built and preloaded".to_owned())
}

fn signals() -> Result<String> {
    use nix::sys::signal::{Signal, kill};
    use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
    let mut child = Command::new("sleep")
        .arg("60")
        .spawn()
        .context("start a process")?;
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).context("a process id")?);
    let stopped = kill(pid, Signal::SIGSTOP)
        .context("stop a process")
        .and_then(|()| waitpid(pid, Some(WaitPidFlag::WUNTRACED)).context("wait for a process"))
        .and_then(|status| {
            ensure!(matches!(status, WaitStatus::Stopped(..)), "it is {status:?}");
            ensure!(process::processor(child.id())?.1, "it goes on");
            Ok("a process stands still when it is told to".to_owned())
        });
    let _ = child.kill();
    let _ = child.wait();
    stopped
}

fn ports() -> Result<String> {
    let wanted = 100;
    let listeners: std::io::Result<Vec<_>> = (0..wanted)
        .map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))
        .collect();
    listeners.context("listen")?;
    Ok(format!("{wanted} at a time"))
}

fn room(folder: &Path) -> Result<String> {
    let stat = nix::sys::statvfs::statvfs(folder).with_context(|| format!("look at {}", folder.display()))?;
    let bytes = stat.blocks_available() * stat.fragment_size();
    if bytes < ROOM_BYTES {
        bail!(
            "{} MiB in {}, {} are needed",
            bytes >> 20,
            folder.display(),
            ROOM_BYTES >> 20
        );
    }
    Ok(format!("{} GiB in {}", bytes >> 30, folder.display()))
}

fn processors() -> Result<String> {
    let count = std::thread::available_parallelism().context("count processors")?;
    ensure!(count.get() >= 2, "one: timeouts will be found that are none");
    Ok(count.to_string())
}

fn compose() -> Result<String> {
    answer("docker", &["compose", "version"]).or_else(|_| answer("docker-compose", &["version", "--short"]))
}

fn namespaces() -> Result<String> {
    answer("unshare", &["--user", "--map-root-user", "--mount", "id", "-u"])?;
    Ok("can be made".to_owned())
}

/// The first line of what a program says, if it ends well.
fn answer(program: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output();
    let output = output.with_context(|| format!("run {program}"))?;
    let error = String::from_utf8_lossy(&output.stderr);
    let reason = error.lines().next().unwrap_or_default();
    ensure!(output.status.success(), "{program}: {}: {reason}", output.status);
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().next().unwrap_or("it answers").to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_a_machine_can_do_it_says_so_or_why_not() {
        let abilities = examine(&std::env::temp_dir());
        assert!(abilities.len() > 8);
        for Ability { name, found, .. } in &abilities {
            let (Ok(said) | Err(said)) = found;
            assert!(!said.is_empty(), "{name}");
        }
        // What the rest of the tests here needs anyway.
        let works = |name| {
            abilities
                .iter()
                .any(|ability| ability.name == name && ability.found.is_ok())
        };
        for name in [
            "a disk that forgets",
            "clocks that go wrong",
            "stopping a process",
            "local ports",
        ] {
            assert!(works(name), "{abilities:#?}");
        }
    }
}
