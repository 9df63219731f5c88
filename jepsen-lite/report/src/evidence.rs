//! Evidence as a checker tells it, with the messages in it as links to their lives.
//!
//! A checker writes sentences. Whatever in them is the id of a message that the run knows, or the token of a
//! lease that it knows, leads to the life of that message.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use jepsen_lite_core::verdict::Witness;

use crate::escape::Text;
use crate::run::{Moment, Run};

/// What can be found in evidence.
#[derive(Debug)]
pub(crate) struct Links<'a> {
    lives: &'a BTreeMap<String, Vec<Moment>>,
    /// The message of a lease, by its token.
    tokens: BTreeMap<&'a str, &'a str>,
}

impl<'a> Links<'a> {
    pub(crate) fn of(run: &'a Run) -> Self {
        let moments = run
            .lives
            .iter()
            .flat_map(|(message, life)| life.iter().map(move |moment| (message, moment)));
        let tokens =
            moments.filter_map(|(message, moment)| Some((moment.token.as_deref()?, message.as_str())));
        Self {
            lives: &run.lives,
            tokens: tokens.collect(),
        }
    }

    /// The evidence as HTML.
    pub(crate) fn html(&self, witness: &Witness) -> String {
        let text = plain(&witness.evidence);
        let mut html = String::new();
        let mut shown = BTreeSet::new();
        let mut rest = text.as_str();
        for word in words(&text) {
            let Some(message) = self.message(word) else {
                continue;
            };
            let Some((before, after)) = rest.split_once(word) else {
                continue;
            };
            let _ = write!(html, "{}{}", Text(before), button(message, word));
            shown.insert(message);
            rest = after;
        }
        let _ = write!(html, "{}", Text(rest));
        if let Some(message) = &witness.message
            && !shown.contains(message.as_str())
        {
            let _ = write!(html, " {}", button(message, &format!("life of {message}")));
        }
        html
    }

    /// The messages that a piece of evidence leads to.
    pub(crate) fn messages(&self, witness: &Witness) -> BTreeSet<&'a str> {
        let text = plain(&witness.evidence);
        let named = witness.message.as_deref().into_iter();
        words(&text)
            .chain(named)
            .filter_map(|word| self.message(word))
            .collect()
    }

    fn message(&self, word: &str) -> Option<&'a str> {
        let by_id = self
            .lives
            .get_key_value(word)
            .map(|(message, _)| message.as_str());
        by_id.or_else(|| self.tokens.get(word).copied())
    }
}

fn button(message: &str, words: &str) -> String {
    format!(
        "<button class=\"message\" data-message=\"{}\">{}</button>",
        Text(message),
        Text(words)
    )
}

/// What may be the id of a message or a token: digits with signs between them.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_digit() && c != '-' && c != '.')
        .map(|word| word.trim_matches(['-', '.']))
        .filter(|word| word.contains(['-', '.']))
}

/// The text with message ids in the form in which everybody else writes them.
fn plain(text: &str) -> String {
    const BEGIN: &str = "MessageId { index: ";
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(BEGIN) {
        out.push_str(before);
        let parts = after
            .split_once(" }")
            .and_then(|(id, rest)| Some((id.split_once(", number: ")?, rest)));
        match parts {
            Some(((index, number), after)) => {
                let _ = write!(out, "{index}-{number}");
                rest = after;
            }
            None => {
                out.push_str(BEGIN);
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    fn told(evidence: &str) -> (String, Vec<String>) {
        let mut run = sample::empty();
        let leased = Moment {
            token: Some("5.0.1.9".to_owned()),
            ..Moment::default()
        };
        run.lives.insert("7-0".to_owned(), vec![leased]);
        let witness = Witness {
            evidence: evidence.to_owned(),
            message: None,
            at_ms: None,
        };
        let links = Links::of(&run);
        let messages = links.messages(&witness);
        (
            links.html(&witness),
            messages.into_iter().map(str::to_owned).collect(),
        )
    }

    #[test]
    fn messages_and_leases_that_the_run_knows_are_links() {
        let life = |words: &str| format!("<button class=\"message\" data-message=\"7-0\">{words}</button>");
        let (html, messages) = told("message MessageId { index: 7, number: 0 } is gone, after 0 < 1");
        assert_eq!(html, format!("message {} is gone, after 0 &lt; 1", life("7-0")));
        assert_eq!(messages, ["7-0"]);
        let (html, messages) = told("lease 5.0.1.9 of 7-0.");
        assert_eq!(html, format!("lease {} of {}.", life("5.0.1.9"), life("7-0")));
        assert_eq!(messages, ["7-0"]);
    }

    #[test]
    fn whatever_else_is_text() {
        for text in [
            "8-0, 17-0, 7-01, 1.5 s and 7",
            "MessageId { index: 7 of",
            "-7--0-",
        ] {
            assert_eq!(told(text), (text.to_owned(), Vec::new()));
        }
    }
}
