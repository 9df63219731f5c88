//! Between openraft's messages and those on the wire, by hand and in one place.
//!
//! Coming in, everything is checked: a message that lacks a field or carries a
//! payload that cannot be read is [`Malformed`], never a panic.

use openraft::entry::RaftEntry as _;
use openraft::raft::{
    AppendEntriesRequest, StreamAppendError, StreamAppendResult, TransferLeaderError, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::vote::RaftLeaderId as _;
use quorate_proto::internal as wire;

use crate::codec::{self, Malformed};
use crate::types::{Entry, LeaderId, LogId, TypeConfig, Vote};

pub(crate) fn log_id(id: &LogId) -> wire::LogId {
    wire::LogId {
        term: id.leader_id.term,
        node: id.leader_id.node_id,
        index: id.index,
    }
}

fn log_id_back(id: &wire::LogId) -> LogId {
    LogId::new(LeaderId::new(id.term, id.node), id.index)
}

pub(crate) fn vote(vote: &Vote) -> wire::Vote {
    wire::Vote {
        term: vote.leader_id.term,
        node: vote.leader_id.node_id,
        committed: vote.committed,
    }
}

pub(crate) fn vote_back(vote: Option<&wire::Vote>) -> Result<Vote, Malformed> {
    let vote = vote.ok_or_else(|| missing("vote"))?;
    Ok(Vote {
        leader_id: LeaderId::new(vote.term, vote.node),
        committed: vote.committed,
    })
}

fn entry(entry: Entry) -> wire::Entry {
    let (kind, payload) = codec::split_payload(&entry.payload);
    wire::Entry {
        log_id: Some(log_id(&entry.log_id)),
        kind: u32::from(kind),
        payload,
    }
}

fn entry_back(entry: wire::Entry) -> Result<Entry, Malformed> {
    let id = entry
        .log_id
        .as_ref()
        .ok_or_else(|| missing("log id of an entry"))?;
    let kind = u8::try_from(entry.kind).map_err(|error| Malformed::new("entry", error))?;
    Ok(Entry::new(
        log_id_back(id),
        codec::join_payload(kind, entry.payload)?,
    ))
}

pub(crate) fn append(
    request: AppendEntriesRequest<TypeConfig>,
    envelope: wire::Envelope,
) -> wire::AppendRequest {
    wire::AppendRequest {
        envelope: Some(envelope),
        vote: Some(vote(&request.vote)),
        prev_log_id: request.prev_log_id.as_ref().map(log_id),
        leader_commit: request.leader_commit.as_ref().map(log_id),
        entries: request.entries.into_iter().map(entry).collect(),
    }
}

pub(crate) fn append_back(
    request: wire::AppendRequest,
) -> Result<AppendEntriesRequest<TypeConfig>, Malformed> {
    let prev_log_id = request.prev_log_id.as_ref().map(log_id_back);
    let entries: Vec<Entry> = request
        .entries
        .into_iter()
        .map(entry_back)
        .collect::<Result<_, Malformed>>()?;
    // The engine takes it for granted that entries are consecutive.
    let first = prev_log_id.map_or(0, |id| id.index.saturating_add(1));
    for (expected, entry) in (first..).zip(&entries) {
        let found = entry.log_id.index;
        if found != expected {
            return Err(Malformed::new(
                "append",
                format!("entry {found} where {expected} belongs"),
            ));
        }
    }
    Ok(AppendEntriesRequest {
        vote: vote_back(request.vote.as_ref())?,
        prev_log_id,
        leader_commit: request.leader_commit.as_ref().map(log_id_back),
        entries,
    })
}

pub(crate) fn append_result(result: StreamAppendResult<TypeConfig>) -> wire::AppendResponse {
    use wire::append_response::Result as Out;
    let result = match result {
        Ok(matched) => Out::Matched(wire::Matched {
            log_id: matched.as_ref().map(log_id),
        }),
        Err(StreamAppendError::Conflict(at)) => Out::Conflict(log_id(&at)),
        Err(StreamAppendError::HigherVote(higher)) => Out::HigherVote(vote(&higher)),
    };
    wire::AppendResponse { result: Some(result) }
}

pub(crate) fn append_result_back(
    response: &wire::AppendResponse,
) -> Result<StreamAppendResult<TypeConfig>, Malformed> {
    use wire::append_response::Result as In;
    Ok(
        match response.result.as_ref().ok_or_else(|| missing("append result"))? {
            In::Matched(matched) => Ok(matched.log_id.as_ref().map(log_id_back)),
            In::Conflict(at) => Err(StreamAppendError::Conflict(log_id_back(at))),
            In::HigherVote(higher) => Err(StreamAppendError::HigherVote(vote_back(Some(higher))?)),
        },
    )
}

pub(crate) fn vote_request(request: &VoteRequest<TypeConfig>, envelope: wire::Envelope) -> wire::VoteRequest {
    wire::VoteRequest {
        envelope: Some(envelope),
        vote: Some(vote(&request.vote)),
        last_log_id: request.last_log_id.as_ref().map(log_id),
        leadership_transfer: request.leadership_transfer,
    }
}

pub(crate) fn vote_request_back(request: &wire::VoteRequest) -> Result<VoteRequest<TypeConfig>, Malformed> {
    let mut back = VoteRequest::new(
        vote_back(request.vote.as_ref())?,
        request.last_log_id.as_ref().map(log_id_back),
    );
    back.leadership_transfer = request.leadership_transfer;
    Ok(back)
}

pub(crate) fn vote_response(response: &VoteResponse<TypeConfig>) -> wire::VoteResponse {
    wire::VoteResponse {
        vote: Some(vote(&response.vote)),
        granted: response.vote_granted,
        last_log_id: response.last_log_id.as_ref().map(log_id),
    }
}

pub(crate) fn vote_response_back(
    response: &wire::VoteResponse,
) -> Result<VoteResponse<TypeConfig>, Malformed> {
    Ok(VoteResponse::new(
        vote_back(response.vote.as_ref())?,
        response.last_log_id.as_ref().map(log_id_back),
        response.granted,
    ))
}

pub(crate) fn transfer(
    request: &TransferLeaderRequest<TypeConfig>,
    envelope: wire::Envelope,
) -> wire::TransferLeaderRequest {
    wire::TransferLeaderRequest {
        envelope: Some(envelope),
        from_leader: Some(vote(request.from_leader())),
        last_log_id: request.last_log_id().map(log_id),
        successor: *request.to_node_id(),
    }
}

pub(crate) fn transfer_back(
    request: &wire::TransferLeaderRequest,
) -> Result<TransferLeaderRequest<TypeConfig>, Malformed> {
    Ok(TransferLeaderRequest::new(
        vote_back(request.from_leader.as_ref())?,
        request.successor,
        request.last_log_id.as_ref().map(log_id_back),
    ))
}

pub(crate) fn transfer_result(response: &TransferLeaderResponse<TypeConfig>) -> wire::TransferLeaderResponse {
    use wire::transfer_leader_response::{Accepted, NotFlushed, Result as Out, VoteChanged};
    let result = match response {
        Ok(()) => Out::Accepted(Accepted {}),
        Err(TransferLeaderError::VoteChanged { expected, actual }) => Out::VoteChanged(VoteChanged {
            expected: Some(vote(expected)),
            actual: Some(vote(actual)),
        }),
        Err(TransferLeaderError::LogNotFlushed { expected, actual }) => Out::NotFlushed(NotFlushed {
            expected: expected.as_ref().map(log_id),
            actual: actual.as_ref().map(log_id),
        }),
    };
    wire::TransferLeaderResponse { result: Some(result) }
}

pub(crate) fn transfer_result_back(
    response: &wire::TransferLeaderResponse,
) -> Result<TransferLeaderResponse<TypeConfig>, Malformed> {
    use wire::transfer_leader_response::Result as In;
    Ok(
        match response
            .result
            .as_ref()
            .ok_or_else(|| missing("transfer result"))?
        {
            In::Accepted(_) => Ok(()),
            In::VoteChanged(changed) => Err(TransferLeaderError::VoteChanged {
                expected: vote_back(changed.expected.as_ref())?,
                actual: vote_back(changed.actual.as_ref())?,
            }),
            In::NotFlushed(behind) => Err(TransferLeaderError::LogNotFlushed {
                expected: behind.expected.as_ref().map(log_id_back),
                actual: behind.actual.as_ref().map(log_id_back),
            }),
        },
    )
}

fn missing(field: &'static str) -> Malformed {
    Malformed::new("message", format!("no {field}"))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use openraft::EntryPayload;

    use super::*;
    use crate::types::Batch;

    fn id(index: u64) -> LogId {
        LogId::new(LeaderId::new(3, 4), index)
    }

    fn request(indexes: &[u64]) -> AppendEntriesRequest<TypeConfig> {
        AppendEntriesRequest {
            vote: Vote::new_committed(3, 4),
            prev_log_id: Some(id(6)),
            leader_commit: Some(id(5)),
            entries: indexes
                .iter()
                .map(|i| Entry::new(id(*i), EntryPayload::Normal(Batch(Bytes::from_static(b"x")))))
                .collect(),
        }
    }

    #[test]
    fn appends_round_trip() {
        let there = append(request(&[7, 8]), wire::Envelope::default());
        let back = append_back(there).unwrap();
        assert_eq!(back.entries, request(&[7, 8]).entries);
        assert_eq!(back.vote, Vote::new_committed(3, 4));
        assert_eq!(back.prev_log_id, Some(id(6)));
        assert_eq!(back.leader_commit, Some(id(5)));
    }

    #[test]
    fn a_hole_in_an_append_is_malformed() {
        for indexes in [&[8][..], &[7, 9], &[6, 7]] {
            assert!(append_back(append(request(indexes), wire::Envelope::default())).is_err());
        }
    }

    #[test]
    fn a_transfer_vote_keeps_its_mark() {
        let mut vote = VoteRequest::new(Vote::new(9, 1), Some(id(7)));
        vote.leadership_transfer = true;
        let back = vote_request_back(&vote_request(&vote, wire::Envelope::default())).unwrap();
        assert_eq!(back, vote);
    }

    #[test]
    fn empty_messages_are_malformed() {
        assert!(vote_request_back(&wire::VoteRequest::default()).is_err());
        assert!(vote_response_back(&wire::VoteResponse::default()).is_err());
        assert!(append_back(wire::AppendRequest::default()).is_err());
        assert!(append_result_back(&wire::AppendResponse::default()).is_err());
        assert!(transfer_back(&wire::TransferLeaderRequest::default()).is_err());
        assert!(transfer_result_back(&wire::TransferLeaderResponse::default()).is_err());
    }
}
