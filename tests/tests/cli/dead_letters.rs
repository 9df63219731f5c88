//! Dead letters: looked at, given another chance, and that taken back.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use quorate_test_cluster::Cluster;
use quorate_tests::program::{self, run};
use serde_json::{Value, json};

use crate::{DONE, REFUSED, done, ids, many, one, publish, text};

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_set_is_redriven_and_that_is_undone() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    one(&cluster, "queue declare jobs --max-deliveries 1")?;
    one(&cluster, "queue declare small --max-length 1")?;
    let acme = publish(&cluster, "jobs --body a --header tenant=acme")?;
    let other = publish(&cluster, "jobs --body b")?;
    for reason in ["no-picture", "no-paint"] {
        let leased = many(&cluster, "lease jobs --wait 5s")?;
        one(
            &cluster,
            &format!("nack {} --reason {reason}", text(&leased[0]["token"])?),
        )?;
    }
    let dead = many(&cluster, "browse jobs --state dead --reason max-deliveries")?;
    ensure!(ids(&dead) == [&acme, &other], "{dead:?}");
    ensure!(
        dead[0]["dead"]["reason"] == "max-deliveries" && dead[0]["last_error"] == "no-picture",
        "{dead:?}"
    );
    ensure!(
        many(&cluster, "browse jobs --reason rejected")?.is_empty(),
        "another reason"
    );

    // Back into the queue, and out of it again by the command that it prints.
    let redriven = one(&cluster, "redrive jobs --header tenant=acme")?;
    ensure!(
        redriven["redriven"] == 1 && redriven["refused"] == 0,
        "{redriven}"
    );
    let ready = many(
        &cluster,
        &format!("browse jobs --redrive {}", redriven["redrive"]),
    )?;
    ensure!(
        ids(&ready) == [&acme] && ready[0]["state"] == "ready",
        "{ready:?}"
    );
    ensure!(undo(&cluster, &redriven)?["undone"] == 1, "not undone");
    ensure!(
        many(&cluster, "browse jobs --state dead")?.len() == 2,
        "not undone"
    );

    // There is room for one: the other is refused, and says why.
    let arguments = ["redrive", "jobs", "--to", "small", "--rate", "100/s", "--json"];
    let full = run(&cluster, &arguments)?.exits(REFUSED)?;
    let told = &full.json()?[0];
    ensure!(told["redriven"] == 1 && told["refused"] == 1, "{told}");
    ensure!(told["refusals"][0]["reason"] == "QUEUE_FULL", "{told}");
    ensure!(full.json_error()?["error"] == "refused", "{full:?}");
    ensure!(
        many(&cluster, "browse jobs --state dead")?.len() == 1,
        "the refused one is gone"
    );
    let full = run(&cluster, &["redrive", "jobs", "--to", "small"])?.exits(REFUSED)?;
    ensure!(full.output.contains("1 message refused:\n  "), "{full:?}");

    let by_id = one(
        &cluster,
        &format!("redrive jobs --id {other} --max 5 --older-than 0s"),
    )?;
    ensure!(by_id["redriven"] == 1, "{by_id}");
    let nothing = one(&cluster, "redrive jobs")?;
    ensure!(
        nothing["redriven"] == 0 && nothing["undo"] == json!([]),
        "{nothing}"
    );
    // From another queue it comes back as well.
    let undone = undo(&cluster, told)?;
    ensure!(undone["queue"] == "small" && undone["undone"] == 1, "{undone}");
    let dead = many(&cluster, "browse jobs --state dead")?;
    ensure!(ids(&dead) == [&acme], "{dead:?}");
    Ok(())
}

/// Runs the command by which a redrive said that it is undone.
fn undo(cluster: &Cluster, redriven: &Value) -> Result<Value> {
    let command = text(&redriven["undo"][0])?;
    one(cluster, command.strip_prefix("quorate ").context("a command")?)
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_go_back_to_where_they_came_from() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    one(&cluster, "queue declare failed")?;
    for queue in ["jobs", "mails"] {
        one(&cluster, &format!("queue declare {queue} --dead-letter failed"))?;
        publish(&cluster, &format!("{queue} --body {queue}"))?;
        let leased = many(&cluster, &format!("lease {queue} --wait 5s"))?;
        one(
            &cluster,
            &format!("dead-letter {} --reason broken", text(&leased[0]["token"])?),
        )?;
    }
    let failed = many(&cluster, "browse failed")?;
    ensure!(
        failed.len() == 2 && failed[0]["dead_letter"]["origin_queue"] == "jobs",
        "{failed:?}"
    );
    let redriven = run(&cluster, &["redrive", "failed"])?.exits(DONE)?;
    ensure!(
        redriven
            .output
            .starts_with("2 messages redriven from queue failed\n"),
        "{redriven:?}"
    );
    let undo: Vec<_> = redriven
        .output
        .lines()
        .filter_map(|line| line.strip_prefix("to undo it: quorate "))
        .collect();
    ensure!(undo.len() == 2, "{redriven:?}");
    for (queue, command) in ["jobs", "mails"].into_iter().zip(undo) {
        ensure!(
            many(&cluster, &format!("browse {queue}"))?.len() == 1,
            "not in queue {queue}"
        );
        let undone = done(&cluster, &command.split(' ').collect::<Vec<_>>())?;
        ensure!(undone[0]["undone"] == 1, "{command}: {undone:?}");
    }
    ensure!(many(&cluster, "browse failed")?.len() == 2, "not undone");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redrive_that_is_interrupted_tells_what_it_did() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    one(&cluster, "queue declare jobs")?;
    one(&cluster, "publish jobs --count 300")?;
    let leased = many(&cluster, "lease jobs --max 300")?;
    let tokens = leased.iter().filter_map(|lease| lease["token"].as_str());
    done(
        &cluster,
        &["dead-letter"].into_iter().chain(tokens).collect::<Vec<_>>(),
    )?;

    // At this pace it would take five minutes.
    let mut command = Command::new(program::path()?);
    command.args(["redrive", "jobs", "--rate", "1/s"]);
    command.env("QUORATE_ENDPOINT", cluster.endpoints().join(","));
    let redrive = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let ready = || -> Result<u64> {
        let jobs = one(&cluster, "queue show jobs")?;
        jobs["counts"]["ready"].as_u64().context("a count")
    };
    cluster
        .wait_until("two batches to be redriven", async || {
            ready().ok().filter(|count| *count > 1)
        })
        .await?;
    let killed = Command::new("kill")
        .args(["-INT", &redrive.id().to_string()])
        .status()?;
    ensure!(killed.success(), "kill: {killed}");
    let told = redrive.wait_with_output()?;
    ensure!(told.status.code() == Some(130), "{told:?}");

    let output = String::from_utf8(told.stdout)?;
    let redriven = ready()?;
    ensure!(redriven < 300, "it was not interrupted");
    ensure!(
        output.contains(&format!("{redriven} message")),
        "{redriven}: {output}"
    );
    let undo: Vec<_> = output
        .lines()
        .filter_map(|line| line.strip_prefix("to undo it: quorate "))
        .collect();
    ensure!(undo.len() == 1, "one command undoes all of it: {output}");
    let undone = one(&cluster, undo[0])?;
    ensure!(undone["undone"] == redriven, "{undone}");
    Ok(())
}
