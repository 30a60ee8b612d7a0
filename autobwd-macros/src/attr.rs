//! Attributes of fields: `#[input]`, `#[output]`, `#[scratch]`, `#[attr]`, `#[attrs]` and `#[block]` with their
//! options.
//!
//! Must not look at more than one field at a time.

use proc_macro2::TokenStream;
use quote::ToTokens;
use syn::{Attribute, Error, Expr, Field, Ident, ItemStruct, LitStr, Meta, Result, parse::ParseStream};

use crate::{
    args::not_empty,
    ast::{AttrLimit, FieldRole, LimitKind},
    ctxt::ErrorSink,
    options, text,
};

const ROLES: [&str; 6] = ["input", "output", "scratch", "attr", "attrs", "block"];
/// Roles of fields that have no name in programs.
const NAMELESS: [&str; 2] = ["scratch", "attrs"];

/// The parsed attribute of a field.
pub(crate) struct FieldAttr {
    pub(crate) role: FieldRole,
    /// The name in programs, if the author sets one.
    pub(crate) name: Option<LitStr>,
}

/// The role of a field, if it has one.
pub(crate) fn read(field: &Field, cx: &ErrorSink) -> Option<FieldAttr> {
    let mut marks = field.attrs.iter().filter_map(|attr| Some((attr, role_of(attr)?)));
    let (attr, role) = marks.next()?;
    for (other, second) in marks {
        let ident = field.ident.to_token_stream();
        let message = if role == second {
            format!("`{ident}` is marked `#[{role}]` twice")
        } else {
            format!("`{ident}` has two roles; keep either `#[{role}]` or `#[{second}]`")
        };
        cx.error(other.path(), message);
        read_mark(other, second, cx);
    }
    Some(read_mark(attr, role, cx))
}

/// The misspelt role attribute of a field without a role.
pub(crate) fn misspelt(field: &Field) -> Option<(&Attribute, &'static str)> {
    field.attrs.iter().find_map(|attr| Some((attr, meant(attr)?)))
}

fn meant(attr: &Attribute) -> Option<&'static str> {
    text::nearest(&attr.path().get_ident()?.to_string(), &ROLES)
}

/// Removes the attributes that only `#[register_op]` understands.
pub(crate) fn strip(item: &mut ItemStruct) {
    for field in &mut item.fields {
        if field.attrs.iter().any(|attr| role_of(attr).is_some()) {
            field.attrs.retain(|attr| role_of(attr).is_none());
        } else {
            // Reported as misspelt; the compiler would report it again.
            field.attrs.retain(|attr| meant(attr).is_none());
        }
    }
}

fn role_of(attr: &Attribute) -> Option<&'static str> {
    ROLES.into_iter().find(|role| attr.path().is_ident(role))
}

fn read_mark(attr: &Attribute, role: &'static str, cx: &ErrorSink) -> FieldAttr {
    let mut options = FieldOptions::default();
    match &attr.meta {
        Meta::Path(_) => {}
        Meta::List(list) => options.read(role, list.tokens.clone(), cx),
        Meta::NameValue(given) => {
            cx.error(given.eq_token, format!("options go between parentheses: `#[{role}(..)]`"));
        }
    }
    options.into_mark(role)
}

/// The options of all roles; `read_option` accepts only those of the role.
#[derive(Default)]
struct FieldOptions {
    name: Option<LitStr>,
    shape_only: Option<()>,
    constant: Option<()>,
    sparse: Option<()>,
    checked: Option<()>,
    array: Option<()>,
    inplace: Option<Ident>,
    like: Option<Ident>,
    default: Option<Expr>,
    bounds: Vec<AttrLimit>,
}

impl FieldOptions {
    fn read(&mut self, role: &str, tokens: TokenStream, cx: &ErrorSink) {
        options::read_each(tokens, cx, &mut |input| self.read_option(role, input));
    }

    fn read_option(&mut self, role: &str, input: ParseStream<'_>) -> Result<()> {
        if input.peek(LitStr) && !NAMELESS.contains(&role) {
            return self.read_name(input);
        }
        let key = options::key(input)?;
        match (role, key.to_string().as_str()) {
            ("input", "shape_only") => {
                options::flag(&key, input)?;
                options::set(&mut self.shape_only, &key, ())
            }
            ("input", "constant") => {
                options::flag(&key, input)?;
                options::set(&mut self.constant, &key, ())
            }
            ("input", "sparse") => {
                options::flag(&key, input)?;
                options::set(&mut self.sparse, &key, ())
            }
            ("input", "checked") => {
                options::flag(&key, input)?;
                options::set(&mut self.checked, &key, ())
            }
            ("input" | "output", "array") => {
                options::flag(&key, input)?;
                options::set(&mut self.array, &key, ())
            }
            ("output", "inplace") => options::set(&mut self.inplace, &key, partner(&key, "an input", input)?),
            ("output", "like") => options::set(&mut self.like, &key, partner(&key, "an input", input)?),
            ("scratch", "like") => options::set(&mut self.like, &key, partner(&key, "a slot", input)?),
            ("attr", "default") => {
                options::set(&mut self.default, &key, options::value(&key, "a value", input)?)
            }
            ("attr", _) if LimitKind::of(&key).is_some() => self.read_bound(key, input),
            _ => Err(unknown(&key, role)),
        }
    }

    fn read_name(&mut self, input: ParseStream<'_>) -> Result<()> {
        let name: LitStr = input.parse()?;
        not_empty(&name)?;
        if self.name.is_some() {
            return Err(Error::new_spanned(name, "a field has one name in programs; remove the second"));
        }
        self.name = Some(name);
        Ok(())
    }

    fn read_bound(&mut self, key: Ident, input: ParseStream<'_>) -> Result<()> {
        let limit = options::value(&key, "a value", input)?;
        if self.bounds.iter().any(|bound| bound.key == key) {
            return Err(Error::new_spanned(&key, format!("`{key}` is given twice")));
        }
        if let Some(kind) = LimitKind::of(&key) {
            self.bounds.push(AttrLimit { kind, key, limit });
        }
        Ok(())
    }

    fn into_mark(self, role: &str) -> FieldAttr {
        let name = self.name;
        let role = match role {
            "input" => FieldRole::Input {
                shape_only: self.shape_only.is_some(),
                constant: self.constant.is_some(),
                sparse: self.sparse.is_some(),
                checked: self.checked.is_some(),
                array: self.array.is_some(),
            },
            "output" => {
                FieldRole::Output { inplace: self.inplace, like: self.like, array: self.array.is_some() }
            }
            "scratch" => FieldRole::Scratch { like: self.like },
            "attr" => FieldRole::Attr { default: self.default, bounds: self.bounds },
            "attrs" => FieldRole::Attrs,
            _ => FieldRole::Block,
        };
        FieldAttr { role, name }
    }
}

fn partner(key: &Ident, of: &str, input: ParseStream<'_>) -> Result<Ident> {
    options::value(key, &format!("the name of {of}'s field"), input)
}

fn unknown(key: &Ident, role: &str) -> Error {
    let known: &[&str] = match role {
        "input" => &["shape_only", "constant", "sparse", "checked", "array"],
        "output" => &["inplace", "like", "array"],
        "scratch" => &["like"],
        "attr" => &["default", "min", "max", "above", "below"],
        _ => &[],
    };
    let takes = match known {
        [one] if NAMELESS.contains(&role) => format!("the option `{one}`"),
        [] if NAMELESS.contains(&role) => "no options".to_string(),
        [] => "a name in quotes".to_string(),
        known => format!("a name in quotes and the options {}", text::list(known)),
    };
    options::unknown(key, role, &takes, known)
}
