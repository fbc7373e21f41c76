//! What goes over the socket: frames of four bytes of length and JSON.

use std::io::{Error, ErrorKind, Result};

use bytes::Bytes;
use compact_str::CompactString;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use seriatim_core::identity::{Position, Ticket, Version};
use seriatim_core::index::{Action, IndexOp, ItemOutcome};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Longest frame. A batch of an indexer is much shorter; a whole index of a test fits.
const FRAME_BYTES_MAX: usize = 256 << 20;

/// What a client asks.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// Writes a batch, in order.
    Bulk {
        /// The node that sends it.
        sender: String,
        /// The writes.
        writes: Vec<Write>,
    },
    /// Asks for everything that a reader sees.
    Documents,
}

/// What the server answers.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// One outcome a write, in order.
    Outcomes(Vec<Outcome>),
    /// Everything, in the order of indexes and ids.
    Documents(Vec<Stored>),
    /// Nothing was done.
    Refused(String),
}

/// A document as the index has it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Stored {
    /// The index, where it has a name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<String>,
    /// The id.
    pub id: String,
    /// The version.
    pub version: Version,
    /// The document, JSON.
    pub body: String,
}

/// An [`IndexOp`].
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Write {
    index: Option<CompactString>,
    id: CompactString,
    version: Option<Version>,
    /// `None` deletes.
    body: Option<String>,
    ticket: Ticket,
    position: Option<Position>,
}

impl From<&IndexOp> for Write {
    fn from(op: &IndexOp) -> Self {
        let body = match &op.action {
            // A document is JSON, hence text.
            Action::Upsert(body) => Some(String::from_utf8_lossy(body).into_owned()),
            Action::Delete => None,
        };
        let (index, id, position) = (op.index.clone(), op.id.clone(), op.position.clone());
        Write { index, id, version: op.version, body, ticket: op.ticket, position }
    }
}

impl From<Write> for IndexOp {
    fn from(write: Write) -> Self {
        let action = write.body.map_or(Action::Delete, |body| Action::Upsert(Bytes::from(body).into()));
        let Write { index, id, version, ticket, position, .. } = write;
        IndexOp { index, id, version, action, ticket, position }
    }
}

/// An [`ItemOutcome`].
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Outcome {
    Applied,
    Duplicate,
    Superseded(Version),
    Throttled,
    Rejected(String),
}

impl From<ItemOutcome> for Outcome {
    fn from(outcome: ItemOutcome) -> Self {
        match outcome {
            ItemOutcome::Applied => Outcome::Applied,
            ItemOutcome::Duplicate => Outcome::Duplicate,
            ItemOutcome::Superseded { current } => Outcome::Superseded(current),
            ItemOutcome::Throttled => Outcome::Throttled,
            ItemOutcome::Rejected { reason } => Outcome::Rejected(reason),
        }
    }
}

impl From<Outcome> for ItemOutcome {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Applied => ItemOutcome::Applied,
            Outcome::Duplicate => ItemOutcome::Duplicate,
            Outcome::Superseded(current) => ItemOutcome::Superseded { current },
            Outcome::Throttled => ItemOutcome::Throttled,
            Outcome::Rejected(reason) => ItemOutcome::Rejected { reason },
        }
    }
}

/// Writes one frame.
pub(super) async fn send(out: &mut (impl AsyncWrite + Unpin), message: &impl Serialize) -> Result<()> {
    let mut frame = vec![0; 4];
    serde_json::to_writer(&mut frame, message)?;
    let length = frame.len() - 4;
    if length > FRAME_BYTES_MAX {
        return Err(Error::new(ErrorKind::InvalidInput, format!("{length} bytes are more than a frame may hold")));
    }
    frame[..4].copy_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
    out.write_all(&frame).await
}

/// Reads one frame; `None` when the other side ended the connection between two.
pub(super) async fn receive<M: DeserializeOwned>(input: &mut (impl AsyncRead + Unpin)) -> Result<Option<M>> {
    let mut length = [0; 4];
    match input.read_exact(&mut length).await {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    };
    let length = u32::from_be_bytes(length) as usize;
    if length > FRAME_BYTES_MAX {
        return Err(Error::new(ErrorKind::InvalidData, format!("a frame of {length} bytes: is this an index?")));
    }
    let mut frame = vec![0; length];
    input.read_exact(&mut frame).await?;
    Ok(Some(serde_json::from_slice(&frame)?))
}
