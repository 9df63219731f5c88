//! How a command ends, and what to do next.

use std::io;
use std::process::ExitCode;

use quorate_client::{Error, Reason};
use serde_json::{Value, json};

/// Why a command did not end well.
#[derive(Debug)]
pub(crate) enum Failure {
    /// What the library said, and the queue that it was about.
    Client { error: Error, queue: Option<String> },
    /// The command cannot be carried out as it was typed.
    Usage(String),
    /// A part of what was asked for was refused; each part has been told.
    Partly { class: Class, message: String },
    /// Standard output was closed by its reader, which has seen enough.
    OutputClosed,
    /// Standard input or output, or a file, failed.
    Io { action: String, source: io::Error },
    /// Interrupted a second time.
    Interrupted,
}

/// The exit codes that scripts can rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    Ok = 0,
    Refused = 1,
    Usage = 2,
    Unknown = 3,
    Unreachable = 4,
}

impl Failure {
    /// An error that concerns a queue.
    pub(crate) fn of_queue(queue: &str) -> impl Fn(Error) -> Self {
        move |error| Failure::Client {
            error,
            queue: Some(queue.to_owned()),
        }
    }

    pub(crate) fn io(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let action = action.into();
        move |source| Failure::Io { action, source }
    }

    /// Tells it on standard error, and returns the exit code.
    pub(crate) fn report(&self, json: bool) -> ExitCode {
        if !matches!(self, Failure::OutputClosed) {
            if json {
                eprintln!("{}", self.to_json());
            } else {
                eprintln!("quorate: {}", self.message());
                if let Some(advice) = self.advice() {
                    eprintln!("  {advice}");
                }
            }
        }
        ExitCode::from(self.code())
    }

    fn code(&self) -> u8 {
        match self {
            Failure::Client { error, .. } => Class::of(error) as u8,
            Failure::Usage(_) => Class::Usage as u8,
            Failure::Partly { class, .. } => *class as u8,
            Failure::OutputClosed => Class::Ok as u8,
            Failure::Io { .. } => Class::Refused as u8,
            Failure::Interrupted => 130,
        }
    }

    fn message(&self) -> String {
        match self {
            Failure::Client {
                error: Error::Refused(refusal),
                ..
            } => refusal.message.clone(),
            Failure::Client { error, .. } => error.to_string(),
            Failure::Usage(message) | Failure::Partly { message, .. } => message.clone(),
            Failure::OutputClosed => "standard output was closed".to_owned(),
            Failure::Io { action, source } => format!("{action}: {source}"),
            Failure::Interrupted => "interrupted".to_owned(),
        }
    }

    fn advice(&self) -> Option<String> {
        match self {
            Failure::Client { error, queue } => advice(error, queue.as_deref()),
            _ => None,
        }
    }

    fn to_json(&self) -> Value {
        let class = match self {
            Failure::Client { error, .. } => Class::of(error).as_str(),
            Failure::Usage(_) => Class::Usage.as_str(),
            Failure::Partly { class, .. } => class.as_str(),
            Failure::OutputClosed | Failure::Io { .. } => "io",
            Failure::Interrupted => "interrupted",
        };
        let mut value = json!({ "error": class, "message": self.message() });
        if let Failure::Client { error, .. } = self {
            value["retryable"] = error.is_retryable().into();
            value["may_have_applied"] = error.may_have_applied().into();
            if let Some(refusal) = error.refusal() {
                value["reason"] = refusal.reason.as_str().into();
                value["context"] = json!(refusal.context);
            }
        }
        if let Some(advice) = self.advice() {
            value["advice"] = advice.into();
        }
        value
    }
}

impl Class {
    pub(crate) fn of(error: &Error) -> Self {
        match error {
            Error::Invalid(_) => Class::Usage,
            Error::Unknown { .. } => Class::Unknown,
            Error::Unreachable { .. } => Class::Unreachable,
            // The library may learn to tell more kinds of no apart.
            _ => Class::Refused,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Class::Ok => "none",
            Class::Refused => "refused",
            Class::Usage => "usage",
            Class::Unknown => "unknown",
            Class::Unreachable => "unreachable",
        }
    }
}

/// What a person can do about it.
fn advice(error: &Error, queue: Option<&str>) -> Option<String> {
    let refusal = match error {
        Error::Refused(refusal) => refusal,
        Error::Unknown { .. } => {
            return Some(
                "It may have been applied. Look before you repeat it: `quorate queue show`, `quorate cluster status`."
                    .to_owned(),
            );
        }
        Error::Unreachable { .. } => {
            return Some(
                "Name nodes that run with --endpoint host:port,…; `quorate cluster status` shows who answers; \
                 `quorate dev` starts a cluster on this machine."
                    .to_owned(),
            );
        }
        _ => return None,
    };
    let named = refusal.context.get("queue").map(String::as_str).or(queue);
    let queue = quoted(named.unwrap_or("NAME"));
    Some(match refusal.reason {
        Reason::QueueNotFound => {
            format!(
                "Make it with `quorate queue declare {queue}`, or see what there is with `quorate queue list`."
            )
        }
        Reason::QueueConflict => {
            format!(
                "Compare with `quorate queue show {queue}`; change it with `quorate queue update {queue}`."
            )
        }
        Reason::QueueNotEmpty => {
            format!("Empty it with `quorate queue purge {queue}`, or delete it without --if-empty.")
        }
        Reason::QueueInUse => "Stop its consumers, or delete it without --if-unused.".to_owned(),
        Reason::QueueFull => {
            format!(
                "Consume from it, or raise its limits with `quorate queue update {queue} --max-length N`."
            )
        }
        Reason::StaleLease => {
            "The lease has ended; somebody else may hold the message by now. Lease it again to settle it."
                .to_owned()
        }
        Reason::Overloaded | Reason::LimitExceeded if refusal.retryable => {
            "Try again in a moment.".to_owned()
        }
        _ => return None,
    })
}

/// A name as a shell takes it.
fn quoted(name: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./:@".contains(c);
    if name.chars().all(plain) {
        name.to_owned()
    } else {
        format!("'{}'", name.replace('\'', r"'\''"))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Client { error, queue: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_the_documented_ones() {
        let code = |error: Error| Failure::from(error).code();
        assert_eq!(code(Error::Invalid(String::new())), 2);
        assert_eq!(
            code(Error::Unknown {
                action: "publish",
                cause: String::new()
            }),
            3
        );
        assert_eq!(code(Error::Unreachable { cause: String::new() }), 4);
        assert_eq!(Failure::OutputClosed.code(), 0);
    }

    #[test]
    fn names_are_quoted_for_a_shell() {
        assert_eq!(quoted("jobs.high"), "jobs.high");
        assert_eq!(quoted("my jobs"), "'my jobs'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }

    #[test]
    fn an_error_in_json_tells_what_a_script_needs() {
        let failure = Failure::of_queue("jobs")(Error::Unknown {
            action: "publish",
            cause: "x".to_owned(),
        });
        let value = failure.to_json();
        assert_eq!(value["error"], "unknown");
        assert_eq!(value["may_have_applied"], true);
        assert!(value["advice"].is_string());
    }
}
