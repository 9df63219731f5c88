//! Messages as an operator sees them: settings of queues that are in force,
//! browse, operate, schedule, transact, trace.

use anyhow::{Result, ensure};
use quorate_test_cluster::Cluster;
use serde_json::{Value, json};

use crate::{has_fields, ids, many, one, publish, refused, shown, text};

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_is_looked_at_and_stopped() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    let settings = "--priority-ageing 1m --group-concurrency 2 --group-weight a=5 --dedup-window 10m \
                    --dedup-max-ids 1000 --single-active-consumer";
    one(&cluster, &format!("queue declare jobs {settings}"))?;
    one(
        &cluster,
        "queue update jobs --group-weight b=2 --single-active-consumer=false",
    )?;
    let jobs = one(&cluster, "queue show jobs")?;
    let set = &jobs["settings"];
    ensure!(
        set["priority_ageing_ms"] == 60_000 && set["group_concurrency"] == 2 && set["dedup_max_ids"] == 1_000,
        "{set}"
    );
    ensure!(
        set["group_weights"] == json!({ "b": 2 }) && set["single_active_consumer"] == false,
        "{set}"
    );

    publish(&cluster, "jobs --body low")?;
    let high = publish(&cluster, "jobs --body high --priority 9 --group a")?;
    one(&cluster, "queue pause jobs")?;
    ensure!(
        many(&cluster, "lease jobs")?.is_empty(),
        "a paused queue gives out a message"
    );
    let explained = one(&cluster, "queue explain jobs")?;
    let kinds: Vec<_> = kinds(&explained);
    ensure!(kinds.first() == Some(&"paused"), "{explained}");
    ensure!(
        shown(&cluster, "queue explain jobs")?.contains("- paused: "),
        "no text"
    );
    ensure!(
        one(&cluster, "queue show jobs")?["paused"] == true,
        "not shown as paused"
    );
    one(&cluster, "queue resume jobs")?;
    let leased = many(&cluster, "lease jobs")?;
    ensure!(ids(&leased) == [high.as_str()], "{leased:?}");
    ensure!(
        leased[0]["priority"] == 9 && leased[0]["group"] == "a",
        "{leased:?}"
    );
    let text = shown(&cluster, "queue show jobs")?;
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "ready 1, oldest published ",
        "leased 1, oldest published ",
        "groups 2 at a time, weights b=2",
    ] {
        ensure!(text.contains(part), "{part}: {text}");
    }

    publish(&cluster, "jobs --body later --delay 1h")?;
    let purged = one(&cluster, "queue purge jobs --state delayed")?;
    ensure!(purged["purged"] == 1, "{purged}");
    let purged = one(&cluster, "queue purge jobs")?;
    ensure!(purged["purged"] == 1, "{purged}");
    ensure!(
        one(&cluster, "queue show jobs")?["counts"]["leased"] == 1,
        "the lease is gone"
    );
    Ok(())
}

fn kinds(explanation: &Value) -> Vec<&str> {
    let obstacles = explanation["obstacles"].as_array().into_iter().flatten();
    obstacles
        .filter_map(|obstacle| obstacle["kind"].as_str())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_are_browsed_and_operated_on_one_by_one() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    for queue in ["jobs", "parked"] {
        one(&cluster, &format!("queue declare {queue} --dedup-window 10m"))?;
    }
    let first = publish(&cluster, "jobs --body one --header tenant=acme")?;
    let second = publish(&cluster, "jobs --body two --group b")?;
    let later = publish(&cluster, "jobs --body three --delay 2h --dedup-id reminder-1")?;
    let sooner = publish(
        &cluster,
        "jobs --body four --deliver-at 2000-01-01T00:00:00Z --delay 1h",
    )?;

    let all = many(&cluster, "browse jobs")?;
    ensure!(ids(&all) == [&first, &second, &later, &sooner], "{all:?}");
    has_fields(
        &all[0],
        &["position", "state", "published_at_ms", "read_index", "attempts"],
    )?;
    ensure!(all[0].get("body").is_none(), "nobody asked for a body: {all:?}");
    for (filter, expected) in [
        ("--state ready", vec![&first, &second]),
        (
            "--state ready,delayed --older-than 0s",
            vec![&first, &second, &later, &sooner],
        ),
        ("--older-than 1h", vec![]),
        ("--newer-than 1h --state delayed", vec![&later, &sooner]),
        ("--header tenant=acme", vec![&first]),
        ("--group b", vec![&second]),
        ("--dedup-id reminder-1", vec![&later]),
        ("--limit 2", vec![&first, &second]),
    ] {
        let found = many(&cluster, &format!("browse jobs {filter}"))?;
        ensure!(ids(&found) == expected, "{filter}: {found:?}");
    }
    let by_id = many(&cluster, &format!("browse jobs --id {second} --body --local"))?;
    ensure!(by_id.len() == 1 && by_id[0]["body"] == "two", "{by_id:?}");
    let at = cluster.endpoint((cluster.leader().await? + 1) % 3);
    ensure!(
        many(&cluster, &format!("browse jobs --at {at}"))?.len() == 4,
        "a follower knows less"
    );

    let scheduled = many(&cluster, "schedule list jobs")?;
    ensure!(ids(&scheduled) == [&sooner, &later], "{scheduled:?}");
    let rescheduled = many(
        &cluster,
        "message reschedule jobs --dedup-id reminder-1 --delay 1m",
    )?;
    ensure!(rescheduled[0]["message_id"] == later.as_str(), "{rescheduled:?}");
    let scheduled = many(&cluster, "schedule list jobs")?;
    ensure!(ids(&scheduled) == [&later, &sooner], "{scheduled:?}");
    many(&cluster, &format!("message run-now jobs {sooner}"))?;
    many(&cluster, "message cancel jobs --dedup-id reminder-1")?;
    ensure!(
        many(&cluster, "schedule list jobs")?.is_empty(),
        "something is scheduled"
    );

    many(
        &cluster,
        &format!("message move jobs {first} {second} --to parked"),
    )?;
    ensure!(
        ids(&many(&cluster, "browse parked")?) == [&first, &second],
        "not moved"
    );
    let message = one(&cluster, &format!("message get parked {first}"))?;
    ensure!(
        message["body"] == "one" && message["headers"]["tenant"] == "acme",
        "{message}"
    );
    let text = shown(&cluster, &format!("message get parked {first}"))?;
    ensure!(
        text.contains("tenant=acme") && text.contains("\n  one\n"),
        "{text}"
    );
    many(&cluster, &format!("message delete parked {first}"))?;
    let gone = refused(&cluster, &format!("message get parked {first}"))?;
    ensure!(gone["reason"] == "MESSAGE_NOT_FOUND", "{gone}");

    // What somebody holds is not for others to take away.
    let leased = many(&cluster, "lease parked")?;
    ensure!(ids(&leased) == [second.as_str()], "{leased:?}");
    let held = refused(&cluster, &format!("message delete parked {second}"))?;
    ensure!(held["reason"] == "WRONG_STATE", "{held}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_is_all_or_nothing() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    for queue in ["jobs", "resized", "audit"] {
        one(&cluster, &format!("queue declare {queue}"))?;
    }
    publish(&cluster, "jobs --body 17.png")?;
    let leased = many(&cluster, "lease jobs --wait 5s")?;
    let line = format!(
        "transact --ack {} --publish resized=17.png --publish audit=x=y",
        text(&leased[0]["token"])?
    );
    let done = one(&cluster, &line)?;
    ensure!(
        done["acked"] == 1 && done["message_ids"].as_array().is_some_and(|ids| ids.len() == 2),
        "{done}"
    );
    // The lease has ended, so nothing of it is done again.
    let stale = refused(&cluster, &line)?;
    ensure!(
        stale["reason"] == "TRANSACTION_REFUSED" && stale["context"]["reason"] == "STALE_LEASE",
        "{stale}"
    );
    let audit = many(&cluster, "lease audit --max 10")?;
    ensure!(audit.len() == 1 && audit[0]["body"] == "x=y", "{audit:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_traced_after_it_left() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    one(&cluster, "queue declare jobs --dedup-window 10m")?;
    let id = publish(&cluster, "jobs --body a --dedup-id order-9 --header order=9")?;
    let in_a_queue = one(&cluster, "trace --header order=9")?;
    ensure!(changes(&in_a_queue, &id) == ["published"], "{in_a_queue}");
    let leased = many(&cluster, "lease jobs --wait 5s")?;
    one(
        &cluster,
        &format!("nack {} --delay 0s --reason never", text(&leased[0]["token"])?),
    )?;
    let leased = many(&cluster, "lease jobs --wait 5s")?;
    one(&cluster, &format!("ack {}", text(&leased[0]["token"])?))?;

    for which in [id.as_str(), "--dedup-id order-9"] {
        let trace = one(&cluster, &format!("trace {which}"))?;
        ensure!(
            changes(&trace, &id) == ["published", "leased", "nacked", "leased", "acked"],
            "{which}: {trace}"
        );
        ensure!(
            trace["events"][2]["error"] == "never" && trace["events"][3]["attempt"] == 2,
            "{trace}"
        );
        ensure!(trace["gaps"] == json!([]), "{trace}");
        has_fields(
            &trace["nodes"][0],
            &["address", "begins_at_index", "begins_at_ms", "read_index"],
        )?;
    }
    let told = shown(&cluster, &format!("trace {id}"))?;
    ensure!(
        told.starts_with(&format!("message {id}\n")) && told.contains("\"never\""),
        "{told}"
    );
    let gone = refused(&cluster, "trace 999999-0")?;
    ensure!(
        text(&gone["message"])?.contains("no journal knows of message 999999-0"),
        "{gone}"
    );
    Ok(())
}

fn changes<'a>(trace: &'a Value, message_id: &str) -> Vec<&'a str> {
    let events = trace["events"].as_array().into_iter().flatten();
    let of_message = events.filter(|event| event["message_id"] == message_id);
    of_message.filter_map(|event| event["change"].as_str()).collect()
}
