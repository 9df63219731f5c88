//! What can come of a call, other than that it was done.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use quorate_proto::v1;

use crate::failure::reason;
use crate::request_id::RequestId;

/// A call was not done, or it is not known whether it was.
///
/// The two questions that matter to a caller have an answer each:
/// [`is_retryable`](Error::is_retryable) and
/// [`may_have_applied`](Error::may_have_applied).
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The broker said no. The call certainly changed nothing.
    #[error("refused: {0}")]
    Refused(Box<Refusal>),
    /// The call was sent, and no answer came in time. It may have been applied,
    /// once; or it never will be.
    #[error("the outcome of {action} is unknown: {cause}")]
    Unknown {
        /// What was asked for, such as `publish`.
        action: &'static str,
        /// What happened to the last attempt.
        cause: String,
        /// Under which every attempt was made; None if no request was made yet, or
        /// of a call that has none.
        request_id: Option<RequestId>,
    },
    /// Nobody who could do it was reached in time. The call certainly changed
    /// nothing.
    #[error("could not reach {who}: {cause}")]
    Unreachable {
        /// Who was sought.
        who: Sought,
        /// What happened to the last attempt.
        cause: String,
        /// Under which every attempt was made; None if no request was made yet, or
        /// of a call that has none.
        request_id: Option<RequestId>,
    },
    /// The call breaks a rule that this library checks before it sends anything.
    #[error("invalid: {0}")]
    Invalid(String),
}

/// Whom a call was for, when nobody could be [reached](Error::Unreachable).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Sought {
    /// The node that leads.
    Leader,
    /// Any node.
    Any,
    /// The node at this address (`host:port`), and no other.
    Node(String),
}

/// The broker's no.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusal {
    /// Why, for a program.
    pub reason: Reason,
    /// Why and what to do, for a person.
    pub message: String,
    /// The same call can succeed later.
    pub retryable: bool,
    /// Advice to wait at least this long before the call is repeated.
    pub retry_after: Option<Duration>,
    /// Names and values that the message speaks of: field, limit, queue,
    /// differing settings.
    pub context: BTreeMap<String, String>,
    /// Of the refused request; None if the call has none.
    pub request_id: Option<RequestId>,
}

/// The part for which a transaction was refused as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedPart {
    /// Which.
    pub part: TransactionPart,
    /// What the broker would have said to it alone.
    pub reason: Reason,
}

/// A part of a transaction, by its place among those of its kind, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TransactionPart {
    /// An ack, nack, release, dead-letter or extend.
    Settlement(usize),
    /// A publish.
    Publish(usize),
}

/// Why the broker refused a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// A field is malformed or out of bounds; `context` names it.
    InvalidArgument,
    /// There is no queue of that name.
    QueueNotFound,
    /// The queue exists with other settings; `context` lists the differing ones.
    QueueConflict,
    /// The queue holds messages, and the call asked for an empty one.
    QueueNotEmpty,
    /// The queue has consumers, and the call asked for one without.
    QueueInUse,
    /// The queue is at a limit, and its overflow policy is to reject.
    QueueFull,
    /// A body is larger than 16 MiB.
    MessageTooLarge,
    /// Header names and values are together larger than 64 KiB.
    HeadersTooLarge,
    /// The token is not the current lease of its message: it expired, was
    /// settled, or the message is gone.
    StaleLease,
    /// The request id is older than what the broker remembers.
    RequestForgotten,
    /// The session has ended, or was taken over by another stream.
    SessionLost,
    /// A limit of the cluster is reached.
    LimitExceeded,
    /// The queue of the consumer was deleted.
    ConsumerCancelled,
    /// There is no exchange of that name.
    ExchangeNotFound,
    /// The exchange exists with another kind or other settings; `context` lists
    /// the differing ones.
    ExchangeConflict,
    /// A binding leads from or to the exchange, and the call asked for one
    /// without.
    ExchangeInUse,
    /// A message has no route, and the publish is mandatory.
    Unroutable,
    /// The queue holds no such message.
    MessageNotFound,
    /// This cannot be done in the message's state; `context` names it.
    WrongState,
    /// The queue has a single active consumer, and cannot be leased from.
    SingleActiveConsumer,
    /// A part of the transaction cannot be done, so nothing of it was: see
    /// [`Refusal::refused_part`].
    TransactionRefused,
    /// The node does not lead.
    NotLeader,
    /// The cluster has no leader at the moment.
    NoLeader,
    /// The node has more work than it accepts.
    Overloaded,
    /// The node is going down.
    ShuttingDown,
    /// The node belongs to another cluster.
    WrongCluster,
    /// The broker does not know what came of the call.
    UnknownOutcome,
    /// The node failed; its log says how.
    Internal,
    /// None of the above: an older or newer broker, or something between it
    /// and this client.
    Other,
}

/// What every call returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Whether asking again, later, can succeed.
    ///
    /// A new call is a new request: after [`Error::Unknown`] it may do the work
    /// a second time, which is fine for whatever is idempotent (declare, ack)
    /// and a possible duplicate for a publish. The library itself has by then
    /// repeated the *same* request until its deadline, which is always safe.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Error::Refused(refusal) => refusal.retryable,
            Error::Unknown { .. } | Error::Unreachable { .. } => true,
            Error::Invalid(_) => false,
        }
    }

    /// Whether the call may have been applied. False = it certainly was not.
    #[must_use]
    pub fn may_have_applied(&self) -> bool {
        matches!(self, Error::Unknown { .. })
    }

    /// The id of the request, under which it stands in the broker's log if it is
    /// there. None if no request was made, or of a call that changes nothing.
    #[must_use]
    pub fn request_id(&self) -> Option<RequestId> {
        match self {
            Error::Refused(refusal) => refusal.request_id,
            Error::Unknown { request_id, .. } | Error::Unreachable { request_id, .. } => *request_id,
            Error::Invalid(_) => None,
        }
    }

    /// This error, of the request of that id.
    pub(crate) fn of(mut self, id: RequestId) -> Self {
        match &mut self {
            Error::Refused(refusal) => refusal.request_id = Some(id),
            Error::Unknown { request_id, .. } | Error::Unreachable { request_id, .. } => {
                *request_id = Some(id);
            }
            Error::Invalid(_) => {}
        }
        self
    }

    /// No leader was found in time.
    pub(crate) fn no_leader(cause: String) -> Self {
        Error::Unreachable {
            who: Sought::Leader,
            cause,
            request_id: None,
        }
    }

    /// The broker's no, if it is one.
    #[must_use]
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Error::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }

    /// The reason of the broker's no, if it is one.
    #[must_use]
    pub fn reason(&self) -> Option<Reason> {
        self.refusal().map(|refusal| refusal.reason)
    }
}

impl fmt::Display for Sought {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sought::Leader => f.write_str("a leader"),
            Sought::Any => f.write_str("any node"),
            Sought::Node(address) => write!(f, "node {address}"),
        }
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        Error::Refused(Box::new(refusal))
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.reason)
    }
}

impl std::error::Error for Refusal {}

impl Refusal {
    /// Of a [transaction](crate::Transaction) that was refused because of one of
    /// its parts: which, and why.
    #[must_use]
    pub fn refused_part(&self) -> Option<RefusedPart> {
        if self.reason != Reason::TransactionRefused {
            return None;
        }
        let (kind, place) = self.context.get("part")?.split_once(' ')?;
        let place = place.parse().ok()?;
        let part = match kind {
            "settlement" => TransactionPart::Settlement(place),
            "publish" => TransactionPart::Publish(place),
            _ => return None,
        };
        let reason = self.context.get("reason").map_or("", String::as_str);
        Some(RefusedPart {
            part,
            reason: Reason::from_name(reason),
        })
    }
}

impl Reason {
    /// The reason as the protocol spells it, such as `QUEUE_NOT_FOUND`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::InvalidArgument => "INVALID_ARGUMENT",
            Reason::QueueNotFound => "QUEUE_NOT_FOUND",
            Reason::QueueConflict => "QUEUE_CONFLICT",
            Reason::QueueNotEmpty => "QUEUE_NOT_EMPTY",
            Reason::QueueInUse => "QUEUE_IN_USE",
            Reason::QueueFull => "QUEUE_FULL",
            Reason::MessageTooLarge => "MESSAGE_TOO_LARGE",
            Reason::HeadersTooLarge => "HEADERS_TOO_LARGE",
            Reason::StaleLease => "STALE_LEASE",
            Reason::RequestForgotten => "REQUEST_FORGOTTEN",
            Reason::SessionLost => "SESSION_LOST",
            Reason::LimitExceeded => "LIMIT_EXCEEDED",
            Reason::ConsumerCancelled => "CONSUMER_CANCELLED",
            Reason::ExchangeNotFound => "EXCHANGE_NOT_FOUND",
            Reason::ExchangeConflict => "EXCHANGE_CONFLICT",
            Reason::ExchangeInUse => "EXCHANGE_IN_USE",
            Reason::Unroutable => "UNROUTABLE",
            Reason::MessageNotFound => "MESSAGE_NOT_FOUND",
            Reason::WrongState => "WRONG_STATE",
            Reason::SingleActiveConsumer => "SINGLE_ACTIVE_CONSUMER",
            Reason::TransactionRefused => "TRANSACTION_REFUSED",
            Reason::NotLeader => "NOT_LEADER",
            Reason::NoLeader => "NO_LEADER",
            Reason::Overloaded => "OVERLOADED",
            Reason::ShuttingDown => "SHUTTING_DOWN",
            Reason::WrongCluster => "WRONG_CLUSTER",
            Reason::UnknownOutcome => "UNKNOWN_OUTCOME",
            Reason::Internal => "INTERNAL",
            Reason::Other => "OTHER",
        }
    }
}

impl Reason {
    /// The reason that the protocol spells so.
    fn from_name(name: &str) -> Self {
        let wire = v1::Reason::from_str_name(&format!("REASON_{name}"));
        wire.map_or(Reason::Other, reason)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
