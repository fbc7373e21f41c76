//! Emitting children, each made when it is asked for.

use std::borrow::Cow;

use bytes::Bytes;
use compact_str::{CompactString, ToCompactString};

use crate::document::Document;
use crate::stage::{Stage, StageError, StageSpec, Step};
use crate::stages::Template;

/// What children are made of.
///
/// In the template of their ids `{id}` and other names are fields of the parent, `{n}` is the number of the child from
/// 0, and `{child.…}` a field of the element that it is made of.
#[derive(Clone, Debug)]
pub enum ChildSource {
    /// The attached children (`___children`), which are detached. They have ids.
    Attached,
    /// The elements of a field.
    Elements {
        /// The field; it stays.
        field: CompactString,
        /// Ids of the children.
        id: Template,
        /// The field of the child that an element which is no object goes to.
        value_field: CompactString,
    },
    /// A fixed number of empty documents.
    Count {
        /// How many.
        children: u32,
        /// Their ids.
        id: Template,
    },
}

/// Emits children of every document, then the document.
#[derive(Debug)]
pub struct EmitChildren {
    source: ChildSource,
    copied: Vec<CompactString>,
    parent: Option<Document>,
    elements: Elements,
}

#[derive(Debug)]
enum Elements {
    NotRead,
    Texts(std::iter::Enumerate<std::vec::IntoIter<Bytes>>),
    Numbers(std::ops::Range<u32>),
}

impl EmitChildren {
    /// Emits children of `source`; each also has the parent's fields `copied`.
    pub fn spec(name: &str, source: ChildSource, copied: &[&str]) -> StageSpec {
        let copied: Vec<CompactString> = copied.iter().map(|field| CompactString::new(field)).collect();
        StageSpec::new(name, move || EmitChildren {
            source: source.clone(),
            copied: copied.clone(),
            parent: None,
            elements: Elements::NotRead,
        })
    }

    /// Emits the attached children.
    pub fn attached(name: &str) -> StageSpec {
        EmitChildren::spec(name, ChildSource::Attached, &[])
    }

    /// Emits `children` children called `<parent's id>-<n>`.
    pub fn count(name: &str, children: u32) -> StageSpec {
        let id = Template::parse("{id}-{n}").expect("a template");
        EmitChildren::spec(name, ChildSource::Count { children, id }, &[])
    }

    fn read(&mut self, parent: &Document) -> Result<(), StageError> {
        self.elements = match &self.source {
            ChildSource::Attached => Elements::Texts(parent.attached()?.into_iter().enumerate()),
            ChildSource::Elements { field, .. } => Elements::Texts(parent.element_texts(field).into_iter().enumerate()),
            ChildSource::Count { children, .. } => Elements::Numbers(0..*children),
        };
        Ok(())
    }

    fn child(&mut self, parent: &Document) -> Result<Option<Document>, StageError> {
        if let Elements::NotRead = self.elements {
            self.read(parent)?;
        }
        let next = match &mut self.elements {
            Elements::Texts(texts) => texts.next(),
            Elements::Numbers(numbers) => numbers.next().map(|number| (number as usize, Bytes::new())),
            Elements::NotRead => unreachable!("they were read above"),
        };
        let Some((number, json)) = next else { return Ok(None) };
        let mut child = match &self.source {
            ChildSource::Attached => parent.read_child(number, json)?,
            ChildSource::Elements { id, value_field, .. } => element(parent, id, value_field, number, json)?,
            ChildSource::Count { id, .. } => parent.child(render(id, parent, number, None))?,
        };
        for field in &self.copied {
            child.copy_from(parent, field, field)?;
        }
        Ok(Some(child))
    }
}

impl Stage for EmitChildren {
    fn start(&mut self, document: Document) {
        self.parent = Some(document);
        self.elements = Elements::NotRead;
    }

    fn next(&mut self) -> Result<Step, StageError> {
        let Some(mut parent) = self.parent.take() else { return Ok(Step::End) };
        if let Some(child) = self.child(&parent)? {
            self.parent = Some(parent);
            return Ok(Step::Next(child));
        }
        if let ChildSource::Attached = self.source {
            parent.remove_children();
        }
        Ok(Step::Next(parent))
    }
}

/// The child that an element of a list becomes. Reserved fields of the element mean nothing.
fn element(
    parent: &Document,
    id: &Template,
    value_field: &str,
    number: usize,
    json: Bytes,
) -> Result<Document, StageError> {
    let is_object = json.starts_with(b"{");
    let json = if is_object { json } else { [b"{\"\":", &json[..], b"}"].concat().into() };
    let element = Document::parse_with_id(json, "element")?;
    let mut child = parent.child(render(id, parent, number, Some(&element)))?;
    if is_object {
        for (field, _) in element.fields() {
            child.copy_from(&element, field, field)?;
        }
    } else {
        child.copy_from(&element, "", value_field)?;
    }
    Ok(child)
}

fn render(id: &Template, parent: &Document, number: usize, element: Option<&Document>) -> String {
    id.render(|name| match (name, name.strip_prefix("child."), element) {
        ("n", _, _) => Some(Cow::Owned(number.to_compact_string().into_string())),
        (_, Some(field), Some(element)) => element.get_str(field).map(|text| Cow::Owned(text.into_owned())),
        _ => parent.get_str(name).map(|text| Cow::Owned(text.into_owned())),
    })
}
