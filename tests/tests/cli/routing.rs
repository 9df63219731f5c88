//! Exchanges, bindings, and what they make of a publish.

use anyhow::{Result, ensure};
use quorate_test_cluster::Cluster;
use quorate_tests::program::run;
use serde_json::json;

use crate::{DONE, REFUSED, many, one, publish, refused, shown};

#[tokio::test(flavor = "multi_thread")]
async fn messages_are_led_by_commands() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    for queue in ["invoices", "audit", "unrouted"] {
        one(&cluster, &format!("queue declare {queue}"))?;
    }

    let declared = one(&cluster, "exchange declare orders --kind topic --dedup-window 5m")?;
    ensure!(
        declared["created"] == true && declared["log_index"].is_u64(),
        "{declared}"
    );
    let again = one(&cluster, "exchange declare orders --kind topic")?;
    ensure!(again["created"] == false, "{again}");
    let conflict = refused(&cluster, "exchange declare orders --kind fanout")?;
    ensure!(conflict["reason"] == "EXCHANGE_CONFLICT", "{conflict}");
    one(&cluster, "exchange declare everything --kind fanout")?;

    let bound = one(&cluster, "bind orders invoices --key *.paid")?;
    ensure!(
        bound["created"] == true && bound["binding"]["name"] == "invoices",
        "{bound}"
    );
    one(&cluster, "bind orders --to-exchange everything --key #")?;
    one(&cluster, "bind everything audit")?;

    // To one queue by its pattern, to another through a second exchange.
    let order = publish(&cluster, "--exchange orders --routing-key eu.paid --body paid")?;
    for queue in ["invoices", "audit"] {
        let leased = many(&cluster, &format!("lease {queue} --wait 5s"))?;
        ensure!(
            leased.len() == 1 && leased[0]["message_id"] == order.as_str(),
            "{queue}: {leased:?}"
        );
        ensure!(
            leased[0]["exchange"] == "orders" && leased[0]["routing_key"] == "eu.paid",
            "{leased:?}"
        );
    }

    one(&cluster, "unbind orders --to-exchange everything --key #")?;
    let dropped = one(
        &cluster,
        "publish --exchange orders --routing-key eu.open --body open",
    )?;
    ensure!(dropped["unroutable"] == json!([0]), "{dropped}");
    let told = run(
        &cluster,
        &[
            "publish",
            "--exchange",
            "orders",
            "--routing-key",
            "eu.open",
            "--body",
            "open",
        ],
    )?
    .exits(DONE)?;
    ensure!(told.error.contains("quorate exchange show orders"), "{told:?}");
    let mandatory = refused(
        &cluster,
        "publish --exchange orders --routing-key eu.open --mandatory --body open",
    )?;
    ensure!(mandatory["reason"] == "UNROUTABLE", "{mandatory}");

    one(&cluster, "exchange declare rest --kind fanout")?;
    one(&cluster, "bind rest unrouted")?;
    one(&cluster, "exchange update orders --alternate rest")?;
    publish(
        &cluster,
        "--exchange orders --routing-key eu.open --mandatory --body open",
    )?;
    ensure!(
        many(&cluster, "lease unrouted --wait 5s")?.len() == 1,
        "no alternate"
    );

    let listed = many(&cluster, "exchange list")?;
    let names: Vec<_> = listed
        .iter()
        .filter_map(|exchange| exchange["name"].as_str())
        .collect();
    ensure!(names == ["everything", "orders", "rest"], "{listed:?}");
    let orders = one(&cluster, "exchange show orders")?;
    ensure!(
        orders["kind"] == "topic" && orders["settings"]["alternate_exchange"] == "rest",
        "{orders}"
    );
    ensure!(
        orders["bindings"]
            .as_array()
            .is_some_and(|bindings| bindings.len() == 1),
        "{orders}"
    );
    let text = shown(&cluster, "exchange show orders")?;
    ensure!(text.contains("queue invoices  *.paid"), "{text}");

    let in_use = refused(&cluster, "exchange delete orders --if-unused")?;
    ensure!(in_use["reason"] == "EXCHANGE_IN_USE", "{in_use}");
    one(&cluster, "exchange delete orders")?;
    let gone = run(&cluster, &["publish", "--exchange", "orders", "--body", "x"])?.exits(REFUSED)?;
    ensure!(gone.error.contains("quorate exchange declare orders"), "{gone:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_choose_and_a_dedup_id_is_taken_once() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    for queue in ["eu", "either"] {
        one(&cluster, &format!("queue declare {queue} --dedup-window 10m"))?;
    }
    one(&cluster, "exchange declare regions --kind headers")?;
    one(&cluster, "bind regions eu --header region=eu --present vat")?;
    one(
        &cluster,
        "bind regions either --header region=us --present vat --any",
    )?;
    for (headers, eu, either) in [
        ("--header region=eu --header vat=7", 1, 1),
        ("--header region=eu", 0, 0),
        ("--header region=us", 0, 1),
    ] {
        one(
            &cluster,
            &format!("publish --exchange regions {headers} --body x"),
        )?;
        ensure!(many(&cluster, "lease eu")?.len() == eu, "{headers}");
        ensure!(many(&cluster, "lease either")?.len() == either, "{headers}");
    }

    one(&cluster, "exchange declare all --kind fanout")?;
    for (exchange, part) in [
        ("regions", ""),
        (
            "all",
            "exchange all is a fanout exchange: it ignores the headers of the binding",
        ),
    ] {
        let told = run(&cluster, &["bind", exchange, "eu", "--header", "vat=7"])?.exits(DONE)?;
        ensure!(
            told.error.is_empty() == part.is_empty() && told.error.contains(part),
            "{told:?}"
        );
    }

    let first = publish(&cluster, "eu --body a --dedup-id order-9")?;
    let second = one(&cluster, "publish eu --body b --dedup-id order-9")?;
    ensure!(second["message_ids"] == json!([first]), "{second}");
    ensure!(
        second["duplicates"] == json!([{ "place": 0, "state": "ready" }]),
        "{second}"
    );
    let told = run(
        &cluster,
        &["publish", "eu", "--body", "c", "--dedup-id", "order-9"],
    )?
    .exits(DONE)?;
    ensure!(
        told.output.trim() == first && told.error.contains("duplicate"),
        "{told:?}"
    );
    let counted = one(&cluster, "publish eu --count 3 --dedup-id order-9")?;
    ensure!(
        counted["published"] == 3 && counted["duplicates"] == 3,
        "{counted}"
    );
    let counts = &one(&cluster, "queue show eu")?["counts"];
    ensure!(counts["ready"] == 1 && counts["duplicates"] == 5, "{counts}");
    Ok(())
}
