//! `quorate cluster …`

use std::time::Duration;

use clap::{Args, Subcommand};
use quorate_client::{Error, NodeStatus};
use serde_json::{Value, json};

use crate::exit::{Class, Failure};
use crate::json;
use crate::options::{Context, Options};
use crate::table::{Align, table};
use crate::values::{bytes, span};

/// Arguments of `cluster`.
#[derive(Debug, Args)]
pub struct ClusterArgs {
    #[command(flatten)]
    pub(crate) options: Options,
    #[command(subcommand)]
    command: ClusterCommand,
}

#[derive(Debug, Subcommand)]
enum ClusterCommand {
    /// Show all nodes, as each of them sees itself
    #[command(after_help = "Example:\n  quorate cluster status")]
    Status,
    /// Bring in a node that was started without peers and waits
    #[command(after_help = "Example:\n  quorate cluster add 10.0.0.4:7401")]
    Add {
        /// Its peer address, host:port
        peer_address: String,
    },
    /// Remove a member for good; its id is never used again
    #[command(after_help = "Example:\n  quorate cluster remove node-4")]
    Remove {
        /// Its id, name or client address
        node: String,
    },
    /// Hand leadership to another voter
    #[command(after_help = "Example:\n  quorate cluster transfer-leader node-2")]
    TransferLeader {
        /// Its id, name or client address [default: the most advanced one]
        node: Option<String>,
    },
    /// Write a snapshot now
    #[command(after_help = "Example:\n  quorate cluster snapshot")]
    Snapshot {
        /// Client addresses of the nodes [default: all that answer]
        address: Vec<String>,
    },
}

type Answers = Vec<(String, Result<NodeStatus, Error>)>;

/// For what lasts as long as the data takes to move.
const PATIENT: Duration = Duration::from_secs(300);

pub(crate) async fn run(args: ClusterArgs, context: &Context) -> Result<(), Failure> {
    match args.command {
        ClusterCommand::Status => status(context).await,
        ClusterCommand::Add { peer_address } => add(&peer_address, context).await,
        ClusterCommand::Remove { node } => remove(&node, context).await,
        ClusterCommand::TransferLeader { node } => transfer_leader(node.as_deref(), context).await,
        ClusterCommand::Snapshot { address } => snapshot(address, context).await,
    }
}

async fn status(context: &Context) -> Result<(), Failure> {
    let answers = answers(context).await?;
    context
        .output
        .show(|| status_json(&answers), || status_text(&answers))
}

/// What each node says: at least one does.
async fn answers(context: &Context) -> Result<Answers, Failure> {
    let mut answers = context.client.cluster().status_all().await;
    if let Some((_, Err(error))) = answers.first()
        && answers.iter().all(|(_, answer)| answer.is_err())
    {
        return Err(error.clone().into());
    }
    // The same node may have been asked at several addresses.
    let mut seen = Vec::new();
    answers.retain(|(_, answer)| match answer {
        Ok(status) if seen.contains(&status.node_id) => false,
        Ok(status) => {
            seen.push(status.node_id);
            true
        }
        Err(_) => true,
    });
    if context.endpoints_guessed {
        // Nobody said that there is a node: a silent one has to be a member.
        let members: Vec<_> = answers
            .iter()
            .filter_map(|(_, answer)| answer.as_ref().ok())
            .collect();
        let is_member = |address: &str| {
            members
                .iter()
                .flat_map(|status| &status.members)
                .any(|member| member.client_address == address)
        };
        let silent_strangers: Vec<_> = answers
            .iter()
            .filter(|(address, answer)| answer.is_err() && !is_member(address))
            .map(|(address, _)| address.clone())
            .collect();
        answers.retain(|(address, _)| !silent_strangers.contains(address));
    }
    Ok(answers)
}

/// The node that leads, by the highest term.
fn leader(answers: &Answers) -> Option<&(String, Result<NodeStatus, Error>)> {
    let term = |(_, answer): &&(String, Result<NodeStatus, Error>)| match answer {
        Ok(status) if status.role == "leader" => Some(status.term),
        _ => None,
    };
    answers
        .iter()
        .filter(|answer| term(answer).is_some())
        .max_by_key(term)
}

fn status_json(answers: &Answers) -> Value {
    let nodes: Vec<_> = answers
        .iter()
        .map(|(address, answer)| match answer {
            Ok(status) => json::node(address, status),
            Err(error) => json!({ "address": address, "error": error.to_string() }),
        })
        .collect();
    let leader = leader(answers);
    let cluster_id = answers.iter().find_map(|(_, answer)| {
        answer
            .as_ref()
            .ok()
            .map(|status| status.cluster_id.as_str())
            .filter(|id| !id.is_empty())
    });
    json!({
        "cluster_id": cluster_id,
        "leader": leader.map(|(address, _)| address),
        "nodes": nodes,
    })
}

/// What each node has on its disk, and why it is there.
fn disk_text(answers: &Answers) -> String {
    let columns = [
        ("ADDRESS", Align::Left),
        ("PART", Align::Left),
        ("ON DISK", Align::Right),
        ("IN USE", Align::Right),
        ("WHY", Align::Left),
    ];
    let why = |part: &str| match part {
        "log" => {
            "entries since the last snapshot, and some before it for followers that lag; the file shrinks at a restart"
        }
        "contents" => {
            "bodies of messages that outlived their log entry; given back by the volume, when the next snapshot finds little in it needed"
        }
        "snapshots" => "the state as of the last snapshot; two of them while one is written",
        "journal" => "what `quorate trace` knows; bounded by journal-bytes and journal-age",
        _ => "",
    };
    let statuses = answers
        .iter()
        .filter_map(|(address, answer)| answer.as_ref().ok().map(|status| (address, status)));
    let rows: Vec<_> = statuses
        .flat_map(|(address, status)| {
            status.disk.iter().map(move |part| {
                [
                    address.clone(),
                    part.part.clone(),
                    bytes(part.disk_bytes),
                    part.live_bytes.map_or_else(|| "-".to_owned(), bytes),
                    why(&part.part).to_owned(),
                ]
            })
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    table(columns, &rows)
}

fn status_text(answers: &Answers) -> String {
    let columns = [
        ("NODE", Align::Left),
        ("ADDRESS", Align::Left),
        ("ROLE", Align::Left),
        ("ID", Align::Right),
        ("TERM", Align::Right),
        ("APPLIED", Align::Right),
        ("SNAPSHOT", Align::Right),
        ("LOG", Align::Right),
        ("DISK", Align::Right),
        ("UP", Align::Right),
        ("VERSION", Align::Left),
    ];
    let members = || {
        answers
            .iter()
            .filter_map(|(_, answer)| answer.as_ref().ok())
            .flat_map(|s| &s.members)
    };
    let rows: Vec<_> = answers
        .iter()
        .map(|(address, answer)| {
            let known = members().find(|member| match answer {
                Ok(status) => member.node_id == status.node_id,
                Err(_) => member.client_address == *address,
            });
            let name = known.map_or("-", |member| member.name.as_str()).to_owned();
            match answer {
                Ok(status) => [
                    name,
                    address.clone(),
                    status.role.clone(),
                    status.node_id.to_string(),
                    status.term.to_string(),
                    status.applied_index.to_string(),
                    status.snapshot_index.to_string(),
                    bytes(status.log_bytes),
                    bytes(status.disk_bytes),
                    span(Duration::from_secs(status.uptime.as_secs())),
                    status.version.clone(),
                ],
                Err(_) => {
                    let mut row = std::array::from_fn(|_| "-".to_owned());
                    row[0] = name;
                    row[1].clone_from(address);
                    row[2] = "silent".to_owned();
                    row[3] = known.map_or_else(|| "-".to_owned(), |member| member.node_id.to_string());
                    row
                }
            }
        })
        .collect();
    let mut text = table(columns, &rows);
    let disk = disk_text(answers);
    if !disk.is_empty() {
        text.push_str(&format!("\n{disk}"));
    }
    if leader(answers).is_none() {
        text.push_str("\nNo node leads: a majority of the voters must run and reach each other.\n");
    }
    for (address, answer) in answers {
        if let Err(error @ Error::Unreachable { .. }) = answer {
            text.push_str(&format!("\n{}\n", silence_text(address, error)));
        }
    }
    text
}

/// Why a node did not answer.
pub(crate) fn silence_text(address: &str, error: &Error) -> String {
    let cause = match error {
        Error::Unreachable { cause, .. } => cause.clone(),
        error => error.to_string(),
    };
    format!("{address} does not answer: {cause}")
}

async fn add(peer_address: &str, context: &Context) -> Result<(), Failure> {
    let client = context.patient_client(PATIENT);
    let node_id = client.cluster().add(peer_address).await?;
    context.output.show(
        || json!({ "node_id": node_id.to_string(), "peer_address": peer_address }),
        || format!("node {node_id} at {peer_address} is a voter now\n"),
    )
}

async fn remove(node: &str, context: &Context) -> Result<(), Failure> {
    let node_id = resolve(node, context).await?;
    context.client.cluster().remove(node_id).await?;
    context.output.show(
        || json!({ "node_id": node_id.to_string() }),
        || format!("node {node_id} removed\n"),
    )
}

async fn transfer_leader(node: Option<&str>, context: &Context) -> Result<(), Failure> {
    let to = match node {
        Some(node) => Some(resolve(node, context).await?),
        None => None,
    };
    let leader = context.client.cluster().transfer_leader(to).await?;
    context.output.show(
        || json!({ "node_id": leader.node_id.to_string(), "client_address": leader.client_address }),
        || format!("node {} at {} leads now\n", leader.node_id, leader.client_address),
    )
}

/// The id of a member that is named by id, name or client address.
async fn resolve(node: &str, context: &Context) -> Result<u64, Failure> {
    let status = context.client.cluster().status().await?;
    member_id(node, &status).ok_or_else(|| {
        let known: Vec<_> = status
            .members
            .iter()
            .map(|member| format!("{} ({})", member.node_id, member.name))
            .collect();
        Failure::Usage(format!(
            "no member is called {node:?}; there are: {}",
            known.join(", ")
        ))
    })
}

fn member_id(node: &str, status: &NodeStatus) -> Option<u64> {
    let named = |member: &&quorate_client::Member| {
        member.node_id.to_string() == node || member.name == node || member.client_address == node
    };
    let mut found = status.members.iter().filter(named).map(|member| member.node_id);
    let first = found.next()?;
    // A name that two members share names neither.
    found.next().is_none().then_some(first)
}

async fn snapshot(addresses: Vec<String>, context: &Context) -> Result<(), Failure> {
    let addresses = if addresses.is_empty() {
        let answers = answers(context).await?;
        answers
            .into_iter()
            .filter(|(_, answer)| answer.is_ok())
            .map(|(address, _)| address)
            .collect()
    } else {
        addresses
    };
    let client = context.patient_client(PATIENT);
    let mut worst = Class::Ok;
    let mut failed = 0;
    for address in &addresses {
        match client.cluster().snapshot(address).await {
            Ok(index) => context.output.show(
                || json!({ "address": address, "snapshot_index": index }),
                || format!("{address}: snapshot up to log index {index}\n"),
            )?,
            Err(error) => {
                eprintln!("quorate: {address}: {error}");
                worst = worst.max(Class::of(&error));
                failed += 1;
            }
        }
    }
    if failed == 0 {
        return Ok(());
    }
    Err(Failure::Partly {
        class: worst,
        message: format!("{failed} of {} snapshots failed", addresses.len()),
    })
}

#[cfg(test)]
mod tests {
    use quorate_client::{Member, Sought};

    use super::*;

    fn member(node_id: u64, name: &str, client_address: &str) -> Member {
        Member {
            node_id,
            name: name.to_owned(),
            client_address: client_address.to_owned(),
            voter: true,
            ..Default::default()
        }
    }

    fn cluster() -> Answers {
        let members = vec![
            member(11, "a", "h:1"),
            member(22, "b", "h:2"),
            member(33, "b", "h:3"),
        ];
        let leader = NodeStatus {
            cluster_id: "c0ffee".to_owned(),
            node_id: 11,
            role: "leader".to_owned(),
            term: 4,
            members,
            version: "0.1.0".to_owned(),
            uptime: Duration::from_millis(61_400),
            ..Default::default()
        };
        let silent = Err(Error::Unreachable {
            who: Sought::Node("h:2".to_owned()),
            cause: "connection refused".to_owned(),
            request_id: None,
        });
        vec![("h:1".to_owned(), Ok(leader)), ("h:2".to_owned(), silent)]
    }

    #[test]
    fn a_silent_node_is_shown_with_what_the_others_know() {
        let text = status_text(&cluster());
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].starts_with("NODE  ADDRESS  ROLE    ID"), "{text}");
        assert!(lines[1].starts_with("a     h:1      leader  11     4"), "{text}");
        assert!(lines[1].ends_with("1m 1s  0.1.0"), "{text}");
        assert!(lines[2].starts_with("b     h:2      silent  22     -"), "{text}");
        assert!(text.contains("h:2 does not answer: connection refused"));
    }

    #[test]
    fn the_status_in_json_names_the_leader() {
        let value = status_json(&cluster());
        assert_eq!(value["cluster_id"], "c0ffee");
        assert_eq!(value["leader"], "h:1");
        assert_eq!(value["nodes"][0]["uptime_ms"], 61_400);
        assert!(value["nodes"][1]["error"].is_string());
    }

    #[test]
    fn a_member_has_three_names() {
        let answers = cluster();
        let status = answers[0].1.as_ref().unwrap();
        assert_eq!(member_id("11", status), Some(11));
        assert_eq!(member_id("a", status), Some(11));
        assert_eq!(member_id("h:3", status), Some(33));
        assert_eq!(member_id("b", status), None, "two are called that");
        assert_eq!(member_id("nobody", status), None);
    }
}
