//! What scripts rely on: exit codes and JSON. Every command is run at least once.

mod dead_letters;
mod messages;
mod mistakes;
mod routing;

use std::fs;

use anyhow::{Context, Result, ensure};
use quorate_test_cluster::Cluster;
use quorate_tests::program::{self, run};
use serde_json::Value;

const DONE: i32 = 0;
const REFUSED: i32 = 1;
const USAGE: i32 = 2;
const UNREACHABLE: i32 = 4;
const UNKNOWN: i32 = 3;

#[tokio::test(flavor = "multi_thread")]
async fn a_message_goes_through_by_commands() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    let ok = |arguments: &[&str]| done(&cluster, arguments);

    let declared = ok(&[
        "queue",
        "declare",
        "jobs",
        "--max-deliveries",
        "3",
        "--lease",
        "60s",
    ])?;
    has_fields(&declared[0], &["created", "log_index", "term", "cluster_time_ms"])?;
    ensure!(declared[0]["created"] == true, "{declared:?}");
    let published = ok(&[
        "publish",
        "jobs",
        "--body",
        "resize 17.png",
        "--header",
        "trace=a1b2",
    ])?;
    has_fields(
        &published[0],
        &["queue", "message_ids", "log_index", "term", "cluster_time_ms"],
    )?;

    let leased = ok(&["lease", "jobs", "--wait", "5s"])?;
    let fields = [
        "message_id",
        "queue",
        "token",
        "fence",
        "attempt",
        "redelivered",
        "leased_until_ms",
        "headers",
    ];
    has_fields(&leased[0], &fields)?;
    ensure!(
        leased[0]["body"] == "resize 17.png" && leased[0]["headers"]["trace"] == "a1b2",
        "{leased:?}"
    );
    ensure!(
        leased[0]["message_id"] == published[0]["message_ids"][0],
        "another message: {leased:?}"
    );

    let token = text(&leased[0]["token"])?;
    let extended = ok(&["extend", token, "--by", "120s"])?;
    let later = extended[0]["leased_until_ms"].as_u64() > leased[0]["leased_until_ms"].as_u64();
    ensure!(extended[0]["result"] == "extended" && later, "{extended:?}");
    let nacked = ok(&["nack", token, "--delay", "0s", "--reason", "no such picture"])?;
    ensure!(nacked[0]["result"] == "nacked", "{nacked:?}");
    let again = ok(&["lease", "jobs", "--wait", "5s"])?;
    ensure!(
        again[0]["attempt"] == 2 && again[0]["last_error"] == "no such picture",
        "{again:?}"
    );
    let acked = ok(&["ack", text(&again[0]["token"])?])?;
    ensure!(acked[0]["result"] == "acked", "{acked:?}");

    let shown = ok(&["queue", "show", "jobs"])?;
    ensure!(
        shown[0]["counts"]["acked"] == 1 && shown[0]["settings"]["lease_ms"] == 60_000,
        "{shown:?}"
    );
    ensure!(
        ok(&["lease", "jobs"])?.is_empty(),
        "a message that was acked is leased"
    );

    let status = ok(&["cluster", "status"])?;
    has_fields(&status[0], &["cluster_id", "leader", "nodes"])?;
    let nodes = status[0]["nodes"].as_array().context("nodes is a list")?;
    ensure!(nodes.len() == 3, "{status:?}");
    for node in nodes {
        has_fields(
            node,
            &[
                "address",
                "node_id",
                "role",
                "term",
                "applied_index",
                "state_hash",
                "members",
            ],
        )?;
    }
    let snapshots = ok(&["cluster", "snapshot"])?;
    ensure!(
        snapshots.len() == 3 && snapshots.iter().all(|one| one["snapshot_index"].is_u64()),
        "{snapshots:?}"
    );
    let moved = ok(&["cluster", "transfer-leader"])?;
    ensure!(moved[0]["client_address"] != status[0]["leader"], "{moved:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_codes_tell_what_happened() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    run(&cluster, &["queue", "declare", "jobs"])?.exits(DONE)?;

    // Refused: the reason for a program, the way on for a person.
    let missing = run(&cluster, &["publish", "nowhere", "--body", "x", "--json"])?
        .exits(REFUSED)?
        .json_error()?;
    ensure!(
        missing["error"] == "refused" && missing["reason"] == "QUEUE_NOT_FOUND",
        "{missing}"
    );
    ensure!(missing["may_have_applied"] == false, "{missing}");
    let missing = run(&cluster, &["publish", "nowhere", "--body", "x"])?.exits(REFUSED)?;
    ensure!(
        missing.error.contains("quorate queue declare nowhere"),
        "{missing:?}"
    );
    let conflict = run(&cluster, &["queue", "declare", "jobs", "--lease", "7s", "--json"])?.exits(REFUSED)?;
    ensure!(
        conflict.json_error()?["reason"] == "QUEUE_CONFLICT",
        "{conflict:?}"
    );

    for usage in [
        &["publish", "jobs"][..],
        &["nonsense"],
        &["lease", "jobs", "--max", "0"],
        &["ack"],
    ] {
        run(&cluster, usage)?.exits(USAGE)?;
    }
    let nobody = format!("127.0.0.1:{}", program::free_ports()?);
    let silent =
        program::at(&nobody, &["queue", "list", "--json", "--timeout", "300ms"])?.exits(UNREACHABLE)?;
    ensure!(silent.json_error()?["error"] == "unreachable", "{silent:?}");

    // Two of three are gone: a publish was sent, and nobody can tell its fate.
    let leader = cluster.leader().await?;
    for node in (0..3).filter(|&node| node != leader) {
        cluster.pause(node)?;
    }
    let arguments = ["publish", "jobs", "--body", "x", "--json", "--timeout", "2s"];
    let unknown = program::at(&cluster.endpoint(leader), &arguments)?
        .exits(UNKNOWN)?
        .json_error()?;
    ensure!(
        unknown["error"] == "unknown" && unknown["may_have_applied"] == true,
        "{unknown}"
    );
    for node in (0..3).filter(|&node| node != leader) {
        cluster.resume(node)?;
    }
    cluster.ready().await
}

#[tokio::test(flavor = "multi_thread")]
async fn consume_runs_a_program_for_each_message() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    let run = |arguments: &[&str]| run(&cluster, arguments);
    run(&["queue", "declare", "jobs", "--max-deliveries", "2"])?.exits(DONE)?;
    run(&["publish", "jobs", "--count", "20"])?.exits(DONE)?;

    let folder = tempfile::tempdir()?;
    let seen = folder.path().join("seen");
    let append = format!("cat >> {0}; echo \" $QUORATE_ATTEMPT\" >> {0}", seen.display());
    run(&["consume", "jobs", "--until-empty", "--exec", &append])?.exits(DONE)?;
    let seen = fs::read_to_string(seen)?;
    let expected: Vec<String> = (1..=20).map(|number| format!("message {number} 1")).collect();
    ensure!(seen.lines().collect::<Vec<_>>() == expected, "{seen}");

    // A program that fails twice has used up the attempts of its message.
    run(&["publish", "jobs", "--body", "broken"])?.exits(DONE)?;
    let failing = run(&[
        "consume",
        "jobs",
        "--count",
        "2",
        "--exec",
        "echo why >&2; exit 1",
    ])?
    .exits(DONE)?;
    ensure!(failing.error.contains("why"), "{failing:?}");
    let shown = &run(&["queue", "show", "jobs", "--json"])?.json()?[0];
    ensure!(
        shown["counts"]["acked"] == 20 && shown["counts"]["dead"] == 1,
        "{shown}"
    );
    Ok(())
}

/// The JSON that a command printed which was done.
fn done(cluster: &Cluster, arguments: &[&str]) -> Result<Vec<Value>> {
    run(cluster, &[arguments, &["--json"]].concat())?
        .exits(DONE)?
        .json()
}

/// The same of a command that prints one object, its words apart by spaces.
fn one(cluster: &Cluster, line: &str) -> Result<Value> {
    let values = done(cluster, &line.split(' ').collect::<Vec<_>>())?;
    ensure!(values.len() == 1, "{line}: not one object: {values:?}");
    Ok(values[0].clone())
}

/// The same of a command that prints as many as there are.
fn many(cluster: &Cluster, line: &str) -> Result<Vec<Value>> {
    done(cluster, &line.split(' ').collect::<Vec<_>>())
}

/// The refusal of a command, as JSON.
fn refused(cluster: &Cluster, line: &str) -> Result<Value> {
    let arguments: Vec<_> = line.split(' ').chain(["--json"]).collect();
    let refused = run(cluster, &arguments)?
        .exits(REFUSED)
        .with_context(|| line.to_owned())?;
    refused.json_error()
}

/// What a command prints for a person.
fn shown(cluster: &Cluster, line: &str) -> Result<String> {
    let shown = run(cluster, &line.split(' ').collect::<Vec<_>>())?;
    Ok(shown.exits(DONE).with_context(|| line.to_owned())?.output)
}

/// Publishes a message and returns its id.
fn publish(cluster: &Cluster, line: &str) -> Result<String> {
    let published = one(cluster, &format!("publish {line}"))?;
    Ok(text(&published["message_ids"][0])?.to_owned())
}

/// The ids of messages that were listed.
fn ids(messages: &[Value]) -> Vec<&str> {
    messages
        .iter()
        .filter_map(|message| message["message_id"].as_str())
        .collect()
}

fn has_fields(value: &Value, fields: &[&str]) -> Result<()> {
    for field in fields {
        ensure!(value.get(field).is_some(), "no field {field} in {value}");
    }
    Ok(())
}

fn text(value: &Value) -> Result<&str> {
    value.as_str().with_context(|| format!("{value} is not a text"))
}

/// It executes itself once more for that, as the process that was started.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[tokio::test(flavor = "multi_thread")]
async fn a_node_runs_with_few_arenas() -> Result<()> {
    let cluster = Cluster::start(1).await?;
    let process = cluster.process_id(0).context("the node runs")?;
    let environment = std::fs::read_to_string(format!("/proc/{process}/environ"))?;
    let arenas = environment
        .split('\0')
        .find_map(|variable| variable.strip_prefix("MALLOC_ARENA_MAX="));
    let given = std::env::var("MALLOC_ARENA_MAX");
    ensure!(arenas == Some(given.as_deref().unwrap_or("4")), "{environment}");
    Ok(())
}
