//! What is typed wrong, and what a command says to it.

use anyhow::{Context, Result, ensure};
use quorate_test_cluster::Cluster;
use quorate_tests::program::{at, run};

use crate::{REFUSED, UNREACHABLE, USAGE, one, refused, text};

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_there_is_refused_with_a_way_on() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    one(&cluster, "queue declare jobs")?;
    one(&cluster, "queue declare parked")?;
    one(&cluster, "exchange declare orders --kind direct")?;
    for line in [
        "queue show nowhere",
        "queue explain nowhere",
        "queue pause nowhere",
        "queue resume nowhere",
        "queue purge nowhere --state dead",
        "queue update nowhere --dedup-window 1m",
        "browse nowhere",
        "browse nowhere --local",
        "schedule list nowhere",
        "message get nowhere 17-0",
        "message delete nowhere 17-0",
        "redrive nowhere",
        "redrive jobs --to nowhere",
        "redrive undo nowhere 17",
        "bind orders nowhere",
        "consume nowhere",
    ] {
        let told = refused(&cluster, line)?;
        ensure!(told["reason"] == "QUEUE_NOT_FOUND", "{line}: {told}");
        let advice = text(&told["advice"]).with_context(|| line.to_owned())?;
        ensure!(
            advice.contains("quorate queue declare nowhere"),
            "{line}: {advice}"
        );
    }
    for line in [
        "exchange show nowhere",
        "exchange update nowhere --dedup-window 1m",
        "exchange delete nowhere",
        "publish --exchange nowhere --body x",
        "bind nowhere jobs",
        "bind orders --to-exchange nowhere",
    ] {
        let told = refused(&cluster, line)?;
        ensure!(told["reason"] == "EXCHANGE_NOT_FOUND", "{line}: {told}");
        let advice = text(&told["advice"]).with_context(|| line.to_owned())?;
        ensure!(
            advice.contains("quorate exchange declare nowhere"),
            "{line}: {advice}"
        );
    }
    for line in [
        "message get jobs 17-0",
        "message get jobs --dedup-id order-9",
        "message delete jobs 17-0",
        "message move jobs 17-0 --to parked",
        "message reschedule jobs --dedup-id order-9 --delay 1m",
        "message run-now jobs 17-0",
    ] {
        let told = refused(&cluster, line)?;
        ensure!(told["reason"] == "MESSAGE_NOT_FOUND", "{line}: {told}");
    }
    // Each of many is told of by itself.
    let many = run(&cluster, &["message", "delete", "jobs", "17-0", "17-1"])?.exits(REFUSED)?;
    ensure!(
        many.error.contains("17-1: ") && many.error.contains("2 of 2 messages were not deleted"),
        "{many:?}"
    );
    Ok(())
}

#[test]
fn a_node_that_does_not_answer_is_named() -> Result<()> {
    for line in [
        "browse jobs --at 127.0.0.1:1",
        "message get jobs 17-0 --at 127.0.0.1:1",
    ] {
        let told = at("127.0.0.1:2", &line.split(' ').collect::<Vec<_>>())?.exits(UNREACHABLE)?;
        ensure!(
            told.error
                .starts_with("quorate: could not reach node 127.0.0.1:1: "),
            "{line}: {told:?}"
        );
    }
    Ok(())
}

#[test]
fn what_cannot_be_meant_is_a_usage_error() -> Result<()> {
    for (line, part) in [
        ("redrive jobs --rate fast", "write it like 50/s"),
        ("redrive jobs --rate 0/s", "write it like 50/s"),
        ("publish jobs --body x --header trace", "write it like name=value"),
        ("bind orders jobs --header trace", "write it like name=value"),
        ("browse jobs --header =x", "write it like name=value"),
        ("trace --header trace", "write it like name=value"),
        ("transact --publish jobs", "write it like queue=body"),
        ("queue declare jobs --group-weight a", "write it like group=5"),
        (
            "queue declare jobs --group-weight a=0",
            "a weight from 1 to 1,000",
        ),
        (
            "publish jobs --body x --deliver-at tomorrow",
            "write it like 2026-12-24T18:00:00Z",
        ),
        (
            "publish jobs --body x --deliver-at 2999-12-24T18:00:00Z",
            "more than 10 years ahead; the latest is 20",
        ),
        (
            "message reschedule jobs 17-0 --deliver-at 32503680000000",
            "more than 10 years ahead; the latest is 20",
        ),
        (
            "queue declare jobs --dead-letter-key failed",
            "--dead-letter-exchange",
        ),
        ("publish jobs --body x --priority 10", "0..=9"),
        (
            "browse jobs --state lost",
            "possible values: ready, delayed, leased, dead",
        ),
        (
            "queue purge jobs --state leased",
            "possible values: ready, delayed, dead",
        ),
        (
            "exchange declare orders --kind round",
            "possible values: direct, fanout, topic, headers",
        ),
        ("message delete jobs", "MESSAGE_ID"),
        ("redrive", "<QUEUE>"),
    ] {
        // Nobody is asked.
        let told = at("127.0.0.1:1", &line.split(' ').collect::<Vec<_>>())?;
        let told = told.exits(USAGE).with_context(|| line.to_owned())?;
        ensure!(told.error.contains(part), "{line}: {told:?}");
    }
    Ok(())
}
