//! Stages that come with the pipeline: editing fields, dropping and skipping, emitting children, and failing or being
//! slow on demand for scenarios.
//!
//! Each is a small type whose `spec` gives the [`StageSpec`]. Conditions are added with [`StageSpec::when`].

mod children;
mod faults;
mod fields;
mod template;

#[cfg(test)]
mod tests;

use compact_str::CompactString;

pub use children::{ChildSource, EmitChildren};
pub use faults::{FailOn, Fault, Sleeper, SlowOn, sleeper};
pub use fields::{Concatenate, CopyFields, RenameFields, SetStatic, TrimWhitespace};
pub use template::{Template, TemplateError};

use crate::document::Document;
use crate::stage::StageSpec;

/// Which documents a stage of this module acts on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// All.
    Always,
    /// Those with this field.
    Has(CompactString),
    /// Those with this field, one of whose values has this text.
    Holds(CompactString, CompactString),
    /// Those with this id.
    Id(CompactString),
}

impl Trigger {
    /// Documents with `field`.
    pub fn has(field: &str) -> Self {
        Trigger::Has(field.into())
    }

    /// Documents one of whose values of `field` has the text `value`.
    pub fn holds(field: &str, value: &str) -> Self {
        Trigger::Holds(field.into(), value.into())
    }

    /// The document `id`.
    pub fn id(id: &str) -> Self {
        Trigger::Id(id.into())
    }

    /// Whether `document` is meant.
    pub fn meets(&self, document: &Document) -> bool {
        match self {
            Trigger::Always => true,
            Trigger::Has(field) => document.has(field),
            Trigger::Holds(field, value) => {
                let items = document.get(field).map_or_else(Vec::new, |field| field.items());
                items.into_iter().any(|item| item.text().as_deref() == Some(value.as_str()))
            }
            Trigger::Id(id) => document.id() == id,
        }
    }
}

/// Drops documents: they pass no further stage and are not indexed.
#[derive(Clone, Debug)]
pub struct DropIf;

impl DropIf {
    /// Drops the documents that `trigger` means.
    pub fn spec(name: &str, trigger: Trigger) -> StageSpec {
        StageSpec::map(name, move |document| {
            if trigger.meets(document) {
                document.mark_dropped();
            }
            Ok(())
        })
    }
}

/// Skips documents: they pass no further stage and are indexed as they are.
#[derive(Clone, Debug)]
pub struct SkipIf;

impl SkipIf {
    /// Skips the documents that `trigger` means.
    pub fn spec(name: &str, trigger: Trigger) -> StageSpec {
        StageSpec::map(name, move |document| {
            if trigger.meets(document) {
                document.mark_skipped();
            }
            Ok(())
        })
    }
}
