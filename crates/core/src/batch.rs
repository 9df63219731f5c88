//! The payload of one log entry: the requests of many clients, and the contents
//! of the messages they publish.
//!
//! A batch is encoded once, on the leader. Those bytes go to every disk and over
//! every wire as they are; a content is a slice of them, never a copy.
//!
//! Version 1, all numbers little-endian:
//!
//! ```text
//! u8   version, 1
//! u64  the leader's stamp, ms since the Unix epoch
//! u32  number of contents
//! u32  number of requests
//! u32  bytes of the requests
//!      for each content: u32 offset from the start of the batch, u32 length
//!      the requests, one after the other, in postcard
//!      the contents, back to back up to the end
//! ```
//!
//! So a content can be found without decoding the requests, by looking at one
//! place of the table.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use xxhash_rust::xxh3::xxh3_64;

use crate::broker::Meta;
use crate::command::Request;
use crate::hash::encode_into;
use crate::ids::Timestamp;
use crate::outcome::Outcome;

const VERSION: u8 = 1;
const HEAD_BYTES: usize = 1 + 8 + 4 + 4 + 4;
const PLACE_BYTES: usize = 4 + 4;

/// A decoded batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The leader's stamp.
    pub at: Timestamp,
    /// In the order in which they are applied.
    pub requests: Vec<Request>,
    /// By number; slices of the batch.
    pub contents: Vec<Bytes>,
    /// Of all bytes of the batch, for the state hash.
    pub digest: u64,
}

/// Why bytes are not a batch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// It ends too early.
    #[error("the batch ends within its {0}")]
    Truncated(&'static str),
    /// It was written by a version that this one does not know.
    #[error("the batch is of version {0}; this is version {VERSION}")]
    Version(u8),
    /// It contradicts itself.
    #[error("the batch is malformed: {0}")]
    Malformed(String),
    /// It has no content of that number.
    #[error("the batch has {count} contents, none of number {number}")]
    NoSuchContent {
        /// Asked for.
        number: u32,
        /// There are.
        count: u32,
    },
}

/// Encodes a batch.
///
/// # Panics
///
/// If it comes to 4 GiB or more.
#[must_use]
pub fn encode(at: Timestamp, requests: &[Request], contents: &[Bytes]) -> Bytes {
    let mut encoded = Vec::new();
    for request in requests {
        encode_into(request, &mut encoded);
    }
    let head = HEAD_BYTES + contents.len() * PLACE_BYTES + encoded.len();
    let whole = head + contents.iter().map(Bytes::len).sum::<usize>();
    let small = |number: usize| u32::try_from(number).expect("a batch has less than 4 GiB");

    let mut bytes = BytesMut::with_capacity(whole);
    bytes.put_u8(VERSION);
    bytes.put_u64_le(at.0);
    bytes.put_u32_le(small(contents.len()));
    bytes.put_u32_le(small(requests.len()));
    bytes.put_u32_le(small(encoded.len()));
    let mut offset = small(head);
    for content in contents {
        bytes.put_u32_le(offset);
        bytes.put_u32_le(small(content.len()));
        offset = small(offset as usize + content.len());
    }
    bytes.put_slice(&encoded);
    for content in contents {
        bytes.put_slice(content);
    }
    bytes.freeze()
}

/// The content of that number, as a slice of the batch. Looks at nothing else.
///
/// # Errors
///
/// If there is none, or the bytes are not a batch.
pub fn content(batch: &Bytes, number: u32) -> Result<Bytes, BatchError> {
    let head = Head::read(batch)?;
    if number >= head.contents {
        return Err(BatchError::NoSuchContent {
            number,
            count: head.contents,
        });
    }
    head.content(batch, number)
}

/// Encodes outcomes, for the node that forwarded their requests.
#[must_use]
pub fn encode_outcomes(outcomes: &[Outcome]) -> Bytes {
    let mut bytes = vec![VERSION];
    encode_into(&outcomes, &mut bytes);
    bytes.into()
}

/// Decodes what [`encode_outcomes`] gave.
///
/// # Errors
///
/// If the bytes are something else.
pub fn decode_outcomes(bytes: &[u8]) -> Result<Vec<Outcome>, BatchError> {
    match bytes.split_first() {
        Some((&VERSION, encoded)) => match postcard::take_from_bytes(encoded) {
            Ok((outcomes, [])) => Ok(outcomes),
            Ok((_, rest)) => Err(BatchError::Malformed(format!(
                "{} bytes after the outcomes",
                rest.len()
            ))),
            Err(error) => Err(BatchError::Malformed(format!("outcomes: {error}"))),
        },
        Some((other, _)) => Err(BatchError::Version(*other)),
        None => Err(BatchError::Truncated("outcomes")),
    }
}

impl Batch {
    /// Decodes and checks a batch. Its contents are slices of the given bytes.
    ///
    /// # Errors
    ///
    /// If the bytes are not what [`encode`] gave.
    #[allow(clippy::needless_pass_by_value)] // the contents keep them alive
    pub fn decode(bytes: Bytes) -> Result<Self, BatchError> {
        let head = Head::read(&bytes)?;
        let contents = (0..head.contents)
            .map(|n| head.content(&bytes, n))
            .collect::<Result<Vec<_>, _>>()?;
        head.check_contents(&bytes, &contents)?;

        let mut encoded = &bytes[head.requests_at()..head.contents_at()];
        let mut requests: Vec<Request> = Vec::new();
        for number in 0..head.requests {
            let (request, rest) = postcard::take_from_bytes(encoded)
                .map_err(|error| BatchError::Malformed(format!("request {number}: {error}")))?;
            requests.push(request);
            encoded = rest;
        }
        if !encoded.is_empty() {
            return Err(BatchError::Malformed(format!(
                "{} bytes after the requests",
                encoded.len()
            )));
        }
        let messages: usize = requests.iter().map(|request| request.command.contents()).sum();
        if messages != contents.len() {
            let problem = format!("{messages} messages with {} contents", contents.len());
            return Err(BatchError::Malformed(problem));
        }
        Ok(Self {
            at: head.at,
            requests,
            contents,
            digest: xxh3_64(&bytes),
        })
    }

    /// What [`apply`](crate::Broker::apply) wants to know of this entry.
    #[must_use]
    pub fn meta(&self, index: u64) -> Meta {
        Meta {
            index,
            at: self.at,
            digest: self.digest,
        }
    }

    /// Lengths of the contents, as [`apply`](crate::Broker::apply) takes them.
    #[must_use]
    pub fn content_lengths(&self) -> Vec<u32> {
        let length = |content: &Bytes| u32::try_from(content.len()).expect("its place in the table says so");
        self.contents.iter().map(length).collect()
    }
}

struct Head {
    at: Timestamp,
    contents: u32,
    requests: u32,
    requests_bytes: u32,
}

impl Head {
    /// Reads the head, and checks that the table and the requests are all there.
    fn read(batch: &Bytes) -> Result<Self, BatchError> {
        let mut bytes = &batch[..];
        match bytes.first() {
            Some(&VERSION) => {}
            Some(other) => return Err(BatchError::Version(*other)),
            None => return Err(BatchError::Truncated("head")),
        }
        if bytes.len() < HEAD_BYTES {
            return Err(BatchError::Truncated("head"));
        }
        bytes.advance(1);
        let at = Timestamp(bytes.get_u64_le());
        let contents = bytes.get_u32_le();
        let requests = bytes.get_u32_le();
        let requests_bytes = bytes.get_u32_le();
        let head = Self {
            at,
            contents,
            requests,
            requests_bytes,
        };
        if batch.len() < head.contents_at() {
            return Err(BatchError::Truncated("requests"));
        }
        Ok(head)
    }

    fn requests_at(&self) -> usize {
        HEAD_BYTES.saturating_add((self.contents as usize).saturating_mul(PLACE_BYTES))
    }

    fn contents_at(&self) -> usize {
        self.requests_at().saturating_add(self.requests_bytes as usize)
    }

    fn content(&self, batch: &Bytes, number: u32) -> Result<Bytes, BatchError> {
        let mut place = &batch[HEAD_BYTES + number as usize * PLACE_BYTES..];
        let offset = place.get_u32_le() as usize;
        let end = offset.saturating_add(place.get_u32_le() as usize);
        if offset < self.contents_at() || end > batch.len() {
            return Err(BatchError::Malformed(format!(
                "content {number} is at {offset}..{end}"
            )));
        }
        Ok(batch.slice(offset..end))
    }

    /// The contents stand back to back, up to the end.
    fn check_contents(&self, batch: &Bytes, contents: &[Bytes]) -> Result<(), BatchError> {
        let mut expected = self.contents_at();
        for (number, content) in contents.iter().enumerate() {
            let start = content.as_ptr() as usize - batch.as_ptr() as usize;
            // A slice of no bytes does not say where it is.
            if start != expected && !content.is_empty() {
                return Err(BatchError::Malformed(format!(
                    "content {number} does not follow the one before"
                )));
            }
            expected += content.len();
        }
        if expected != batch.len() {
            return Err(BatchError::Malformed(
                "its length is not that of its parts".to_owned(),
            ));
        }
        Ok(())
    }
}
