//! How a command ends, and what to do next.

use std::fmt;
use std::io;
use std::process::ExitCode;

use quorate_client::{Error, Reason, Refusal, Sought};
use serde_json::{Value, json};

/// Why a command did not end well.
#[derive(Debug)]
pub(crate) enum Failure {
    /// What the library said, and what the call was about.
    Client { error: Error, subject: Option<Subject> },
    /// The command cannot be carried out as it was typed.
    Usage(String),
    /// A part of what was asked for was refused; each part has been told.
    Partly { class: Class, message: String },
    /// What was asked about is not there.
    NotFound { message: String, advice: String },
    /// Standard output was closed by its reader, which has seen enough.
    OutputClosed,
    /// Standard input or output, or a file, failed.
    Io { action: String, source: io::Error },
    /// Interrupted a second time.
    Interrupted,
}

/// What a call was about, and an error may be, too.
#[derive(Clone, Debug)]
pub(crate) enum Subject {
    Queue(String),
    Exchange(String),
}

impl Subject {
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Subject::Queue(_) => "queue",
            Subject::Exchange(_) => "exchange",
        }
    }

    pub(crate) fn name(&self) -> &str {
        match self {
            Subject::Queue(name) | Subject::Exchange(name) => name,
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind(), self.name())
    }
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
        Self::of(Subject::Queue(queue.to_owned()))
    }

    /// An error that concerns an exchange.
    pub(crate) fn of_exchange(exchange: &str) -> impl Fn(Error) -> Self {
        Self::of(Subject::Exchange(exchange.to_owned()))
    }

    /// An error that concerns the subject of a call.
    pub(crate) fn of(subject: Subject) -> impl Fn(Error) -> Self {
        move |error| Failure::Client {
            error,
            subject: Some(subject.clone()),
        }
    }

    /// Sums up parts of which each has been told: no error, no failure.
    pub(crate) fn of_parts(errors: &[Error], message: impl FnOnce() -> String) -> Result<(), Self> {
        match errors.iter().map(Class::of).max() {
            None => Ok(()),
            Some(class) => Err(Failure::Partly {
                class,
                message: message(),
            }),
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
            Failure::NotFound { .. } | Failure::Io { .. } => Class::Refused as u8,
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
            Failure::Usage(message) | Failure::Partly { message, .. } | Failure::NotFound { message, .. } => {
                message.clone()
            }
            Failure::OutputClosed => "standard output was closed".to_owned(),
            Failure::Io { action, source } => format!("{action}: {source}"),
            Failure::Interrupted => "interrupted".to_owned(),
        }
    }

    fn advice(&self) -> Option<String> {
        match self {
            Failure::Client { error, subject } => advice(error, subject.as_ref()),
            Failure::NotFound { advice, .. } => Some(advice.clone()),
            _ => None,
        }
    }

    fn to_json(&self) -> Value {
        let class = match self {
            Failure::Client { error, .. } => Class::of(error).as_str(),
            Failure::Usage(_) => Class::Usage.as_str(),
            Failure::Partly { class, .. } => class.as_str(),
            Failure::NotFound { .. } => Class::Refused.as_str(),
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
fn advice(error: &Error, subject: Option<&Subject>) -> Option<String> {
    match error {
        Error::Refused(refusal) => refused_advice(refusal, subject),
        Error::Unknown { .. } => Some(
            "It may have been applied. Look before you repeat it: `quorate queue show`, `quorate cluster status`."
                .to_owned(),
        ),
        Error::Unreachable {
            who: Sought::Node(_), ..
        } => Some("`quorate cluster status` shows who answers, and at which client addresses.".to_owned()),
        Error::Unreachable { .. } => Some(
            "`quorate cluster status` shows who answers: without a majority of the nodes there is no leader, and \
             `quorate browse --local` still shows messages. Name nodes that run with --endpoint host:port,…; \
             `quorate dev` starts a cluster on this machine."
                .to_owned(),
        ),
        _ => None,
    }
}

fn refused_advice(refusal: &Refusal, subject: Option<&Subject>) -> Option<String> {
    let named = |key: &str| refusal.context.get(key).map(String::as_str);
    let queue = named("queue").or(match subject {
        Some(Subject::Queue(queue)) => Some(queue),
        _ => None,
    });
    let exchange = named("exchange").or(match subject {
        Some(Subject::Exchange(exchange)) => Some(exchange),
        _ => None,
    });
    match refusal.reason {
        Reason::ExchangeNotFound | Reason::ExchangeConflict | Reason::ExchangeInUse | Reason::Unroutable => {
            exchange_advice(refusal.reason, &quoted(exchange.unwrap_or("NAME")))
        }
        Reason::Overloaded | Reason::LimitExceeded if refusal.retryable => {
            Some("Try again in a moment.".to_owned())
        }
        reason => queue_advice(reason, &quoted(queue.unwrap_or("NAME"))),
    }
}

fn queue_advice(reason: Reason, queue: &str) -> Option<String> {
    Some(match reason {
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
        Reason::MessageNotFound => {
            format!(
                "`quorate browse {queue}` shows what the queue holds, `quorate trace` what became of a message."
            )
        }
        Reason::WrongState => {
            format!("`quorate browse {queue}` shows its state; a leased message is its holder's to settle.")
        }
        Reason::SingleActiveConsumer => {
            format!(
                "Take its messages with `quorate consume {queue}`, or open it with `quorate queue update {queue} \
                 --single-active-consumer=false`."
            )
        }
        Reason::TransactionRefused => {
            "Nothing of it was done. Correct that part, or leave it out.".to_owned()
        }
        _ => return None,
    })
}

fn exchange_advice(reason: Reason, exchange: &str) -> Option<String> {
    Some(match reason {
        Reason::ExchangeNotFound => {
            format!(
                "Make it with `quorate exchange declare {exchange} --kind direct`, or see what there is with \
                 `quorate exchange list`."
            )
        }
        Reason::ExchangeConflict => {
            format!(
                "Compare with `quorate exchange show {exchange}`; change settings with `quorate exchange update \
                 {exchange}`; a kind stays what it is."
            )
        }
        Reason::ExchangeInUse => {
            format!(
                "See its bindings with `quorate exchange show {exchange}` and remove them with `quorate unbind`, or \
                 delete it without --if-unused."
            )
        }
        Reason::Unroutable => {
            format!(
                "See where it leads with `quorate exchange show {exchange}`, bind a queue with `quorate bind \
                 {exchange} QUEUE`, or publish without --mandatory."
            )
        }
        _ => return None,
    })
}

/// A name as a shell takes it.
pub(crate) fn quoted(name: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./:@".contains(c);
    if name.chars().all(plain) {
        name.to_owned()
    } else {
        format!("'{}'", name.replace('\'', r"'\''"))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Client { error, subject: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unreachable() -> Error {
        Error::Unreachable {
            who: Sought::Leader,
            cause: String::new(),
            request_id: None,
        }
    }

    #[test]
    fn codes_are_the_documented_ones() {
        let code = |error: Error| Failure::from(error).code();
        assert_eq!(code(Error::Invalid(String::new())), 2);
        assert_eq!(
            code(Error::Unknown {
                action: "publish",
                cause: String::new(),
                request_id: None
            }),
            3
        );
        assert_eq!(code(unreachable()), 4);
        assert_eq!(Failure::OutputClosed.code(), 0);
    }

    #[test]
    fn names_are_quoted_for_a_shell() {
        assert_eq!(quoted("jobs.high"), "jobs.high");
        assert_eq!(quoted("my jobs"), "'my jobs'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }

    #[test]
    fn parts_are_as_bad_as_the_worst_of_them() {
        let (refused, unknown) = (
            unreachable(),
            Error::Unknown {
                action: "settle",
                cause: String::new(),
                request_id: None,
            },
        );
        let failure = Failure::of_parts(&[unknown, refused], || "2 of 3".to_owned()).unwrap_err();
        assert_eq!((failure.code(), failure.message().as_str()), (4, "2 of 3"));
        assert!(Failure::of_parts(&[], || "0 of 3".to_owned()).is_ok());
    }

    #[test]
    fn every_refusal_that_a_person_can_cure_says_how() {
        for (reason, advice) in [
            (Reason::QueueNotFound, "`quorate queue declare 'my jobs'`"),
            (Reason::MessageNotFound, "`quorate browse 'my jobs'`"),
            (Reason::WrongState, "`quorate browse 'my jobs'`"),
            (Reason::SingleActiveConsumer, "`quorate consume 'my jobs'`"),
        ] {
            let told = queue_advice(reason, &quoted("my jobs")).unwrap_or_default();
            assert!(told.contains(advice), "{reason}: {told}");
        }
        for (reason, advice) in [
            (
                Reason::ExchangeNotFound,
                "`quorate exchange declare orders --kind direct`",
            ),
            (Reason::ExchangeConflict, "`quorate exchange update orders`"),
            (Reason::ExchangeInUse, "`quorate unbind`"),
            (Reason::Unroutable, "`quorate bind orders QUEUE`"),
        ] {
            let told = exchange_advice(reason, "orders").unwrap_or_default();
            assert!(told.contains(advice), "{reason}: {told}");
        }
    }

    #[test]
    fn an_error_in_json_tells_what_a_script_needs() {
        let failure = Failure::of_queue("jobs")(Error::Unknown {
            action: "publish",
            cause: "x".to_owned(),
            request_id: None,
        });
        let value = failure.to_json();
        assert_eq!(value["error"], "unknown");
        assert_eq!(value["may_have_applied"], true);
        assert!(value["advice"].is_string());
    }
}
