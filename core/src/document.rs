//! The document: one JSON object with an id, read and written without touching what nobody edits.
//!
//! A field that no stage has edited stays the text it was read as, byte for byte, and shares the memory of the record
//! it came from; a document that nobody has edited at all is written as it was read. Fields keep their order. Of a
//! name that occurs twice, the first place and the last value count. Reading and writing walk nested content without
//! recursion, so neither depth nor width can overflow the stack or cost more than linear time; only an edit *inside* a
//! field needs a [`Value`], which is at most [`VALUE_LEVELS_MAX`] levels deep.
//!
//! `id`, `run_id`, `___children`, `___dropped` and `___skipped` are reserved: they have methods of their own, and
//! every other way to write them is refused. The id never changes, the run id is set once.

mod error;
mod field;
mod fields;
mod original;
mod text;
mod value;
mod wire;

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use compact_str::CompactString;

pub use error::DocumentError;
pub use field::FieldRef;
pub use value::{Number, Object, VALUE_LEVELS_MAX, Value, ValueError};

use field::{Field, UNKNOWN};
use fields::Fields;
pub(crate) use original::Original;
pub(crate) use text::write_string;

const ID: &str = "id";
const RUN_ID: &str = "run_id";
const CHILDREN: &str = "___children";
const DROPPED: &str = "___dropped";
const SKIPPED: &str = "___skipped";

/// The names that only the document itself writes.
pub const RESERVED: [&str; 5] = [ID, RUN_ID, CHILDREN, DROPPED, SKIPPED];

/// Whether `name` is one of [`RESERVED`].
pub fn is_reserved(name: &str) -> bool {
    RESERVED.contains(&name)
}

/// A document. Clones share everything until one of them is edited.
#[derive(Clone)]
pub struct Document(Arc<Content>);

#[derive(Clone)]
struct Content {
    id: CompactString,
    run_id: Option<Arc<str>>,
    /// What `Field::Source` ranges lie in; checked to be UTF-8.
    source: Bytes,
    /// Everything, reserved fields included, in order.
    fields: Fields,
    edits: Edits,
    /// Whether it has the mark of a dropped document: asked for before every stage.
    dropped: bool,
    /// Whether it has the mark of a skipped document.
    skipped: bool,
}

/// What became of a document since it was read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Edits {
    /// `source` as a whole still is its JSON.
    None,
    /// It joined a run.
    Run,
    /// Anything.
    Any,
}

/// What to do with a field that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum UpdateMode {
    /// Replace its values.
    #[default]
    Overwrite,
    /// Add to its values.
    Append,
    /// Leave it.
    Skip,
}

impl Document {
    /// An empty document.
    pub fn new(id: impl Into<CompactString>) -> Result<Self, DocumentError> {
        let id = id.into();
        if id.is_empty() {
            return Err(DocumentError::IdEmpty);
        }
        let mut fields = Fields::default();
        fields.set(CompactString::const_new(ID), Field::Value(Value::String(id.clone())));
        Ok(Document(Arc::new(Content::new(id, Bytes::new(), fields, Edits::Any))))
    }

    /// Reads a document. Its untouched fields share the memory of `source`.
    pub fn parse(source: Bytes) -> Result<Self, DocumentError> {
        let (fields, exact) = wire::read_fields(&source)?;
        let edits = if exact { Edits::None } else { Edits::Any };
        let content = Content::new(CompactString::default(), source, fields, edits);
        let id = content.fields.get(ID).and_then(|field| field.view(&content.source)).ok_or(DocumentError::NoId)?;
        let id = match id.text() {
            Some(text) if id.is_string() => CompactString::from(text),
            _ => return Err(DocumentError::IdNotString { found: wire::start_of(id) }),
        };
        if id.is_empty() {
            return Err(DocumentError::IdEmpty);
        }
        content.with_ids(id)
    }

    /// Reads a JSON object that need not be a document yet and gives it this id, in place of one that it may have.
    pub fn parse_with_id(source: Bytes, id: impl Into<CompactString>) -> Result<Self, DocumentError> {
        let id = id.into();
        if id.is_empty() {
            return Err(DocumentError::IdEmpty);
        }
        let (mut fields, _) = wire::read_fields(&source)?;
        let value = Field::Value(Value::String(id.clone()));
        match fields.get_mut(ID) {
            Some(before) => *before = value,
            None => fields.set_first(CompactString::const_new(ID), value),
        }
        Content::new(CompactString::default(), source, fields, Edits::Any).with_ids(id)
    }

    /// A child: an empty document of the same run.
    pub fn child(&self, id: impl Into<CompactString>) -> Result<Self, DocumentError> {
        let mut child = Document::new(id)?;
        if let Some(run_id) = self.run_id() {
            child.initialize_run_id(run_id.clone())?;
        }
        Ok(child)
    }

    /// The id.
    pub fn id(&self) -> &CompactString {
        &self.0.id
    }

    /// The run it belongs to, once it was published.
    pub fn run_id(&self) -> Option<&Arc<str>> {
        self.0.run_id.as_ref()
    }

    /// Makes it belong to a run. Once only.
    pub fn initialize_run_id(&mut self, run_id: impl Into<Arc<str>>) -> Result<(), DocumentError> {
        if let Some(run_id) = &self.0.run_id {
            return Err(DocumentError::RunIdSet { id: self.0.id.clone(), run_id: run_id.clone() });
        }
        let run_id = run_id.into();
        let was_read = self.0.edits == Edits::None;
        let content = self.content_mut();
        content.fields.set(CompactString::const_new(RUN_ID), Field::Shared(run_id.clone()));
        content.run_id = Some(run_id);
        if was_read {
            content.edits = Edits::Run;
        }
        Ok(())
    }

    /// Its JSON. Untouched fields are copied as they are; a document that is untouched as a whole is not even copied.
    pub fn to_json(&self) -> Bytes {
        if self.0.edits == Edits::None {
            return self.0.source.clone();
        }
        let mut out = Vec::with_capacity(self.0.source.len() + 256);
        self.write_json(&mut out);
        out.into()
    }

    /// Appends its JSON.
    pub fn write_json(&self, out: &mut Vec<u8>) {
        let Content { source, fields, edits, .. } = &*self.0;
        if *edits == Edits::None {
            return out.extend_from_slice(source);
        }
        // Fields that lie side by side in the source are copied as one piece, with the comma between them.
        let mut piece = 0..0;
        let mut separator = b'{';
        for (name, field) in fields.iter() {
            if let &Field::Source { key, end, .. } = field
                && key != UNKNOWN
            {
                let (key, end) = (key as usize, end as usize);
                if !piece.is_empty() && key == piece.end + 1 {
                    piece.end = end;
                    continue;
                }
                write_piece(out, &mut separator, &source[piece]);
                piece = key..end;
                continue;
            }
            write_piece(out, &mut separator, &source[std::mem::take(&mut piece)]);
            out.push(std::mem::replace(&mut separator, b','));
            text::write_string(out, name);
            out.push(b':');
            field.write_json(source, out);
        }
        write_piece(out, &mut separator, &source[piece]);
        out.push(b'}');
    }

    /// Bytes that it takes in memory, about: what bounds of queues count.
    pub fn weight(&self) -> usize {
        let Content { id, source, fields, .. } = &*self.0;
        id.len() + source.len() + 64 * fields.len()
    }

    /// Bytes of its JSON, about: escapes are not counted.
    pub(crate) fn json_weight(&self) -> usize {
        self.0.fields.iter().map(|(name, field)| name.len() + field.weight() + 4).sum()
    }

    /// Its JSON as a search backend shall have it: the id and the fields, nothing of the pipeline's own.
    pub fn to_index_json(&self) -> Bytes {
        let Content { source, fields, .. } = &*self.0;
        let mut out = Vec::with_capacity(source.len() + 64);
        out.extend_from_slice(b"{\"id\":");
        text::write_string(&mut out, &self.0.id);
        for (name, field) in fields.iter().filter(|(name, _)| !is_reserved(name)) {
            out.push(b',');
            text::write_string(&mut out, name);
            out.push(b':');
            field.write_json(source, &mut out);
        }
        out.push(b'}');
        out.into()
    }

    /// The fields, without the reserved ones, in order.
    pub fn fields(&self) -> impl Iterator<Item = (&CompactString, FieldRef<'_>)> {
        let source = &self.0.source;
        let fields = self.0.fields.iter().filter(|(name, _)| !is_reserved(name));
        fields.filter_map(move |(name, field)| Some((name, field.view(source)?)))
    }

    /// Whether there is a field of this name, reserved ones included.
    pub fn has(&self, name: &str) -> bool {
        self.0.fields.contains(name)
    }

    /// A field. `id` and `run_id` can be read too; attached children have [`Document::children`].
    pub fn get(&self, name: &str) -> Option<FieldRef<'_>> {
        if name == CHILDREN { None } else { self.0.fields.get(name)?.view(&self.0.source) }
    }

    /// A field as text ([`FieldRef::text`]), the first element of a list; `None` when absent, `null` or an empty list.
    pub fn get_str(&self, name: &str) -> Option<Cow<'_, str>> {
        self.get(name)?.first()?.text()
    }

    /// The elements of a field as values, a scalar as a list of one; `None` when absent.
    pub fn get_list(&self, name: &str) -> Result<Option<Vec<Value>>, DocumentError> {
        let Some(field) = self.get(name) else { return Ok(None) };
        let values: Result<_, _> = field.items().into_iter().map(FieldRef::to_value).collect();
        values.map(Some).map_err(|error| in_field(name, error))
    }

    /// A copy of what `path` leads to within a field; `None` when there is nothing.
    pub fn get_nested(&self, name: &str, path: &[&str]) -> Result<Option<Value>, DocumentError> {
        let Some(field) = self.get(name) else { return Ok(None) };
        let value = field.to_value().map_err(|error| in_field(name, error))?;
        Ok(value.at(path).cloned())
    }

    /// Sets a field, in its place when it exists and else at the end.
    pub fn set(&mut self, name: &str, value: impl Into<Value>) -> Result<(), DocumentError> {
        check_writable(name)?;
        let value = shallow(name, value.into(), VALUE_LEVELS_MAX)?;
        self.content_mut().put(name, Field::Value(value));
        Ok(())
    }

    /// Sets a field that is absent; otherwise makes it a list and adds to that.
    pub fn set_or_add(&mut self, name: &str, value: impl Into<Value>) -> Result<(), DocumentError> {
        check_writable(name)?;
        let Some(before) = self.0.fields.get(name) else { return self.set(name, value) };
        let added = shallow(name, value.into(), VALUE_LEVELS_MAX - 1)?;
        let field = match before.view(&self.0.source) {
            Some(FieldRef::Json(_) | FieldRef::Shared(_)) | None => Some(self.value_of(name)?),
            Some(FieldRef::Value(_)) => None,
        };
        let content = self.content_mut();
        if let Some(value) = field {
            content.put(name, Field::Value(value));
        }
        let Some(Field::Value(value)) = content.fields.get_mut(name) else {
            unreachable!("the field was made a value above");
        };
        match value {
            Value::Array(items) => items.push(added),
            scalar => {
                if scalar.is_deeper_than(VALUE_LEVELS_MAX - 1) {
                    return Err(in_field(name, ValueError::TooDeep));
                }
                let first = std::mem::replace(scalar, Value::Null);
                *scalar = Value::Array(vec![first, added]);
            }
        }
        Ok(())
    }

    /// [`Document::set_or_add`] for every field of `other` but the reserved ones.
    pub fn set_or_add_all(&mut self, other: &Document) -> Result<(), DocumentError> {
        for (name, _) in other.fields() {
            if self.has(name) {
                for value in other.get_list(name)?.unwrap_or_default() {
                    self.set_or_add(name, value)?;
                }
            } else {
                self.copy_from(other, name, name)?;
            }
        }
        Ok(())
    }

    /// Gives a field these values: the only one as it is, several as a list, none leaves everything as it was.
    pub fn update(&mut self, name: &str, mode: UpdateMode, mut values: Vec<Value>) -> Result<(), DocumentError> {
        check_writable(name)?;
        if values.is_empty() || mode == UpdateMode::Skip && self.has(name) {
            return Ok(());
        }
        if mode == UpdateMode::Append && self.has(name) {
            return values.into_iter().try_for_each(|value| self.set_or_add(name, value));
        }
        let value = if values.len() == 1 { values.remove(0) } else { Value::Array(values) };
        self.set(name, value)
    }

    /// Puts `value` where `path` leads within a field ([`Value::put`]).
    pub fn set_nested(&mut self, name: &str, path: &[&str], value: impl Into<Value>) -> Result<(), DocumentError> {
        let value = value.into();
        if self.edit(name, |field| field.put(path, value))? {
            Ok(())
        } else {
            Err(DocumentError::NoSuchPlace { field: name.into(), path: path.join(".") })
        }
    }

    /// Edits a field as a value, an absent one as `null`. The field stays as it was when the result is an error.
    pub fn edit<R>(&mut self, name: &str, edit: impl FnOnce(&mut Value) -> R) -> Result<R, DocumentError> {
        check_writable(name)?;
        let mut value = if self.has(name) { self.value_of(name)? } else { Value::Null };
        let result = edit(&mut value);
        self.set(name, value)?;
        Ok(result)
    }

    /// Renames a field, which keeps its place and takes the one of a field that had the new name. False when there is
    /// no such field.
    pub fn rename(&mut self, from: &str, to: &str) -> Result<bool, DocumentError> {
        check_writable(from)?;
        check_writable(to)?;
        if from == to || !self.has(from) {
            return Ok(self.has(from));
        }
        let fields = &mut self.content_mut().fields;
        fields.remove(to);
        fields.rename(from, CompactString::new(to));
        Ok(true)
    }

    /// Copies a field of `other`, untouched text without reading it. False when it has no such field.
    pub fn copy_from(&mut self, other: &Document, from: &str, to: &str) -> Result<bool, DocumentError> {
        check_writable(to)?;
        let Some(field) = other.0.fields.get(from).filter(|_| from != CHILDREN) else { return Ok(false) };
        let field = field.detached(&other.0.source);
        self.content_mut().put(to, field);
        Ok(true)
    }

    /// Copies a field within the document. False when there is no such field.
    pub fn copy(&mut self, from: &str, to: &str) -> Result<bool, DocumentError> {
        check_writable(to)?;
        let Some(field) = self.0.fields.get(from).filter(|_| from != CHILDREN).cloned() else { return Ok(false) };
        self.content_mut().put(to, field.renamed());
        Ok(true)
    }

    /// Removes a field; false when there was none. To remove many, [`Document::retain`] is linear.
    pub fn remove(&mut self, name: &str) -> Result<bool, DocumentError> {
        check_writable(name)?;
        Ok(self.has(name) && self.content_mut().fields.remove(name))
    }

    /// Keeps the fields that `keep` says, and the reserved ones.
    pub fn retain(&mut self, mut keep: impl FnMut(&str) -> bool) {
        self.content_mut().fields.retain(|name| is_reserved(name) || keep(name));
    }

    /// The attached children.
    pub fn children(&self) -> Result<Vec<Document>, DocumentError> {
        let texts = self.attached()?.into_iter().enumerate();
        texts.map(|(index, json)| self.read_child(index, json)).collect()
    }

    /// The attached children, not read yet: the JSON of each.
    pub fn attached(&self) -> Result<Vec<Bytes>, DocumentError> {
        let field = match self.0.fields.get(CHILDREN) {
            None => return Ok(Vec::new()),
            Some(Field::Documents(children)) => return Ok(children.clone()),
            Some(field) => field,
        };
        if field.view(&self.0.source).is_some_and(FieldRef::is_list) {
            Ok(field.element_texts(&self.0.source))
        } else {
            Err(DocumentError::ChildrenNotList { id: self.0.id.clone() })
        }
    }

    /// The JSON of each element of a field, a scalar as a list of one, sharing memory where it can; none when absent.
    pub fn element_texts(&self, name: &str) -> Vec<Bytes> {
        self.0.fields.get(name).map_or_else(Vec::new, |field| field.element_texts(&self.0.source))
    }

    /// Reads what [`Document::attached`] gave at `index`.
    pub fn read_child(&self, index: usize, json: Bytes) -> Result<Document, DocumentError> {
        let child = Document::parse(json);
        child.map_err(|error| DocumentError::Child { id: self.0.id.clone(), index, error: Box::new(error) })
    }

    /// Attaches a child as it is now.
    pub fn add_child(&mut self, child: &Document) -> Result<(), DocumentError> {
        if !matches!(self.0.fields.get(CHILDREN), Some(Field::Documents(_))) {
            let children = self.attached()?;
            self.content_mut().put(CHILDREN, Field::Documents(children));
        }
        let Some(Field::Documents(children)) = self.content_mut().fields.get_mut(CHILDREN) else {
            unreachable!("the field was made above");
        };
        children.push(child.to_json());
        Ok(())
    }

    /// Detaches all children.
    pub fn remove_children(&mut self) {
        self.content_mut().fields.remove(CHILDREN);
    }

    /// Marks it as dropped: it passes no further stage and is not indexed.
    pub fn mark_dropped(&mut self) {
        let content = self.content_mut();
        content.put(DROPPED, Field::Value(Value::Bool(true)));
        content.dropped = true;
    }

    /// Whether it is marked as dropped, whatever the mark's value.
    pub fn is_dropped(&self) -> bool {
        self.0.dropped
    }

    /// Marks it as skipped: it passes no further stage and is indexed as it is.
    pub fn mark_skipped(&mut self) {
        let content = self.content_mut();
        content.put(SKIPPED, Field::Value(Value::Bool(true)));
        content.skipped = true;
    }

    /// Whether it is marked as skipped, whatever the mark's value.
    pub fn is_skipped(&self) -> bool {
        self.0.skipped
    }

    /// It as it is now, to be written later if at all. Cheap as long as it only joined a run since it was read.
    pub(crate) fn original(&self) -> Original {
        let Content { source, run_id, edits, .. } = &*self.0;
        match edits {
            Edits::None => Original::Read { source: source.clone(), run_id: None },
            Edits::Run => Original::Read { source: source.clone(), run_id: run_id.clone() },
            Edits::Any => Original::Edited(self.clone()),
        }
    }

    fn value_of(&self, name: &str) -> Result<Value, DocumentError> {
        let field = self.get(name).expect("the caller checked that the field is there");
        field.to_value().map_err(|error| in_field(name, error))
    }

    fn content_mut(&mut self) -> &mut Content {
        let content = Arc::make_mut(&mut self.0);
        content.edits = Edits::Any;
        content
    }
}

impl Content {
    fn new(id: CompactString, source: Bytes, fields: Fields, edits: Edits) -> Self {
        let (dropped, skipped) = (fields.contains(DROPPED), fields.contains(SKIPPED));
        Content { id, run_id: None, source, fields, edits, dropped, skipped }
    }

    /// Fills in the ids, which are read once.
    fn with_ids(mut self, id: CompactString) -> Result<Document, DocumentError> {
        self.run_id = match self.fields.get(RUN_ID).and_then(|field| field.view(&self.source)) {
            Some(run_id) if run_id.is_string() => run_id.text().map(Arc::from),
            Some(other) => return Err(DocumentError::RunIdNotString { id, found: wire::start_of(other) }),
            None => None,
        };
        self.id = id;
        Ok(Document(Arc::new(self)))
    }

    fn put(&mut self, name: &str, field: Field) {
        self.fields.set(CompactString::new(name), field);
    }
}

impl PartialEq for Document {
    /// The same fields with the same JSON text in the same order.
    fn eq(&self, other: &Self) -> bool {
        let (ours, theirs) = (&*self.0, &*other.0);
        let json = |content: &Content, field: &Field| {
            let mut out = Vec::new();
            field.write_json(&content.source, &mut out);
            out
        };
        let mut pairs = ours.fields.iter().zip(theirs.fields.iter());
        Arc::ptr_eq(&self.0, &other.0)
            || ours.fields.len() == theirs.fields.len()
                && pairs.all(|((a, x), (b, y))| a == b && json(ours, x) == json(theirs, y))
    }
}

impl Eq for Document {}

impl fmt::Debug for Document {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.to_json()))
    }
}

fn write_piece(out: &mut Vec<u8>, separator: &mut u8, piece: &[u8]) {
    if !piece.is_empty() {
        out.push(std::mem::replace(separator, b','));
        out.extend_from_slice(piece);
    }
}

fn check_writable(name: &str) -> Result<(), DocumentError> {
    if is_reserved(name) { Err(DocumentError::Reserved { name: name.into() }) } else { Ok(()) }
}

fn shallow(name: &str, value: Value, levels_max: usize) -> Result<Value, DocumentError> {
    if value.is_deeper_than(levels_max) { Err(in_field(name, ValueError::TooDeep)) } else { Ok(value) }
}

fn in_field(name: &str, error: ValueError) -> DocumentError {
    DocumentError::Field { field: name.into(), error }
}
