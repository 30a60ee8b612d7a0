//! The author's name for autobwd: `bwd = { package = "autobwd", .. }` renames the crate that generated paths begin with.

use proc_macro_crate::{FoundCrate, crate_name};
use proc_macro2::{Group, Ident, Spacing, TokenStream, TokenTree};

/// Replaces `::autobwd` by the name that the author's `Cargo.toml` gives it.
pub(crate) fn to_authors_name(tokens: TokenStream) -> TokenStream {
    match crate_name("autobwd") {
        Ok(FoundCrate::Name(name)) if name != "autobwd" => replace(tokens, &name),
        // Under its own name, in autobwd itself, or reached in a way that `Cargo.toml` does not tell.
        _ => tokens,
    }
}

fn replace(tokens: TokenStream, name: &str) -> TokenStream {
    // Whether the last token was the first half of `::`, and whether it was the second.
    let (mut first_half, mut second_half) = (false, false);
    let renamed = tokens.into_iter().map(|tree| {
        let absolute = second_half;
        second_half = first_half && is_colon(&tree, Spacing::Alone);
        first_half = is_colon(&tree, Spacing::Joint);
        match tree {
            TokenTree::Group(group) => {
                let mut renamed = Group::new(group.delimiter(), replace(group.stream(), name));
                renamed.set_span(group.span());
                renamed.into()
            }
            TokenTree::Ident(ident) if absolute && ident == "autobwd" => {
                Ident::new(name, ident.span()).into()
            }
            tree => tree,
        }
    });
    renamed.collect()
}

fn is_colon(tree: &TokenTree, spacing: Spacing) -> bool {
    matches!(tree, TokenTree::Punct(p) if p.as_char() == ':' && p.spacing() == spacing)
}

#[cfg(test)]
mod tests {
    use quote::quote;

    use super::replace;

    #[test]
    fn absolute_paths_alone_are_replaced() {
        let before = quote!(::autobwd::Op; { autobwd::Op; f(x: ::autobwd::Var) });
        let after = quote!(::bwd::Op; { autobwd::Op; f(x: ::bwd::Var) });
        assert_eq!(replace(before, "bwd").to_string(), after.to_string());
    }
}
