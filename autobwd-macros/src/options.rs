//! Options between the parentheses of an attribute: separated by commas, parsed one by one, with a report of each
//! mistake.
//!
//! Must not know any particular option.

use proc_macro2::{TokenStream, TokenTree};
use syn::{
    Error, Ident, Result, Token,
    ext::IdentExt,
    parse::{Parse, ParseStream, Parser},
    token::Paren,
};

use crate::{ctxt::ErrorSink, text};

/// Calls `read` at the start of every option; a mistake in one does not prevent reading the others.
pub(crate) fn read_each(
    tokens: TokenStream,
    cx: &ErrorSink,
    read: &mut dyn FnMut(ParseStream<'_>) -> Result<()>,
) {
    let read_all = |input: ParseStream<'_>| {
        while !input.is_empty() {
            if let Err(error) = read(input).and_then(|()| end(input)) {
                cx.push(error);
                skip(input)?;
            }
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        Ok(())
    };
    if let Err(error) = read_all.parse2(tokens) {
        cx.push(error);
    }
}

fn end(input: ParseStream<'_>) -> Result<()> {
    if input.is_empty() || input.peek(Token![,]) { Ok(()) } else { Err(input.error("expected `,`")) }
}

fn skip(input: ParseStream<'_>) -> Result<()> {
    while !input.is_empty() && !input.peek(Token![,]) {
        input.parse::<TokenTree>()?;
    }
    Ok(())
}

/// The name of the option, which may be a keyword.
pub(crate) fn key(input: ParseStream<'_>) -> Result<Ident> {
    input.call(Ident::parse_any).map_err(|error| Error::new(error.span(), "expected the name of an option"))
}

/// Reads `= value`; `what` describes the accepted values.
pub(crate) fn value<T: Parse>(key: &Ident, what: &str, input: ParseStream<'_>) -> Result<T> {
    let equals = input.parse::<Option<Token![=]>>()?;
    if equals.is_none() || end(input).is_ok() {
        return Err(Error::new_spanned(key, format!("`{key}` needs a value: `{key} = ..`")));
    }
    let start = input.cursor();
    input.parse().map_err(|error| {
        // A value that starts correctly keeps the error of its own parser.
        let begun = input.cursor() != start;
        if begun { error } else { Error::new(error.span(), format!("`{key}` takes {what}")) }
    })
}

/// Checks that there is no value.
pub(crate) fn flag(key: &Ident, input: ParseStream<'_>) -> Result<()> {
    if input.peek(Token![=]) || input.peek(Paren) {
        return Err(Error::new_spanned(key, format!("`{key}` takes no value")));
    }
    Ok(())
}

/// Sets an option, which may be given once.
pub(crate) fn set<T>(option: &mut Option<T>, key: &Ident, value: T) -> Result<()> {
    if option.replace(value).is_some() {
        return Err(Error::new_spanned(key, format!("`{key}` is given twice")));
    }
    Ok(())
}

/// `takes` describes what the attribute takes, `known` lists the options that a misspelt one may mean.
pub(crate) fn unknown(key: &Ident, attribute: &str, takes: &str, known: &[&str]) -> Error {
    let meant = match text::nearest(&key.to_string(), known) {
        Some(known) => format!("did you mean `{known}`? "),
        None => String::new(),
    };
    Error::new_spanned(key, format!("unknown option `{key}`; {meant}`#[{attribute}]` takes {takes}"))
}
