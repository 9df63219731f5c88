//! A long-lived publisher: many requests in flight, confirmed as they commit.
//!
//! Frames are handed in in the order they come, and confirmed when their entry
//! is applied. When another node leads, the stream ends with its address. A failure that concerns a whole frame ends the stream, and the
//! frames of one stream have one [`Order`], so that no later frame overtakes it: the client repeats what is not
//! confirmed, under the same request ids, on a new stream.

use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{Stream, StreamExt as _};
use quorate_node::{Broker, BrokerError, Order};
use quorate_proto::v1;
use quorate_proto::v1::confirm::Outcome;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use crate::{convert, error};

/// Publishes in one frame.
const PUBLISHES_PER_FRAME_MAX: usize = 4_096;
/// Frames under way per stream; beyond, the stream is not read.
const FRAMES_IN_FLIGHT: usize = 256;
/// Answers that wait for the client to read them; beyond, the stream is not read.
const ANSWERS_WAITING: usize = 64;
/// A client that reads no confirm for this long is cut off.
const STALL: Duration = Duration::from_secs(30);

type Answers = mpsc::Sender<Result<v1::PublishStreamResponse, Status>>;

pub(crate) fn run(
    broker: Broker,
    frames: Streaming<v1::PublishStreamRequest>,
) -> impl Stream<Item = Result<v1::PublishStreamResponse, Status>> + Send {
    let (answers, receiver) = mpsc::channel(ANSWERS_WAITING);
    tokio::spawn(async move {
        if let Err(status) = serve(&broker, frames, &answers).await {
            let _ = tokio::time::timeout(STALL, answers.send(Err(status))).await;
        }
    });
    ReceiverStream::new(receiver)
}

async fn serve(
    broker: &Broker,
    mut frames: Streaming<v1::PublishStreamRequest>,
    answers: &Answers,
) -> Result<(), Status> {
    let order = Order::default();
    let mut in_flight = FuturesUnordered::new();
    let mut reading = true;
    let mut end = Ok(());
    let mut gone = std::pin::pin!(broker.gone());
    while reading || !in_flight.is_empty() {
        tokio::select! {
            biased;
            () = answers.closed() => return Ok(()),
            Some(confirms) = in_flight.next(), if !in_flight.is_empty() => {
                let response = v1::PublishStreamResponse { confirms: confirms? };
                match tokio::time::timeout(STALL, answers.send(Ok(response))).await {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) => return Ok(()),
                    Err(_) => return Err(Status::cancelled("the client does not read its confirms")),
                }
            }
            moved = &mut gone, if reading => {
                reading = false;
                end = Err(error::status(&moved));
            }
            frame = frames.next(), if reading && in_flight.len() < FRAMES_IN_FLIGHT => match frame {
                None => reading = false,
                Some(frame) => in_flight.push(submit(broker, frame?, &order).await?),
            },
        }
    }
    end
}

/// Hands a frame in; the future gives its confirms.
async fn submit(
    broker: &Broker,
    frame: v1::PublishStreamRequest,
    order: &Order,
) -> Result<impl Future<Output = Result<Vec<v1::Confirm>, Status>> + use<>, Status> {
    if frame.publishes.len() > PUBLISHES_PER_FRAME_MAX {
        let problem = format!(
            "at most {PUBLISHES_PER_FRAME_MAX} in a frame, not {}",
            frame.publishes.len()
        );
        return Err(error::status(&error::invalid("publishes", problem)));
    }
    let mut sequences = Vec::with_capacity(frame.publishes.len());
    let mut publishes = Vec::with_capacity(frame.publishes.len());
    let mut confirms = Vec::new();
    for request in frame.publishes {
        let Some(sequence) = request.request_id.map(|id| id.sequence) else {
            let error = error::invalid("request_id", "is needed on a stream");
            return Err(error::status(&error));
        };
        match convert::publish(request) {
            Ok(publish) => {
                sequences.push(sequence);
                publishes.push(publish);
            }
            Err(error) => confirms.push(refused(sequence, &error)),
        }
    }
    let submitted = broker
        .submit_publishes(publishes, order)
        .await
        .map_err(|error| error::status(&error))?;
    Ok(async move {
        let answers = submitted.answer().await.map_err(|error| error::status(&error))?;
        for (sequence, answer) in sequences.into_iter().zip(answers) {
            confirms.push(match answer {
                Ok((position, published)) => v1::Confirm {
                    sequence,
                    outcome: Some(Outcome::Confirmed(convert::published(position, published))),
                },
                Err(error) => refused(sequence, &error),
            });
        }
        Ok(confirms)
    })
}

fn refused(sequence: u64, error: &BrokerError) -> v1::Confirm {
    v1::Confirm {
        sequence,
        outcome: Some(Outcome::Error(error::detail(error))),
    }
}
