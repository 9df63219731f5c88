//! Runs a program for a message, and keeps the lease while it runs.

use std::io;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use quorate_client::Delivery;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};
use tokio::time::{MissedTickBehavior, interval};

use crate::json;

/// What is kept of a program's standard error: as much as a nack may carry,
/// less a line for the exit status.
const TAIL_BYTES: usize = 900;

/// What came of a program.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    /// Why, with the end of its standard error.
    Failed(String),
}

/// Runs `command` in a shell with the body on standard input, and everything
/// else in the environment. The lease is extended by `lease` whenever a third of
/// that has passed. Dropping the future kills the program.
pub(crate) async fn run(command: &str, delivery: &mut Delivery, lease: Duration) -> Outcome {
    match spawn(command, delivery) {
        Ok(child) => attend(child, delivery, lease).await,
        Err(error) => Outcome::Failed(format!("start `{command}`: {error}")),
    }
}

fn spawn(command: &str, delivery: &Delivery) -> io::Result<Child> {
    let mut shell = Command::new("sh");
    shell
        .arg("-c")
        .arg(command)
        .envs(environment(delivery))
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    // Ctrl-C is for this program, which lets the other one finish.
    #[cfg(unix)]
    shell.process_group(0);
    shell.spawn()
}

fn environment(delivery: &Delivery) -> [(&'static str, String); 15] {
    let headers = serde_json::to_string(delivery.headers()).unwrap_or_default();
    // A variable ends at the first zero byte.
    let text = |text: Option<&str>| text.unwrap_or_default().replace('\0', "");
    [
        ("QUORATE_MESSAGE_ID", delivery.message_id().to_owned()),
        ("QUORATE_QUEUE", delivery.queue().to_owned()),
        ("QUORATE_TOKEN", delivery.token().to_owned()),
        ("QUORATE_FENCE", delivery.fence().to_string()),
        ("QUORATE_ATTEMPT", delivery.attempt().to_string()),
        ("QUORATE_REDELIVERED", delivery.redelivered().to_string()),
        ("QUORATE_PUBLISHED_AT_MS", delivery.published_at_ms().to_string()),
        ("QUORATE_LEASED_UNTIL_MS", delivery.leased_until_ms().to_string()),
        ("QUORATE_LAST_ERROR", text(delivery.last_error())),
        ("QUORATE_HEADERS", headers),
        ("QUORATE_EXCHANGE", text(delivery.exchange())),
        ("QUORATE_ROUTING_KEY", text(delivery.routing_key())),
        ("QUORATE_PRIORITY", delivery.priority().to_string()),
        ("QUORATE_GROUP", text(delivery.group())),
        ("QUORATE_DEDUP_ID", text(delivery.dedup_id())),
    ]
}

async fn attend(mut child: Child, delivery: &mut Delivery, lease: Duration) -> Outcome {
    let body = delivery.body().clone();
    let (stdin, stderr) = (child.stdin.take(), child.stderr.take());
    let feed = async {
        if let Some(mut stdin) = stdin {
            // A program may end, or close its input, without reading all of it.
            let _ = stdin.write_all(&body).await;
        }
    };
    let work = async {
        let (status, tail, ()) = tokio::join!(child.wait(), tail_of(stderr, io::stderr()), feed);
        (status, tail)
    };
    tokio::pin!(work);
    let mut extensions = interval((lease / 3).max(Duration::from_millis(10)));
    extensions.set_missed_tick_behavior(MissedTickBehavior::Delay);
    extensions.tick().await;
    let mut held = true;
    let (status, tail) = loop {
        tokio::select! {
            ended = &mut work => break ended,
            _ = extensions.tick(), if held => {
                // The program goes on in the meantime: only the answer waits.
                let extended = tokio::select! {
                    ended = &mut work => break ended,
                    extended = delivery.extend(lease) => extended,
                };
                if let Err(error) = extended {
                    held = error.is_retryable();
                    eprintln!("quorate: {}: the lease was not extended: {error}", delivery.message_id());
                }
            }
        }
    };
    match status {
        Ok(status) if status.success() => Outcome::Done,
        Ok(status) => Outcome::Failed(reason(status, &tail)),
        Err(error) => Outcome::Failed(format!("wait for the program: {error}")),
    }
}

/// Passes standard error on, and returns its end.
async fn tail_of(stderr: Option<impl AsyncRead + Unpin>, mut onward: impl io::Write) -> Vec<u8> {
    let mut tail = Vec::new();
    let Some(mut stderr) = stderr else { return tail };
    let mut buffer = vec![0; 8 << 10];
    while let Ok(count @ 1..) = stderr.read(&mut buffer).await {
        // Nobody may be there to read it.
        let _ = onward.write_all(&buffer[..count]);
        tail.extend_from_slice(&buffer[..count]);
        let surplus = tail.len().saturating_sub(TAIL_BYTES);
        tail.drain(..surplus);
    }
    tail
}

fn reason(status: ExitStatus, tail: &[u8]) -> String {
    let tail = String::from_utf8_lossy(tail);
    let tail = tail.trim();
    let mut reason = if tail.is_empty() {
        status.to_string()
    } else {
        format!("{status}: {tail}")
    };
    // Bytes that were not UTF-8 have become longer.
    while reason.len() > 1_024 {
        reason.pop();
    }
    reason
}

/// The delivery as the program sees it, for the log of this one.
pub(crate) fn failed_line(delivery: &Delivery, why: &str, json: bool) -> String {
    if json {
        let mut value = json::delivery(delivery);
        value["failed"] = why.into();
        return value.to_string();
    }
    format!(
        "quorate: {} failed, and comes again: {why}",
        delivery.message_id()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_end_of_standard_error_is_the_reason() {
        let script = "head -c 5000 /dev/zero | tr '\\0' x >&2; echo ' the end' >&2; exit 3";
        let mut child = Command::new("sh")
            .args(["-c", script])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut onward = Vec::new();
        let tail = tail_of(child.stderr.take(), &mut onward).await;
        let reason = reason(child.wait().await.unwrap(), &tail);
        assert!(reason.starts_with("exit status: 3: xxx"), "{reason}");
        assert!(
            reason.ends_with("xxx the end") && reason.len() <= 1_024,
            "{reason}"
        );
        assert_eq!(onward.len(), 5_009, "all of it was passed on");
    }
}
