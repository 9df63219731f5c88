//! Reads an error of the wire: is it final, or worth another attempt, and
//! could the attempt have been applied?

use std::error::Error as _;
use std::time::Duration;

use prost::Message as _;
use quorate_proto::v1;
use tonic::{Code, Status};

use crate::error::{Reason, Refusal};

/// What an attempt came to, other than done.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// The broker's no; asking again at once would get the same answer.
    Final(Refusal),
    /// The broker does not remember what it did with requests that old.
    Forgotten(Refusal),
    /// The session of a consumer is gone.
    SessionLost(Refusal),
    /// Another attempt can succeed.
    Again(Again),
}

/// Why and how to try again.
#[derive(Clone, Debug)]
pub(crate) struct Again {
    /// The failed attempt may have been applied.
    pub(crate) maybe: bool,
    /// Look for the leader before the next attempt.
    pub(crate) moved: bool,
    /// The node that leads, if the answer named one.
    pub(crate) leader: Option<String>,
    /// Wait at least this long.
    pub(crate) after: Duration,
    /// For the error that is reported if no attempt succeeds.
    pub(crate) cause: String,
    /// Set if the node could serve the call but has no room for it.
    pub(crate) overload: Option<Refusal>,
}

/// `google.rpc.Status`, which carries the details of a gRPC error.
#[derive(Clone, PartialEq, prost::Message)]
struct RpcStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<prost_types::Any>,
}

impl Failure {
    /// Reads a detail, from a status or from inside a stream.
    pub(crate) fn from_detail(detail: v1::ErrorDetail) -> Self {
        let reason = reason(detail.reason());
        let moved = matches!(
            reason,
            Reason::NotLeader | Reason::NoLeader | Reason::ShuttingDown
        );
        let again = moved
            || matches!(reason, Reason::Overloaded | Reason::UnknownOutcome)
            || (reason == Reason::Internal && detail.retryable);
        let after = Duration::from_millis(detail.retry_after_ms);
        let leader = detail
            .leader
            .map(|node| node.client_address)
            .filter(|address| !address.is_empty());
        let refusal = Refusal {
            reason,
            message: detail.message,
            retryable: detail.retryable,
            retry_after: (!after.is_zero()).then_some(after),
            context: detail.context,
            request_id: None,
        };
        match reason {
            Reason::RequestForgotten => Failure::Forgotten(refusal),
            Reason::SessionLost => Failure::SessionLost(refusal),
            _ if again || detail.may_have_applied => Failure::Again(Again {
                maybe: detail.may_have_applied || reason == Reason::UnknownOutcome,
                moved,
                leader,
                after,
                cause: refusal.to_string(),
                overload: (reason == Reason::Overloaded).then_some(refusal),
            }),
            _ => Failure::Final(refusal),
        }
    }

    /// Reads the status of a call or of the end of a stream.
    pub(crate) fn from_status(status: &Status) -> Self {
        if let Some(detail) = detail_of(status) {
            return Self::from_detail(detail);
        }
        match status.code() {
            Code::Unavailable
            | Code::Unknown
            | Code::Cancelled
            | Code::DeadlineExceeded
            | Code::Internal
            | Code::Aborted
            | Code::DataLoss
            | Code::Ok => Self::lost(describe(status), !is_connect_error(status)),
            // Answered by something that stands before the broker's own checks:
            // the frame size limit, an unknown method, a proxy.
            code => Failure::Final(Refusal {
                reason: match code {
                    Code::InvalidArgument | Code::OutOfRange => Reason::InvalidArgument,
                    _ => Reason::Other,
                },
                message: describe(status),
                retryable: false,
                retry_after: None,
                context: Default::default(),
                request_id: None,
            }),
        }
    }

    /// The connection is gone, or silent for too long.
    pub(crate) fn lost(cause: impl Into<String>, maybe: bool) -> Self {
        Failure::Again(Again {
            maybe,
            moved: true,
            leader: None,
            after: Duration::ZERO,
            cause: cause.into(),
            overload: None,
        })
    }
}

fn detail_of(status: &Status) -> Option<v1::ErrorDetail> {
    let status = RpcStatus::decode(status.details()).ok()?;
    let any = status
        .details
        .iter()
        .find(|any| any.type_url == v1::ERROR_DETAIL_TYPE_URL)?;
    v1::ErrorDetail::decode(any.value.as_slice()).ok()
}

/// The status in words, with what lies under it: tonic says `transport error`
/// and keeps `connection refused` for those who ask.
fn describe(status: &Status) -> String {
    let mut text = status.message().to_owned();
    let mut source = status.source();
    while let Some(error) = source {
        let words = error.to_string();
        if !text.contains(&words) {
            text = if text.is_empty() {
                words
            } else {
                format!("{text}: {words}")
            };
        }
        source = error.source();
    }
    if text.is_empty() {
        status.code().description().to_owned()
    } else {
        text
    }
}

/// Whether the request never left this process.
fn is_connect_error(status: &Status) -> bool {
    let mut source = status.source();
    while let Some(error) = source {
        if error.is::<tonic::ConnectError>() {
            return true;
        }
        source = error.source();
    }
    false
}

pub(crate) fn reason(reason: v1::Reason) -> Reason {
    match reason {
        v1::Reason::InvalidArgument => Reason::InvalidArgument,
        v1::Reason::QueueNotFound => Reason::QueueNotFound,
        v1::Reason::QueueConflict => Reason::QueueConflict,
        v1::Reason::QueueNotEmpty => Reason::QueueNotEmpty,
        v1::Reason::QueueInUse => Reason::QueueInUse,
        v1::Reason::QueueFull => Reason::QueueFull,
        v1::Reason::MessageTooLarge => Reason::MessageTooLarge,
        v1::Reason::HeadersTooLarge => Reason::HeadersTooLarge,
        v1::Reason::StaleLease => Reason::StaleLease,
        v1::Reason::RequestForgotten => Reason::RequestForgotten,
        v1::Reason::SessionLost => Reason::SessionLost,
        v1::Reason::LimitExceeded => Reason::LimitExceeded,
        v1::Reason::ConsumerCancelled => Reason::ConsumerCancelled,
        v1::Reason::ExchangeNotFound => Reason::ExchangeNotFound,
        v1::Reason::ExchangeConflict => Reason::ExchangeConflict,
        v1::Reason::ExchangeInUse => Reason::ExchangeInUse,
        v1::Reason::Unroutable => Reason::Unroutable,
        v1::Reason::MessageNotFound => Reason::MessageNotFound,
        v1::Reason::WrongState => Reason::WrongState,
        v1::Reason::SingleActiveConsumer => Reason::SingleActiveConsumer,
        v1::Reason::TransactionRefused => Reason::TransactionRefused,
        v1::Reason::NotLeader => Reason::NotLeader,
        v1::Reason::NoLeader => Reason::NoLeader,
        v1::Reason::Overloaded => Reason::Overloaded,
        v1::Reason::ShuttingDown => Reason::ShuttingDown,
        v1::Reason::WrongCluster => Reason::WrongCluster,
        v1::Reason::UnknownOutcome => Reason::UnknownOutcome,
        v1::Reason::Internal => Reason::Internal,
        v1::Reason::Unspecified => Reason::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_without_detail_that_broke_off_may_have_applied() {
        let Failure::Again(again) = Failure::from_status(&Status::unavailable("gone")) else {
            panic!("worth another attempt");
        };
        assert!(again.maybe && again.moved);
    }

    #[test]
    fn a_frame_that_is_too_large_is_refused() {
        let failure = Failure::from_status(&Status::out_of_range("too large"));
        assert!(matches!(failure, Failure::Final(refusal) if refusal.reason == Reason::InvalidArgument));
    }

    #[test]
    fn a_full_queue_is_the_callers_to_retry() {
        let failure = Failure::from_detail(v1::ErrorDetail {
            reason: v1::Reason::QueueFull.into(),
            retryable: true,
            retry_after_ms: 50,
            ..Default::default()
        });
        let Failure::Final(refusal) = failure else {
            panic!("the outcome is remembered under its id")
        };
        assert!(refusal.retryable);
        assert_eq!(refusal.retry_after, Some(Duration::from_millis(50)));
    }

    #[test]
    fn a_redirect_names_the_leader() {
        let failure = Failure::from_detail(v1::ErrorDetail {
            reason: v1::Reason::NotLeader.into(),
            leader: Some(v1::NodeAddress {
                node_id: 2,
                client_address: "b:1".to_owned(),
            }),
            ..Default::default()
        });
        let Failure::Again(again) = failure else {
            panic!("worth another attempt")
        };
        assert_eq!(again.leader.as_deref(), Some("b:1"));
        assert!(!again.maybe);
    }
}
