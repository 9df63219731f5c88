//! Every command in the pages of the repository runs as it is written there.
//!
//! A page is a script. The commands in its shell blocks (fenced, `sh`, `bash`
//! or `console`) are run from top to bottom in one shell, in an empty
//! folder, so a page can use what it has set, written or started further up. Each
//! must exit with 0, and so must every part of a pipe. Around it are:
//!
//! - three nodes, to which `QUORATE_ENDPOINT` points; or none, for a page that
//!   starts `quorate dev` itself: then that, and its clients, are led to free
//!   ports by `QUORATE_FIRST_PORT` and `QUORATE_ENDPOINT`;
//! - `quorate`, the binary under test, also as `cargo run --release -- …`, and the
//!   common programs listed in `shell.rs`. There are no others: a page cannot
//!   start a container or a build by accident, and a program that no reader has
//!   is noticed.
//!
//! In a block with prompts, lines that begin with `$ ` are typed, and the others
//! are what came out: for the reader, not compared. What needs to be said about a
//! block is said in comments directly before its fence, and is about its last
//! command; those before it must just succeed:
//!
//! | comment | what it says |
//! | --- | --- |
//! | `<!-- not run: needs a container engine -->` | the whole block is left out, for this reason |
//! | `<!-- exits: 1 -->` | the exit code |
//! | `<!-- prints: STALE_LEASE -->` | its output, or what it says on standard error, has this text, however wide its columns; may be repeated |
//! | `<!-- until: Ctrl-C -->` | it goes on until it has printed this text; then it gets Ctrl-C, and must end |
//!
//! There is no third way: a block that is not marked is run.

#![cfg(target_os = "linux")]

mod page;
mod shell;

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use quorate_test_cluster::{Cluster, wait_until};
use quorate_tests::program;

use crate::page::Page;
use crate::shell::{Failure, Shell};

/// How long a page may take: what takes longer hangs. All of them together are
/// meant to take less than a minute.
const PAGE_LIMIT: Duration = Duration::from_secs(120);
/// Folders with pages, with all their subfolders.
const FOLDERS: &[&str] = &["docs", "crates", "deploy", "jepsen-lite", "proto", "tests"];

#[tokio::test(flavor = "multi_thread")]
async fn every_command_in_the_pages_runs() -> Result<()> {
    let pages = pages()?;
    ensure!(pages.len() > 5, "the pages have moved: {pages:?}");
    let mut faults = Vec::new();
    let mut command_count = 0;
    for page in pages {
        command_count += page.commands.len();
        let failures = run(&page).await?;
        faults.extend(page.faults);
        faults.extend(failures.iter().map(ToString::to_string));
    }
    ensure!(command_count > 20, "only {command_count} commands are left");
    assert!(
        faults.is_empty(),
        "{} faults in the pages\n\n{}\n",
        faults.len(),
        faults.join("\n")
    );
    Ok(())
}

/// Runs a page against nodes, unless there is nothing to run.
async fn run(page: &Page) -> Result<Vec<Failure>> {
    if page.commands.is_empty() {
        return Ok(Vec::new());
    }
    let first = program::free_ports()?;
    let cluster = match page.starts_nodes() {
        true => None,
        false => Some(Cluster::start(3).await?),
    };
    let endpoints = match &cluster {
        Some(cluster) => cluster.endpoints(),
        None => [0, 10, 20]
            .map(|more| format!("127.0.0.1:{}", first + more))
            .to_vec(),
    };
    let variables = [
        ("QUORATE_ENDPOINT", endpoints.join(",")),
        ("QUORATE_FIRST_PORT", first.to_string()),
    ];
    let shell = Shell::new(&program::path()?, &variables)?;
    tokio::task::block_in_place(|| shell.run(page, PAGE_LIMIT))
}

/// All pages of the repository, in a fixed order.
fn pages() -> Result<Vec<Page>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut pages = Vec::new();
    let mut folders = vec![(root.clone(), false)];
    folders.extend(FOLDERS.iter().map(|folder| (root.join(folder), true)));
    while let Some((folder, is_whole)) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("list {}", folder.display()))? {
            let path = entry?.path();
            if path.is_dir() && is_whole {
                folders.push((path, true));
            } else if path.extension().is_some_and(|extension| extension == "md") {
                let name = path.strip_prefix(&root)?.display().to_string();
                pages.push(Page::parse(&name, &fs::read_to_string(&path)?));
            }
        }
    }
    pages.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(pages)
}

/// What comes of a page that needs no nodes.
fn failures(text: &str) -> Result<Vec<Failure>> {
    let page = Page::parse("page.md", text);
    ensure!(page.faults.is_empty(), "{:?}", page.faults);
    Shell::new(&program::path()?, &[])?.run(&page, PAGE_LIMIT)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_is_given_three_nodes() -> Result<()> {
    let text = "<!-- prints: 3 -->\n```sh\nquorate queue declare jobs\nquorate publish jobs --body first\n\
                cargo run -- cluster status --json | grep -o '\"role\"' | wc -l\n```\n\
                <!-- until: first -->\n```sh\ncargo run --release -- consume jobs\n```\n\
                <!-- exits: 1 -->\n<!-- prints: there is no queue -->\n```sh\nquorate queue show other\n```\n";
    let failures = run(&Page::parse("page.md", text)).await?;
    ensure!(failures.is_empty(), "{failures:#?}");
    Ok(())
}

#[test]
fn a_command_that_fails_is_told_with_all_it_said() -> Result<()> {
    let failures = failures("# Page\n\n```sh\ntrue\necho here; echo there >&2; (exit 7)\necho on\n```\n")?;
    let told: Vec<String> = failures.iter().map(ToString::to_string).collect();
    let expected = "page.md:5: exit code 7, not 0\n  echo here; echo there >&2; (exit 7)\n\
                    --- stdout\nhere\n--- stderr\nthere\n";
    ensure!(told == [expected], "{told:#?}");
    Ok(())
}

#[test]
fn a_program_that_is_neither_known_nor_marked_is_noticed() -> Result<()> {
    let block = "```sh\ndocker compose up -d\n```\n```sh\ncargo test --workspace\n```\n";
    let failures = failures(block)?;
    ensure!(failures.len() == 2, "{failures:?}");
    for failure in failures {
        ensure!(
            failure.problem.starts_with("exit code 127") && failure.problem.contains("not run"),
            "{failure}"
        );
    }
    Ok(())
}

#[test]
fn a_page_is_one_shell() -> Result<()> {
    let failures = failures(
        "```sh\nX='it''s'\nmkdir a; cd a\necho $X > file & P=$!\n```\n\n\
         <!-- prints: its -->\n```console\n$ wait $P; cat \\\n    file\nits\n```\n\n\
         <!-- exits: 3 -->\n```sh\n(exit 3)\n```\n\n<!-- prints: =3= -->\n```sh\necho =$?=\n```\n",
    )?;
    ensure!(failures.is_empty(), "{failures:#?}");
    Ok(())
}

#[test]
fn marks_that_do_not_hold_are_noticed() -> Result<()> {
    let failures = failures(
        "<!-- exits: 1 -->\n```sh\nfalse | true\nfalse\n```\n<!-- exits: 1 -->\n```sh\ntrue\n```\n\
         <!-- prints: b -->\n```sh\necho a\n```\n<!-- until: b -->\n```sh\necho a\n```\n",
    )?;
    let told: Vec<_> = failures
        .iter()
        .map(|failure| (failure.place.as_str(), failure.problem.as_str()))
        .collect();
    let expected = [
        ("page.md:3", "exit code 1, not 0"),
        ("page.md:8", "exit code 0, not 1"),
        ("page.md:12", "it does not print `b`"),
        ("page.md:16", "it does not print `b`"),
    ];
    ensure!(told == expected, "{told:#?}");
    Ok(())
}

#[test]
fn ctrl_c_ends_what_goes_on() -> Result<()> {
    let failures =
        failures("<!-- until: go on -->\n<!-- exits: 130 -->\n```sh\necho I go on; sleep 1000\n```\n")?;
    ensure!(failures.is_empty(), "{failures:#?}");
    Ok(())
}

#[tokio::test]
async fn what_a_page_starts_ends_with_it() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("started");
    let text = "```sh\nsleep 1000 & echo $! >> $STARTED\n(sleep 1000 & echo $! >> $STARTED)\n```\n";
    let shell = Shell::new(&program::path()?, &[("STARTED", file.display().to_string())])?;
    let failures = shell.run(&Page::parse("page.md", text), PAGE_LIMIT)?;
    ensure!(failures.is_empty(), "{failures:#?}");
    let started = fs::read_to_string(file)?;
    ensure!(started.lines().count() == 2, "{started}");
    wait_until("the processes to be gone", Duration::from_secs(20), async || {
        (!started.lines().any(runs)).then_some(())
    })
    .await
}

/// A process is there, and not just not yet forgotten by its parent.
fn runs(process_id: &str) -> bool {
    let state = fs::read_to_string(format!("/proc/{process_id}/stat"));
    state.is_ok_and(|state| !state.contains(") Z "))
}

#[test]
fn a_page_that_hangs_is_noticed() -> Result<()> {
    for text in [
        "```sh\nsleep 1000\n```\n",
        "<!-- until: x -->\n```sh\nsleep 1000\n```\n",
    ] {
        let shell = Shell::new(&program::path()?, &[])?;
        let failures = shell.run(&Page::parse("page.md", text), Duration::from_secs(1))?;
        ensure!(failures.len() == 1, "{failures:?}");
    }
    Ok(())
}

#[test]
fn a_page_that_ends_its_shell_is_noticed() -> Result<()> {
    let failures = failures("```sh\nexit 0\n```\n```sh\ntrue\n```\n")?;
    ensure!(failures.len() == 2, "{failures:?}");
    ensure!(failures[0].problem.starts_with("no exit code"), "{failures:?}");
    Ok(())
}
