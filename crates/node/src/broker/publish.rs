//! Publishes, to a queue or through an exchange.

use std::collections::BTreeSet;

use bytes::Bytes;
use quorate_core::command::{self, Command, Labels, NewMessage, Request, Target};
use quorate_core::ids::{MessageId, Millis, QueueName, RequestId, Timestamp};
use quorate_core::outcome::{self, Duplicate, Reply};

use super::{Answered, Broker, check_count, unexpected};
use crate::batcher::{Committed, Order, Proposal, Submitted};
use crate::config::{BODY_BYTES_MAX, HEADERS_BYTES_MAX};
use crate::content::Content;
use crate::error::BrokerError;

/// Most bytes of bodies and headers in one command: those of the largest message.
const COMMAND_BYTES_MAX: usize = BODY_BYTES_MAX + HEADERS_BYTES_MAX;

/// One message of a publish.
#[derive(Clone, Debug, Default)]
pub struct Publication {
    /// Headers, body, and what else its receiver is to see of it. The exchange
    /// is that of the publish, whatever this says.
    pub content: Content,
    /// Not delivered before this has passed.
    pub delay: Millis,
    /// Not delivered before this time; zero = now. Of this and a delay the
    /// later counts.
    pub deliver_at: Timestamp,
    /// Zero = the queue's.
    pub ttl: Millis,
}

/// A publish with its request id.
#[derive(Clone, Debug)]
pub struct Publish {
    /// Makes it safe to repeat.
    pub id: Option<RequestId>,
    /// Where to.
    pub target: Target,
    /// All are accepted or none.
    pub messages: Vec<Publication>,
}

/// What became of the messages of a publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// In order; of a duplicate that of the first.
    pub ids: Vec<MessageId>,
    /// Places, from 0, of messages that no binding led anywhere.
    pub unroutable: Vec<u32>,
    /// Those that were not taken again, in order.
    pub duplicates: Vec<Duplicate>,
}

impl Broker {
    /// Publishes; what became of the messages.
    pub async fn publish(&self, publish: Publish) -> Answered<Published> {
        let mut answers = self.publish_many(vec![publish]).await?;
        answers.pop().expect("one answer for one publish")
    }

    /// Many publishes, each a command of its own, in one entry. The answers are
    /// in order; an error in place of all of them concerns all.
    pub async fn publish_many(
        &self,
        publishes: Vec<Publish>,
    ) -> Result<Vec<Answered<Published>>, BrokerError> {
        let order = Order::default();
        self.submit_publishes(publishes, &order).await?.answer().await
    }

    /// The first half of [`publish_many`](Self::publish_many): what is handed in
    /// first is in the log first, whenever the answer is awaited; and once something of an order
    /// is refused, all that is handed in after it is, too.
    pub async fn submit_publishes(
        &self,
        publishes: Vec<Publish>,
        order: &Order,
    ) -> Result<SubmittedPublishes, BrokerError> {
        let routed = self.queues_that_route(&publishes);
        let mut requests = Vec::with_capacity(publishes.len());
        let mut contents = Vec::with_capacity(publishes.len());
        let mut malformed = Vec::with_capacity(publishes.len());
        for publish in publishes {
            let id = publish.id;
            let mut encoder = Encoder::new(&routed);
            match encoder.publish(publish) {
                Ok(publish) => {
                    let command = Command::Publish(publish);
                    requests.push(Request { id, command });
                    contents.extend(encoder.contents);
                    malformed.push(None);
                }
                Err(error) => malformed.push(Some(error)),
            }
        }
        let submitted = if requests.is_empty() {
            None
        } else {
            self.check_draining()?;
            Some(
                self.0
                    .batcher
                    .submit(Proposal { requests, contents }, order, self.deadline())
                    .await?,
            )
        };
        Ok(SubmittedPublishes { submitted, malformed })
    }

    /// The queues that the publishes go to whose dead letters an exchange
    /// routes, now: it may look at the headers. Looks at the state only if there
    /// are headers.
    pub(super) fn queues_that_route(&self, publishes: &[Publish]) -> BTreeSet<QueueName> {
        let with_headers = publishes.iter().filter_map(|publish| match &publish.target {
            Target::Queue(name) if publish.messages.iter().any(Publication::has_headers) => Some(name),
            _ => None,
        });
        let mut queues: BTreeSet<QueueName> = with_headers.cloned().collect();
        if !queues.is_empty() {
            self.0.consensus.with_state(|state| {
                queues.retain(|name| {
                    let settings = state.settings(name);
                    settings.is_some_and(|settings| settings.dead_letter_exchange.is_some())
                });
            });
        }
        queues
    }
}

/// Publishes that are on their way.
pub struct SubmittedPublishes {
    /// None if every one was malformed.
    submitted: Option<Submitted>,
    /// For each publish; those that are malformed are answered without taking part.
    malformed: Vec<Option<BrokerError>>,
}

impl SubmittedPublishes {
    /// Waits until they are applied; answers in order.
    pub async fn answer(self) -> Result<Vec<Answered<Published>>, BrokerError> {
        let committed = match self.submitted {
            Some(submitted) => Some(submitted.answer().await?),
            None => None,
        };
        let mut answers = committed.into_iter().flat_map(Committed::into_answers);
        let answer = |malformed: Option<BrokerError>| {
            if let Some(error) = malformed {
                return Err(error);
            }
            let (position, outcome) = answers.next().expect("an outcome for each request");
            match outcome? {
                Reply::Published(published) => Ok((position, published.into())),
                other => Err(unexpected(&other)),
            }
        };
        Ok(self.malformed.into_iter().map(answer).collect())
    }
}

impl From<outcome::Published> for Published {
    fn from(published: outcome::Published) -> Self {
        let outcome::Published {
            first,
            count,
            unroutable,
            duplicates,
        } = published;
        let id = |place| MessageId {
            index: first.index,
            number: first.number + place,
        };
        let mut ids: Vec<MessageId> = (0..count).map(id).collect();
        for duplicate in &duplicates {
            ids[duplicate.place as usize] = duplicate.first;
        }
        Self {
            ids,
            unroutable,
            duplicates,
        }
    }
}

/// Lays the messages of one command out for the log, and keeps it in bounds.
pub(super) struct Encoder<'a> {
    /// Queues whose messages bring their headers along.
    routed: &'a BTreeSet<QueueName>,
    pub(super) contents: Vec<Bytes>,
    bytes: usize,
}

impl<'a> Encoder<'a> {
    pub(super) fn new(routed: &'a BTreeSet<QueueName>) -> Self {
        Self {
            routed,
            contents: Vec::new(),
            bytes: 0,
        }
    }

    /// One publish of the command; its contents follow those before.
    pub(super) fn publish(&mut self, publish: Publish) -> Result<command::Publish, BrokerError> {
        let Publish { target, messages, .. } = publish;
        check_count("messages", messages.len())?;
        check_count("messages", self.contents.len() + messages.len())?;
        let (exchange, with_headers) = match &target {
            Target::Queue(name) => (String::new(), self.routed.contains(name)),
            Target::Exchange { name, .. } => (name.to_string(), true),
        };
        self.contents.reserve(messages.len());
        let mut encoded = Vec::with_capacity(messages.len());
        for mut publication in messages {
            publication.content.exchange.clone_from(&exchange);
            encoded.push(self.message(publication, with_headers)?);
        }
        Ok(command::Publish {
            target,
            messages: encoded,
        })
    }

    fn message(&mut self, publication: Publication, with_headers: bool) -> Result<NewMessage, BrokerError> {
        let labels = publication.content.labels(with_headers);
        let priority = publication.content.priority;
        self.bytes += publication.content.body.len() + publication.content.headers_bytes();
        self.contents.push(publication.content.encode()?);
        if self.bytes > COMMAND_BYTES_MAX {
            let problem = format!(
                "bodies and headers together have at most {COMMAND_BYTES_MAX} bytes, not {} or more",
                self.bytes
            );
            return Err(BrokerError::Invalid {
                field: "messages",
                problem,
            });
        }
        Ok(NewMessage {
            delay: publication.delay,
            deliver_at: publication.deliver_at,
            ttl: publication.ttl,
            priority,
            labels,
        })
    }
}

impl Publication {
    fn has_headers(&self) -> bool {
        !self.content.headers.is_empty()
    }
}

impl Content {
    /// What the state machine is to know of it; None if there is nothing.
    fn labels(&self, with_headers: bool) -> Option<Box<Labels>> {
        let with_headers = with_headers && !self.headers.is_empty();
        let texts = [&self.routing_key, &self.group, &self.dedup_id];
        if !with_headers && texts.iter().all(|text| text.is_empty()) {
            return None;
        }
        Some(Box::new(Labels {
            routing_key: self.routing_key.clone(),
            group: self.group.clone(),
            dedup_id: self.dedup_id.clone(),
            headers: if with_headers {
                self.headers.clone()
            } else {
                Default::default()
            },
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use quorate_core::ids::ExchangeName;
    use quorate_core::outcome::MessageState;

    use super::*;

    fn queue(name: &str) -> QueueName {
        QueueName::new(name).unwrap()
    }

    fn publish(target: Target, contents: Vec<Content>) -> Publish {
        let publication = |content| Publication {
            content,
            ..Publication::default()
        };
        Publish {
            id: None,
            target,
            messages: contents.into_iter().map(publication).collect(),
        }
    }

    fn with_header() -> Content {
        Content {
            headers: BTreeMap::from([("kind".to_owned(), "report".to_owned())]),
            ..Content::default()
        }
    }

    fn labels(target: Target, content: Content, routed: &[&str]) -> Option<Box<Labels>> {
        let routed = routed.iter().map(|name| queue(name)).collect();
        let publish = Encoder::new(&routed)
            .publish(publish(target, vec![content]))
            .unwrap();
        publish.messages[0].labels.clone()
    }

    #[test]
    fn a_plain_message_has_no_labels() {
        assert_eq!(labels(Target::Queue(queue("q")), Content::default(), &[]), None);
        assert_eq!(labels(Target::Queue(queue("q")), with_header(), &["other"]), None);
    }

    #[test]
    fn headers_are_labels_where_an_exchange_may_look_at_them() {
        let exchange = Target::Exchange {
            name: ExchangeName::new("x").unwrap(),
            mandatory: false,
        };
        let headers = with_header().headers;
        assert_eq!(labels(exchange, with_header(), &[]).unwrap().headers, headers);
        let to_queue = labels(Target::Queue(queue("q")), with_header(), &["q"]);
        assert_eq!(to_queue.unwrap().headers, headers);
    }

    #[test]
    fn the_content_names_the_exchange_of_the_publish() {
        let target = Target::Exchange {
            name: ExchangeName::new("x").unwrap(),
            mandatory: true,
        };
        let none = BTreeSet::new();
        let mut encoder = Encoder::new(&none);
        let forged = Content {
            exchange: "other".to_owned(),
            ..Content::default()
        };
        encoder.publish(publish(target, vec![forged])).unwrap();
        assert_eq!(Content::decode(&encoder.contents[0]).unwrap().exchange, "x");
    }

    #[test]
    fn a_command_has_so_many_messages_and_bytes_over_all_its_publishes() {
        let none = BTreeSet::new();
        let mut encoder = Encoder::new(&none);
        let many = |count| publish(Target::Queue(queue("q")), vec![Content::default(); count]);
        assert!(encoder.publish(many(0)).is_err());
        encoder.publish(many(4_000)).unwrap();
        let error = encoder.publish(many(97)).unwrap_err();
        assert!(
            error.to_string().contains("messages: 1 to 4096, not 4097"),
            "{error}"
        );

        let mut encoder = Encoder::new(&none);
        let large = Content {
            body: Bytes::from(vec![0; BODY_BYTES_MAX]),
            ..Content::default()
        };
        let large = |count| publish(Target::Queue(queue("q")), vec![large.clone(); count]);
        encoder.publish(large(1)).unwrap();
        let error = encoder.publish(large(1)).unwrap_err();
        assert!(error.to_string().contains("at most 16842752 bytes"), "{error}");
    }

    #[test]
    fn a_duplicate_is_answered_with_the_id_of_the_first() {
        let id = |index, number| MessageId { index, number };
        let duplicate = Duplicate {
            place: 1,
            first: id(3, 7),
            state: MessageState::Ready,
        };
        let published = Published::from(outcome::Published {
            first: id(9, 2),
            count: 3,
            unroutable: vec![2],
            duplicates: vec![duplicate],
        });
        assert_eq!(published.ids, [id(9, 2), id(3, 7), id(9, 4)]);
    }
}
