//! The stage: one step of a pipeline, that edits a document, drops it or makes children of it.
//!
//! A stage is a cursor. After [`Stage::start`] the pipeline calls [`Stage::next`] until [`Step::End`]: children come
//! first, one a call, and the parent last. The parent is the output with the id of the document that the stage was
//! started with. Nothing is made before it is asked for, so children cost no memory until they are taken.
//!
//! A stage is synchronous and must not block; what has to wait is returned as a future ([`Step::Wait`]). It may panic:
//! that fails the one document, and the instance is made anew. It must not keep anything of one document for the next.
//!
//! Instances are made by the factory of a [`StageSpec`], one for each worker. Most stages edit one document in place:
//!
//! ```
//! use seriatim_core::stage::StageSpec;
//!
//! let shout = StageSpec::map("shout", |document| {
//!     let Some(title) = document.get_str("title").map(|title| title.to_uppercase()) else { return Ok(()) };
//!     Ok(document.set("title", title)?)
//! });
//! assert_eq!(&*shout.name, "shout");
//! ```

use std::fmt;
use std::sync::Arc;

use compact_str::CompactString;
use futures_util::future::BoxFuture;

use crate::document::{Document, DocumentError};

/// What one call of [`Stage::next`] gave.
pub enum Step {
    /// A child, or the parent.
    Next(Document),
    /// The same, later. The stage is not called before it is there.
    Wait(BoxFuture<'static, Result<Document, StageError>>),
    /// Nothing more of this document.
    End,
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Next(document) => f.debug_tuple("Next").field(document).finish(),
            Step::Wait(_) => f.write_str("Wait"),
            Step::End => f.write_str("End"),
        }
    }
}

/// Why a stage cannot go on with a document.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct StageError {
    /// What failed, for whoever has to mend the document or the stage.
    pub message: String,
}

impl StageError {
    /// An error with this message.
    pub fn new(message: impl Into<String>) -> Self {
        StageError { message: message.into() }
    }
}

impl From<DocumentError> for StageError {
    fn from(error: DocumentError) -> Self {
        StageError::new(error.to_string())
    }
}

/// One step of a pipeline, as a cursor over what it makes of one document.
pub trait Stage: Send {
    /// Begins with a document. What was left of another one is abandoned.
    fn start(&mut self, document: Document);

    /// The next output. After an error or [`Step::End`] it is not called again before [`Stage::start`].
    fn next(&mut self) -> Result<Step, StageError>;

    /// It as a map, when that is all it is: the pipeline then spares the cursor.
    fn as_map(&mut self) -> Option<&mut dyn Map> {
        None
    }
}

/// A stage that makes one document of one document.
pub trait Map: Send {
    /// Edits the document.
    fn map(&mut self, document: &mut Document) -> Result<(), StageError>;
}

impl<F: FnMut(&mut Document) -> Result<(), StageError> + Send> Map for F {
    fn map(&mut self, document: &mut Document) -> Result<(), StageError> {
        self(document)
    }
}

/// A [`Map`] as a stage.
#[derive(Debug)]
pub struct OneToOne<M> {
    map: M,
    document: Option<Document>,
}

impl<M: Map> OneToOne<M> {
    /// `map` as a stage.
    pub fn new(map: M) -> Self {
        OneToOne { map, document: None }
    }
}

impl<M: Map> Stage for OneToOne<M> {
    fn start(&mut self, document: Document) {
        self.document = Some(document);
    }

    fn next(&mut self) -> Result<Step, StageError> {
        let Some(mut document) = self.document.take() else { return Ok(Step::End) };
        self.map.map(&mut document)?;
        Ok(Step::Next(document))
    }

    fn as_map(&mut self) -> Option<&mut dyn Map> {
        self.document = None;
        Some(&mut self.map)
    }
}

/// Whether the documents that satisfy the rest of a condition are meant, or all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    /// It must hold.
    Must,
    /// Nothing of it may hold.
    MustNot,
}

/// What a document must look like for a stage to be applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Fields. With none the condition holds.
    pub fields: Vec<CompactString>,
    /// Values as text, `None` for `null`. Given: any of the fields holds any of them. Not given: all fields are
    /// present (must), or all are absent (must not).
    pub values: Option<Vec<Option<CompactString>>>,
    /// Must or must not.
    pub operator: Operator,
}

impl Condition {
    /// All of `fields` are present.
    pub fn must_have(fields: &[&str]) -> Self {
        Condition { fields: to_names(fields), values: None, operator: Operator::Must }
    }

    /// All of `fields` are absent.
    pub fn must_not_have(fields: &[&str]) -> Self {
        Condition { fields: to_names(fields), values: None, operator: Operator::MustNot }
    }

    /// Any of `fields` holds any of `values`.
    pub fn must_hold(fields: &[&str], values: &[&str]) -> Self {
        let values = to_names(values).into_iter().map(Some).collect();
        Condition { fields: to_names(fields), values: Some(values), operator: Operator::Must }
    }

    /// None of `fields` holds any of `values`.
    pub fn must_not_hold(fields: &[&str], values: &[&str]) -> Self {
        Condition { operator: Operator::MustNot, ..Condition::must_hold(fields, values) }
    }

    /// Whether `document` satisfies it.
    pub fn holds(&self, document: &Document) -> bool {
        if self.fields.is_empty() {
            return true;
        }
        match (&self.values, self.operator) {
            (None, Operator::Must) => self.fields.iter().all(|field| document.has(field)),
            (None, Operator::MustNot) => !self.fields.iter().any(|field| document.has(field)),
            (Some(values), Operator::Must) => self.holds_any(document, values),
            (Some(values), Operator::MustNot) => !self.holds_any(document, values),
        }
    }

    fn holds_any(&self, document: &Document, values: &[Option<CompactString>]) -> bool {
        let items = self.fields.iter().filter_map(|field| document.get(field)).flat_map(|field| field.items());
        let mut texts = items.map(|item| item.text());
        texts.any(|text| values.iter().any(|value| value.as_deref() == text.as_deref()))
    }
}

/// How several conditions are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ConditionPolicy {
    /// All hold.
    #[default]
    All,
    /// One holds.
    Any,
}

/// Makes instances of a stage.
pub type StageFactory = Arc<dyn Fn() -> Box<dyn Stage> + Send + Sync>;

/// A stage of a pipeline: its name, how its instances are made, and which documents it applies to.
#[derive(Clone)]
pub struct StageSpec {
    /// Name, in errors and metrics.
    pub name: Arc<str>,
    /// Makes an instance, for each worker and again after a panic.
    pub factory: StageFactory,
    /// Documents that do not satisfy them pass by. None: it applies to all.
    pub conditions: Vec<Condition>,
    /// How the conditions are joined.
    pub policy: ConditionPolicy,
}

impl StageSpec {
    /// A stage without conditions.
    pub fn new<S: Stage + 'static>(name: impl Into<Arc<str>>, factory: impl Fn() -> S + Send + Sync + 'static) -> Self {
        let factory: StageFactory = Arc::new(move || Box::new(factory()));
        StageSpec { name: name.into(), factory, conditions: Vec::new(), policy: ConditionPolicy::All }
    }

    /// A stage that edits each document in place; every instance has a clone of `map`.
    pub fn map<F>(name: impl Into<Arc<str>>, map: F) -> Self
    where
        F: FnMut(&mut Document) -> Result<(), StageError> + Clone + Send + Sync + 'static,
    {
        StageSpec::new(name, move || OneToOne::new(map.clone()))
    }

    /// The same stage for the documents that satisfy all of `conditions`.
    pub fn when(mut self, conditions: impl IntoIterator<Item = Condition>) -> Self {
        self.conditions.extend(conditions);
        self
    }

    /// Whether it applies to `document`.
    pub fn applies_to(&self, document: &Document) -> bool {
        let mut conditions = self.conditions.iter();
        match self.policy {
            _ if self.conditions.is_empty() => true,
            ConditionPolicy::All => conditions.all(|condition| condition.holds(document)),
            ConditionPolicy::Any => conditions.any(|condition| condition.holds(document)),
        }
    }
}

impl fmt::Debug for StageSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StageSpec { name, conditions, policy, .. } = self;
        let mut spec = f.debug_struct("StageSpec");
        spec.field("name", name).field("conditions", conditions).field("policy", policy).finish_non_exhaustive()
    }
}

fn to_names(names: &[&str]) -> Vec<CompactString> {
    names.iter().map(|name| CompactString::new(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_follow_the_documented_table() {
        let source = r#"{"id":"d","a":1,"b":["x",null,2.50],"c":null}"#;
        let document = Document::parse(source.into()).unwrap();
        let check = |fields: &[&str], values: Option<&[Option<&str>]>, must: bool, must_not: bool| {
            let values = values.map(|values| values.iter().map(|value| value.map(CompactString::from)).collect());
            for (operator, expect) in [(Operator::Must, must), (Operator::MustNot, must_not)] {
                let condition = Condition { fields: to_names(fields), values: values.clone(), operator };
                assert_eq!(condition.holds(&document), expect, "{condition:?}");
            }
        };
        check(&[], None, true, true);
        check(&[], Some(&[Some("x")]), true, true);
        check(&["a", "b"], None, true, false);
        check(&["a", "n"], None, false, false);
        check(&["n", "m"], None, false, true);
        check(&["c"], None, true, false);
        check(&["a", "b"], Some(&[Some("x")]), true, false);
        check(&["a", "b"], Some(&[Some("y"), Some("2.50")]), true, false);
        check(&["a"], Some(&[Some("1")]), true, false);
        check(&["a"], Some(&[Some("x")]), false, true);
        check(&["n"], Some(&[None]), false, true);
        check(&["c"], Some(&[None]), true, false);
        check(&["b"], Some(&[None]), true, false);
        check(&["a"], Some(&[]), false, true);
    }

    #[test]
    fn a_policy_joins_conditions() {
        let document = Document::parse(r#"{"id":"d","a":1}"#.into()).unwrap();
        let check = |policy, fields: &[&str], expect| {
            let conditions = fields.iter().map(|field| Condition::must_have(&[field]));
            let spec = StageSpec { policy, ..StageSpec::map("s", |_| Ok(())).when(conditions) };
            assert_eq!(spec.applies_to(&document), expect, "{spec:?}");
        };
        check(ConditionPolicy::All, &[], true);
        check(ConditionPolicy::Any, &[], true);
        check(ConditionPolicy::All, &["a", "b"], false);
        check(ConditionPolicy::Any, &["a", "b"], true);
        check(ConditionPolicy::Any, &["b"], false);
    }
}
