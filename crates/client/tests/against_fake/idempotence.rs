use std::collections::BTreeSet;
use std::time::Duration;

use quorate_client::idempotent::{Applied, HandlerError, RunError, Store, process, run};
use quorate_client::{Client, Delivery};
use quorate_proto::v1::settlement::Verdict;

use crate::consuming::open;
use crate::fake::{Node, Replicated, client};

/// Keeps ids, and the number of settlements that the broker had at each commit.
#[derive(Default)]
struct Memory {
    node: Option<Node>,
    ids: BTreeSet<String>,
    settled_at_commit: Vec<usize>,
    broken: bool,
}

#[derive(Debug, thiserror::Error)]
#[error("out of memory")]
struct OutOfMemory;

impl<H> Store<H> for Memory
where
    H: FnMut(&Delivery) -> Result<(), HandlerError> + Send,
{
    type Error = OutOfMemory;

    async fn apply(&mut self, delivery: &Delivery, handler: &mut H) -> Result<Applied, OutOfMemory> {
        if self.broken {
            return Err(OutOfMemory);
        }
        if self.ids.contains(delivery.message_id()) {
            return Ok(Applied::Before);
        }
        if let Err(error) = handler(delivery) {
            return Ok(Applied::Failed(error.to_string()));
        }
        let settled = self.node.as_ref().map_or(0, |node| node.settled().len());
        self.settled_at_commit.push(settled);
        self.ids.insert(delivery.message_id().to_owned());
        Ok(Applied::Now)
    }
}

async fn lease(client: &Client) -> Delivery {
    client.lease("jobs").send().await.unwrap().remove(0)
}

/// Verdict of the unary settle number `place`.
fn verdict(node: &Node, place: usize) -> Verdict {
    node.settled()[place].settlements[0].verdict.clone().unwrap()
}

#[tokio::test]
async fn the_ack_comes_after_the_commit_and_again_after_a_repeat() {
    let node = Node::start(&Replicated::default()).await.node;
    let client = client(&[&node.address]);
    let mut store = Memory {
        node: Some(node.clone()),
        ..Memory::default()
    };
    let mut runs = 0;
    let mut handler = |_: &Delivery| -> Result<(), HandlerError> {
        runs += 1;
        Ok(())
    };
    let first = process(&mut store, &mut handler, lease(&client).await).await;
    assert_eq!(first.unwrap(), Applied::Now);
    let again = process(&mut store, &mut handler, lease(&client).await).await;
    assert_eq!(again.unwrap(), Applied::Before);
    assert_eq!((runs, store.settled_at_commit), (1, vec![0]));
    assert!(matches!(verdict(&node, 0), Verdict::Ack(_)));
    assert!(matches!(verdict(&node, 1), Verdict::Ack(_)));
}

#[tokio::test]
async fn a_handler_that_fails_makes_a_nack_with_its_reason() {
    let node = Node::start(&Replicated::default()).await.node;
    let mut handler = |_: &Delivery| -> Result<(), HandlerError> { Err("no such account".into()) };
    let delivery = lease(&client(&[&node.address])).await;
    let mut store = Memory::default();
    let applied = process(&mut store, &mut handler, delivery).await.unwrap();
    assert_eq!(applied, Applied::Failed("no such account".to_owned()));
    assert!(matches!(verdict(&node, 0), Verdict::Nack(nack) if nack.reason == "no such account"));
    assert!(store.ids.is_empty());
}

#[tokio::test]
async fn a_store_that_fails_gives_the_message_back_and_ends_the_worker() {
    let mut a = Node::start(&Replicated::default()).await;
    let client = client(&[&a.node.address]);
    let (mut consumer, mut stream, _) = open(&mut a, client).await;
    let mut store = Memory {
        broken: true,
        ..Memory::default()
    };
    let mut handler = |_: &Delivery| -> Result<(), HandlerError> { Ok(()) };
    let broker = async {
        stream.deliver([1]).await;
        let settle = stream.settle().await;
        stream.settled(&settle).await;
        settle.settlements[0].verdict.clone().unwrap()
    };
    let (ended, verdict) = tokio::join!(run(&mut consumer, &mut store, &mut handler), broker);
    assert!(matches!(ended, Err(RunError::Store(OutOfMemory))), "{ended:?}");
    assert!(matches!(verdict, Verdict::Release(_)));
}

#[tokio::test]
async fn a_worker_that_no_broker_hears_has_done_its_work() {
    let node = Node::start(&Replicated::default()).await.node;
    let client = client(&[&node.address]).with_timeout(Duration::from_millis(300));
    let delivery = lease(&client).await;
    node.follow(None);
    let mut store = Memory::default();
    let mut handler = |_: &Delivery| -> Result<(), HandlerError> { Ok(()) };
    let applied = process(&mut store, &mut handler, delivery).await;
    assert_eq!(
        applied.unwrap(),
        Applied::Now,
        "the message comes again, and is acked then"
    );
}
