//! A push consumer: its session, deliveries out, credit and settlements in.
//!
//! The stream ends with an `ended` answer that says why. When leadership has
//! moved, it names the leader and the session is kept for a grace: the client
//! opens a stream there with the same session number and goes on, with its
//! leases. When the client goes, the session ends and its leases are released.

use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{Stream, StreamExt as _};
use quorate_node::broker::ConsumerOptions;
use quorate_node::session::{Event, Session};
use quorate_node::types::{ConsumerId, SessionId};
use quorate_node::{Broker, BrokerError};
use quorate_proto::v1;
use quorate_proto::v1::consume_request::Request;
use quorate_proto::v1::consume_response::Response;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use crate::{convert, error};

/// Most unsettled deliveries of one consumer.
const CREDIT_MAX: u64 = 65_535;
/// Deliveries in one answer.
const DELIVERIES_PER_ANSWER: usize = 256;
/// Bytes of bodies in one answer, unless a single one is larger.
const BYTES_PER_ANSWER: usize = 1024 * 1024;
/// Answers that wait for the client to read them.
const ANSWERS_WAITING: usize = 8;
/// Settles under way per stream; beyond, the stream is not read.
const SETTLES_IN_FLIGHT: usize = 256;
/// A client that reads nothing for this long loses its session: what it holds
/// is released, instead of failing attempt after attempt without being seen.
const STALL: Duration = Duration::from_secs(15);
/// A native stream has one consumer.
const CONSUMER: ConsumerId = ConsumerId(1);

type Answers = mpsc::Sender<Result<v1::ConsumeResponse, Status>>;

pub(crate) fn run(
    broker: Broker,
    requests: Streaming<v1::ConsumeRequest>,
) -> impl Stream<Item = Result<v1::ConsumeResponse, Status>> + Send {
    let (answers, receiver) = mpsc::channel(ANSWERS_WAITING);
    tokio::spawn(async move {
        match serve(&broker, requests, &answers).await {
            Ok(()) => {}
            Err(End::Told(error)) => {
                let ended = v1::ConsumeResponse {
                    response: Some(Response::Ended(error::detail(&error))),
                };
                let _ = tokio::time::timeout(STALL, answers.send(Ok(ended))).await;
            }
            Err(End::Refused(error)) => {
                let _ = tokio::time::timeout(STALL, answers.send(Err(error::status(&error)))).await;
            }
            Err(End::Gone) => {}
        }
    });
    ReceiverStream::new(receiver)
}

/// How a stream ends early.
enum End {
    /// The session was open: a last answer says why.
    Told(BrokerError),
    /// The session was not opened: the status says why.
    Refused(BrokerError),
    /// There is nobody to tell.
    Gone,
}

async fn serve(
    broker: &Broker,
    mut requests: Streaming<v1::ConsumeRequest>,
    answers: &Answers,
) -> Result<(), End> {
    let first = requests.next().await.ok_or(End::Gone)?.map_err(|_| End::Gone)?;
    let Some(Request::Open(open)) = first.request else {
        return Err(End::Refused(error::invalid(
            "open",
            "is the first request of the stream",
        )));
    };
    let mut session = open_session(broker, open, answers).await?;
    let result = tokio::select! {
        biased;
        () = answers.closed() => Err(End::Gone),
        moved = broker.gone() => {
            session.keep_for_resume();
            Err(End::Told(moved))
        }
        result = deliver(broker, &session, answers) => result,
        result = take(broker, &session, requests, answers) => result,
    };
    drop(session);
    result
}

async fn open_session(broker: &Broker, open: v1::ConsumeOpen, answers: &Answers) -> Result<Session, End> {
    let checked = || -> Result<_, BrokerError> {
        if open.session == 0 {
            return Err(error::invalid("session", "is a random number that is not zero"));
        }
        let credit = credit(open.credit)?;
        if credit == 0 {
            return Err(error::invalid(
                "credit",
                format!("1 to {CREDIT_MAX} to open, not 0"),
            ));
        }
        Ok(ConsumerOptions {
            queue: convert::queue_name(&open.queue)?,
            credit,
            lease: convert::nonzero(open.lease_ms),
            name: open.name,
            priority: open.priority,
        })
    };
    let options = checked().map_err(End::Refused)?;
    let (_, session) = broker
        .attach(SessionId(open.session))
        .await
        .map_err(End::Refused)?;
    let (position, ()) = broker
        .consume(&session, CONSUMER, options)
        .await
        .map_err(End::Refused)?;
    let opened = v1::ConsumeOpened {
        commit: Some(convert::commit(position)),
        resumed: session.resumed(),
    };
    send(answers, Response::Opened(opened)).await?;
    Ok(session)
}

/// Passes deliveries on until the session is lost.
async fn deliver(broker: &Broker, session: &Session, answers: &Answers) -> Result<(), End> {
    let mut deliveries = Vec::new();
    let mut bytes = 0;
    while let Some(events) = session.next(DELIVERIES_PER_ANSWER).await {
        for event in events {
            match event {
                Event::Deliver { leased, position, .. } => {
                    let Some(content) = broker.content(&leased).await else {
                        continue;
                    };
                    let delivery = convert::delivery(leased, content, position);
                    bytes += delivery.body.len();
                    deliveries.push(delivery);
                    if bytes >= BYTES_PER_ANSWER {
                        bytes = 0;
                        let deliveries = std::mem::take(&mut deliveries);
                        send(answers, Response::Deliveries(v1::Deliveries { deliveries })).await?;
                    }
                }
                Event::Cancelled { queue, .. } => {
                    return Err(End::Told(BrokerError::ConsumerCancelled(queue)));
                }
            }
        }
        if !deliveries.is_empty() {
            bytes = 0;
            let deliveries = std::mem::take(&mut deliveries);
            send(answers, Response::Deliveries(v1::Deliveries { deliveries })).await?;
        }
    }
    Err(End::Told(BrokerError::SessionLost))
}

/// Takes credit and settlements until the client has no more to say.
async fn take(
    broker: &Broker,
    session: &Session,
    mut requests: Streaming<v1::ConsumeRequest>,
    answers: &Answers,
) -> Result<(), End> {
    let mut in_flight = FuturesUnordered::new();
    let mut reading = true;
    loop {
        tokio::select! {
            biased;
            Some(settled) = in_flight.next(), if !in_flight.is_empty() => {
                send(answers, Response::Settled(settled)).await?;
            }
            request = requests.next(), if reading && in_flight.len() < SETTLES_IN_FLIGHT => {
                match request {
                    None => reading = false,
                    Some(Err(_)) => return Err(End::Gone),
                    Some(Ok(v1::ConsumeRequest { request: Some(Request::Credit(update)) })) => {
                        let credit = credit(update.credit).map_err(End::Told)?;
                        broker.set_credit(session.id(), CONSUMER, credit).await.map_err(End::Told)?;
                    }
                    Some(Ok(v1::ConsumeRequest { request: Some(Request::Settle(settle)) })) => {
                        in_flight.push(submit(broker, settle).await);
                    }
                    Some(Ok(_)) => {
                        let error = error::invalid("request", "credit or settle is expected here");
                        return Err(End::Told(error));
                    }
                }
            }
            else => return Ok(()),
        }
    }
}

/// Hands settlements in; the future gives their answer.
async fn submit(broker: &Broker, settle: v1::SettleRequest) -> impl Future<Output = v1::Settled> + use<> {
    use v1::settled::Outcome;
    let sequence = settle.request_id.map_or(0, |id| id.sequence);
    let checked = convert::request_id(settle.request_id)
        .and_then(|id| convert::settlements(settle.settlements).map(|settlements| (id, settlements)));
    let submitted = match checked {
        Ok((id, settlements)) => broker.submit_settle(id, settlements).await,
        Err(error) => Err(error),
    };
    async move {
        let answer = match submitted {
            Ok(submitted) => submitted.answer().await,
            Err(error) => Err(error),
        };
        let outcome = match answer {
            Ok((position, results)) => Outcome::Response(convert::settled(position, results)),
            Err(error) => Outcome::Error(error::detail(&error)),
        };
        v1::Settled {
            sequence,
            outcome: Some(outcome),
        }
    }
}

fn credit(credit: u64) -> Result<u32, BrokerError> {
    u32::try_from(credit)
        .ok()
        .filter(|_| credit <= CREDIT_MAX)
        .ok_or_else(|| error::invalid("credit", format!("0 to {CREDIT_MAX}, not {credit}")))
}

async fn send(answers: &Answers, response: Response) -> Result<(), End> {
    let answer = Ok(v1::ConsumeResponse {
        response: Some(response),
    });
    match tokio::time::timeout(STALL, answers.send(answer)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(End::Gone),
        Err(_) => Err(End::Gone),
    }
}
