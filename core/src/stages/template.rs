//! Text with places for fields: `{first_name} {last_name}`.

use std::borrow::Cow;

use compact_str::CompactString;

/// Text with places for fields. `{{` and `}}` stand for braces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Field(CompactString),
}

/// A template that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// An opening brace that nothing closes.
    #[error("the `{{` at byte {at} of `{text}` is not closed: write `{{{{` for a brace")]
    NotClosed {
        /// The template.
        text: String,
        /// Where the brace is.
        at: usize,
    },
    /// A closing brace that closes nothing.
    #[error("the `}}` at byte {at} of `{text}` closes nothing: write `}}}}` for a brace")]
    NotOpened {
        /// The template.
        text: String,
        /// Where the brace is.
        at: usize,
    },
    /// A place without a name.
    #[error("the place at byte {at} of `{text}` names no field")]
    NoName {
        /// The template.
        text: String,
        /// Where its brace is.
        at: usize,
    },
}

impl Template {
    /// Reads a template.
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        let mut parts = Vec::new();
        let mut plain = String::new();
        let mut at = 0;
        while let Some(found) = text[at..].find(['{', '}']) {
            let brace = at + found;
            plain.push_str(&text[at..brace]);
            let (open, rest) = (text.as_bytes()[brace] == b'{', &text[brace + 1..]);
            if rest.starts_with(if open { '{' } else { '}' }) {
                plain.push(if open { '{' } else { '}' });
                at = brace + 2;
                continue;
            }
            if !open {
                return Err(TemplateError::NotOpened { text: text.into(), at: brace });
            }
            let end = rest.find('}').ok_or_else(|| TemplateError::NotClosed { text: text.into(), at: brace })?;
            if end == 0 {
                return Err(TemplateError::NoName { text: text.into(), at: brace });
            }
            parts.push(Part::Text(std::mem::take(&mut plain)));
            parts.push(Part::Field(rest[..end].into()));
            at = brace + 1 + end + 1;
        }
        plain.push_str(&text[at..]);
        parts.push(Part::Text(plain));
        Ok(Template(parts))
    }

    /// The text, with what `field` gives in each place; nothing where it gives none.
    pub fn render<'a>(&self, field: impl Fn(&str) -> Option<Cow<'a, str>>) -> String {
        let mut out = String::with_capacity(64);
        for part in &self.0 {
            match part {
                Part::Text(text) => out.push_str(text),
                Part::Field(name) => out.push_str(field(name).as_deref().unwrap_or_default()),
            }
        }
        out
    }
}
