//! Scripts that say what the broker does: `tests/scripts/<topic>/<claim>`.
//!
//! A script is a list of commands and, below `---`, what came of each. Prose
//! stands between. `UPDATE_GOLDENFILES=1` writes the traces anew: read what
//! changed before you commit it.
//!
//! After every command the invariants are checked, and the broker is thrown away
//! for one that is restored from its snapshot. So each script also says that a
//! snapshot forgets nothing. Under what a repeated request was answered stands
//! the entry in which it was executed.
//!
//! | Command | |
//! |---|---|
//! | `declare`, `update` QUEUE [setting=…] | `lease max_deliveries dead_letter_queue dead_letter_exchange dead_letter_routing_key max_length max_bytes overflow ttl backoff backoff_max ageing group_concurrency group_weights single_active dedup_window dedup_max_ids` |
//! | `pause`, `resume` QUEUE | |
//! | `purge` QUEUE [states=ready,delayed,dead], `delete` QUEUE [if_empty] [if_unused] | |
//! | `publish` QUEUE LABEL… [delay= at= ttl= bytes= priority= group= dedup=] | or `count=` instead of labels |
//! | `publish exchange=`NAME LABEL… [key= headers= mandatory=true] | headers: `name:value,…` |
//! | `declare-exchange` NAME KIND [alternate= dedup_window= dedup_max_ids=], `update-exchange` NAME [setting=…], `delete-exchange` NAME [if_unused] | |
//! | `bind`, `unbind` NAME QUEUE or `exchange=`NAME [key=] [all= any=] | all, any: `name:value,name,…` |
//! | `lease` QUEUE [max= lease= wait= node=] | |
//! | `ack release` GRANT…, `nack` GRANT… [delay= reason=], `reject` GRANT… [reason=], `extend` GRANT… [lease=] | |
//! | `attach` SESSION [node= life=], `close`, `detach` SESSION [epoch=] | epoch: the last one unless given |
//! | `consume` SESSION QUEUE [consumer= credit= lease= name= priority=], `cancel` SESSION, `credit` SESSION N | |
//! | `node-up`, `node-silent`, `node-down` NODE life= | |
//! | `tick` [SPAN] | lets time pass and applies an entry |
//! | `wait` SPAN | lets time pass |
//! | `begin`, `commit` | what is between goes into one entry |
//! | `transact` [id=], `commit` | what is between, settlements and publishes, is one transaction |
//! | `remove`, `move`, `reschedule`, `redrive`, `undo` QUEUE LABEL… [dedup=] | `to=` of move and redrive, `continues=` of redrive, `delay= at=` of reschedule, `entry=` of undo |
//! | `browse` QUEUE [from= max= scan= state= group= reason= id=LABEL dedup= before= since= dead_letters=yes] | several states: `ready,dead` |
//! | `trace` LABEL | all that happened to a message |
//! | `find` QUEUE LABEL, `find` QUEUE dedup= | |
//! | `counts` QUEUE, `show` QUEUE, `explain` QUEUE, `settings` QUEUE, `queues`, `session` SESSION, `exchange` NAME, `exchanges`, `deadline`, `snapshot` | |
//!
//! Any command takes `id=CLIENT/SEQUENCE/OLDEST`.

#![allow(clippy::disallowed_methods, clippy::print_stdout)] // reads scripts, and says which fail

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use goldenscript::{ArgumentConsumer, Context, Runner};
use quorate_core::browse::{ExchangeView, Filter, MessageView, Obstacle};
use quorate_core::command::{
    Binding, Command, Destination, ExchangeKind, ExchangeSettingsPatch, HeaderMatch, Labels, NewMessage,
    Operation, Overflow, Publish, PurgeStates, Request, Selector, SettingsPatch, Settlement, Target, Verdict,
};
use quorate_core::effect::{DeadReason, Effect, Leased};
use quorate_core::event::{Change, Event, LeasedBy};
use quorate_core::ids::{
    ClientId, ConsumerId, ExchangeName, Incarnation, MessageId, Millis, NodeId, QueueId, QueueName,
    RequestId, SessionId, Timestamp, Token,
};
use quorate_core::outcome::{Duplicate, Exit, MessageState, Outcome, Published, Reply, Settled};
use quorate_core::{Broker, Meta, Repeated, invariants};

/// A test for each topic, and one that no topic is left out.
macro_rules! topics {
    ($($topic:ident)*) => {
        $(
            #[test]
            fn $topic() {
                run_all(stringify!($topic));
            }
        )*

        #[test]
        fn every_topic_is_run() {
            let topics = names(&scripts());
            assert_eq!(topics, [$(stringify!($topic)),*]);
        }
    };
}

topics! {
    browse consumers dead_letter dedup delay events expiry groups leases limits operate operating order
    queues requests routing schedule sessions single_active snapshot transact
}

/// Runs all scripts of a topic, and names those that fail.
fn run_all(topic: &str) {
    let scripts = scripts().join(topic);
    let run = |name: &String| goldenscript::run(&mut Script::new(), scripts.join(name));
    let failed: Vec<String> = names(&scripts)
        .into_iter()
        .filter(|name| match std::panic::catch_unwind(|| run(name)) {
            Ok(Ok(())) => false,
            Ok(Err(error)) => {
                println!("{topic}/{name}: {error}");
                true
            }
            Err(_) => true,
        })
        .collect();
    assert!(failed.is_empty(), "{topic}: {failed:?}");
}

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts")
}

fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Scripts tell times from here.
const START: Timestamp = Timestamp(1_700_000_000_000);

struct Script {
    broker: Broker,
    index: u64,
    now: Timestamp,
    labels: BTreeMap<MessageId, String>,
    tokens: BTreeMap<u64, Token>,
    epochs: BTreeMap<SessionId, u64>,
    /// All that was told, with the index and time of its entry.
    events: Vec<(u64, Timestamp, Event)>,
    /// Between `begin` and `commit`.
    entry: Option<Entry>,
    /// Between `transact` and `commit`: the request id.
    transaction: Option<Option<RequestId>>,
}

#[derive(Default)]
struct Entry {
    requests: Vec<Request>,
    contents: Vec<u32>,
    labels: Vec<String>,
}

impl Script {
    fn new() -> Self {
        Self {
            broker: Broker::new(),
            index: 0,
            now: START,
            labels: BTreeMap::new(),
            tokens: BTreeMap::new(),
            epochs: BTreeMap::new(),
            events: Vec::new(),
            entry: None,
            transaction: None,
        }
    }

    fn apply(&mut self, entry: Entry) -> String {
        self.index += 1;
        for (number, label) in entry.labels.into_iter().enumerate() {
            let id = MessageId {
                index: self.index,
                number: u32::try_from(number).unwrap(),
            };
            self.labels.insert(id, label);
        }
        let meta = Meta {
            index: self.index,
            at: self.now,
            digest: self.index,
        };
        let applied = self.broker.apply(meta, &entry.requests, &entry.contents);
        let events = applied.events.into_iter();
        self.events
            .extend(events.map(|event| (meta.index, meta.at, event)));
        let mut out = String::new();
        let mut repeated = applied.repeated.into_iter().peekable();
        for ((ordinal, request), outcome) in (0..).zip(&entry.requests).zip(&applied.outcomes) {
            if let (Command::AttachSession { session, .. }, Ok(Reply::Attached { epoch, .. })) =
                (&request.command, outcome)
            {
                self.epochs.insert(*session, *epoch);
            }
            self.outcome(outcome, &mut out);
            if let Some(Repeated { index, at, .. }) = repeated.next_if(|next| next.ordinal == ordinal) {
                writeln!(out, "    as in entry {index}, {}", time(at)).unwrap();
            }
        }
        assert_eq!(repeated.next(), None);
        let dropped = |effect: &Effect| matches!(effect, Effect::ContentDropped { .. });
        for effects in applied
            .effects
            .chunk_by(|one, next| dropped(one) && dropped(next))
        {
            if effects.len() > 10 {
                writeln!(out, "→ drop contents of {} messages", effects.len()).unwrap();
                continue;
            }
            for effect in effects {
                self.effect(effect, &mut out);
            }
        }
        self.check();
        out
    }

    /// The invariants hold, and a snapshot is as good as the broker.
    fn check(&mut self) {
        let violations = invariants::check(&self.broker);
        assert!(violations.is_empty(), "{violations:?}");
        let bytes = write(&self.broker);
        let restored = Broker::restore(bytes.chunks(7).map(Ok::<_, std::io::Error>)).unwrap();
        assert_eq!(restored.next_deadline(), self.broker.next_deadline());
        assert_eq!(write(&restored), bytes);
        self.broker = restored;
    }

    fn outcome(&mut self, outcome: &Outcome, out: &mut String) {
        match outcome {
            Ok(Reply::Done) => out.push_str("ok\n"),
            Ok(Reply::Declared { created: true }) => out.push_str("created\n"),
            Ok(Reply::Declared { created: false }) => out.push_str("exists\n"),
            Ok(Reply::Purged { count }) => writeln!(out, "purged {count}").unwrap(),
            Ok(Reply::Deleted { count }) => writeln!(out, "deleted with {count} messages").unwrap(),
            Ok(Reply::Published(published)) => self.published(published, out),
            Ok(Reply::Leased(leased)) if leased.is_empty() => out.push_str("nothing to lease\n"),
            Ok(Reply::Leased(leased)) => {
                for leased in leased {
                    let leased = self.leased(leased);
                    writeln!(out, "leased {leased}").unwrap();
                }
            }
            Ok(Reply::Waiting) => out.push_str("waiting\n"),
            Ok(Reply::Settled(settled)) => {
                for settled in settled {
                    match settled {
                        Ok(settled) => self.settled(settled, out),
                        Err(rejection) => writeln!(out, "refused: {rejection}").unwrap(),
                    }
                }
            }
            Ok(Reply::Attached { epoch, resumed }) => {
                let how = if *resumed { "resumed" } else { "attached" };
                writeln!(out, "{how}, epoch {epoch}").unwrap();
            }
            Ok(Reply::Created(created)) => {
                writeln!(out, "{}", if *created { "created" } else { "exists" }).unwrap();
            }
            Ok(Reply::Transacted { settled, published }) => {
                for settled in settled {
                    self.settled(settled, out);
                }
                for published in published {
                    self.published(published, out);
                }
            }
            Ok(Reply::Operated { results, queues }) => {
                for result in results {
                    match result {
                        Ok(id) => writeln!(out, "{} ok", self.label(*id)).unwrap(),
                        Err(rejection) => writeln!(out, "refused: {rejection}").unwrap(),
                    }
                }
                for queue in queues {
                    writeln!(out, "free in {queue}").unwrap();
                }
            }
            Err(rejection) => writeln!(out, "refused: {rejection}").unwrap(),
        }
    }

    fn settled(&self, settled: &Settled, out: &mut String) {
        match settled.leased_until {
            Some(until) => writeln!(out, "ok until {}", time(until)).unwrap(),
            None => out.push_str("ok\n"),
        }
    }

    fn published(&self, published: &Published, out: &mut String) {
        let Published { first, count, .. } = published;
        let id = |place| MessageId {
            number: first.number + place,
            ..*first
        };
        match count {
            1 => write!(out, "published {first}").unwrap(),
            _ => write!(out, "published {first} to {}", id(count - 1)).unwrap(),
        }
        for place in &published.unroutable {
            write!(out, ", no route for {}", self.label(id(*place))).unwrap();
        }
        out.push('\n');
        for Duplicate { place, first, state } in &published.duplicates {
            let state = format!("{state:?}").to_lowercase();
            let first = self.label(*first);
            writeln!(out, "    {place} is a duplicate of {first}, which is {state}").unwrap();
        }
    }

    fn effect(&mut self, effect: &Effect, out: &mut String) {
        match effect {
            Effect::Deliver {
                node,
                session,
                epoch,
                consumer,
                leased,
            } => {
                let leased = self.leased(leased);
                let (node, session, consumer) = (node.0, session.0, consumer.0);
                writeln!(
                    out,
                    "→ node {node}: deliver to s{session}.{consumer} (epoch {epoch}) {leased}"
                )
            }
            Effect::LeaseAnswered {
                node,
                request,
                leased,
            } => {
                let (node, client, sequence) = (node.0, request.client.0, request.sequence);
                write!(out, "→ node {node}: answer {client}/{sequence} with").unwrap();
                let leased: Vec<String> = leased.iter().map(|leased| self.leased(leased)).collect();
                if leased.is_empty() {
                    out.push_str(" nothing");
                }
                for leased in leased {
                    write!(out, "\n    {leased}").unwrap();
                }
                writeln!(out)
            }
            Effect::ConsumerCancelled {
                node,
                session,
                epoch,
                consumer,
                queue,
            } => {
                let (node, session, consumer) = (node.0, session.0, consumer.0);
                writeln!(
                    out,
                    "→ node {node}: cancel s{session}.{consumer} (epoch {epoch}) of {queue}"
                )
            }
            Effect::SessionLost { node, session, epoch } => {
                writeln!(out, "→ node {}: lost s{} (epoch {epoch})", node.0, session.0)
            }
            Effect::ContentDropped { id } => writeln!(out, "→ drop content of {}", self.label(*id)),
        }
        .unwrap();
    }

    fn leased(&mut self, leased: &Leased) -> String {
        self.tokens.insert(leased.token.grant, leased.token);
        let Token { attempt, grant, .. } = leased.token;
        let mut text = format!(
            "{} as {grant}, attempt {attempt}, until {}",
            self.label(leased.message),
            time(leased.leased_until)
        );
        if leased.redelivered {
            text.push_str(", redelivered");
        }
        if !leased.last_error.is_empty() {
            write!(text, ", last error {:?}", leased.last_error).unwrap();
        }
        if let Some(dead) = &leased.dead_letter {
            let reason = reason(dead.reason);
            write!(
                text,
                ", dead letter of {} ({reason}, {} attempts)",
                dead.origin, dead.attempts
            )
            .unwrap();
        }
        text
    }

    /// One line for one message, with what is not as usual.
    fn message(&self, message: &MessageView) -> String {
        let mut text = format!(
            "{} {} {}",
            message.position,
            self.label(message.id),
            format!("{:?}", message.state).to_lowercase()
        );
        let mut say = |what: String| write!(text, ", {what}").unwrap();
        if let Some(at) = message.ready_at {
            say(format!("due {}", time(at)));
        }
        if let Some(lease) = message.lease {
            let holder = holder_name(&lease.holder);
            let (since, until) = (time(lease.since), time(lease.until));
            say(format!("by {holder} as {} from {since} to {until}", lease.grant));
        }
        if let Some((why, at)) = message.dead {
            say(format!("{} at {}", reason(why), time(at)));
        }
        if message.priority > 0 {
            say(format!("priority {}", message.priority));
        }
        if !message.group.is_empty() {
            say(format!("group {}", message.group));
        }
        if !message.dedup_id.is_empty() {
            say(format!("dedup {}", message.dedup_id));
        }
        if message.grants > 0 {
            say(format!("{} leases, {} failed", message.grants, message.failures));
        }
        if message.last_error != message.first_error {
            say(format!("first error {:?}", message.first_error));
        }
        if !message.last_error.is_empty() {
            say(format!("last error {:?}", message.last_error));
        }
        if let Some(at) = message.expires_at {
            say(format!("expires {}", time(at)));
        }
        if let Some(letter) = &message.dead_letter {
            let (origin, why, at) = (&letter.origin, reason(letter.reason), time(letter.at));
            say(format!(
                "dead letter of {origin}: {why} at {at}, {} attempts",
                letter.attempts
            ));
        }
        if message.backlog {
            say("waits for room in its target".to_owned());
        }
        if let Some(redrive) = message.redrive {
            say(format!("redriven by entry {redrive}"));
        }
        text
    }

    fn change(&self, change: &Change) -> String {
        let at =
            |until: &Option<Timestamp>| until.map_or("at once".to_owned(), |at| format!("due {}", time(at)));
        match change {
            Change::Published {
                exchange,
                delayed_until,
                dedup_id,
            } => {
                let mut text = format!("published, {}", at(delayed_until));
                if let Some(exchange) = exchange {
                    write!(text, ", through {exchange}").unwrap();
                }
                if !dedup_id.is_empty() {
                    write!(text, ", dedup {dedup_id}").unwrap();
                }
                text
            }
            Change::Arrived { from, exit } => format!("arrived from {from}, {}", exit_name(*exit)),
            Change::Duplicate { refused } => format!("duplicate {} was not taken", self.label(*refused)),
            Change::Due => "due".to_owned(),
            Change::Leased {
                grant,
                attempt,
                holder,
                until,
                waited,
            } => {
                let waited = waited.map_or(String::new(), |span| format!(", waited {} ms", span.0));
                let until = time(*until);
                format!(
                    "leased as {grant}, attempt {attempt}, by {}, until {until}{waited}",
                    holder_name(holder)
                )
            }
            Change::Extended { until } => format!("extended until {}", time(*until)),
            Change::Returned { reason, error, until } => {
                let error = if error.is_empty() {
                    String::new()
                } else {
                    format!(" {error:?}")
                };
                format!("returned, {reason:?}{error}, {}", at(until))
            }
            Change::Rescheduled { until } => format!("rescheduled, {}", at(until)),
            Change::Died { reason: why, error } => format!("died, {}, {error:?}", reason(*why)),
            Change::Redriven => "redriven".to_owned(),
            Change::RedriveUndone => "redrive undone".to_owned(),
            Change::Left {
                exit,
                reason: why,
                error,
                to,
                held,
            } => {
                let mut text = format!("left, {}", exit_name(*exit));
                if let Some(why) = why {
                    write!(text, " ({})", reason(*why)).unwrap();
                }
                if !error.is_empty() {
                    write!(text, " {error:?}").unwrap();
                }
                for queue in to {
                    write!(text, " to {queue}").unwrap();
                }
                if let Some(held) = held {
                    write!(text, ", held for {} ms", held.0).unwrap();
                }
                text
            }
        }
    }

    fn filter(&self, args: &mut ArgumentConsumer<'_>) -> Result<Filter> {
        let states = match args.take_key("state") {
            Some(states) => states.split(',').map(state).collect::<Result<_>>()?,
            None => Vec::new(),
        };
        Ok(Filter {
            states,
            published_before: moment(args, "before")?,
            published_from: moment(args, "since")?,
            group: args.take_key("group").map(str::to_owned),
            dedup_id: args.take_key("dedup").map(str::to_owned),
            reason: args.take_key("reason").map(parse_reason).transpose()?,
            messages: args
                .take_key("id")
                .into_iter()
                .map(|label| self.id(label))
                .collect(),
            redrive: args.take_key("redrive").map(str::parse).transpose()?,
            dead_letters_only: args.take_key("dead_letters").is_some(),
        })
    }

    /// The messages that are named by labels, ids, or a dedup id.
    fn selectors(&self, args: &mut ArgumentConsumer<'_>) -> Result<Vec<Selector>> {
        let dedup_id = args.take_key("dedup").map(|id| Selector::DedupId(id.to_owned()));
        let named = rest(args).map(|label| Selector::Message(self.id(label)));
        Ok(named.chain(dedup_id).collect())
    }

    /// The last message of a label; of none, what is written like an id.
    fn id(&self, label: &str) -> MessageId {
        let labelled = self.labels.iter().rev().find(|(_, known)| *known == label);
        let unknown = MessageId {
            index: u64::MAX,
            number: 0,
        };
        labelled.map_or_else(|| label.parse().unwrap_or(unknown), |(id, _)| *id)
    }

    fn label(&self, id: MessageId) -> String {
        self.labels.get(&id).cloned().unwrap_or_else(|| id.to_string())
    }

    fn token(&self, grant: &str) -> Result<Token> {
        let grant = grant.parse()?;
        let unknown = Token {
            queue: QueueId(0),
            position: 0,
            attempt: 1,
            grant,
        };
        Ok(self.tokens.get(&grant).copied().unwrap_or(unknown))
    }

    fn view(&self, command: &goldenscript::Command) -> Result<Option<String>> {
        let mut args = command.consume_args();
        let mut out = String::new();
        match command.name.as_str() {
            "counts" => {
                let c = self
                    .broker
                    .queue(&queue(&mut args)?)
                    .ok_or("no such queue")?
                    .counts;
                for (name, count) in [
                    ("ready", c.ready),
                    ("delayed", c.delayed),
                    ("leased", c.leased),
                    ("dead", c.dead),
                    ("backlog", c.dead_letter_backlog),
                    ("bytes", c.bytes),
                    ("consumers", c.consumers),
                    ("published", c.published),
                    ("acked", c.acked),
                    ("expired", c.expired),
                    ("dead_lettered", c.dead_lettered),
                    ("dropped", c.dropped),
                    ("deleted", c.deleted),
                    ("moved", c.moved),
                    ("redelivered", c.redelivered),
                    ("groups", c.groups),
                    ("duplicates", c.duplicates),
                ] {
                    if count > 0 {
                        write!(out, "{name}={count} ")?;
                    }
                }
                if out.is_empty() {
                    out.push_str("nothing");
                }
            }
            "show" => {
                let view = self.broker.queue(&queue(&mut args)?).ok_or("no such queue")?;
                let or_none = |at: Option<Timestamp>| at.map_or_else(|| "none".to_owned(), time);
                let (ready, leased) = (or_none(view.oldest_ready), or_none(view.oldest_leased));
                write!(
                    out,
                    "paused={} oldest_ready={ready} oldest_leased={leased}",
                    view.paused
                )?;
                if let Some(active) = view.active_consumer {
                    write!(out, " active={active}")?;
                }
            }
            "explain" => {
                let obstacles = self.broker.explain(&queue(&mut args)?).ok_or("no such queue")?;
                for found in &obstacles {
                    writeln!(out, "{}", obstacle(*found))?;
                }
                if obstacles.is_empty() {
                    out.push_str("nothing is in the way");
                }
            }
            "settings" => {
                let settings = self
                    .broker
                    .queue(&queue(&mut args)?)
                    .ok_or("no such queue")?
                    .settings;
                write!(out, "{settings:#?}")?;
            }
            "browse" => {
                let queue = queue(&mut args)?;
                let from = number(&mut args, "from", 0)?;
                let count_max = usize::try_from(number(&mut args, "max", 100)?)?;
                let scan_max = usize::try_from(number(&mut args, "scan", 1_000)?)?;
                let filter = self.filter(&mut args)?;
                let browsed = self.broker.browse(&queue, from, count_max, scan_max, &filter);
                let browsed = browsed.ok_or("no such queue")?;
                for message in &browsed.messages {
                    writeln!(out, "{}", self.message(message))?;
                }
                match browsed.next {
                    Some(next) => write!(out, "go on from {next}")?,
                    None => out.push_str("end"),
                }
            }
            "find" => {
                let queue = queue(&mut args)?;
                let selector = self.selectors(&mut args)?.pop().ok_or("which?")?;
                match self.broker.find(&queue, &selector) {
                    Some(message) => out.push_str(&self.message(&message)),
                    None => out.push_str("not there"),
                }
            }
            "trace" => {
                let label = args.next_pos().ok_or("which?")?;
                let id = self.id(label);
                for (index, at, event) in self.events.iter().filter(|(_, _, event)| event.message == id) {
                    let change = self.change(&event.change);
                    writeln!(out, "{} entry {index} {}: {change}", time(*at), event.queue_name)?;
                }
            }
            "queues" => {
                let after = args.take_key("after").map(QueueName::new).transpose()?;
                let limit = number(&mut args, "limit", 100)?;
                for queue in self.broker.queues(after.as_ref(), usize::try_from(limit)?) {
                    writeln!(out, "{} ready={}", queue.name, queue.counts.ready)?;
                }
            }
            "exchange" => match self.broker.exchange(&exchange(&mut args)?) {
                Some(view) => {
                    let ExchangeView {
                        kind,
                        received,
                        unroutable,
                        duplicates,
                        ..
                    } = view;
                    let duplicates = match duplicates {
                        0 => String::new(),
                        count => format!(" duplicates={count}"),
                    };
                    let alternate = view.settings.alternate;
                    let alternate = alternate.map_or(String::new(), |name| format!(", alternate {name}"));
                    writeln!(
                        out,
                        "{kind:?}, received={received} unroutable={unroutable}{duplicates}{alternate}"
                    )?;
                    for binding in view.bindings {
                        writeln!(out, "{}", shown(&binding))?;
                    }
                }
                None => out.push_str("none"),
            },
            "exchanges" => {
                let after = args.take_key("after").map(ExchangeName::new).transpose()?;
                let limit = number(&mut args, "limit", 100)?;
                for view in self.broker.exchanges(after.as_ref(), usize::try_from(limit)?) {
                    writeln!(out, "{} bindings={}", view.name, view.bindings.len())?;
                }
            }
            "session" => match self.broker.session(session(&mut args)?) {
                Some(view) => {
                    let orphaned = view
                        .orphaned_until
                        .map_or(String::new(), |at| format!(", orphaned until {}", time(at)));
                    let (node, life, epoch) = (view.node.0, view.incarnation.0, view.epoch);
                    writeln!(
                        out,
                        "node {node} life {life} epoch {epoch}, {} leases{orphaned}",
                        view.leases
                    )?;
                    for c in view.consumers {
                        writeln!(
                            out,
                            "consumer {} of {}: {} of {} in flight",
                            c.id.0, c.queue, c.in_flight, c.credit
                        )?;
                    }
                }
                None => out.push_str("none"),
            },
            "deadline" => match self.broker.next_deadline() {
                Some(at) => out.push_str(&time(at)),
                None => out.push_str("none"),
            },
            "snapshot" => {
                let snapshot = self.broker.snapshot();
                write!(out, "index {}, contents", snapshot.index())?;
                for (id, bytes) in snapshot.contents() {
                    write!(out, " {}:{bytes}", self.label(id))?;
                }
            }
            _ => return Ok(None),
        }
        args.reject_next()?;
        Ok(Some(out))
    }

    fn command(&mut self, command: &goldenscript::Command, entry: &mut Entry) -> Result<Command> {
        let mut args = command.consume_args();
        args.take_key("id");
        let parsed = match command.name.as_str() {
            "declare" => Command::DeclareQueue {
                name: queue(&mut args)?,
                settings: settings(&mut args)?,
            },
            "update" => Command::UpdateQueue {
                name: queue(&mut args)?,
                settings: settings(&mut args)?,
            },
            "purge" => Command::PurgeQueue {
                name: queue(&mut args)?,
                states: purge_states(&mut args)?,
            },
            "pause" | "resume" => Command::PauseQueue {
                name: queue(&mut args)?,
                paused: command.name == "pause",
            },
            "delete" => {
                let name = queue(&mut args)?;
                let flags: Vec<&str> = rest(&mut args).collect();
                Command::DeleteQueue {
                    name,
                    if_empty: flags.contains(&"if_empty"),
                    if_unused: flags.contains(&"if_unused"),
                }
            }
            "publish" => {
                let mandatory = args.take_key("mandatory") == Some("true");
                let target = match destination(&mut args)? {
                    Destination::Queue(name) => Target::Queue(name),
                    Destination::Exchange(name) => Target::Exchange { name, mandatory },
                };
                let message = NewMessage {
                    delay: span(&mut args, "delay")?.unwrap_or_default(),
                    deliver_at: moment(&mut args, "at")?.unwrap_or_default(),
                    ttl: span(&mut args, "ttl")?.unwrap_or_default(),
                    priority: u8::try_from(number(&mut args, "priority", 0)?)?,
                    labels: labels(&mut args),
                };
                let bytes = u32::try_from(number(&mut args, "bytes", 1)?)?;
                let count = number(&mut args, "count", 0)?;
                let mut labels: Vec<String> = rest(&mut args).map(str::to_owned).collect();
                labels.extend((0..count).map(|n| format!("m{n}")));
                entry.contents.extend(labels.iter().map(|_| bytes));
                entry.labels.extend(labels.iter().cloned());
                let messages = vec![message; labels.len()];
                Command::Publish(Publish { target, messages })
            }
            "declare-exchange" => Command::DeclareExchange {
                name: exchange(&mut args)?,
                kind: kind(args.next_pos().ok_or("kind?")?)?,
                settings: exchange_settings(&mut args)?,
            },
            "update-exchange" => Command::UpdateExchange {
                name: exchange(&mut args)?,
                settings: exchange_settings(&mut args)?,
            },
            "delete-exchange" => Command::DeleteExchange {
                name: exchange(&mut args)?,
                if_unused: rest(&mut args).any(|flag| flag == "if_unused"),
            },
            "bind" | "unbind" => {
                let binding = binding(&mut args)?;
                match command.name.as_str() {
                    "bind" => Command::Bind(binding),
                    _ => Command::Unbind(binding),
                }
            }
            "lease" => Command::Lease {
                queue: queue(&mut args)?,
                count_max: u32::try_from(number(&mut args, "max", 1)?)?,
                lease: span(&mut args, "lease")?,
                wait: span(&mut args, "wait")?.unwrap_or_default(),
                node: NodeId(number(&mut args, "node", 1)?),
            },
            "ack" | "nack" | "release" | "reject" | "extend" => {
                let delay = span(&mut args, "delay")?;
                let lease = span(&mut args, "lease")?;
                let reason = args.take_key("reason").unwrap_or_default().to_owned();
                let verdict = match command.name.as_str() {
                    "ack" => Verdict::Ack,
                    "nack" => Verdict::Nack { delay, reason },
                    "release" => Verdict::Release,
                    "reject" => Verdict::DeadLetter { reason },
                    _ => Verdict::Extend { lease },
                };
                let tokens = rest(&mut args).map(|grant| self.token(grant));
                let settle = |token| Settlement {
                    token,
                    verdict: verdict.clone(),
                };
                Command::Settle {
                    settlements: tokens.map(|t| t.map(settle)).collect::<Result<_>>()?,
                }
            }
            "remove" | "move" | "reschedule" | "redrive" | "undo" => {
                let to = args.take_key("to").map(QueueName::new).transpose()?;
                let operation = match command.name.as_str() {
                    "remove" => Operation::Delete,
                    "move" => Operation::Move { to: to.ok_or("to?")? },
                    "reschedule" => Operation::Reschedule {
                        delay: span(&mut args, "delay")?.unwrap_or_default(),
                        deliver_at: moment(&mut args, "at")?.unwrap_or_default(),
                    },
                    "redrive" => Operation::Redrive {
                        to,
                        continues: args.take_key("continues").map(str::parse).transpose()?,
                    },
                    _ => Operation::UndoRedrive {
                        redrive: number(&mut args, "entry", 0)?,
                    },
                };
                Command::Operate {
                    queue: queue(&mut args)?,
                    messages: self.selectors(&mut args)?,
                    operation,
                }
            }
            "attach" => Command::AttachSession {
                session: session(&mut args)?,
                node: NodeId(number(&mut args, "node", 1)?),
                incarnation: Incarnation(number(&mut args, "life", 1)?),
            },
            "close" | "detach" => {
                let session = session(&mut args)?;
                let last = self.epochs.get(&session).copied().unwrap_or(0);
                let epoch = number(&mut args, "epoch", last)?;
                match command.name.as_str() {
                    "close" => Command::CloseSession { session, epoch },
                    _ => Command::DetachSession { session, epoch },
                }
            }
            "consume" => Command::Consume {
                session: session(&mut args)?,
                consumer: consumer(&mut args)?,
                queue: queue(&mut args)?,
                credit: u32::try_from(number(&mut args, "credit", 1)?)?,
                lease: span(&mut args, "lease")?,
                name: args.take_key("name").unwrap_or_default().to_owned(),
                priority: args.take_key("priority").unwrap_or("0").parse()?,
            },
            "cancel" => Command::CancelConsumer {
                session: session(&mut args)?,
                consumer: consumer(&mut args)?,
            },
            "credit" => Command::SetCredit {
                session: session(&mut args)?,
                consumer: consumer(&mut args)?,
                credit: args.next_pos().ok_or("credit?")?.parse()?,
            },
            "node-up" | "node-silent" | "node-down" => {
                let node = NodeId(args.next_pos().ok_or("node?")?.parse()?);
                let incarnation = Incarnation(number(&mut args, "life", 1)?);
                match command.name.as_str() {
                    "node-up" => Command::NodeUp { node, incarnation },
                    "node-silent" => Command::NodeSilent { node, incarnation },
                    _ => Command::NodeDown { node, incarnation },
                }
            }
            other => return Err(format!("no such command: {other}").into()),
        };
        args.reject_next()?;
        Ok(parsed)
    }
}

impl Runner for Script {
    type Command = goldenscript::Command;

    fn run(&mut self, command: &goldenscript::Command, _: &Context) -> Result<String> {
        let mut args = command.consume_args();
        match command.name.as_str() {
            "tick" | "wait" => {
                if let Some(span) = args.next_pos() {
                    self.now = self.now.after(parse_span(span)?);
                }
                if command.name == "wait" {
                    return Ok(String::new());
                }
                return Ok(self.apply(Entry::default()));
            }
            "begin" => {
                self.entry = Some(Entry::default());
                return Ok(String::new());
            }
            "transact" => {
                let id = args.take_key("id").map(request_id).transpose()?;
                self.entry = Some(Entry::default());
                self.transaction = Some(id);
                return Ok(String::new());
            }
            "commit" => {
                let mut entry = self.entry.take().ok_or("nothing begun")?;
                if let Some(id) = self.transaction.take() {
                    let command = transaction(std::mem::take(&mut entry.requests))?;
                    entry.requests.push(Request { id, command });
                }
                return Ok(self.apply(entry));
            }
            _ => {}
        }
        if let Some(view) = self.view(command)? {
            return Ok(view);
        }
        let id = args.take_key("id").map(request_id).transpose()?;
        let begun = self.entry.take();
        let go_on = begun.is_some();
        let mut entry = begun.unwrap_or_default();
        let command = self.command(command, &mut entry)?;
        entry.requests.push(Request { id, command });
        if go_on {
            self.entry = Some(entry);
            return Ok(String::new());
        }
        Ok(self.apply(entry))
    }
}

fn write(broker: &Broker) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut sink = |piece: &[u8]| {
        bytes.extend_from_slice(piece);
        Ok::<_, std::convert::Infallible>(())
    };
    broker.snapshot().write(&mut sink).unwrap();
    bytes
}

fn rest<'a>(args: &mut ArgumentConsumer<'a>) -> impl Iterator<Item = &'a str> {
    std::iter::from_fn(|| args.next_pos())
}

fn queue(args: &mut ArgumentConsumer<'_>) -> Result<QueueName> {
    Ok(QueueName::new(args.next_pos().ok_or("queue?")?)?)
}

fn exchange(args: &mut ArgumentConsumer<'_>) -> Result<ExchangeName> {
    Ok(ExchangeName::new(args.next_pos().ok_or("exchange?")?)?)
}

/// A queue, or `exchange=` and an exchange.
fn destination(args: &mut ArgumentConsumer<'_>) -> Result<Destination> {
    Ok(match args.take_key("exchange") {
        Some(name) => Destination::Exchange(ExchangeName::new(name)?),
        None => Destination::Queue(queue(args)?),
    })
}

fn kind(text: &str) -> Result<ExchangeKind> {
    match text {
        "direct" => Ok(ExchangeKind::Direct),
        "fanout" => Ok(ExchangeKind::Fanout),
        "topic" => Ok(ExchangeKind::Topic),
        "headers" => Ok(ExchangeKind::Headers),
        other => Err(format!("no such kind of exchange: {other}").into()),
    }
}

fn binding(args: &mut ArgumentConsumer<'_>) -> Result<Binding> {
    let wanted = |any: bool, text: &str| HeaderMatch {
        any,
        headers: text
            .split(',')
            .filter(|pair| !pair.is_empty())
            .map(pair)
            .collect(),
    };
    let all = args.take_key("all").map(|text| wanted(false, text));
    let any = args.take_key("any").map(|text| wanted(true, text));
    Ok(Binding {
        source: exchange(args)?,
        destination: destination(args)?,
        routing_key: args.take_key("key").unwrap_or_default().to_owned(),
        headers: all.or(any),
    })
}

/// `name:value`, or `name` alone.
fn pair(text: &str) -> (String, Option<String>) {
    match text.split_once(':') {
        Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
        None => (text.to_owned(), None),
    }
}

fn headers(text: Option<&str>) -> BTreeMap<String, String> {
    let pairs = text.into_iter().flat_map(|text| text.split(',')).map(pair);
    pairs
        .map(|(name, value)| (name, value.unwrap_or_default()))
        .collect()
}

fn exchange_settings(args: &mut ArgumentConsumer<'_>) -> Result<ExchangeSettingsPatch> {
    Ok(ExchangeSettingsPatch {
        alternate: match args.take_key("alternate") {
            None => None,
            Some("none") => Some(None),
            Some(name) => Some(Some(ExchangeName::new(name)?)),
        },
        dedup_window: span(args, "dedup_window")?,
        dedup_count_max: args.take_key("dedup_max_ids").map(str::parse).transpose()?,
    })
}

fn shown(binding: &Binding) -> String {
    let mut text = match &binding.destination {
        Destination::Queue(name) => format!("→ {name}"),
        Destination::Exchange(name) => format!("→ exchange {name}"),
    };
    if !binding.routing_key.is_empty() {
        write!(text, " key={}", binding.routing_key).unwrap();
    }
    if let Some(HeaderMatch { any, headers }) = &binding.headers {
        let pairs = headers.iter().map(|(name, value)| match value {
            Some(value) => format!("{name}:{value}"),
            None => name.clone(),
        });
        let pairs: Vec<String> = pairs.collect();
        write!(text, " {}={}", if *any { "any" } else { "all" }, pairs.join(",")).unwrap();
    }
    text
}

fn session(args: &mut ArgumentConsumer<'_>) -> Result<SessionId> {
    let text = args.next_pos().ok_or("session?")?;
    Ok(SessionId(
        text.strip_prefix('s')
            .ok_or("a session is s and a number")?
            .parse()?,
    ))
}

fn consumer(args: &mut ArgumentConsumer<'_>) -> Result<ConsumerId> {
    Ok(ConsumerId(u32::try_from(number(args, "consumer", 1)?)?))
}

fn number(args: &mut ArgumentConsumer<'_>, key: &str, default: u64) -> Result<u64> {
    Ok(args.take_key(key).map(str::parse).transpose()?.unwrap_or(default))
}

fn span(args: &mut ArgumentConsumer<'_>, key: &str) -> Result<Option<Millis>> {
    args.take_key(key).map(parse_span).transpose()
}

fn parse_span(text: &str) -> Result<Millis> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let unit = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(format!("not a span: {text}").into()),
    };
    Ok(Millis(digits.parse::<u64>()? * unit))
}

/// One command of all that they ask for.
fn transaction(requests: Vec<Request>) -> Result<Command> {
    let mut settlements = Vec::new();
    let mut publishes = Vec::new();
    for request in requests {
        match request.command {
            Command::Settle { settlements: more } => settlements.extend(more),
            Command::Publish(publish) => publishes.push(publish),
            other => return Err(format!("not in a transaction: {other:?}").into()),
        }
    }
    Ok(Command::Transact {
        settlements,
        publishes,
    })
}

/// As [`time`] writes it.
fn moment(args: &mut ArgumentConsumer<'_>, key: &str) -> Result<Option<Timestamp>> {
    let parse = |text: &str| parse_span(text.trim_start_matches('+')).map(|span| START.after(span));
    args.take_key(key).map(parse).transpose()
}

fn state(text: &str) -> Result<MessageState> {
    match text {
        "ready" => Ok(MessageState::Ready),
        "delayed" => Ok(MessageState::Delayed),
        "leased" => Ok(MessageState::Leased),
        "dead" => Ok(MessageState::Dead),
        other => Err(format!("no such state: {other}").into()),
    }
}

fn purge_states(args: &mut ArgumentConsumer<'_>) -> Result<PurgeStates> {
    let Some(text) = args.take_key("states") else {
        return Ok(PurgeStates::WAITING);
    };
    let states = text.split(',').map(state).collect::<Result<Vec<_>>>()?;
    Ok(PurgeStates {
        ready: states.contains(&MessageState::Ready),
        delayed: states.contains(&MessageState::Delayed),
        dead: states.contains(&MessageState::Dead),
    })
}

fn holder_name(holder: &LeasedBy) -> String {
    match holder {
        LeasedBy::Puller(None) => "a puller".to_owned(),
        LeasedBy::Puller(Some(client)) => format!("client {}", client.0),
        LeasedBy::Consumer {
            session,
            consumer,
            node,
        } => format!("s{}.{} on node {}", session.0, consumer.0, node.0),
    }
}

fn exit_name(exit: Exit) -> &'static str {
    match exit {
        Exit::Acked => "acked",
        Exit::Expired => "expired",
        Exit::DeadLettered => "dead-lettered",
        Exit::Dropped => "dropped",
        Exit::Deleted => "deleted",
        Exit::Moved => "moved",
    }
}

fn reason(reason: DeadReason) -> &'static str {
    match reason {
        DeadReason::Rejected => "rejected",
        DeadReason::DeliveriesMax => "max-deliveries",
        DeadReason::Expired => "expired",
        DeadReason::DroppedByLimit => "dropped-by-limit",
    }
}

fn parse_reason(text: &str) -> Result<DeadReason> {
    let reasons = [
        DeadReason::Rejected,
        DeadReason::DeliveriesMax,
        DeadReason::Expired,
        DeadReason::DroppedByLimit,
    ];
    let found = reasons.into_iter().find(|known| reason(*known) == text);
    found.ok_or_else(|| format!("no such reason: {text}").into())
}

fn time(at: Timestamp) -> String {
    let ms = at.0 - START.0;
    match ms % 1_000 {
        0 => format!("+{}s", ms / 1_000),
        rest => format!("+{}.{rest:03}s", ms / 1_000),
    }
}

fn request_id(text: &str) -> Result<RequestId> {
    let mut parts = text.split('/').map(str::parse);
    let mut next = || parts.next().ok_or("an id is client/sequence/oldest");
    Ok(RequestId {
        client: ClientId(next()??),
        sequence: next()??,
        oldest_unanswered: next()??,
    })
}

/// `A:2,B:3`, or `none`.
fn weights(text: &str) -> Result<BTreeMap<String, u32>> {
    let weights = text.split(',').filter(|_| text != "none").map(|weight| {
        let (group, weight) = weight.split_once(':').ok_or("a weight is GROUP:N")?;
        Ok((group.to_owned(), weight.parse()?))
    });
    weights.collect()
}

/// None if there are none.
fn labels(args: &mut ArgumentConsumer<'_>) -> Option<Box<Labels>> {
    let labels = Labels {
        routing_key: args.take_key("key").unwrap_or_default().to_owned(),
        headers: headers(args.take_key("headers")),
        group: args.take_key("group").unwrap_or_default().to_owned(),
        dedup_id: args.take_key("dedup").unwrap_or_default().to_owned(),
    };
    (labels != Labels::default()).then(|| labels.into())
}

fn obstacle(obstacle: Obstacle) -> String {
    match obstacle {
        Obstacle::Paused => "paused".to_owned(),
        Obstacle::Empty => "empty".to_owned(),
        Obstacle::NoConsumer { ready } => format!("no consumer for {ready} ready"),
        Obstacle::NoCredit { consumers, in_flight } => {
            format!("no credit: {consumers} consumer(s) hold {in_flight}")
        }
        Obstacle::GroupsBusy { groups, messages } => format!("{groups} busy group(s) with {messages} ready"),
        Obstacle::SingleActiveBusy { leases, until } => {
            format!("{leases} lease(s) of others, the last until {}", time(until))
        }
        Obstacle::Delayed { messages, until } => {
            format!("{messages} delayed, the first until {}", time(until))
        }
        Obstacle::AllLeased { messages, until } => {
            format!("all {messages} leased, the first until {}", time(until))
        }
        Obstacle::DeadLetterBacklog { messages } => format!("{messages} dead letter(s) wait for room"),
        Obstacle::Full => "full".to_owned(),
    }
}

fn settings(args: &mut ArgumentConsumer<'_>) -> Result<SettingsPatch> {
    let int = |args: &mut ArgumentConsumer<'_>, key| args.take_key(key).map(str::parse::<u64>).transpose();
    Ok(SettingsPatch {
        lease: span(args, "lease")?,
        deliveries_max: int(args, "max_deliveries")?.map(u32::try_from).transpose()?,
        dead_letter_queue: match args.take_key("dead_letter_queue") {
            None => None,
            Some("none") => Some(None),
            Some(name) => Some(Some(QueueName::new(name)?)),
        },
        dead_letter_exchange: match args.take_key("dead_letter_exchange") {
            None => None,
            Some("none") => Some(None),
            Some(name) => Some(Some(ExchangeName::new(name)?)),
        },
        dead_letter_routing_key: match args.take_key("dead_letter_routing_key") {
            None => None,
            Some("none") => Some(None),
            Some(key) => Some(Some(key.to_owned())),
        },
        length_max: int(args, "max_length")?,
        bytes_max: int(args, "max_bytes")?,
        overflow: match args.take_key("overflow") {
            None => None,
            Some("reject") => Some(Overflow::Reject),
            Some("drop-head") => Some(Overflow::DropHead),
            Some(other) => return Err(format!("no such overflow: {other}").into()),
        },
        message_ttl: span(args, "ttl")?,
        backoff_initial: span(args, "backoff")?,
        backoff_max: span(args, "backoff_max")?,
        priority_ageing: span(args, "ageing")?,
        group_concurrency: int(args, "group_concurrency")?.map(u32::try_from).transpose()?,
        group_weights: args.take_key("group_weights").map(weights).transpose()?,
        single_active_consumer: args.take_key("single_active").map(str::parse).transpose()?,
        dedup_window: span(args, "dedup_window")?,
        dedup_count_max: int(args, "dedup_max_ids")?.map(u32::try_from).transpose()?,
    })
}
