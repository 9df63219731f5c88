//! Many publishes under way at a time, over one stream.
//!
//! [`Publisher::send`] hands a message to one task, which owns the stream.
//! What comes in while a frame is on its way goes out together in the next
//! one. When the stream breaks, the task finds the leader and sends all that
//! is not confirmed again: in order, under the same request ids, so that
//! nothing is published twice.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use quorate_proto::v1;
use quorate_proto::v1::confirm::Outcome;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use crate::call::broker;
use crate::client::Client;
use crate::error::{Error, Result};
use crate::failure::{Again, Failure};
use crate::message::{Message, Published};
use crate::pipeline::{Fate, Pipeline};
use crate::request_id::UNANSWERED_MAX;
use crate::steering::{Stall, Steering};
use crate::target::Target;

/// A frame is closed when it holds this many bytes of messages.
const FRAME_BYTES: usize = 1 << 20;
/// The most publishes that are taken up at a time.
const FRAME_PUBLISHES: usize = 512;
/// Frames that wait for the connection. More would only age there.
const FRAMES_WAITING: usize = 2;
/// How often deadlines and silence are looked at.
const TICK: Duration = Duration::from_millis(100);

/// A publisher in the making; see [`Client::publisher`].
#[derive(Debug)]
#[must_use = "nothing happens until `start` is called"]
pub struct PublisherBuilder {
    client: Client,
    target: Target,
    window: usize,
    window_bytes: usize,
}

/// Publishes to one queue or exchange with many messages under way at a time.
///
/// Messages are committed in the order of [`send`](Self::send), also across a
/// failover. Dropped without [`close`](Self::close), it still sends what it
/// was given.
#[derive(Debug)]
pub struct Publisher {
    requests: mpsc::Sender<Outgoing>,
    window: Arc<Window>,
    timeout: Duration,
    task: JoinHandle<()>,
}

/// What will come of a publish.
///
/// The message is already on its way: await this to learn whether it arrived.
/// Dropping it does not call the message back.
#[derive(Debug)]
#[must_use = "a message counts as published only when its confirm says so"]
pub struct Confirm {
    state: ConfirmState,
}

#[derive(Debug)]
enum ConfirmState {
    Waiting(oneshot::Receiver<Result<Published>>),
    Invalid(Option<Error>),
}

/// Room for messages that are not confirmed.
#[derive(Debug)]
struct Window {
    count: Semaphore,
    count_max: u32,
    bytes: Semaphore,
    bytes_max: u32,
}

#[derive(Debug)]
struct Outgoing {
    messages: Vec<v1::OutgoingMessage>,
    bytes: usize,
    deadline: Instant,
    reply: oneshot::Sender<Result<Published>>,
}

impl Client {
    /// A publisher for one queue or exchange.
    ///
    /// ```no_run
    /// # async fn example(client: quorate_client::Client) -> quorate_client::Result<()> {
    /// let publisher = client.publisher("jobs").start();
    /// let mut confirms = Vec::new();
    /// for n in 0..10_000 {
    ///     confirms.push(publisher.send(format!("job {n}")).await);
    /// }
    /// for confirm in confirms {
    ///     confirm.await?;
    /// }
    /// publisher.close().await;
    /// # Ok(()) }
    /// ```
    pub fn publisher(&self, target: impl Into<Target>) -> PublisherBuilder {
        PublisherBuilder {
            client: self.clone(),
            target: target.into(),
            window: UNANSWERED_MAX,
            window_bytes: 32 << 20,
        }
    }
}

impl PublisherBuilder {
    /// The most publishes that are not confirmed: 1 to 1,000; default 1,000.
    /// Beyond that, [`Publisher::send`] waits.
    pub fn window(mut self, publishes: usize) -> Self {
        self.window = publishes.clamp(1, UNANSWERED_MAX);
        self
    }

    /// The most bytes that are not confirmed: default 32 MiB, up to 1 GiB. A
    /// message that is larger waits until it is alone.
    pub fn window_bytes(mut self, bytes: usize) -> Self {
        self.window_bytes = bytes.clamp(1, 1 << 30);
        self
    }

    /// Starts it. The connection is made when there is something to send. Must
    /// be called within a Tokio runtime.
    pub fn start(self) -> Publisher {
        let window = Arc::new(Window {
            count: Semaphore::new(self.window),
            count_max: self.window as u32,
            bytes: Semaphore::new(self.window_bytes),
            bytes_max: self.window_bytes as u32,
        });
        // Never full: the window is the bound.
        let (requests, receiver) = mpsc::channel(self.window);
        let timeout = self.client.timeout();
        let random = self.client.random().clone();
        let task = Task {
            steering: Steering::new(&self.client.caller.config),
            client: self.client,
            target: self.target,
            requests: receiver,
            pipeline: Pipeline::new("publish", random.id(), random),
            window: Arc::clone(&window),
            freed: Freed::default(),
        };
        Publisher {
            requests,
            window,
            timeout,
            task: tokio::spawn(task.run()),
        }
    }
}

impl Publisher {
    /// Hands over a message; waits while the window is full. What comes of it
    /// is told by the [`Confirm`], within the client's timeout.
    ///
    /// # Errors of the confirm
    ///
    /// Those of [`Client::publish`].
    pub async fn send(&self, message: impl Into<Message>) -> Confirm {
        self.send_all([message.into()]).await
    }

    /// Hands over 1 to 4,096 messages, together up to 16 MiB, that are accepted
    /// as one: all of them or none.
    ///
    /// # Errors of the confirm
    ///
    /// Those of [`Client::publish_all`].
    pub async fn send_all<I>(&self, messages: I) -> Confirm
    where
        I: IntoIterator<Item = Message>,
    {
        let messages: Vec<Message> = messages.into_iter().collect();
        let bytes = messages.iter().map(Message::bytes).sum();
        let messages = match Message::into_wire(messages) {
            Ok(messages) => messages,
            Err(error) => {
                return Confirm {
                    state: ConfirmState::Invalid(Some(error)),
                };
            }
        };
        let (reply, receiver) = oneshot::channel();
        let deadline = Instant::now() + self.timeout;
        if self.window.enter(bytes).await {
            // An error means that the task is gone, which the confirm tells.
            let _ = self
                .requests
                .send(Outgoing {
                    messages,
                    bytes,
                    deadline,
                    reply,
                })
                .await;
        }
        Confirm {
            state: ConfirmState::Waiting(receiver),
        }
    }

    /// Waits until everything sent so far has its confirm.
    pub async fn flush(&self) {
        // An error means that the task is gone, and everything has its confirm.
        let _ = self.window.count.acquire_many(self.window.count_max).await;
    }

    /// Waits until everything has its confirm, then ends the stream.
    pub async fn close(self) {
        drop(self.requests);
        // An error means that the runtime is going down.
        let _ = self.task.await;
    }
}

impl Future for Confirm {
    type Output = Result<Published>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.state {
            ConfirmState::Waiting(receiver) => {
                let reply = ready!(Pin::new(receiver).poll(context));
                Poll::Ready(reply.unwrap_or_else(|_| {
                    let cause = "the publisher was shut down".to_owned();
                    Err(Error::Unknown {
                        action: "publish",
                        cause,
                        request_id: None,
                    })
                }))
            }
            ConfirmState::Invalid(error) => Poll::Ready(Err(error
                .take()
                .expect("a confirm is not polled after it is ready"))),
        }
    }
}

impl Window {
    /// Waits for room. False: the task is gone.
    async fn enter(&self, bytes: usize) -> bool {
        let Ok(count) = self.count.acquire().await else {
            return false;
        };
        let Ok(bytes) = self.bytes.acquire_many(self.charge(bytes)).await else {
            return false;
        };
        // Given back by the task, for many messages at a time.
        count.forget();
        bytes.forget();
        true
    }

    fn charge(&self, bytes: usize) -> u32 {
        u32::try_from(bytes).map_or(self.bytes_max, |bytes| bytes.min(self.bytes_max))
    }

    fn close(&self) {
        self.count.close();
        self.bytes.close();
    }
}

/// Room to be given back.
#[derive(Debug, Default)]
struct Freed {
    count: usize,
    bytes: usize,
}

struct Task {
    client: Client,
    target: Target,
    requests: mpsc::Receiver<Outgoing>,
    pipeline: Pipeline<Outgoing>,
    window: Arc<Window>,
    freed: Freed,
    steering: Steering,
}

struct Stream {
    address: String,
    frames: mpsc::Sender<v1::PublishStreamRequest>,
    confirms: Streaming<v1::PublishStreamResponse>,
}

/// Why a stream is over.
enum End {
    /// Nothing is left to do, ever.
    Done,
    Failed(String, Failure),
}

impl Task {
    async fn run(mut self) {
        let mut taken = Vec::new();
        loop {
            if self.pipeline.is_empty() {
                if self.requests.recv_many(&mut taken, FRAME_PUBLISHES).await == 0 {
                    break;
                }
                self.accept(&mut taken);
            }
            let end = match self.open().await {
                Ok(stream) => self.pump(stream).await,
                Err((address, failure)) => End::Failed(address, failure),
            };
            match end {
                End::Done => break,
                End::Failed(address, failure) => self.recover(&address, failure).await,
            }
        }
        self.window.close();
    }

    fn accept(&mut self, taken: &mut Vec<Outgoing>) {
        for outgoing in taken.drain(..) {
            let deadline = outgoing.deadline;
            self.pipeline.push(outgoing, deadline);
        }
    }

    /// A stream on which the first frame is under way.
    async fn open(&mut self) -> Result<Stream, (String, Failure)> {
        let links = &self.client.caller.links;
        let link = links
            .leader_apart()
            .await
            .map_err(|cause| (String::new(), Failure::lost(cause, false)))?;
        self.pipeline.rewind();
        let (frames, receiver) = mpsc::channel(FRAMES_WAITING);
        // A broker may look at the first frame before it answers.
        let _ = frames.try_send(self.frame());
        let mut broker = broker(&link);
        let call = broker.publish_stream(ReceiverStream::new(receiver));
        let patience = self.client.caller.config.attempt_timeout * 3;
        match timeout(patience, call).await {
            Ok(Ok(answer)) => Ok(Stream {
                address: link.address,
                frames,
                confirms: answer.into_inner(),
            }),
            Ok(Err(status)) => Err((link.address, Failure::from_status(&status))),
            Err(_) => {
                let cause = format!("{} did not open a stream in time", link.address);
                Err((link.address, Failure::lost(cause, true)))
            }
        }
    }

    /// The next frame: what is to be sent, up to a bound.
    fn frame(&mut self) -> v1::PublishStreamRequest {
        let mut publishes = Vec::new();
        let mut bytes = 0;
        while bytes < FRAME_BYTES
            && publishes.len() < FRAME_PUBLISHES
            && let Some((id, outgoing)) = self.pipeline.next_unsent()
        {
            bytes += outgoing.bytes;
            publishes.push(v1::PublishRequest {
                request_id: Some(id),
                ..self.target.request(outgoing.messages.clone())
            });
        }
        v1::PublishStreamRequest { publishes }
    }

    /// Sends and confirms until the stream is over.
    async fn pump(&mut self, mut stream: Stream) -> End {
        let mut taken = Vec::new();
        let mut stall = Stall::new(&self.client.caller.config);
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut open = true;
        loop {
            if self.pipeline.is_empty() {
                if !open {
                    return End::Done;
                }
                stall.heard();
            }
            tokio::select! {
                biased;
                answer = stream.confirms.message() => {
                    stall.heard();
                    let failed = match answer {
                        Ok(Some(answer)) => self.confirm(answer),
                        Ok(None) => Some(Failure::lost("the broker ended the stream", true)),
                        Err(status) => Some(Failure::from_status(&status)),
                    };
                    self.give_back();
                    if let Some(failure) = failed {
                        return End::Failed(stream.address, failure);
                    }
                    self.steering.reset();
                }
                permit = stream.frames.reserve(), if self.pipeline.has_unsent() => {
                    match permit {
                        Ok(permit) => permit.send(self.frame()),
                        // The connection let go of the stream; its answer says why.
                        Err(_) => {
                            let failure = match stream.confirms.message().await {
                                Err(status) => Failure::from_status(&status),
                                Ok(_) => Failure::lost("the broker ended the stream", true),
                            };
                            return End::Failed(stream.address, failure);
                        }
                    }
                }
                count = self.requests.recv_many(&mut taken, FRAME_PUBLISHES),
                    if open && !self.pipeline.has_unsent() =>
                {
                    open = count > 0;
                    self.accept(&mut taken);
                }
                _ = ticks.tick(), if !self.pipeline.is_empty() => {
                    self.expire("no confirm came in time");
                    if stall.is_elsewhere(&self.client.caller.links, &stream.address).await {
                        let failure = Failure::lost("another node leads", true);
                        return End::Failed(stream.address, failure);
                    }
                }
            }
        }
    }

    /// Passes confirms on. Some = the stream is over.
    fn confirm(&mut self, answer: v1::PublishStreamResponse) -> Option<Failure> {
        let mut failed = None;
        for confirm in answer.confirms {
            match confirm.outcome {
                Some(Outcome::Confirmed(published)) => {
                    let request_id = Some(self.pipeline.id(confirm.sequence));
                    if let Some(outgoing) = self.pipeline.answer(confirm.sequence) {
                        let published = Published {
                            request_id,
                            ..published.into()
                        };
                        self.tell(outgoing, Ok(published));
                    }
                }
                Some(Outcome::Error(detail)) => {
                    match self.pipeline.fail(confirm.sequence, Failure::from_detail(detail)) {
                        Some(Fate::Tell(outgoing, error)) => self.tell(outgoing, Err(error)),
                        Some(Fate::Reopen(again)) => failed = Some(Failure::Again(again)),
                        Some(Fate::SessionLost(refusal)) => failed = Some(Failure::SessionLost(refusal)),
                        Some(Fate::Keep) | None => {}
                    }
                }
                None => {}
            }
        }
        failed
    }

    /// Between two streams: finds out where to turn, and gives up on what has
    /// waited for too long.
    async fn recover(&mut self, address: &str, failure: Failure) {
        let again = match failure {
            Failure::Again(again) => again,
            // No publish was at fault but the stream as such: a broker that has
            // no such method, or something in between that refuses it.
            Failure::Final(refusal) | Failure::Forgotten(refusal) | Failure::SessionLost(refusal) => {
                for (outgoing, error) in self.pipeline.give_up(&refusal.to_string()) {
                    let error = if error.may_have_applied() {
                        error
                    } else {
                        refusal.clone().into()
                    };
                    self.tell(outgoing, Err(error));
                }
                self.give_back();
                return;
            }
        };
        let pause = self.pause(address, &again);
        tracing::debug!(address, cause = again.cause, ?pause, "publish stream over");
        sleep(pause).await;
        self.expire(&again.cause);
    }

    fn pause(&mut self, address: &str, again: &Again) -> Duration {
        if address.is_empty() {
            return self.steering.pause();
        }
        self.steering.turn(&self.client.caller.links, address, again)
    }

    fn expire(&mut self, cause: &str) {
        for (outgoing, error) in self.pipeline.expire(Instant::now(), cause) {
            self.tell(outgoing, Err(error));
        }
        self.give_back();
    }

    fn tell(&mut self, outgoing: Outgoing, result: Result<Published>) {
        self.freed.count += 1;
        self.freed.bytes += self.window.charge(outgoing.bytes) as usize;
        // Nobody has to listen.
        let _ = outgoing.reply.send(result);
    }

    /// Lets senders in again, for many messages at a time.
    fn give_back(&mut self) {
        let freed = std::mem::take(&mut self.freed);
        if freed.count > 0 {
            self.window.bytes.add_permits(freed.bytes);
            self.window.count.add_permits(freed.count);
        }
    }
}
