//! What an operator does to queues, written down.

use std::time::Duration;

use jepsen_lite_core::history::{Act, Operation, Outcome, Place, Record, View};
use jepsen_lite_core::view::Settings;
use quorate_client::{Binding, Client, ExchangeKind, OperateResult, QueueInfo, Result, Schedule, Selector};

use crate::native;
use crate::recorder::Recorder;

/// An operator with a client and a pen.
#[derive(Clone, Debug)]
pub struct Operator {
    client: Client,
    process: u32,
    recorder: Recorder,
}

impl Operator {
    /// One who writes under this number.
    #[must_use]
    pub fn new(client: Client, process: u32, recorder: &Recorder) -> Self {
        Self {
            client,
            process,
            recorder: recorder.clone(),
        }
    }

    /// Its client.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Ensures that a queue exists with these settings, and that those that are not given are the defaults.
    ///
    /// # Errors
    ///
    /// Those of the client.
    pub async fn declare(&self, queue: &str, settings: Settings) -> Result<()> {
        let mut declare = self.client.declare_queue(queue);
        if let Some(count) = settings.deliveries_max {
            declare = declare.max_deliveries(count);
        }
        if let Some(target) = &settings.dead_letter_target {
            declare = declare.dead_letter_queue(target);
        }
        if let Some(messages) = settings.messages_max {
            declare = declare.max_length(messages);
        }
        if let Some(window) = settings.dedup_window_ms {
            declare = declare.dedup_window(Duration::from_millis(window));
        }
        if let Some(ttl) = settings.ttl_ms {
            declare = declare.message_ttl(Duration::from_millis(ttl));
        }
        if let Some(concurrency) = settings.group_concurrency {
            declare = declare.group_concurrency(concurrency);
        }
        self.operate(queue, Act::Declare(settings), async {
            let declared = declare.send().await?;
            Ok((u64::from(declared.created), Some(native::place(declared.commit))))
        })
        .await
    }

    /// Ensures that an exchange exists.
    ///
    /// # Errors
    ///
    /// Those of the client.
    pub async fn declare_exchange(&self, exchange: &str, kind: ExchangeKind) -> Result<()> {
        let act = Act::DeclareExchange(kind.as_str().to_owned());
        self.operate(exchange, act, async {
            let declared = self.client.declare_exchange(exchange, kind).send().await?;
            Ok((u64::from(declared.created), Some(native::place(declared.commit))))
        })
        .await
    }

    /// Ensures that an exchange leads to a queue.
    ///
    /// # Errors
    ///
    /// Those of the client.
    pub async fn bind(&self, queue: &str, exchange: &str, pattern: &str) -> Result<()> {
        let binding = Binding::new(exchange, queue).routing_key(pattern);
        self.operate(queue, Act::Bind(exchange.to_owned()), async {
            let declared = self.client.bind(binding).await?;
            Ok((u64::from(declared.created), Some(native::place(declared.commit))))
        })
        .await
    }

    /// Gives dead letters of a queue another chance, up to so many; says how many got one.
    ///
    /// # Errors
    ///
    /// Those of the client.
    pub async fn redrive(&self, queue: &str, max: u64) -> Result<()> {
        self.operate(queue, Act::Redrive, async {
            let redriven = self.client.redrive(queue).max(max).send().await?;
            match redriven.stopped {
                Some(error) => Err(error),
                None => Ok((redriven.redriven, None)),
            }
        })
        .await
    }

    /// Removes messages, by dedup id. A scheduled one is cancelled by that.
    ///
    /// # Errors
    ///
    /// Those of the client.
    pub async fn delete(&self, queue: &str, dedup_ids: &[String]) -> Result<()> {
        let act = Act::Operate(format!("delete {}", dedup_ids.join(" ")));
        let ids = dedup_ids.iter().map(Selector::dedup_id);
        self.operate(queue, act, async {
            let done = self.client.delete_messages(queue, ids).await?;
            Ok((count(&done.results), Some(native::place(done.commit))))
        })
        .await
    }

    /// Lets messages be ready at another time, by dedup id.
    ///
    /// # Errors
    ///
    /// Those of the client.
    pub async fn reschedule(&self, queue: &str, dedup_ids: &[String], after: Option<Duration>) -> Result<()> {
        let act = Act::Operate(format!("reschedule {}", dedup_ids.join(" ")));
        let ids = dedup_ids.iter().map(Selector::dedup_id);
        let schedule = after.map_or(Schedule::Now, Schedule::After);
        self.operate(queue, act, async {
            let done = self.client.reschedule_messages(queue, ids, schedule).await?;
            Ok((count(&done.results), Some(native::place(done.commit))))
        })
        .await
    }

    /// Looks at a queue and its counts, linearizably.
    ///
    /// # Errors
    ///
    /// Those of the client. They are not written down: a look without an answer is nothing.
    pub async fn describe(&self, queue: &str) -> Result<QueueInfo> {
        let invoked = self.recorder.now();
        let info = self.client.describe_queue(queue).await?;
        let view = View::Counts(native::counts(&info.counts));
        let read_index = Some(info.read_index);
        self.recorder.read(self.process, queue, invoked, read_index, view);
        Ok(info)
    }

    /// Looks at what is in the way of a queue, and its counts, linearizably.
    ///
    /// # Errors
    ///
    /// As [`describe`](Self::describe).
    pub async fn explain(&self, queue: &str) -> Result<()> {
        let invoked = self.recorder.now();
        let told = self.client.explain_queue(queue).await?;
        // Without a leader, any node tells what it knows.
        if told.obstacles.iter().all(|obstacle| obstacle.kind != "no-leader") {
            let view = View::Obstacles {
                counts: native::counts(&told.queue.counts),
                obstacles: native::obstacles(&told),
            };
            self.recorder
                .read(self.process, queue, invoked, Some(told.read_index), view);
        }
        Ok(())
    }

    /// Looks at the first messages of a queue, linearizably.
    ///
    /// # Errors
    ///
    /// As [`describe`](Self::describe).
    pub async fn browse(&self, queue: &str, max: u32) -> Result<()> {
        let invoked = self.recorder.now();
        let page = self.client.browse(queue).page_size(max).page().await?;
        let view = View::Messages {
            whole: page.next.is_none(),
            messages: page.messages.iter().map(native::seen).collect(),
        };
        self.recorder
            .read(self.process, queue, invoked, Some(page.read_index), view);
        Ok(())
    }

    /// Writes down what was asked for, and what came of it.
    async fn operate(
        &self,
        queue: &str,
        act: Act,
        operate: impl Future<Output = Result<(u64, Option<Place>)>>,
    ) -> Result<()> {
        let asked = self.recorder.ask([Record::Operation(Operation {
            process: self.process,
            queue: queue.to_owned(),
            act,
            ..Operation::default()
        })]);
        let result = operate.await;
        let (told, at) = match &result {
            Ok((count, at)) => (Outcome::Done(*count), *at),
            Err(error) => (native::outcome(Err(error.clone())), None),
        };
        asked.answer(|_, record| {
            if let Record::Operation(operation) = record {
                operation.place = at;
                operation.outcome.clone_from(&told);
            }
        });
        result.map(|_| ())
    }
}

/// How many it was done to.
fn count(results: &[OperateResult]) -> u64 {
    results.iter().filter(|result| result.result.is_ok()).count() as u64
}
