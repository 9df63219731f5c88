//! The shim at work: a small program writes with and without syncs, is gone,
//! and the power loss takes exactly what was not synced.
//!
//! The program is this test binary, started again with the name of a role in
//! [`ROLE`]; the shim is linked into it. One test preloads the shim into a
//! foreign program instead.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use quorate_disk_shim::{Control, Fault, FaultyDisk, Names, Report, Variant, library_path};
use tempfile::TempDir;

const ROLE: &str = "DISK_SHIM_TEST_ROLE";
const PAGE: usize = 4096;

struct Bench {
    disk: FaultyDisk,
    _folder: TempDir,
}

impl Bench {
    fn new() -> Bench {
        let folder = tempfile::tempdir().unwrap();
        let disk = FaultyDisk::create(folder.path().join("data"), folder.path().join("journal")).unwrap();
        Bench {
            disk,
            _folder: folder,
        }
    }

    /// Runs a role in a process of its own, which must succeed.
    fn run(&self, role: &str) {
        assert!(
            self.command(role).status().unwrap().success(),
            "role {role} failed"
        );
    }

    fn command(&self, role: &str) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "role", "--nocapture"])
            .env(ROLE, role)
            .current_dir(self.disk.data());
        command.stdout(Stdio::null());
        self.disk.arm(&mut command);
        command
    }

    /// Runs the role `log`, kills it at some moment, and counts the numbers
    /// that were acknowledged and are not there after the power loss.
    fn cut_log(&self, seed: u64) -> u64 {
        let acked = self.disk.data().parent().unwrap().join("acked");
        File::create(&acked).unwrap();
        let mut child = self.command("log").spawn().unwrap();
        while fs::metadata(&acked).unwrap().len() < 8 {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_micros(seed * 1237 % 5000));
        child.kill().unwrap();
        child.wait().unwrap();
        self.disk
            .lose_power(seed, Variant::draw(seed), Names::Drawn)
            .unwrap();

        let acked = fs::read(acked).unwrap();
        let last = u64::from_le_bytes(acked[acked.len() - 8..].try_into().unwrap());
        let log = fs::read(self.disk.data().join("log")).unwrap_or_default();
        let intact = |number: u64| {
            let start = usize::try_from(number).unwrap() * 800;
            log.get(start..start + 800)
                .is_some_and(|bytes| bytes == [number.to_le_bytes(); 100].concat())
        };
        (0..=last).filter(|number| !intact(*number)).count() as u64
    }

    fn lose(&self, variant: Variant, names: Names) -> Report {
        self.disk.lose_power(1, variant, names).unwrap()
    }

    fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.disk.data().join(name)).unwrap()
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.disk.data())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

/// Not a test of its own: what the processes do that the tests start.
#[test]
fn role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let page = |byte: u8| [byte; PAGE];
    let create = |name: &str| {
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(name)
            .unwrap()
    };
    match role.as_str() {
        "base" => {
            let file = create("f");
            file.write_all_at(&[1; 4 * PAGE], 0).unwrap();
            file.sync_all().unwrap();
            File::open(".").unwrap().sync_all().unwrap();
        }
        "overwrite and extend" => {
            let mut file = create("f");
            file.write_all_at(&page(2), PAGE as u64).unwrap();
            file.write_all_at(&page(3), PAGE as u64).unwrap();
            file.write_all_at(b"within a page", 100).unwrap();
            std::io::Seek::seek(&mut file, std::io::SeekFrom::End(0)).unwrap();
            file.write_all(b"the end").unwrap();
        }
        "cut" => create("f").set_len(10).unwrap(),
        "truncate by open" => drop(File::create("f").unwrap()),
        "sync" => create("f").sync_data().unwrap(),
        "write only" => {
            let file = OpenOptions::new().write(true).open("f").unwrap();
            file.write_all_at(&page(9), 2 * PAGE as u64).unwrap();
        }
        "append" => {
            let mut file = OpenOptions::new().append(true).open("f").unwrap();
            file.write_all(b"appended").unwrap();
        }
        "names" => {
            create("new").sync_all().unwrap();
            fs::create_dir("folder").unwrap();
            fs::write("folder/inner", b"x").unwrap();
            fs::rename("f", "g").unwrap();
            fs::remove_file("g").unwrap();
        }
        "swap folders" => {
            // As a rewrite of a database does: the removal in the old folder is never synced.
            for folder in ["a", "b"] {
                fs::create_dir(folder).unwrap();
                fs::write(format!("{folder}/{folder}1"), b"x").unwrap();
                fs::write(format!("{folder}/{folder}2"), b"x").unwrap();
                File::open(folder).unwrap().sync_all().unwrap();
            }
            File::open(".").unwrap().sync_all().unwrap();
            fs::remove_file("a/a1").unwrap();
            fs::rename("a", "old").unwrap();
            fs::rename("b", "a").unwrap();
            File::open(".").unwrap().sync_all().unwrap();
        }
        "remove all" => fs::remove_dir_all("a").unwrap(),
        "remove all for good" => {
            fs::remove_dir_all("a").unwrap();
            File::open(".").unwrap().sync_all().unwrap();
        }
        "replace" => {
            let mut file = create("t");
            file.write_all(b"new").unwrap();
            file.sync_all().unwrap();
            fs::rename("t", "f").unwrap();
        }
        "copy" => drop(fs::copy("f", "copy").unwrap()),
        "full disk" => {
            let file = create("f");
            assert_eq!(
                file.write_all_at(&page(2), 0).unwrap_err().kind(),
                ErrorKind::StorageFull
            );
            assert_eq!(
                File::create("another").unwrap_err().kind(),
                ErrorKind::StorageFull
            );
            file.set_len(10).unwrap();
        }
        "write error once" => {
            let file = create("f");
            assert_eq!(
                file.write_all_at(&page(2), 0).unwrap_err().raw_os_error(),
                Some(5)
            );
            file.write_all_at(&page(2), 0).unwrap();
        }
        "quota" => {
            let file = create("f");
            file.write_all_at(&page(2), 0).unwrap();
            file.write_all_at(&page(2), 4 * PAGE as u64).unwrap();
            let error = file.write_all_at(&page(2), 5 * PAGE as u64).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::StorageFull);
            file.set_len(0).unwrap();
            file.write_all_at(&page(2), 0).unwrap();
        }
        "sync error, then success" => {
            let file = create("f");
            file.write_all_at(&page(2), 0).unwrap();
            file.write_all_at(&page(2), PAGE as u64).unwrap();
            assert_eq!(file.sync_all().unwrap_err().raw_os_error(), Some(5));
            file.write_all_at(&page(3), PAGE as u64).unwrap();
            file.sync_all().unwrap();
        }
        "drop the cache" => {
            let file = File::open("f").unwrap();
            let advice = nix::fcntl::PosixFadviseAdvice::POSIX_FADV_DONTNEED;
            nix::fcntl::posix_fadvise(&file, 0, 0, advice).unwrap();
        }
        "sync error, through another descriptor" => {
            let (file, other) = (create("f"), create("f"));
            file.sync_all().unwrap();
            Control::of_this_process()
                .unwrap()
                .set_sync_error(Fault::Next(1))
                .unwrap();
            other.sync_all().unwrap_err();
            assert_eq!(file.sync_all().unwrap_err().raw_os_error(), Some(5));
            file.sync_all().unwrap();
            other.sync_all().unwrap();
        }
        "much" => {
            let file = create("f");
            for round in 0..40 {
                file.write_all_at(&vec![round; 256 * PAGE], 0).unwrap();
                file.sync_data().unwrap();
            }
            file.write_all_at(&page(99), 0).unwrap();
        }
        "threads" => {
            let file = create("f");
            std::thread::scope(|scope| {
                for thread in 0..4_u8 {
                    let file = &file;
                    scope.spawn(move || {
                        for round in 0..200_u64 {
                            let place = (u64::from(thread) * 200 + round) * 100;
                            file.write_all_at(&[thread + 1; 100], place).unwrap();
                        }
                    });
                }
            });
        }
        "log" => {
            // Appends numbers for ever, and tells the test of each that it synced.
            let (log, acked) = (
                create("log"),
                OpenOptions::new().append(true).open("../acked").unwrap(),
            );
            File::open(".").unwrap().sync_all().unwrap();
            for number in 0_u64.. {
                log.write_all_at(&[number.to_le_bytes(); 100].concat(), number * 800)
                    .unwrap();
                if number % 3 == 0 {
                    log.sync_data().unwrap();
                    (&acked).write_all(&number.to_le_bytes()).unwrap();
                }
            }
        }
        _ => panic!("no role {role}"),
    }
}

#[test]
fn a_disk_that_nobody_used_has_nothing_to_lose() {
    assert_eq!(Bench::new().lose(Variant::None, Names::Lost), Report::default());
}

#[test]
fn what_was_synced_stays_whatever_the_variant() {
    for variant in Variant::USUAL.into_iter().chain([Variant::Torn]) {
        let bench = Bench::new();
        bench.run("base");
        let report = bench.lose(variant, Names::Lost);
        assert_eq!(report, Report::default(), "{variant}");
        assert_eq!(bench.read("f"), [1; 4 * PAGE]);
    }
}

#[test]
fn exactly_the_unsynced_pages_are_lost() {
    let bench = Bench::new();
    bench.run("base");
    bench.run("overwrite and extend");
    assert_eq!(bench.read("f").len(), 4 * PAGE + 7);
    let report = bench.lose(Variant::None, Names::Kept);
    assert_eq!(
        report,
        Report {
            files: 1,
            pages: 3,
            pages_lost: 3,
            names: 0,
            names_undone: 0
        }
    );
    assert_eq!(bench.read("f"), [1; 4 * PAGE]);
}

#[test]
fn a_sync_by_a_later_process_makes_all_of_it_durable() {
    let bench = Bench::new();
    bench.run("base");
    bench.run("overwrite and extend");
    bench.run("sync");
    let before = bench.read("f");
    assert_eq!(bench.lose(Variant::None, Names::Lost), Report::default());
    assert_eq!(bench.read("f"), before);
}

#[test]
fn with_all_pages_kept_nothing_changes() {
    let bench = Bench::new();
    bench.run("base");
    bench.run("overwrite and extend");
    let before = bench.read("f");
    assert_eq!(bench.lose(Variant::All, Names::Kept).pages_lost, 0);
    assert_eq!(bench.read("f"), before);
}

#[test]
fn each_page_is_old_or_new_or_in_between_and_the_seed_decides() {
    let outcome = |seed, variant| {
        let bench = Bench::new();
        bench.run("base");
        bench.run("overwrite and extend");
        bench.disk.lose_power(seed, variant, Names::Kept).unwrap();
        bench.read("f")
    };
    let (mut lengths, mut second_pages) = (Vec::new(), Vec::new());
    for seed in 0..12 {
        let file = outcome(seed, Variant::Stale);
        assert_eq!(file, outcome(seed, Variant::Stale), "seed {seed}");
        assert!(file[2 * PAGE..4 * PAGE].iter().all(|byte| *byte == 1));
        assert!(file[PAGE..2 * PAGE].iter().all(|byte| *byte == file[PAGE]));
        lengths.push(file.len());
        second_pages.push(file[PAGE]);
    }
    lengths.sort_unstable();
    lengths.dedup();
    assert_eq!(lengths, [4 * PAGE, 4 * PAGE + 7]);
    second_pages.sort_unstable();
    second_pages.dedup();
    assert_eq!(second_pages, [1, 2, 3]);
}

#[test]
fn a_cut_without_sync_can_come_undone() {
    for role in ["cut", "truncate by open"] {
        let bench = Bench::new();
        bench.run("base");
        bench.run(role);
        bench.lose(Variant::None, Names::Kept);
        assert_eq!(bench.read("f"), [1; 4 * PAGE], "{role}");
    }
}

#[test]
fn files_that_cannot_be_read_by_their_writer_are_put_back_too() {
    let bench = Bench::new();
    bench.run("base");
    bench.run("write only");
    bench.run("append");
    assert_eq!(bench.read("f").len(), 4 * PAGE + 8);
    bench.lose(Variant::None, Names::Kept);
    assert_eq!(bench.read("f"), [1; 4 * PAGE]);
}

#[test]
fn names_that_no_sync_of_their_folder_covers_come_undone() {
    let bench = Bench::new();
    bench.run("base");
    bench.run("names");
    assert_eq!(bench.names(), ["folder", "new"]);
    let report = bench.lose(Variant::All, Names::Lost);
    assert_eq!((report.names, report.names_undone), (5, 5));
    assert_eq!(bench.names(), ["f"]);
    assert_eq!(bench.read("f"), [1; 4 * PAGE]);
}

#[test]
fn a_removal_comes_undone_where_its_folder_is_now() {
    let bench = Bench::new();
    bench.run("swap folders");
    bench.lose(Variant::All, Names::Lost);
    let names = |folder: &str| fs::read_dir(bench.disk.data().join(folder)).unwrap().count();
    assert_eq!(bench.names(), ["a", "old"]);
    assert_eq!((names("a"), names("old")), (2, 2));
    assert!(bench.disk.data().join("old/a1").exists());
}

#[test]
fn a_removed_folder_comes_back_with_its_files() {
    let bench = Bench::new();
    bench.run("swap folders");
    bench.disk.forget_journal().unwrap();
    bench.run("remove all");
    assert_eq!(bench.names(), ["old"]);
    bench.lose(Variant::All, Names::Lost);
    assert_eq!(bench.names(), ["a", "old"]);
    assert_eq!(fs::read_dir(bench.disk.data().join("a")).unwrap().count(), 2);
}

#[test]
fn what_was_removed_for_good_with_its_folder_leaves_nothing_behind() {
    let bench = Bench::new();
    bench.run("swap folders");
    bench.disk.forget_journal().unwrap();
    bench.run("remove all for good");
    assert_eq!(
        fs::read_dir(bench.disk.journal().join("removed"))
            .unwrap()
            .count(),
        0
    );
    assert_eq!(bench.lose(Variant::None, Names::Lost), Report::default());
    assert_eq!(bench.names(), ["old"]);
}

#[test]
fn a_replaced_file_comes_back() {
    let bench = Bench::new();
    bench.run("base");
    bench.run("replace");
    assert_eq!(bench.read("f"), b"new");
    bench.lose(Variant::All, Names::Lost);
    assert_eq!(bench.names(), ["f"]);
    assert_eq!(bench.read("f"), [1; 4 * PAGE]);
}

#[test]
fn copies_inside_the_kernel_do_not_slip_through() {
    let bench = Bench::new();
    bench.run("base");
    bench.run("copy");
    assert_eq!(bench.read("copy"), [1; 4 * PAGE]);
    bench.lose(Variant::None, Names::Kept);
    assert_eq!(bench.read("copy"), b"");
}

#[test]
fn a_full_disk_and_a_failing_disk_fail() {
    let bench = Bench::new();
    let control = bench.disk.control().unwrap();
    bench.run("base");
    control.set_write_no_space(Fault::Always).unwrap();
    bench.run("full disk");
    control.heal().unwrap();
    control.set_write_error(Fault::Next(1)).unwrap();
    bench.run("write error once");
    assert_eq!(control.counters().unwrap().faults, 3);
}

#[test]
fn files_grow_up_to_the_quota() {
    let bench = Bench::new();
    bench.run("base");
    bench
        .disk
        .control()
        .unwrap()
        .set_quota(Some(5 * PAGE as u64))
        .unwrap();
    bench.run("quota");
    assert_eq!(
        bench.disk.control().unwrap().counters().unwrap().grown_bytes,
        PAGE as i64
    );
}

#[test]
fn after_a_failed_sync_a_later_one_does_not_help() {
    let bench = Bench::new();
    bench.run("base");
    bench
        .disk
        .control()
        .unwrap()
        .set_sync_error(Fault::Next(1))
        .unwrap();
    bench.run("sync error, then success");
    bench.lose(Variant::None, Names::Kept);
    let file = bench.read("f");
    assert_eq!(
        (file[0], file[PAGE]),
        (1, 3),
        "the page that was written again is durable, the other is not"
    );
}

/// As on a machine that runs on after a failed sync: what the disk did not take is in the page cache until that
/// is dropped.
#[test]
fn a_dropped_cache_shows_what_a_failed_sync_left_on_the_disk() {
    let bench = Bench::new();
    bench.run("base");
    let control = bench.disk.control().unwrap();
    control.set_sync_error(Fault::Next(1)).unwrap();
    bench.run("sync error, then success");
    let first_two = |file: &[u8]| (file[0], file[PAGE]);
    assert_eq!(first_two(&bench.read("f")), (2, 3));
    bench.run("drop the cache");
    assert_eq!(first_two(&bench.read("f")), (1, 3));
    let report = bench.lose(Variant::None, Names::Kept);
    assert_eq!(report.pages, 0, "nothing is at stake any more");
    assert_eq!(first_two(&bench.read("f")), (1, 3));
}

#[test]
fn every_descriptor_is_told_of_a_failed_sync_once() {
    Bench::new().run("sync error, through another descriptor");
}

#[test]
fn a_lying_sync_loses_data() {
    let bench = Bench::new();
    bench.run("base");
    bench.run("overwrite and extend");
    bench
        .disk
        .control()
        .unwrap()
        .set_sync_lies(Fault::Always)
        .unwrap();
    bench.run("sync");
    assert_eq!(bench.disk.control().unwrap().counters().unwrap().syncs_skipped, 1);
    bench.lose(Variant::None, Names::Kept);
    assert_eq!(bench.read("f"), [1; 4 * PAGE]);
}

#[test]
fn a_slow_sync_is_slow() {
    let bench = Bench::new();
    bench
        .disk
        .control()
        .unwrap()
        .set_sync_delay(Duration::from_millis(300))
        .unwrap();
    let start = Instant::now();
    bench.run("sync");
    assert!(start.elapsed() >= Duration::from_millis(300));
}

#[test]
fn the_journal_starts_over_when_nothing_in_it_is_needed() {
    let bench = Bench::new();
    bench.run("base");
    bench.run("much");
    let length = fs::metadata(bench.disk.journal().join("undo")).unwrap().len();
    assert!(length < 10 << 20, "{length} bytes");
    assert!(bench.disk.control().unwrap().counters().unwrap().journal_bytes > 30 << 20);
    bench.lose(Variant::None, Names::Kept);
    assert!(bench.read("f").iter().all(|byte| *byte == 39));
}

#[test]
fn threads_that_share_pages_are_undone_to_the_byte() {
    let bench = Bench::new();
    bench.run("base");
    bench.run("threads");
    let report = bench.lose(Variant::None, Names::Kept);
    assert_eq!(report.pages, (4 * 200 * 100_u64).div_ceil(PAGE as u64));
    assert_eq!(bench.read("f"), [1; 4 * PAGE]);
}

#[test]
fn a_kill_at_any_moment_leaves_a_journal_that_undoes_what_was_not_synced() {
    for seed in 0..20 {
        let bench = Bench::new();
        assert_eq!(bench.cut_log(seed), 0, "seed {seed}");
    }
}

#[test]
fn without_syncs_the_same_cuts_lose_data() {
    let mut lost = 0;
    for seed in 0..5 {
        let bench = Bench::new();
        bench
            .disk
            .control()
            .unwrap()
            .set_sync_lies(Fault::Always)
            .unwrap();
        lost += bench.cut_log(seed);
    }
    assert_ne!(lost, 0);
}

#[test]
fn the_library_can_be_preloaded_into_a_foreign_program() {
    let bench = Bench::new();
    bench.run("base");
    assert!(library_path().unwrap().is_file());
    let dd = |convert: &str| {
        let mut command = Command::new("dd");
        command.args(["if=/dev/zero", "of=f", "bs=4096", "count=2", convert]);
        command.current_dir(bench.disk.data()).stderr(Stdio::null());
        bench.disk.preload(&mut command).unwrap();
        assert!(command.status().unwrap().success());
    };
    dd("conv=notrunc");
    assert!(bench.read("f").starts_with(&[0; 2 * PAGE]));
    bench.lose(Variant::None, Names::Kept);
    assert_eq!(bench.read("f"), [1; 4 * PAGE]);

    dd("conv=notrunc,fsync");
    bench.lose(Variant::None, Names::Kept);
    assert!(bench.read("f").starts_with(&[0; 2 * PAGE]));
    assert!(bench.disk.control().unwrap().counters().unwrap().syncs >= 3);
}

#[test]
fn the_tool_undoes_by_hand() {
    let bench = Bench::new();
    bench.run("base");
    bench.run("overwrite and extend");
    let tool = |command: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_quorate-disk-shim"))
            .arg(command)
            .args([
                Path::new("--data"),
                bench.disk.data(),
                Path::new("--journal"),
                bench.disk.journal(),
            ])
            .args(["--seed", "7", "--variant", "none"])
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(tool("status").contains("variant none: 3 of 3 unsynced pages in 1 files lost"));
    assert!(tool("undo").starts_with("3 of 3 unsynced pages"));
    assert_eq!(bench.read("f"), [1; 4 * PAGE]);
    assert!(tool("status").contains("0 of 0 unsynced pages"));
}
